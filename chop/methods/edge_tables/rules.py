"""Layers of truth tables on edges."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.integers import Scale, Word
from chop.methods.edge_tables import EdgeTable, FrozenEdgeTable
from chop.methods.edge_tables.ops import EdgeRounding, EdgeTables, QuantizeFeatures
from chop.numerics.grid import Overflow, Rounding
from chop.passes.graph.transforms.integers.converter import Converter, NodeCall, converts, shape_of
from chop.passes.graph.transforms.integers.values import Known, Unrounded, Value

MAX_BITS = 48  # of a code of the network's input, and of an entry on the grid of the outputs


@converts("edge_table")
def edge_table(call: NodeCall, to: Converter) -> Value:
    """Return the sums of a layer of tables on edges."""
    layer = call.module
    assert isinstance(layer, EdgeTable | FrozenEdgeTable)
    try:
        frozen = layer.frozen()
    except ValueError as error:
        raise call.refusal(f"has no tables: {error}") from error
    source = _rounded_input(frozen, call, to)
    i, o = torch.nonzero(frozen.in_width.cpu(), as_tuple=True)
    width, frac, out_frac = (
        t.cpu()[i, o].long() for t in (frozen.in_width, frozen.in_frac, frozen.out_frac)
    )
    grid = frozen.result_frac()
    far = grid - int(out_frac.min()) if len(i) else 0
    if far + int(frozen.out_width.max()) > MAX_BITS:
        raise call.refusal(f"adds tables whose steps differ by {far} bits; use closer formats")
    rule = (frozen.signed, frozen.rounding, frozen.overflow)
    op = EdgeTables(
        *(i, o, EdgeRounding(width, -frac, *rule)),
        frozen.entries.cpu()[i, o].long() << (grid - out_frac)[:, None],
        frozen.bias_codes.cpu() << (grid - frozen.bias_frac),
        Scale.power(-grid),
    )
    return to.add(call.node.name, op, [source.name], call.node)


def _rounded_input(layer: FrozenEdgeTable, call: NodeCall, to: Converter) -> Known:
    """Return the codes that the edges round further; a float is rounded to the finest of them."""
    value = to.value_of(call.source, call)
    if not isinstance(value, Unrounded):
        return to.uniform(to.known(call.source, call), call)
    word = _finest(layer, call)
    if call.source.op != "placeholder" or word.wraps:
        return value.in_word(word)
    name, shape = str(call.source.target), shape_of(call.source)[1:]
    op = QuantizeFeatures(word, shape, None, *_feature_ends(layer, word))
    return to.add(f"{call.source.name}_codes", op, [name], call.source)


def _finest(layer: FrozenEdgeTable, call: NodeCall) -> Word:
    """Return a word from which every edge can round on to its own.

    Rounding down twice is rounding down once, and so is rounding up after a rounding down that
    keeps one bit more.
    """
    used = layer.in_width > 0
    fracs, widths = (t[used] for t in (layer.in_frac, layer.in_width))
    frac = int(fracs.max()) if len(fracs) else 0
    whole = int((widths - fracs).max()) if len(fracs) else 1
    if layer.rounding == "even":
        if len(set(fracs.tolist())) > 1:
            raise call.refusal(
                "rounds one float to several grids with ties to even; use the rounding floor or up"
            )
    elif layer.rounding == "up":
        # room for what rounds up to the lowest code, and for sums of halves
        frac, whole = frac + 1, whole + 1
    width = frac + whole
    if width > MAX_BITS:
        raise call.refusal(f"rounds one float to grids of {width} bits in all; use closer formats")
    low = -(2 ** (width - 1)) if layer.signed else 0
    rounding: Rounding = "even" if layer.rounding == "even" else "floor"
    overflow: Overflow = "wrap" if layer.overflow == "wrap" else "saturate"
    rule = (rounding, overflow)
    return Word(low, low + 2**width - 1, Scale.power(-frac), width, layer.signed, *rule)


def _feature_ends(layer: FrozenEdgeTable, word: Word) -> tuple[Tensor, Tensor]:
    """Return the lowest and the highest code of each feature that makes a difference."""
    frac = -int(word.scale.exponent)
    used = layer.in_width.cpu() > 0
    reach = (layer.in_width - layer.in_frac - int(layer.signed)).cpu().long() + frac
    # beyond the ends of the widest edge, no code is another one; rounding up needs a step more
    more = int(layer.rounding != "floor")
    reach = torch.where(used, reach + more, 0).amax(1)
    high = torch.where(used.any(1), (torch.ones_like(reach) << reach.clamp(0, 62)) - 1, 0)
    low = torch.where(used.any(1), -high - 1, 0) if layer.signed else torch.zeros_like(high)
    return low.clamp(word.low, word.high), high.clamp(word.low, word.high)
