"""Formats for nodes that quantisation skips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import Operands, mase
from chop.numerics import FORMATS, NumberFormat, from_config
from chop.passes.base import graph_pass
from chop.passes.graph.describe.hardware import renote_hardware
from chop.passes.options import Problem
from chop.registry import unknown

OPS_TO_PATCH = ("add", "mul", "getitem", "placeholder", "output")
OPERANDS = ("data_in", "data_out")
FUNCTIONS = ("df_split",)  # a fork of the data flow, by function name


@graph_pass("patch_metadata", "transform", needs=("common",))
def patch_metadata_transform_pass(
    graph: MaseGraph, *, precision: str = "fixed", q_config: Mapping[str, Any]
) -> dict[str, Any]:
    """Record formats for additions, products, items, forks, inputs and the output.

    `q_config` has the keys of the format for `data_in`, which goes to arguments, and `data_out`,
    which goes to results: data_in_width, data_in_frac_width, … The computation stays as it is.
    """
    input_format, output_format = (_format(precision, q_config, operand) for operand in OPERANDS)
    names = {node: getattr(node.target, "__name__", None) for node in graph.nodes}
    patched = [n for n in names if mase(n).common.mase_op in OPS_TO_PATCH or names[n] in FUNCTIONS]
    for node in patched:
        common = mase(node).common
        for operands, fmt in ((common.args, input_format), (common.results, output_format)):
            _patch(operands, precision, fmt)
        renote_hardware(graph, node)
    return {"patched": [node.name for node in patched]}


@patch_metadata_transform_pass.law
def _laws(options: Mapping[str, Any]) -> Iterator[Problem]:
    if options["precision"] not in FORMATS:
        yield Problem("precision", unknown("number format", options["precision"], list(FORMATS)))
        return
    for operand in OPERANDS if "q_config" in options else ():
        try:
            _format(options["precision"], options["q_config"], operand)
        except (ValueError, TypeError, KeyError) as error:
            yield Problem("q_config", f"q_config: {error}")


def _format(precision: str, q_config: Mapping[str, Any], operand: str) -> NumberFormat:
    return from_config({**q_config, "name": precision}, operand)


def _patch(operands: Operands, kind: str, fmt: NumberFormat) -> None:
    for _, tensor in operands.tensors():
        if "torch_dtype" in tensor and not tensor.torch_dtype.is_floating_point:
            continue  # an index stays an integer
        tensor.format = fmt
        tensor.type = kind  # which may be another name of the format
