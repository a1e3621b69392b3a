"""Every integer op is known to everything that reads integer graphs, or named here as left out."""

import importlib

import pytest

from chop import extensions, integers
from chop.integers import (
    ConcatCodes,
    IntegerOp,
    LinearCodes,
    NeuronTables,
    PickCodes,
    QuantizeInput,
)
from chop.methods.edge_tables.ops import EdgeTables, QuantizeFeatures
from chop.methods.lutnet.ops import ResidualSigns
from chop.registry import ByClass

PORTS = {QuantizeInput, QuantizeFeatures}  # whoever feeds a circuit rounds its inputs
HOMES = [integers, *map(importlib.import_module, extensions.modules_of_methods("ops"))]
OPS = {
    value
    for home in HOMES
    for value in vars(home).values()
    if isinstance(value, type) and issubclass(value, IntegerOp) and not value.__abstractmethods__
}
LEFT_OUT = {
    "chop.hardware.estimate.ops:FORMULAS": set(),
    "chop.hardware.streaming:COMPONENTS": PORTS
    | {ConcatCodes, EdgeTables, NeuronTables, PickCodes, ResidualSigns},
    "chop.hardware.unrolled.registry:UNROLLED": PORTS,
    "chop.onnx.integers.registry:WRITERS": set(),
}


@pytest.fixture(params=LEFT_OUT)
def registry(request) -> ByClass:
    home, name = request.param.split(":")
    found = getattr(importlib.import_module(home), name)
    assert isinstance(found, ByClass)
    return found


def test_every_op_is_known_or_left_out_on_purpose(registry, request):
    left_out = LEFT_OUT[request.node.callspec.params["registry"]]
    assert {op for op in OPS if op not in registry} == left_out
    for op in left_out:
        with pytest.raises(KeyError, match=f"^{op.__name__} has no {registry.kind}; "):
            registry[op]


def test_an_op_that_is_derived_from_another_is_known_as_that_one(registry):
    class Derived(LinearCodes):
        """A linear op of a user."""

    assert registry[Derived] is registry[LinearCodes]


def test_an_op_has_one_entry(registry):
    with pytest.raises(ValueError, match=r"'LinearCodes' registered twice: .*; keep one of them"):
        registry.register(LinearCodes)(test_an_op_has_one_entry)
