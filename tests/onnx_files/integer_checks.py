"""Comparison of the format `integer` with the integer graph, and of single ops with `run`."""

from __future__ import annotations

import itertools

import torch

from chop.integers import Codes, IntegerGraph
from chop.onnx import ModelBuilder
from chop.onnx.integers import integer_model
from chop.onnx.integers.registry import WRITERS
from chop.onnx.integers.writer import INT64, Writer, WrittenValue, numbers_dtype
from chop.onnx.runtime import Runtime

SESSIONS = [
    {"optimize": optimize, "threads": threads}
    for optimize, threads in itertools.product((True, False), (1, 2))
]
# ops that onnxruntime computes in integers, or that only move values
FLOAT_OPS = {"MatMul", "Gemm", "Conv", "MaxPool", "AveragePool", "DequantizeLinear"}


def mismatches(graph: IntegerGraph, *inputs: torch.Tensor, sessions=SESSIONS) -> int:
    """Return how many codes and values of the ONNX model differ from the integer graph."""
    model = integer_model(graph)
    assert not FLOAT_OPS & {node.op_type for node in model.graph.node}
    inputs = [x.float() for x in inputs]
    codes, values = graph.run(*inputs), graph(*inputs)
    pairs = [(codes, values)] if len(graph.outputs) == 1 else zip(codes, values, strict=True)
    expected = list(itertools.chain(*pairs))
    feed = dict(zip(graph.inputs, (x.numpy() for x in inputs), strict=True))
    wrong = 0
    for options in sessions:
        runtime = Runtime(model, **options)
        results = runtime.run({name: feed[name] for name in runtime.inputs})
        for i, name in enumerate(results):  # the values, then the codes of each output
            found = torch.from_numpy(results[name])
            wanted = expected[2 * (i // 2) + (1 - i % 2)]
            assert found.shape == wanted.shape
            wrong += int((found != wanted).sum())
    return wrong


def op_results(op, codes: list[Codes], inputs: list[torch.Tensor], **options) -> torch.Tensor:
    """Return what onnxruntime computes for one op, given batches of int64 codes."""
    builder = ModelBuilder("op")
    w = Writer(builder)
    names = [f"x{i}" for i in range(len(codes))]
    values = [
        WrittenValue(builder.input(name, INT64, ["batch", *x.shape]), INT64)
        for name, x in zip(names, codes, strict=True)
    ]
    w.node = "op"
    values = [
        w.cast(value, numbers_dtype(x.lowest, x.highest))
        for value, x in zip(values, codes, strict=True)
    ]
    result = op.result(*codes)
    found = w.finished(WRITERS[type(op)](w, op, values, [*codes, result]), "op")
    assert found.dtype == numbers_dtype(result.lowest, result.highest) or found.dtype == INT64
    builder.output(w.cast(found, INT64).name, "y", INT64, ["batch", *result.shape])
    arrays = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
    return torch.from_numpy(Runtime(builder.model(), **options).run(arrays)["y"])
