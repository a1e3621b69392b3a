"""Metadata of a node: MASE's keys, which are also typed attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, fx, nn

from chop.ir.record import Record
from chop.numerics import FORMATS, NumberFormat, from_dtype, from_precision
from chop.registry import UnknownName


class TensorMeta(Record):
    """One tensor of a node: an argument, a parameter or a result.

    Options of its format beyond the precision that differ from their defaults are keys as well,
    such as `rounding` of an integer, or `scale` of an affine format.
    """

    type: str  # the number format's name, e.g. "integer"
    precision: list  # type: ignore[type-arg]  # the format's parameters, e.g. [8, 4]
    shape: list[int]
    torch_dtype: torch.dtype
    value: Tensor  # present only when the pass was asked to keep values

    @classmethod
    def of(cls, x: Tensor) -> TensorMeta:
        fmt = from_dtype(x.dtype)
        return cls(shape=list(x.shape), torch_dtype=x.dtype, type=fmt.name, precision=fmt.precision)

    @property
    def format(self) -> NumberFormat:
        return from_precision(self.type, self.precision, **self.format_options)

    @format.setter
    def format(self, fmt: NumberFormat) -> None:
        for key in self.format_options:
            del self[key]
        self.type, self.precision = fmt.name, fmt.precision
        self.update(fmt.shown_options)

    @property
    def format_options(self) -> dict[str, Any]:
        """The options of the format beyond its precision."""
        kind = self.get("type")
        keys = FORMATS[kind].shown if isinstance(kind, str) and kind in FORMATS else ()
        return {key: self[key] for key in keys if key in self}


class Operands(Record, of=TensorMeta):
    """`args` and `results`: tensors by name, besides plain config values such as `inplace`."""

    def __setitem__(self, key: str, value: Any) -> None:
        if isinstance(value, dict) and "type" not in value:  # a config value that is a dict
            dict.__setitem__(self, key, value)
        else:
            super().__setitem__(key, value)

    def tensor(self, name: str) -> TensorMeta:
        if name not in self:
            raise UnknownName("operand", name, list(self))
        entry = self[name]
        assert isinstance(entry, TensorMeta), f"{name!r} is the plain value {entry!r}, not a tensor"
        return entry

    def tensors(self) -> Iterator[tuple[str, TensorMeta]]:
        """The entries that are tensors; for other results, such as an int, `type` is a class."""
        for name, entry in self.items():
            if isinstance(entry, TensorMeta) and not isinstance(entry.get("type"), type):
                yield name, entry


class CommonMeta(Record):
    mase_type: str
    mase_op: str
    args: Operands
    results: Operands


COMMON_KEYS = tuple(CommonMeta.__annotations__)  # written by one analysis


class OperandStats(Record):
    stat: dict[str, Any]


class StatsTable(Record, of=OperandStats): ...


class SoftwareMeta(Record):
    args: StatsTable
    results: StatsTable


class HardwareMeta(Record):
    is_implicit: bool
    device_id: int
    interface: dict[str, Any]
    toolchain: str
    module: str | None
    dependence_files: list[str]
    parallelism: list[int]
    max_parallelism: int
    verilog_param: dict[str, Any]


class Parameters(Record):
    """The three parts of a node's metadata; you may add dicts of your own."""

    common: CommonMeta
    software: SoftwareMeta
    hardware: HardwareMeta


class MaseMetadata:
    """`node.meta["mase"]`: the node's records, and its module."""

    known_types: ClassVar[list[str]] = ["fixed", "float", "NA"]
    known_toolchain: ClassVar[list[str]] = [
        *("INTERNAL_RTL", "EXTERNAL_RTL", "HLS"),
        *("INTERNAL", "EXTERNAL"),  # earlier names of the first two
    ]
    known_storage: ClassVar[list[str]] = ["BRAM"]
    internal_layers: ClassVar[dict[type[nn.Module], str]] = {nn.Linear: "linear", nn.ReLU: "relu"}

    def __init__(
        self,
        node: fx.Node | None = None,
        model: fx.GraphModule | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        # the model is found through the node, as a stored reference would go stale in a copy
        del model
        self.node = node
        self.parameters = parameters or {}

    @property
    def parameters(self) -> Parameters:
        return self._parameters

    @parameters.setter
    def parameters(self, tree: dict[str, Any]) -> None:
        empty: dict[str, Any] = {"common": {}, "software": {}, "hardware": {}}
        self._parameters = tree if isinstance(tree, Parameters) else Parameters(empty | tree)

    @property
    def common(self) -> CommonMeta:
        return self._parameters.common

    @property
    def software(self) -> SoftwareMeta:
        return self._parameters.software

    @property
    def hardware(self) -> HardwareMeta:
        return self._parameters.hardware

    @property
    def model(self) -> fx.GraphModule:
        owner = self.graph.owning_module
        assert owner is not None, f"{self.node} belongs to a graph that no GraphModule owns"
        return owner

    @property
    def graph(self) -> fx.Graph:
        assert self.node is not None, "this metadata is detached from its node"
        return self.node.graph

    @property
    def module(self) -> nn.Module | None:
        """The module that a call_module node calls, None for any other node."""
        if self.node is None or self.node.op != "call_module":
            return None
        return self.model.get_submodule(str(self.node.target))

    def clone_for(self, node: fx.Node) -> MaseMetadata:
        """Return a copy of the records for a node of another graph."""
        return MaseMetadata(node, parameters=self.parameters.clone())

    def __deepcopy__(self, memo: dict[int, Any]) -> MaseMetadata:
        return MaseMetadata(self.node, parameters=self.parameters.clone())

    def __getstate__(self) -> dict[str, Any]:
        return {"parameters": self._parameters}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.node, self._parameters = None, state["parameters"]

    def __getitem__(self, part: str) -> Any:
        if part not in self.parameters:
            raise UnknownName("part of the metadata", part, list(self.parameters))
        return self.parameters[part]

    def __setitem__(self, part: str, value: Any) -> None:
        self.parameters[part] = value

    def __repr__(self) -> str:
        where = self.node.name if self.node is not None else "detached"
        return f"MaseMetadata({where}: {', '.join(k for k, v in self.parameters.items() if v)})"


def mase(node: fx.Node) -> MaseMetadata:
    """`node.meta["mase"]`, typed."""
    metadata: MaseMetadata = node.meta["mase"]
    return metadata
