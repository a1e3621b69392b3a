"""Write a test bench of a circuit for cocotb."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from chop.hardware.testbench import TimeUnit, write_bench
from chop.integers import IntegerGraph
from chop.integers.vectors import boundary_inputs, input_words, random_inputs
from chop.ir.graph.mase_graph import MaseGraph
from chop.options import PositiveFloat
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.describe.batches import batches, check_count, check_generator
from chop.passes.graph.transforms.verilog.emission import emission_of
from chop.passes.options import OutputPath

logger = logging.getLogger(__name__)


@graph_pass("emit_cocotb", "transform", needs=("common", "hardware"))
def emit_cocotb_transform_pass(
    graph: MaseGraph,
    *,
    project_dir: OutputPath | None = None,
    wait_time: PositiveFloat = 100.0,
    wait_unit: TimeUnit = "ms",
    batch_size: Annotated[int, Ge(1)] = 10,
    input_generator: Any = None,
) -> dict[str, Any]:
    """Write a cocotb test bench to `hardware/test/mase_top_tb`: `test.py` and `vectors.json`.

    It sends `batch_size` samples from `input_generator`, which yields dicts of inputs, or random
    ones, then boundary vectors, and compares every code with the integer graph. A test fails after
    `wait_time` of simulated time, in `wait_unit`. `project_dir` is the one of emit_verilog_top. A
    `test.py` that was changed by hand is kept.
    """
    emission = emission_of(graph, "emit_cocotb", project_dir)
    if emission.missing:
        passes = " and ".join(f"{name}_transform_pass" for name in emission.missing)
        raise PassArgsError(f"a test bench needs the whole circuit; run {passes} first")
    integers, circuit = emission.integers, emission.circuit
    floats = _samples(graph, integers, input_generator, batch_size)
    codes = integers.trace(*floats)
    bench = write_bench(
        circuit,
        [codes[port.value] for port in circuit.inputs],
        [codes[port.value] for port in circuit.outputs],
        emission.project,
        wait_time=wait_time,
        wait_unit=wait_unit,
    )
    logger.info("Emitted the test bench with %d samples to %s", len(floats[0]), bench)
    return {"project_dir": str(emission.project.folder), "samples": len(floats[0])}


def _samples(graph: MaseGraph, integers: IntegerGraph, generator: Any, count: int) -> list[Tensor]:
    """Return a batch per input: data or random samples, then boundary vectors."""
    words = input_words(integers)
    draws = torch.Generator().manual_seed(0)
    ends = boundary_inputs([*words.values()])
    if generator is None:
        taken = dict(zip(words, random_inputs([*words.values()], count, draws), strict=True))
    else:
        taken = dict(zip(integers.inputs, _data(graph, generator, count), strict=True))
    extremes = dict(zip(words, ends, strict=True))
    size = len(next(iter(taken.values()))) + len(ends[0])
    return [
        torch.cat([taken[name], extremes[name]]) if name in words else torch.zeros(size, 1)
        for name in integers.inputs
    ]


def _data(graph: MaseGraph, generator: Any, count: int) -> list[Tensor]:
    """Return the first samples of a generator."""
    check_generator("emit_cocotb", "test the circuit on data", generator)
    taken = [
        [x.cpu() for x in inputs if isinstance(x, Tensor)]
        for inputs, _ in batches(graph, generator, count)
    ]
    check_count(sum(len(batch[0]) for batch in taken), count)
    return [torch.cat(parts) for parts in zip(*taken, strict=True)]
