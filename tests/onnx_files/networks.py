"""Small ONNX networks for tests of reading, and what onnxruntime makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

F = np.float32


def array(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Return random numbers."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(F)


def model(
    nodes: list[Any],
    inputs: dict[str, list[Any]],
    outputs: list[str],
    constants: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 21,
    kinds: dict[str, int] | None = None,
    domains: dict[str, int] | None = None,
) -> Any:
    """Return a model of nodes; inputs are float32 unless `kinds` names another type."""
    kinds = kinds or {}
    graph = helper.make_graph(
        nodes,
        "network",
        [
            helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), shape)
            for name, shape in inputs.items()
        ],
        [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), None) for n in outputs],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    versions = {"": opset, **(domains or {})}
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=8 if opset < 21 else 10)


def written(proto: Any, folder: Any, name: str = "network.onnx") -> Any:
    """Write a model, and return its path."""
    file = folder / name
    onnx.save(proto, file)
    return file


def reference(file: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return what onnxruntime computes, without optimisation."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def computed(network: torch.nn.Module, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return what a network that was read computes."""
    with torch.no_grad():
        results = network(*(torch.from_numpy(value) for value in feeds.values()))
    results = results if isinstance(results, tuple) else (results,)
    return [result.numpy() for result in results]
