"""LUTNet layers: signs, a table for each product, and sums."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from chop.integers import (
    AvgPoolCodes,
    ChannelAffine,
    Codes,
    NeuronTables,
    PadCodes,
    PermuteCodes,
    QuantizeInput,
    ReshapeCodes,
    Scale,
    Word,
)
from chop.integers.codes import bits_for
from chop.integers.rounding import SINGLE
from chop.methods.lutnet.layers import LUTNet
from chop.methods.lutnet.ops import ResidualSigns
from chop.passes.graph.transforms.integers.converter import Converter, NodeCall, converts, shape_of
from chop.passes.graph.transforms.integers.neurons import TABLE_BITS, NeuronLayout
from chop.passes.graph.transforms.integers.values import (
    CodesOf,
    Known,
    Tabled,
    Unrounded,
    Value,
    tabled_value,
)
from chop.passes.graph.transforms.integers.weights import check_finite

MULTIPLIER_BITS = 28  # of a level's scale
ENTRY_BITS = 24  # of tables that are not binarised
MAX_ENTRIES = 2**22  # of the tables of all sums


@converts("linear_lutnet", "conv2d_lutnet")
def lutnet(call: NodeCall, to: Converter) -> Value:
    """Return the results of a LUTNet layer: tables of their sums, or the sums times scales."""
    layer = call.module
    assert isinstance(layer, LUTNet)
    _check(layer, call)
    sums = _sums(layer, call, to)

    def exact() -> Known:
        return _scaled(sums, call, to)

    if not sums.few:
        return exact()
    return tabled_value(sums.tabled(call, to), call.node.name, "the result of a lutnet", exact)


def _check(layer: LUTNet, call: NodeCall) -> None:
    """Refuse parameters without a code."""
    try:
        for name, parameter in layer.named_parameters():
            check_finite(parameter, name)
    except ValueError as error:
        raise call.refusal(str(error)) from error
    if not bool(((layer.pruning_masks == 0) | (layer.pruning_masks == 1)).all()):
        raise call.refusal("has a pruning mask with other numbers than 0 and 1; use these")


@dataclass(frozen=True, eq=False)
class LevelSums:
    """Sums of table entries, [levels · results, 1], and what they mean in the layer."""

    layer: LUTNet
    known: Known
    layout: NeuronLayout
    width: int  # bits of a sum
    step: float  # sum of the layer = code · step + offset
    offset: Tensor  # [neurons]

    @property
    def few(self) -> bool:
        """Whether tables of all levels' sums are small enough."""
        bits = self.width * self.layer.levels
        entries = self.layer.num_neurons << min(bits, 60)
        return self.layer.binarized and bits <= TABLE_BITS and entries <= MAX_ENTRIES

    def values(self, index: Tensor) -> Tensor:
        """[indices, neurons]: results of the layer, as it computes them in float32."""
        mask = (1 << self.width) - 1
        digits = [(index >> place * self.width) & mask for place in range(self.layer.levels)]
        sums = [(digit[:, None] * self.step + self.offset).float() for digit in digits]
        with torch.no_grad():
            device = self.layer.weight.device
            return self.layer.combined([each.to(device) for each in sums]).float().cpu()

    def tabled(self, call: NodeCall, to: Converter) -> Tabled:
        """Return what makes tables of functions of the layer's results."""
        layer, layout = self.layer, self.layout
        results, rank = len(layout.neuron), len(layout.shape)
        reads = torch.arange(results)[:, None] + results * torch.arange(layer.levels)

        def tabled(name: str, codes_of: CodesOf, scale: Scale) -> Known:
            values = self.values(torch.arange(1 << self.width * layer.levels))
            # the channels are where they are in results of the layer
            ones = [1] * (rank - 1)
            row = (-1, *ones) if call.op == "conv2d" else (*ones, -1)
            codes = codes_of(values.view(len(values), *row)).view(values.shape)
            tables = codes.T.int().contiguous()
            op = NeuronTables(reads, layout.neuron, tables, self.width, scale, layout.shape)
            return to.add(name, op, [self.known.name], call.node)

        return tabled


def _sums(layer: LUTNet, call: NodeCall, to: Converter) -> LevelSums:
    """Return the sums of the entries that each neuron looks up, level by level."""
    shape = shape_of(call.source)[1:]
    layout = NeuronLayout.of(layer, shape)
    signs = _signs(layer, call, to)
    reads = _reads(layer, layout, shape)
    if bool((reads == _one(layer, shape)).any()):
        signs = _with_one(signs, layer, shape, call, to)
    entries, step = _entries(layer)
    product = torch.arange(layer.num_neurons * layer.num_inputs).view(-1, layer.num_inputs)
    levels = torch.arange(layer.levels)[:, None, None] * product.numel()
    chosen = (product[layout.neuron] + levels).flatten()
    sizes = (layer.levels * len(layout.neuron), layer.num_inputs)
    op = NeuronTables(reads, chosen, entries, 1, Scale.power(0), sizes)
    name, node = call.node.name, call.node
    looked_up = to.add(f"{name}_tables", op, [signs.name], node)
    inputs = (layer.num_inputs,)
    pool = AvgPoolCodes(inputs, inputs, (0,), divisor=1)
    total = to.add(f"{name}_sums", pool, [looked_up.name], node)
    offset = torch.zeros(layer.num_neurons)
    if layer.binarized:  # 0 and 1 instead of -1 and 1
        offset = -layer.pruning_masks.sum(1).cpu()
    codes = to.codes(total)
    width = bits_for(codes.lowest, codes.highest)
    return LevelSums(layer, total, layout, width, step, offset)


def _entries(layer: LUTNet) -> tuple[Tensor, float]:
    """Return the tables in integers, without those of pruned products, and their step.

    Entries that are not binarised are multiplied by the scale of their level.
    """
    values = layer.table_values().detach().cpu().double()
    kept = layer.pruning_masks.cpu().flatten().repeat(layer.levels)[:, None]
    if layer.binarized:
        return ((values > 0) * kept).int(), 2.0
    scales = _scales(layer).repeat_interleave(kept.numel() // layer.levels)
    values = values * kept * scales[:, None]
    exponent = math.frexp(max(float(values.abs().max()), 2.0**-100))[1] - ENTRY_BITS
    return torch.ldexp(values, torch.tensor(-exponent)).round().int(), 2.0**exponent


def _scales(layer: LUTNet) -> Tensor:
    """[levels]: what a sum of each level is multiplied with."""
    with torch.no_grad():
        return (layer.means.double() * layer.gamma.double()).abs().cpu()


def _one(layer: LUTNet, shape: tuple[int, ...]) -> int:
    """Return the position of the constant 1, after the signs of all levels."""
    return layer.levels * math.prod(shape)


def _reads(layer: LUTNet, layout: NeuronLayout, shape: tuple[int, ...]) -> Tensor:
    """[levels · results · inputs, k]: positions among the signs, with the first input last."""
    count = torch.Size(shape).numel()
    seen = layer.seen_inputs().cpu().view(layer.num_neurons, layer.num_inputs, layer.k).flip(-1)
    places = layout.places[layout.row[:, None, None], seen[layout.neuron]]
    masks = layer.pruning_masks.cpu()[layout.neuron] != 0
    zero = [int(sign) for sign in layer.signs(layer.weight.new_zeros(1))]
    levels = []
    for level in range(layer.levels):
        padding = _one(layer, shape) if zero[level] > 0 else -1
        where = torch.where(places < 0, padding, places + level * count)
        levels.append(torch.where(masks[..., None], where, -1))
    return torch.stack(levels).view(-1, layer.k)


def _with_one(
    signs: Known, layer: LUTNet, shape: tuple[int, ...], call: NodeCall, to: Converter
) -> Known:
    """Append a constant 1 to the signs, which padding has."""
    name, node = call.node.name, call.node
    flat = to.add(f"{name}_flat", ReshapeCodes((_one(layer, shape),)), [signs.name], node)
    return to.add(f"{name}_padded", PadCodes((0, 1), code=1), [flat.name], node)


def _signs(layer: LUTNet, call: NodeCall, to: Converter) -> Known:
    """Return the signs of the input, level by level."""
    value = to.value_of(call.source, call)
    name = f"{call.node.name}_signs"
    if isinstance(value, Unrounded) and value.tabled is not None:
        counted = value.tabled(name, lambda x: region(layer, x), Scale.power(0))
        if layer.levels == 1:
            return counted
        split = ResidualSigns(torch.arange(1, 2**layer.levels))
        return to.add(f"{name}_levels", split, [counted.name], call.node)
    if call.source.op == "placeholder":
        return _input_signs(layer, call, to)
    if isinstance(value, Unrounded) and value.exact is not None:
        value = value.exact()
    if not isinstance(value, Known):
        what = getattr(value, "what", "a constant")
        raise call.refusal(f"takes the signs of {what} in float; give it data_out_width and so on")
    source = to.uniform(value, call)
    thresholds, single = _thresholds(layer, to.codes(source))
    return to.add(name, ResidualSigns(thresholds, single), [source.name], call.node)


class SignsOfInput(nn.Module):
    """The signs of an input of the network: as numbers from -1, in steps of one region."""

    def __init__(self, layer: LUTNet) -> None:
        super().__init__()
        self.layer = copy.deepcopy(layer)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        half = 1 << (self.layer.levels - 1)
        numbers: Tensor = region(self.layer, x).to(x) - half
        return numbers / half


def _input_signs(layer: LUTNet, call: NodeCall, to: Converter) -> Known:
    """Return the signs of an input of the network, which are found in float."""
    half = 1 << (layer.levels - 1)
    node, name = call.source, str(call.source.target)
    word = Word(-half, half - 1, Scale.of(1 / half), layer.levels, signed=True)
    op = QuantizeInput(word, shape_of(node)[1:], SignsOfInput(layer))
    codes = to.add(f"{node.name}_codes", op, [name], call.node)
    split = ResidualSigns(torch.arange(1 - half, half))
    to.integers.notes.append(f"{call.node.name}: the signs of the input are found in float")
    return to.add(f"{call.node.name}_signs", split, [codes.name], call.node)


def _thresholds(layer: LUTNet, codes: Codes) -> tuple[Tensor, bool]:
    """Return the first code that reaches each region, and whether float32 holds all codes."""
    single = codes.scale.power_of_two and codes.largest <= SINGLE
    number = torch.arange(1, 2**layer.levels)
    low = torch.full_like(number, codes.lowest)
    high = torch.full_like(number, codes.highest + 1)
    while bool((low < high).any()):
        middle = low + ((high - low) >> 1)
        x = codes.values(middle)
        reached = (region(layer, x.float() if single else x) >= number) | (low >= high)
        low, high = torch.where(reached, low, middle + 1), torch.where(reached, middle, high)
    return low, single


def region(layer: LUTNet, x: Tensor) -> Tensor:
    """Return the signs of each level as bits of an integer, the first as the highest."""
    found = torch.zeros(x.shape, dtype=torch.int64)
    with torch.no_grad():
        for sign in layer.signs(x.to(layer.weight.device)):
            found = 2 * found + (sign > 0).cpu()
    return found


def _scaled(sums: LevelSums, call: NodeCall, to: Converter) -> Known:
    """Return the sums times the scale of each level, and the bias, on a common grid."""
    layer, layout = sums.layer, sums.layout
    scales = _scales(layer) if layer.binarized else torch.ones(layer.levels).double()
    largest = math.frexp(max(float(scales.max()) * sums.step, 2.0**-100))[1]
    exponent = largest - (MULTIPLIER_BITS if layer.binarized else 1)
    bias = 0 if layer.bias is None else layer.bias.detach().cpu().double()
    offset = scales.sum() * sums.offset.double() + bias
    # all offsets are added in the first level
    offsets = torch.stack([offset, *[torch.zeros_like(offset)] * (layer.levels - 1)])
    multipliers = (scales * sums.step)[:, None].expand(-1, layer.num_neurons)
    whole = [torch.ldexp(x, torch.tensor(-exponent)).round() for x in (multipliers, offsets)]
    if bool((whole[1].abs() >= 2.0**62).any()):
        raise call.refusal("has a bias of more than 63 bits beside its scales; train it again")
    multiplier, added = (x.long()[:, layout.neuron].flatten() for x in whole)
    name, node, levels = call.node.name, call.node, layer.levels
    results = len(layout.neuron)
    op = ChannelAffine(multiplier, added, Scale.power(exponent))
    value = to.add(f"{name}_scaled", op, [sums.known.name], node)
    if levels > 1:
        for label, moved in (
            ("levels", ReshapeCodes((levels, results))),
            ("results", PermuteCodes((0, 2, 1))),
            ("total", AvgPoolCodes((levels,), (levels,), (0,), divisor=1)),
        ):
            value = to.add(f"{name}_{label}", moved, [value.name], node)
    return to.add(name, ReshapeCodes(layout.shape), [value.name], node)
