"""Graphs to export, and onnxruntime as their judge."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chop.ir import MaseGraph
from chop.onnx.runtime import saturates_products
from chop.passes import Pipeline

Inputs = dict[str, Tensor]


def session_of(model: Any, *, optimize: bool, threads: int = 1) -> Any:
    import onnxruntime as ort

    levels = ort.GraphOptimizationLevel
    options = ort.SessionOptions()
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if saturates_products():
        options.add_session_config_entry("session.x64quantprecision", "1")
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def leaves(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif value is not None:
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)


@pytest.fixture
def traced() -> Callable[..., MaseGraph]:
    """Return the graph of a model with metadata, after the given steps."""

    def trace(model: nn.Module, inputs: Inputs, *steps: Any, **options: Any) -> MaseGraph:
        common = ("add_common_metadata", {"dummy_in": inputs, "add_value": False})
        before = ["init_metadata", common, "add_software_metadata"]
        return Pipeline([*before, *steps])(MaseGraph(model.eval(), **options))[0]

    return trace


@pytest.fixture
def run() -> Callable[..., list[Tensor]]:
    """Run a model in onnxruntime."""

    def results(model: Any, inputs: Inputs, *, optimize: bool = True, threads: int = 1) -> Any:
        session = session_of(model, optimize=optimize, threads=threads)
        given = {name: np.asarray(tensor) for name, tensor in inputs.items()}
        return [torch.from_numpy(array) for array in session.run(None, given)]

    return results


@pytest.fixture
def assert_same_as_eager(run) -> Callable[..., None]:
    """Compare a file with the model for batches of 1, 2 and 7, optimised and not.

    Both add float32 in their own order: 1e-5 of the largest number is the bound.
    """

    def check(file: Any, model: nn.Module, inputs: Callable[[int], Inputs]) -> None:
        import onnx

        onnx.checker.check_model(file, full_check=True)
        for size in (1, 2, 7):
            given = inputs(size)
            with torch.no_grad():
                expected = list(leaves(model.eval()(**given)))
            for optimize in (False, True):
                found = run(file, given, optimize=optimize)
                assert len(found) == len(expected)
                for one, other in zip(found, expected, strict=True):
                    assert one.shape == other.shape
                    assert one.dtype == other.dtype
                    far = (one.double() - other.double()).abs().max().item() if one.numel() else 0.0
                    assert far <= 1e-5 * max(1.0, other.double().abs().max().item())

    return check
