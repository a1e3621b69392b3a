"""Running ONNX files with onnxruntime on the CPU, in the same way every time."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chop.onnx.packages import need_package

__all__ = ["QONNX", "Array", "Runtime", "input_dtype", "open_session", "session_options"]

Array = NDArray[Any]
QONNX = "qonnx.custom_op"  # in the domains of its nodes
FATAL_ONLY = 4  # other errors are raised
SHARED = "Attempt to replace the existing tensor"
# names of types in onnxruntime that numpy calls otherwise
TYPES = {"float": "float32", "double": "float64", "bool": "bool"}


def session_options(*, threads: int | None = 1, optimize: bool = True) -> Any:
    """Return options with fixed threads (None: onnxruntime's own choice).

    Int8 products are exact on every x86 CPU.

    Without VNNI, kernels add two products in 16 bits, which saturate, unless
    `session.x64quantprecision` is set. With VNNI it would only halve the speed.
    """
    onnxruntime = _package()
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.log_severity_level = FATAL_ONLY
    if saturates_products():
        options.add_session_config_entry("session.x64quantprecision", "1")
    levels = onnxruntime.GraphOptimizationLevel
    level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    options.graph_optimization_level = level
    return options


def saturates_products(cpu_info: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether this is an x86 CPU that lacks VNNI, or does not say whether it has it."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        flags = cpu_info.read_text()
    except OSError:
        return True
    return not re.search(r"\b(avx512_vnni|avx_vnni)\b", flags)


class Runtime:
    """A session of onnxruntime on the CPU, for a file or an `onnx.ModelProto`."""

    def __init__(
        self, file: str | Path | Any, *, threads: int | None = 1, optimize: bool = True
    ) -> None:
        options = session_options(threads=threads, optimize=optimize)
        self.session = open_session(file, options)
        self.inputs = {i.name: i for i in self.session.get_inputs()}
        self.outputs = [o.name for o in self.session.get_outputs()]
        self.metadata: dict[str, str] = dict(self.session.get_modelmeta().custom_metadata_map)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return all outputs by name, for an array per input."""
        self._check(inputs)
        results = self.session.run(None, dict(inputs))
        return dict(zip(self.outputs, results, strict=True))

    def _check(self, inputs: Mapping[str, Array]) -> None:
        """Refuse inputs of other names, dtypes or shapes."""
        if wrong := sorted(inputs.keys() ^ self.inputs.keys()):
            names = ", ".join(self.inputs)
            what = "is missing" if wrong[0] in self.inputs else "is not one of them"
            raise ValueError(f"the model has the inputs {names}; {wrong[0]!r} {what}")
        for name, declared in self.inputs.items():
            array, dtype = np.asarray(inputs[name]), input_dtype(declared.type)
            if array.dtype != dtype:
                raise TypeError(f"the input {name!r} has the dtype {dtype}, not {array.dtype}")
            sizes = declared.shape
            fits = len(sizes) == array.ndim and all(
                isinstance(size, str | None) or size == given
                for size, given in zip(sizes, array.shape, strict=True)
            )
            if not fits:
                raise ValueError(
                    f"the input {name!r} has the shape {sizes}, not {list(array.shape)}"
                )


def _package() -> Any:
    """Return onnxruntime, which has no types."""
    need_package("onnxruntime", "running an ONNX file")
    return importlib.import_module("onnxruntime")


def input_dtype(kind: str) -> np.dtype[Any]:
    """Return the dtype of a type as onnxruntime writes it, such as `tensor(float)`."""
    name = kind.removeprefix("tensor(").removesuffix(")")
    return np.dtype(TYPES.get(name, name))


def _with_own_constants(file: str | Path | Any) -> Any:
    """Return a model in which no constant is read by two nodes; None if there was none.

    With `session.x64quantprecision`, onnxruntime 1.31 rewrites the constants of each QLinearConv
    and QLinearMatMul, and fails on one that it has rewritten already.
    """
    onnx = importlib.import_module("onnx")
    model = onnx.load(file) if isinstance(file, str | Path) else file
    made = onnx.ModelProto()
    made.CopyFrom(model)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    taken = {*constants, *(name for node in made.graph.node for name in node.output)}
    read: set[str] = set()
    for node in made.graph.node:
        for place, name in enumerate(node.input):
            if name not in constants or name not in read:
                read.add(name)
                continue
            new = next(n for k in itertools.count(1) if (n := f"{name}_{k}") not in taken)
            taken.add(new)
            copied = made.graph.initializer.add()
            copied.CopyFrom(constants[name])
            copied.name = node.input[place] = new
    return made if len(made.graph.initializer) > len(constants) else None


def open_session(file: str | Path | Any, options: Any) -> Any:
    """Return a session for a file or an `onnx.ModelProto`, or refuse it in one sentence."""
    onnxruntime = _package()
    if isinstance(file, str | Path):
        if not Path(file).exists():
            raise FileNotFoundError(f"there is no ONNX file {str(file)!r}")
        source, name = str(file), repr(str(file))
    else:
        source, name = file.SerializeToString(), "the model"
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class of its own for each kind of failure
        if type(error).__module__.partition(".")[0] != "onnxruntime":
            raise
        reason = str(error).splitlines()[0]
        if SHARED in reason and (model := _with_own_constants(file)) is not None:
            return open_session(model, options)
        if QONNX in reason:
            raise ValueError(
                f"onnxruntime cannot run {name}: it has no kernels for the nodes of QONNX; export "
                f"the network as qcdq or integer instead"
            ) from error
        if isinstance(file, str | Path):
            _check_file(file)
        raise ValueError(f"onnxruntime cannot run {name}: {reason}") from error


def _check_file(file: str | Path) -> None:
    """Refuse a file that is damaged or no ONNX, in one sentence, if `onnx` is there to tell."""
    from chop.onnx.reading.files import load_proto

    if importlib.util.find_spec("onnx") is not None:
        load_proto(file)
