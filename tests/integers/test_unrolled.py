"""The logic of an unrolled circuit computes every op of an integer graph, for every rule."""

import pytest
import torch

from chop.hardware.unrolled import layer_logic, layers_of
from chop.hardware.unrolled.checking import expected_codes, logic_codes

from .checking import BY_NAME, CASES, RULES, prepare

pytestmark = pytest.mark.rtl
# each op with some of the rules, so that each rule meets about as many ops
# an accumulator of 60 bits is refused
NARROW = [case for case in CASES if case.name != "wide"]
SOME = [(case, RULES[4 * i % 9]) for i, case in enumerate(NARROW)]
ROUNDING = ("two linear", "concat with the input", "fine bias")


def mismatches(graph, x):
    """Return how many codes differ from those of the integer graph, layer by layer."""
    known = graph.trace(x)
    count = len(x)
    known = {name: codes.expand(count, *codes.shape[1:]) for name, codes in known.items()}
    wrong = 0
    for layer in layers_of(graph):
        made = layer_logic(graph, layer)
        expected = torch.cat([known[name].reshape(count, -1) for name in layer.outputs], 1)
        codes = logic_codes(layer, made.logic, made.constants, known)
        wrong += int((codes != expected).sum())
        assert torch.equal(expected_codes(layer, known), expected)
    return wrong


@pytest.mark.parametrize(
    ("case", "rule"), SOME, ids=[f"{case.name}, {'/'.join(rule)}" for case, rule in SOME]
)
def test_logic_computes_what_the_integer_graph_does(case, rule):
    prepared = prepare(case, *rule, count=60)
    assert mismatches(prepared.integers, prepared.inputs) == 0


@pytest.mark.parametrize("name", ROUNDING)
@pytest.mark.parametrize("rule", RULES, ids="/".join)
def test_logic_rounds_and_overflows_by_every_rule(name, rule):
    prepared = prepare(BY_NAME[name], *rule, count=60)
    assert mismatches(prepared.integers, prepared.inputs) == 0
