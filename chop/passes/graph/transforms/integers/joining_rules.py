"""Rules of ops that combine several values: arithmetic, and one after the other."""

from __future__ import annotations

from typing import Any

from torch import fx

from chop.integers import AddCodes, ConcatCodes, IntegerOp, MultiplyCodes, SubtractCodes, Word
from chop.passes.graph.transforms.integers.converter import (
    Converter,
    NodeCall,
    Rule,
    converts,
    shape_of,
)
from chop.passes.graph.transforms.integers.values import Constant, Known, Unrounded, Value


def combine(op: IntegerOp, align: bool) -> Rule:
    """Return the rule of a sum, a difference or a product of two values."""

    def rule(call: NodeCall, to: Converter) -> Value:
        if call.setting("alpha", 1) != 1:
            raise call.refusal("multiplies its second operand with alpha; write the product out")
        pair = [*call.node.args, *(v for k, v in call.node.kwargs.items() if k == "other")][:2]
        values = [to.known(source, call) for source in pair]
        if len(values) != 2:
            raise call.refusal("needs two operands; give both")
        _check_batches(call, pair)
        values = to.aligned(values, call) if align else values
        return to.add(call.node.name, op, [value.name for value in values], call.node)

    return rule


def _check_batches(call: NodeCall, pair: list[Any]) -> None:
    """Refuse operands of different ranks, as the batch of one would meet a channel of the other."""
    ranks = {len(shape_of(x)) for x in pair if isinstance(x, fx.Node) and x.op != "get_attr"}
    if len(ranks) > 1:
        raise call.refusal("combines values of different ranks; reshape them to the same")


@converts("cat", "concat")
def concat(call: NodeCall, to: Converter) -> Value:
    """Return values one after the other."""
    tensors = call.node.args[0] if call.node.args else call.node.kwargs["tensors"]
    assert isinstance(tensors, list | tuple)
    rank = len(shape_of(call.node))
    dim = call.setting("dim", call.setting("axis", 0)) % rank
    if dim == 0:
        raise call.refusal("joins batches; join channels instead")
    values = [to.operand(source, call) for source in tensors]
    if any(isinstance(value, Unrounded) and value.exact is None for value in values):
        return _joined_later(values, dim, call, to)
    known = [to.known(source, call) for source in tensors]
    if all(to.codes(value).scale.exact for value in known):
        known = to.aligned(known, call)
    return to.add(call.node.name, ConcatCodes(dim), [value.name for value in known], call.node)


def _joined_later(values: list[Value], dim: int, call: NodeCall, to: Converter) -> Value:
    """Join values once a reader has rounded them."""
    parts = [value for value in values if not isinstance(value, Constant)]
    if len(parts) < len(values):
        raise call.refusal("joins a constant and a float value; quantise the value first")

    def rounded(word: Word) -> Known:
        name = call.node.name
        known = [to.in_word(part, word, f"{name}_{i}", call) for i, part in enumerate(parts)]
        return to.add(name, ConcatCodes(dim), [value.name for value in known], call.node)

    return Unrounded(rounded, "values that are joined")


converts("AddCodes")(combine(AddCodes(), align=True))
converts("SubtractCodes")(combine(SubtractCodes(), align=True))
converts("MultiplyCodes")(combine(MultiplyCodes(), align=False))
