"""Running QONNX files with qonnx's own executor, node by node."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chop.onnx.metadata import QONNX_DOMAIN
from chop.onnx.runtime import Array

__all__ = ["QonnxRuntime", "why_not_run"]

# qonnx imports the module that the domain of a node names, and some of its operators run other
# files: only these are run
OPERATORS = {QONNX_DOMAIN: {"Quant", "BipolarQuant"}}
STANDARD = ("", "ai.onnx")


def why_not_run(model: Any) -> str | None:
    """Return why a file with QONNX nodes cannot be run here; None if it can be."""
    for node in model.graph.node:
        if node.domain not in STANDARD and node.op_type not in OPERATORS.get(node.domain, ()):
            return f"it has the operator {node.domain}.{node.op_type}, which is not run"
    if importlib.util.find_spec("qonnx") is None:
        return (
            "onnxruntime has no kernels for the nodes of QONNX, and qonnx is not installed "
            "(pip install qonnx)"
        )
    return None


class QonnxRuntime:
    """A QONNX file in qonnx's executor; it has the inputs and outputs of the file."""

    def __init__(self, file: str | Path) -> None:
        import onnx

        self.model = onnx.load(str(file))
        if reason := why_not_run(self.model):
            raise ValueError(f"{file} is not run: {reason}")
        constants = {tensor.name for tensor in self.model.graph.initializer}
        self.inputs = [i.name for i in self.model.graph.input if i.name not in constants]
        self.outputs = [output.name for output in self.model.graph.output]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return all outputs by name, for a float array per input."""
        from qonnx.core.modelwrapper import ModelWrapper
        from qonnx.core.onnx_exec import execute_onnx
        from qonnx.transformation.infer_shapes import InferShapes

        with _same_version(self.model):
            model = ModelWrapper(self.model, make_deepcopy=True)
            for name, array in inputs.items():
                model.set_tensor_shape(name, list(array.shape))
            model = model.transform(InferShapes())
            found: dict[str, Array] = execute_onnx(model, dict(inputs), True)
        return {name: found[name] for name in self.outputs}


@contextmanager
def _same_version(model: Any) -> Iterator[None]:
    """Let qonnx wrap nodes in models of a file's version: runtimes need not know the newest."""
    import onnx

    newest = onnx.IR_VERSION
    onnx.IR_VERSION = model.ir_version
    try:
        yield
    finally:
        onnx.IR_VERSION = newest
