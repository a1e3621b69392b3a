"""The layers with weights of a design, with their formats and bits, as the page shows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import fx, nn

from chop.actions.search.space.base import Space
from chop.actions.search.space.operands import module_of
from chop.actions.search.space.untraced import UntracedModel
from chop.ir.graph.mase_metadata import Operands, mase
from chop.numerics import FORMATS, from_config

if TYPE_CHECKING:
    from chop.ir.graph.mase_graph import MaseGraph

OPERANDS = ("data_in", "weight")
FLOAT_BITS = 32.0
MAX_COPIED = 200_000_000  # parameters of the networks that are built for their shapes

Config = Mapping[str, Any]
Layers = dict[str, dict[str, Any]]


def layers_of(config: Config) -> Layers:
    """Return the format, and the bits of data and weights, of every node in a design."""
    layers: Layers = {}
    for node, table in config.items():
        inner = table.get("config") if isinstance(table, Mapping) else None
        if isinstance(inner, Mapping):
            name = None if inner.get("bypass") else inner.get("name")
            bits = {f"{operand}_bits": _bits(inner, operand) for operand in OPERANDS}
            layers[node] = {"format": name if name in FORMATS else "float", **bits}
        elif isinstance(table, Mapping):  # the part of one pass among several
            own = layers_of(table)
            layers = own | {
                n: f for n, f in layers.items() if _is_set(f) or not _is_set(own.get(n))
            }
    return layers


def _is_set(layer: Mapping[str, Any] | None) -> bool:
    """Return whether a design gives a layer a number format."""
    return layer is not None and layer["format"] != "float"


def _bits(config: Config, operand: str) -> float:
    if config.get("name") not in FORMATS or config.get("bypass"):
        return FLOAT_BITS
    try:
        return float(from_config(config, operand).bits)
    except (ValueError, TypeError):  # the node does not have this operand
        return FLOAT_BITS


def formatted(parent: Mapping[str, Mapping[str, Any]], config: Config) -> Layers:
    """Return the layers of a parent with the formats that a design gives them."""
    given = {node: facts for node, facts in layers_of(config).items() if _is_set(facts)}
    return {node: {**facts, **given.get(node, {})} for node, facts in parent.items()}


def weighted_layers(graph: MaseGraph) -> Layers:
    """Return op and shape, format and bits of every layer with weights; shared ones once."""
    if isinstance(graph, UntracedModel):
        return _weighted_modules(graph.model)
    layers: Layers = {}
    seen: set[int] = set()
    for node in graph.fx_graph.nodes:
        module = module_of(graph, node)
        parameters = [*module.parameters()] if module is not None else [*_arguments(graph, node)]
        new = [p for p in parameters if id(p) not in seen]
        if not new:
            continue
        seen |= {id(parameter) for parameter in parameters}
        largest = max(parameters, key=nn.Parameter.numel)
        op = str(node.meta["mase"].parameters["common"].get("mase_op") or node.name)
        text = op_and_shape(module) if module is not None else f"{op} {_sides(largest.shape)}"
        layers[node.name] = {"op": text, **_own_formats(node, largest)}
    return layers


def _weighted_modules(model: nn.Module) -> Layers:
    """Return the same of every layer with weights of a model without a graph."""
    layers: Layers = {}
    for name, layer in model.named_modules():
        weights = [p for p in layer._parameters.values() if p is not None]
        if weights:
            formats = getattr(layer, "formats", {})
            float_bits = float(8 * weights[0].element_size())
            known = {key: formats.get(key) for key in OPERANDS}
            bits = {f"{k}_bits": float(f.bits) if f else float_bits for k, f in known.items()}
            weight = known["weight"]
            layers[name] = {
                "op": op_and_shape(layer),
                "format": weight.name if weight else "float",
                **bits,
            }
    return layers


def _arguments(graph: MaseGraph, node: fx.Node) -> Iterator[nn.Parameter]:
    """Yield the parameters that a function reads."""
    for argument in node.all_input_nodes if node.op in ("call_function", "call_method") else ():
        if argument.op == "get_attr":
            owner, _, name = str(argument.target).rpartition(".")
            value = getattr(graph.model.get_submodule(owner), name, None)
            if isinstance(value, nn.Parameter):
                yield value


def _own_formats(node: fx.Node, weight: nn.Parameter) -> dict[str, Any]:
    """Return the format and the bits that a layer has in the parent itself."""
    args: Operands = mase(node).common.args
    tensors = dict(args.tensors())
    data = next((t for name, t in tensors.items() if name.startswith(("data_in", "input"))), None)
    named = (tensor for name, tensor in tensors.items() if "weight" in name)  # weight_ih_l0, …
    known = tensors.get("weight") or next(named, None)
    bits = float(8 * weight.element_size()) if known is None else float(known.format.bits)
    return {
        "format": "float" if known is None else known.type,
        "data_in_bits": bits if data is None else float(data.format.bits),
        "weight_bits": bits,
    }


def _sides(sizes: Any) -> str:
    return "×".join(map(str, sizes))


def _kernel(module: Any) -> str:
    return _sides(module.kernel_size)


def _recurrent(module: Any) -> str:
    depth = getattr(module, "num_layers", 1)
    several = f", {depth} layers" if depth > 1 else ""
    both = ", bidirectional" if getattr(module, "bidirectional", False) else ""
    return f"{module.input_size}→{module.hidden_size}{several}{both}"


# attributes that tell a kind of layer, and its shape in words
SHAPES: dict[tuple[str, ...], Callable[[Any], str]] = {
    ("in_features", "out_features"): lambda m: f"{m.in_features}→{m.out_features}",
    ("in1_features", "in2_features", "out_features"): lambda m: (
        f"{m.in1_features}, {m.in2_features}→{m.out_features}"
    ),
    ("in_channels", "out_channels", "kernel_size"): lambda m: (
        f"{m.in_channels}→{m.out_channels}, {_kernel(m)}"
    ),
    ("input_size", "hidden_size"): _recurrent,
    ("self_attn", "linear1"): lambda m: (
        f"{m.self_attn.embed_dim}, {m.self_attn.num_heads} heads, {m.linear1.out_features} hidden"
    ),
    ("embed_dim", "num_heads"): lambda m: f"{m.embed_dim}, {m.num_heads} heads",
    ("num_embeddings", "embedding_dim"): lambda m: f"{m.num_embeddings}→{m.embedding_dim}",
    ("nx", "nf"): lambda m: f"{m.nx}→{m.nf}",
    ("num_features",): lambda m: str(m.num_features),
    ("num_groups", "num_channels"): lambda m: f"{m.num_channels}, {m.num_groups} groups",
    ("normalized_shape",): lambda m: _sides(m.normalized_shape),
}


def op_and_shape(module: nn.Module) -> str:
    """Return a layer as `Linear 16→64` or `Conv2d 3→64, 3×3`."""
    for attributes, text in SHAPES.items():
        if all(hasattr(module, name) for name in attributes):
            return f"{_float_class(module)} {text(module)}"
    largest = max(module.parameters(), key=nn.Parameter.numel, default=None)
    return f"{_float_class(module)} {'' if largest is None else _sides(largest.shape)}".strip()


def _float_class(module: nn.Module) -> str:
    """Return the name of the class in torch.nn that a layer is of, or else of its own class."""
    for cls in type(module).__mro__:
        if cls.__module__.startswith("torch.nn.modules") and cls is not nn.Module:
            return cls.__name__
    return type(module).__name__


class DesignLayers:
    """The layers of designs; networks of other shapes than the parent's are built."""

    def __init__(self, space: Space) -> None:
        graph = getattr(space, "graph", None)  # spaces of classes with hooks have none
        self.space, self.parent = space, weighted_layers(graph) if graph is not None else {}
        size = sum(p.numel() for p in graph.model.parameters()) if graph is not None else 0
        self._to_build = math.ceil(MAX_COPIED / max(1, size))  # networks

    def __call__(self, config: dict[str, Any]) -> Layers:
        """Return the layers of a design; without shapes after many large networks."""
        if not self.parent:
            return {}
        if self.space.keeps_shapes(config):
            return formatted(self.parent, config)
        if self._to_build > 0:
            self._to_build -= 1
            return weighted_layers(self.space.shaped(config))
        names = {node: facts["op"].partition(" ")[0] for node, facts in self.parent.items()}
        return {
            node: {**facts, "op": names[node]}
            for node, facts in formatted(self.parent, config).items()
        }
