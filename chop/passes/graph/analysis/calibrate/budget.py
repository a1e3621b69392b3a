"""How many samples the error of the output can be measured on in a reasonable time."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import TensorMeta, mase
from chop.passes.graph.analysis.cost.cost import operations_of
from chop.passes.graph.describe.interpreter import device_of
from chop.passes.graph.transforms.quantize.marks import OPERANDS
from chop.passes.graph.transforms.quantize.observed import places

RUNS = 4  # of the whole network, for the candidates of one operand
# Counts, and not seconds, so that the same data give the same numbers on every machine.
MAX_OPERATIONS = 2e12  # about half a minute on two cores
GPU_SPEEDUP = 32
MIN_SAMPLES = 4  # fewer say too little about the output


def affordable_samples(graph: MaseGraph, nodes: Iterable[fx.Node]) -> int:
    """Return how many samples there is time for if all operands of `nodes` are calibrated.

    It is 0 if these are too few to choose by.
    """
    operands = sum(any(places(node, o, "integer")) for node in nodes for o in OPERANDS[:-1])
    speed = 1 if device_of(graph.model).type == "cpu" else GPU_SPEEDUP
    total = max(operands * RUNS * _operations_per_sample(graph), 1)
    samples = int(speed * MAX_OPERATIONS // total)
    return samples if samples >= MIN_SAMPLES else 0


def _operations_per_sample(graph: MaseGraph) -> float:
    """Return the operations of a forward pass; ops without a rule cost nothing."""
    operations = sum(
        operations_of(node) or 0
        for node in graph.nodes
        if node.op not in ("placeholder", "get_attr", "output")
    )
    return operations / _batch_size(graph)


def _batch_size(graph: MaseGraph) -> int:
    """Return the number of samples that the shapes in the metadata are for."""
    for node in graph.inputs:
        for tensor in mase(node).common.get("results", {}).values():
            if isinstance(tensor, TensorMeta) and tensor.shape:
                return max(int(tensor.shape[0]), 1)
    return 1
