"""Build the graph of a model from what torch.export recorded."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind, InputSpec

from chop.ir.graph.aten_names import TorchCall, is_check, is_of_torch_func, name_of, translated
from chop.ir.graph.decisions import Decision, Size
from chop.ir.graph.leaf_calls import LeafCall, leaf_operator
from chop.ir.graph.size_checks import size_checks
from chop.ir.graph.tracer import insert_mode_nodes, leaves_of, renew_constants
from chop.ir.nested import is_plain, mapped, named_output, named_tuple, slot_paths
from chop.ir.operators import Overload, is_higher_order


@dataclass(frozen=True)
class Input:
    """A parameter of forward(): its name with stars, its default, and the template of its value."""

    name: str
    default: Any  # inspect.Parameter.empty if it has no default
    template: Any
    has_default: bool


@dataclass(frozen=True)
class Capture:
    """All that is known of an exported model."""

    program: torch.export.ExportedProgram
    calls: list[LeafCall]
    inputs: list[Input]
    output: Any  # template
    device: torch.device | None  # of the first tensor among the inputs
    # sizes that were constants in the capture: the tensor's place, the dimension, the size
    fixed: list[tuple[int, int, int]]
    decisions: list[Decision] = field(default_factory=list)
    not_one: dict[Size, Decision] = field(default_factory=dict)  # sizes that must be two or more

    @property
    def tensor_names(self) -> list[str]:
        """The tensors among the inputs, as forward() reads them: `batch['ids']`."""
        names: dict[int, str] = {}
        for each in self.inputs:
            for index, path in slot_paths(each.template).items():
                keys = (f".{key}" if attribute else f"[{key!r}]" for key, attribute in path)
                names[index] = each.name.lstrip("*") + "".join(keys)
        return [names[index] for index in sorted(names)]


def built_graph(capture: Capture, root: nn.Module) -> fx.Graph:
    """Return the graph; constants that it reads are set on `root` as attributes."""
    return _Builder(capture, root).built()


class _Builder:
    def __init__(self, capture: Capture, root: nn.Module) -> None:
        self.capture, self.root = capture, root
        self.program = capture.program
        self.graph = fx.Graph()
        self.values: dict[fx.Node, Any] = {}  # of the exported graph, in the new graph
        self.read: dict[tuple[fx.Node, Any], fx.Node] = {}  # items of nodes
        self.attributes: dict[str, fx.Node] = {}
        self.device: fx.Node | None = None
        self.meta: dict[str, Any] = {}

    def built(self) -> fx.Graph:
        self._add_inputs()
        exported = self.program.graph
        self._copy(exported, self.program.graph_module)
        results = [self._value(value) for value in _outputs(exported)]
        self.graph.output(self._output(results))
        _remove_unused(self.graph)
        insert_mode_nodes(self.graph, self.root)
        renew_constants(self.graph)
        self.graph.lint()
        return self.graph

    # --- inputs

    def _add_inputs(self) -> None:
        nodes: list[fx.Node] = []
        for each in self.capture.inputs:
            default = (each.default,) if each.has_default else ()
            nodes.append(self.graph.create_node("placeholder", each.name, default))
        values: dict[int, Any] = {}
        for each, node in zip(self.capture.inputs, nodes, strict=True):
            for index, path in slot_paths(each.template).items():
                values[index] = self._inside(node, path)
        for each, node in zip(self.capture.inputs, nodes, strict=True):
            if is_plain(each.template):
                self._check_constant(each, node)
            else:
                self._check_length(each, node)
        specs = self.program.graph_signature.input_specs
        placeholders = [node for node in self.program.graph.nodes if node.op == "placeholder"]
        numbers = iter(range(len(placeholders)))
        for spec, placeholder in zip(specs, placeholders, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                self.values[placeholder] = values[next(numbers)]
            else:
                self.values[placeholder] = _Attribute(self._attribute_name(spec))
        names = self.capture.tensor_names
        for check in size_checks(self.program, self.capture.fixed, self.capture.not_one):
            if check.matters:
                check.add_to(self.graph, values, names)
        if self.capture.device is not None and values and self._names_devices():
            self.device = self.graph.call_function(getattr, (values[0], "device"))

    def _check_constant(self, each: Input, node: fx.Node) -> None:
        """Refuse another value of an argument that is part of the graph."""
        name, value = each.name, each.template
        function = operator.is_ if value is None or value is True or value is False else operator.eq
        same = self.graph.call_function(function, (node, value))
        message = f"this graph is of {name} = {value!r:.40}, and was called with another value"
        self.graph.call_function(torch._assert, (same, message))

    def _check_length(self, each: Input, node: fx.Node) -> None:
        """Refuse a list of inputs of another length, of which some would not be read."""
        sample = getattr(each.template, "sample", None)
        if not isinstance(sample, list | tuple):
            return
        length = self.graph.call_function(len, (node,))
        same = self.graph.call_function(operator.eq, (length, len(sample)))
        name = each.name.lstrip("*")
        message = f"this graph is only for {len(sample)} inputs in {name}"
        self.graph.call_function(torch._assert, (same, message))

    def _names_devices(self) -> bool:
        graphs = [m.graph for m in self.program.graph_module.modules() if hasattr(m, "graph")]
        values = (v for g in graphs for node in g.nodes for v in leaves_of(node))
        return any(isinstance(value, torch.device) for value in values)

    def _attribute_name(self, spec: InputSpec) -> str:
        assert spec.target is not None
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            return spec.target
        if spec.kind is not InputKind.CONSTANT_TENSOR:
            raise NotImplementedError(f"a graph cannot hold the constant {spec.target!r}")
        constant = self.program.constants[spec.target]
        for name, tensor in self.root.named_buffers():
            if tensor is constant:
                return name
        if spec.target in dict(_plain_tensors(self.root)):
            return spec.target
        taken = (f"_tensor_constant{n}" for n in range(10**9))
        name = next(name for name in taken if not hasattr(self.root, name))
        vars(self.root)[name] = constant.detach()
        return name

    # --- nodes

    def _copy(self, graph: fx.Graph, owner: nn.Module) -> None:
        for node in graph.nodes:
            if node.op == "call_function" and not is_check(node.target):
                self.meta = _kept_meta(node)
                self.values[node] = self._call(node, owner)

    def _call(self, node: fx.Node, owner: nn.Module) -> Any:
        if node.target is leaf_operator():
            return _Results(*self._leaf(node))
        if is_higher_order(node.target):
            return self._region(node, owner)
        args, kwargs = self._value(node.args), self._value(node.kwargs)
        if node.target is operator.getitem and isinstance(args[0], _Results | tuple):
            return args[0][args[1]]
        if isinstance(node.target, Overload):
            if name_of(node.target) in ("lift_fresh_copy", "lift_fresh", "lift"):
                return args[0]
            if name_of(node.target) == "detach_" and _is_constant(args[0]):
                return args[0]
        if is_of_torch_func(node.target) and "_grad" in node.target.__name__:  # type: ignore[union-attr]
            raise NotImplementedError(
                "a graph cannot hold derivatives by torch.func; keep the module that computes them "
                "whole with MaseGraph(model, custom_ops={'modules': {Class: {}}})"
            )
        return self._created(translated(node.target, args, kwargs))

    def _created(self, call: TorchCall) -> Any:
        if call.target is operator.getitem and _is_whole(call.args[1]):
            return call.args[0]
        args, kwargs = (self._on_its_device(part) for part in (call.args, call.kwargs))
        return self._node(call.op, call.target, args, kwargs)

    def _node(self, op: str, target: Any, args: Any, kwargs: Any = None) -> fx.Node:
        node = self.graph.create_node(op, target, tuple(args), dict(kwargs or {}))
        node.meta.update(self.meta)
        return node

    def _leaf(self, node: fx.Node) -> tuple[Any, Callable[[Any], Any]]:
        tensors, sizes, number = cast(Any, node.args)
        call = self.capture.calls[number]
        given = {True: iter(self._value(tensors)), False: iter(self._value(sizes))}
        slots = [next(given[kind]) for kind in call.kinds]
        args, kwargs = mapped(call.arguments, lambda slot: slots[slot.index], _argument)
        op = "call_module" if isinstance(call.target, str) else "call_function"
        made = self._node(op, call.target, args, kwargs)
        paths = slot_paths(call.results)
        return made, lambda index: self._inside(made, paths[index])

    def _inside(self, node: fx.Node, path: tuple[Any, ...]) -> fx.Node:
        for key, by_attribute in path:
            if (node, key) not in self.read:
                function = getattr if by_attribute else operator.getitem
                made = self.graph.call_function(function, (node, key))
                self.read[node, key] = made
            node = self.read[node, key]
        return node

    def _region(self, node: fx.Node, owner: nn.Module) -> Any:
        """Copy a part of forward() that ran with autocast or without gradients."""
        kind = str(node.target)
        if kind not in REGIONS:
            raise NotImplementedError(f"a graph cannot hold the operator {kind}")
        count = REGIONS[kind]
        settings, body = node.args[:count], cast(Any, node.args[count])
        region = cast(fx.GraphModule, owner.get_submodule(str(body.target)))
        graph = region.graph
        inner = [n for n in graph.nodes if n.op == "placeholder"]
        values = [self._value(value) for value in node.args[count + 1 :]]
        cut = kind == "wrap_with_set_grad_enabled" and settings[0] is False
        for placeholder, value in zip(inner, values, strict=True):
            self.values[placeholder] = self._cut(value, placeholder) if cut else value
        self._copy(graph, region)
        outputs = _outputs(graph)
        results = [self._value(value) for value in outputs]
        if cut:
            pairs = zip(results, outputs, strict=True)
            results = [self._cut(value, source) for value, source in pairs]
        return tuple(results)

    def _cut(self, value: Any, source: Any) -> Any:
        """Detach a tensor that gradients could flow through."""
        example = source.meta.get("val") if isinstance(source, fx.Node) else None
        differentiable = isinstance(example, Tensor) and example.is_floating_point()
        if not differentiable:
            return value
        node = value.node(self) if isinstance(value, _Attribute) else value
        return self._node("call_method", "detach", (node,))

    # --- values

    def _value(self, value: Any) -> Any:
        """Return what stands for a value of the exported graph in the new one."""
        map_nodes = cast(Any, fx.node.map_arg)
        known = map_nodes(value, lambda node: _Known(self.values.get(node, node)))
        return _unwrapped(known, self)

    def _on_its_device(self, value: Any) -> Any:
        """Replace the device of the example inputs by that of the inputs of a run."""
        if self.device is None:
            return value
        device, node = self.capture.device, self.device
        return fx.node.map_aggregate(value, lambda item: node if item == device else item)

    def _output(self, results: list[Any]) -> Any:
        return mapped(self.capture.output, lambda slot: results[slot.index], self._container)

    def _container(self, sample: Any, items: dict[Any, Any]) -> Any:
        if type(sample) in (list, dict):
            return items if isinstance(sample, dict) else list(items.values())
        if hasattr(sample, "_fields"):
            names = list(sample._fields)
            return self.graph.call_function(named_tuple, (names, *items.values()))
        if isinstance(sample, tuple):
            return tuple(items.values())
        if all(isinstance(key, str) for key in items):
            return self.graph.call_function(named_output, (), items)
        return items


REGIONS = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}  # settings before the body


@dataclass
class _Known:
    """A value in the new graph, kept apart from the nodes of the exported one."""

    value: Any


class _Attribute:
    """A parameter, buffer or constant, which becomes a node where it is first used."""

    def __init__(self, name: str) -> None:
        self.name = name

    def node(self, builder: _Builder) -> fx.Node:
        if self.name not in builder.attributes:
            builder.attributes[self.name] = builder.graph.get_attr(self.name)
        return builder.attributes[self.name]


class _Results:
    """The results of a leaf, which become nodes when they are used."""

    def __init__(self, call: Any, result: Callable[[Any], Any]) -> None:
        self.call, self.result = call, result

    def __getitem__(self, index: int) -> Any:
        return self.result(index)


def _unwrapped(value: Any, builder: _Builder) -> Any:
    if isinstance(value, _Known):
        inner = value.value
        return inner.node(builder) if isinstance(inner, _Attribute) else inner
    if isinstance(value, dict):
        return {key: _unwrapped(item, builder) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)([_unwrapped(item, builder) for item in value])
    if isinstance(value, slice):
        return slice(*(_unwrapped(v, builder) for v in (value.start, value.stop, value.step)))
    return value


def _argument(sample: Any, items: dict[Any, Any]) -> Any:
    """A container as an argument of a leaf; fx knows lists, tuples, dicts and slices."""
    if isinstance(sample, slice):
        return slice(*items.values())
    if isinstance(sample, list):
        return list(items.values())
    if isinstance(sample, tuple):
        return tuple(items.values())
    return items


def _plain_tensors(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors that are plain attributes of modules, by dotted name."""
    for prefix, module in root.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, Tensor):
                yield f"{prefix}.{key}" if prefix else key, value


def _outputs(graph: fx.Graph) -> list[Any]:
    output = next(node for node in graph.nodes if node.op == "output")
    return list(cast(Any, output.args[0]))


def _is_constant(value: Any) -> bool:
    return isinstance(value, fx.Node) and value.op == "get_attr"


def _is_whole(key: Any) -> bool:
    """Whether a subscript takes everything."""
    parts = key if isinstance(key, tuple) else (key,)
    return all(
        part is Ellipsis or (isinstance(part, slice) and part == slice(None)) for part in parts
    )


def _kept_meta(node: fx.Node) -> dict[str, Any]:
    return {k: node.meta[k] for k in ("stack_trace",) if node.meta.get(k)}


def _remove_unused(graph: fx.Graph) -> None:
    """Remove sizes, items and attributes that no node reads."""
    for node in reversed(graph.nodes):
        read_only = node.op == "get_attr" or node.target in (
            *(operator.getitem, getattr, "size", "numel"),
            *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod),
        )
        if read_only and not node.users:
            graph.erase_node(node)
