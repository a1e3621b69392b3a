"""How a node maps to hardware."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import fx

from chop.hardware.emit import DEFAULT_PARALLELISM
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import CommonMeta, HardwareMeta, TensorMeta, mase


def renote_hardware(graph: MaseGraph, node: fx.Node) -> None:
    """Update the hardware of a node, if it has any, after its formats, shapes or op changed."""
    old = mase(node).hardware
    if "verilog_param" in old:
        most = old.get("max_parallelism", DEFAULT_PARALLELISM)
        mase(node).parameters.hardware = hardware_of(graph, node, old.parallelism, most)
        mase(node).hardware.device_id = old.device_id


def hardware_of(
    graph: MaseGraph, node: fx.Node, parallelism: Sequence[int], max_parallelism: int
) -> HardwareMeta:
    """Return how a node that computes maps to hardware."""
    common = mase(node).common
    return HardwareMeta(
        is_implicit=False,
        device_id=-1,
        interface=_interface(common),
        **_component(graph, node),
        parallelism=list(parallelism),
        max_parallelism=max_parallelism,
        verilog_param=dict(verilog_params(common, parallelism)),
    )


def _interface(common: CommonMeta) -> dict[str, Any]:
    """The interface of each argument: parameters are stored beside the module, data uses ports."""
    return {
        name: {"storage": "BRAM", "transpose": False} if isinstance(arg, TensorMeta) else {}
        for name, arg in common.args.items()
        if not name.startswith("data_in")
    }


def _component(graph: MaseGraph, node: fx.Node) -> dict[str, Any]:
    from chop.passes.graph.describe.hardware_components import component_of

    custom, ours = _custom(graph, node), component_of(mase(node).common.mase_op)
    if custom:
        module, files = custom.get("module"), custom.get("dependence_files", ())
        toolchain = custom.get("toolchain", "EXTERNAL_RTL")
    elif ours is not None:
        toolchain, (module, files) = "INTERNAL_RTL", ours
    else:
        toolchain, module, files = "HLS", None, ()
    return {"toolchain": toolchain, "module": module, "dependence_files": list(files)}


def _custom(graph: MaseGraph, node: fx.Node) -> Mapping[str, Any]:
    """The entry of `custom_ops` for this node's module class or function."""
    ops = getattr(graph.model, "custom_ops", {"modules": {}, "functions": {}})
    if node.op == "call_function":
        return ops["functions"].get(node.target) or {}
    classes = type(mase(node).module).__mro__
    return next((ops["modules"][cls] for cls in classes if ops["modules"].get(cls)), {})


def verilog_params(
    common: CommonMeta, parallelism: Sequence[int]
) -> Iterator[tuple[str, int | float | str]]:
    """Yield the precision, size and parallelism of every tensor, and all plain arguments."""
    for name, arg in (*common.args.items(), *common.results.items()):
        prefix = name.upper().replace(".", "_")
        if isinstance(arg, TensorMeta) and "precision" in arg:
            yield from _tensor_params(prefix, arg, parallelism)
        elif isinstance(arg, bool):
            yield prefix, int(arg)
        elif isinstance(arg, int | float | str):
            yield prefix, arg


def _tensor_params(
    prefix: str, tensor: TensorMeta, parallelism: Sequence[int]
) -> Iterator[tuple[str, Any]]:
    for i, number in enumerate(tensor.precision):
        yield f"{prefix}_PRECISION_{i}", number
    for key, value in tensor.format_options.items():
        if not isinstance(value, list):  # scales per channel are data, not parameters
            yield f"{prefix}_{key.upper()}", int(value) if isinstance(value, bool) else value
    wanted = [*reversed(parallelism)]
    # weights [out, in], data [batch, features] and biases all have two dimensions in hardware
    shape = [1] * (2 - len(tensor.shape)) + tensor.shape
    for dim, size in enumerate(reversed(shape)):
        yield f"{prefix}_TENSOR_SIZE_DIM_{dim}", size
        at_most = wanted[dim] if dim < len(wanted) else 1
        yield f"{prefix}_PARALLELISM_DIM_{dim}", _divisor(size, at_most)


def _divisor(size: int, at_most: int) -> int:
    return next((n for n in range(min(size, at_most), 1, -1) if size % n == 0), 1)
