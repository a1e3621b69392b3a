"""An ONNX model, built node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chop.onnx.packages import need_package
from chop.onnx.workarounds import work_around_faults
from chop.version import __version__

__all__ = ["IR_VERSION", "OPSET", "ModelBuilder"]

OPSET = 21  # the first with int4, int16 and blocks in QuantizeLinear
IR_VERSION = 10  # of the same release
Shape = Sequence[int | str | None]  # a text names a size that is free, such as the batch


class ModelBuilder:
    """Collects the nodes and constants of one ONNX graph; every value has a unique name.

    Nodes must be added after those whose results they take.
    """

    def __init__(
        self, name: str, *, opset: int = OPSET, domains: Mapping[str, int] | None = None
    ) -> None:
        need_package("onnx", "an ONNX file")
        self.name, self.opset, self.domains = name, opset, dict(domains or {})
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.constants: dict[str, Any] = {}
        self._known: dict[tuple[Any, ...], str] = {}  # unnamed constants by their content
        self._taken: set[str] = set()

    def unique(self, name: str) -> str:
        """Return `name`, with a number if another value has it, and reserve it."""
        new, number = name, 1
        while new in self._taken:
            new, number = f"{name}_{number}", number + 1
        self._taken.add(new)
        return new

    def input(self, name: str, dtype: Any, shape: Shape) -> str:
        """Declare an input of the model and return its name."""
        name = self.unique(name)
        self.inputs.append(_declared(name, dtype, shape))
        return name

    def output(self, value: str, name: str, dtype: Any, shape: Shape) -> str:
        """Make a value an output of the model; one of another name is passed through Identity."""
        if value != name:
            name = self.unique(name)
            self.add("Identity", value, result=name)
        self.outputs.append(_declared(name, dtype, shape))
        return name

    def constant(self, array: Any, name: str | None = None) -> str:
        """Return the name of an initialiser; without a name, equal arrays are stored once."""
        from onnx import numpy_helper

        array = np.asarray(array)
        key = (array.dtype.str, array.dtype.name, array.shape, array.tobytes())
        if name is None and key in self._known:
            return self._known[key]
        unique = self.unique(name or f"constant_{len(self._known)}")
        if name is None:
            self._known[key] = unique
        self.constants[unique] = numpy_helper.from_array(array, unique)
        return unique

    def add(
        self,
        op: str,
        *inputs: str,
        result: str | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Append a node with one result and return the result's name; "" leaves an input out."""
        return self.add_many(op, *inputs, results=[result], domain=domain, **attributes)[0]

    def add_many(
        self,
        op: str,
        *inputs: str,
        results: Sequence[str | None],
        domain: str = "",
        **attributes: Any,
    ) -> list[str]:
        """Append a node with several results and return their names.

        A result called None gets a name after the op; one called "" is left out.
        """
        from onnx import helper

        names = [self._result(name, op) for name in results]
        first = next(filter(None, names))
        node = helper.make_node(op, inputs, names, name=first, domain=domain, **attributes)
        self.nodes.append(node)
        return names

    def _result(self, name: str | None, op: str) -> str:
        if name == "" or (name is not None and name in self._taken):
            return name  # reserved by the caller through `unique`
        return self.unique(op.lower() if name is None else name)

    def model(self, metadata: Mapping[str, str] | None = None) -> Any:
        """Return the `onnx.ModelProto`, with facts about the network as its metadata."""
        from onnx import helper

        if not self.domains:  # those of QONNX are for other tools
            work_around_faults(self)
        graph = helper.make_graph(
            self.nodes, self.name, self.inputs, self.outputs, list(self.constants.values())
        )
        opsets = [
            helper.make_opsetid(domain, version)
            for domain, version in {"": self.opset, **self.domains}.items()
        ]
        model = helper.make_model(
            graph,
            opset_imports=opsets,
            ir_version=IR_VERSION,
            producer_name="mase",
            producer_version=__version__,
        )
        helper.set_model_props(model, dict(metadata or {}))
        return model


def _declared(name: str, dtype: Any, shape: Shape) -> Any:
    from onnx import helper

    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, list(shape))
