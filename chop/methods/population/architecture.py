"""Families: networks with the same calls in the same order, of any widths, trained together."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from chop.ir.graph.trace_errors import TraceError
from chop.ir.graph.tracer import HOOKS, MaseTracer
from chop.ir.ops import OpNames, identify, ops_with
from chop.numerics import NumberFormat
from chop.passes.graph.transforms.pruning.masks import unmasked_class
from chop.passes.graph.transforms.quantize.quantized_funcs import QuantizedFunction
from chop.passes.graph.transforms.quantize.quantized_modules import LAYERS, Quantized

Kind = Literal["input", "linear", "conv", "norm", "pointwise", "pool", "flatten", "add"]

WEIGHTED: dict[type[nn.Module], Kind] = {
    nn.Linear: "linear",
    nn.Conv1d: "conv",
    nn.Conv2d: "conv",
    nn.BatchNorm1d: "norm",
    nn.BatchNorm2d: "norm",
}
OUTPUTS = {"linear": "out_features", "conv": "out_channels", "norm": "num_features"}
POINTWISE = OpNames(lambda op: "activation" in op.traits or op.name == "identity")
PROBABILITIES = ops_with("probabilities")
SAME = ops_with("no_op")
# p-norms and windows of three dimensions are not stacked
POOLS = {op for op in ops_with("pool") if not op.endswith("3d") and not op.startswith("lp_")}
# attributes in which the layers of a family may differ
WIDTHS = {"in_features", "out_features", "in_channels", "out_channels", "num_features", "groups"}
NOT_SETTINGS = WIDTHS | {"training", "inplace", "config", "formats", "pruning_masks"}
SETTINGS = (bool, int, float, str, tuple, type(None))


class Unfit(ValueError):
    """The reason why networks cannot be trained together."""


@dataclass(frozen=True)
class LayerCall:
    """One operation of one candidate."""

    kind: Kind
    name: str  # of the module, or of the node
    inputs: tuple[int, ...] = ()  # numbers of earlier calls
    settings: Mapping[str, Any] = field(default_factory=dict)  # equal in a family
    module: nn.Module | None = None
    function: Callable[[Tensor], Tensor] | None = None  # of calls without parameters
    formats: Mapping[str, NumberFormat] = field(default_factory=dict)

    @property
    def shapes(self) -> list[tuple[str, list[int]]]:
        return [(name, list(parameter.shape)) for name, parameter in _parameters(self).items()]

    @property
    def common(self) -> tuple[Any, ...]:
        return self.kind, self.inputs, dict(self.settings)


@dataclass(frozen=True)
class Family:
    """Candidates as lists of calls, which differ only in widths and formats."""

    members: tuple[tuple[LayerCall, ...], ...]

    @property
    def first(self) -> tuple[LayerCall, ...]:
        return self.members[0]

    def __len__(self) -> int:
        return len(self.members)

    def calls(self, number: int) -> list[LayerCall]:
        """Return the call `number` of every candidate."""
        return [member[number] for member in self.members]

    def only(self, rows: Sequence[int]) -> Family:
        """Return the family of the candidates at `rows`."""
        return Family(tuple(self.members[row] for row in rows))


def family_of(models: Sequence[nn.Module]) -> Family:
    """Return the family of the networks; raise `Unfit` with the reason if they do not form one."""
    if not models:
        raise Unfit("a population needs at least one network")
    members = [tuple(_calls(model)) for model in models]
    for number, member in enumerate(members[1:], start=1):
        _compare(members[0], member, number)
    family = Family(tuple(members))
    _check_parameters(family)
    _check_layouts(family)
    return family


def _compare(first: Sequence[LayerCall], other: Sequence[LayerCall], number: int) -> None:
    if len(first) != len(other):
        raise Unfit(
            f"candidate {number} has {len(other) - 1} layers, but candidate 0 has {len(first) - 1}"
        )
    for mine, theirs in zip(first, other, strict=True):
        if mine.common != theirs.common:
            raise Unfit(
                f"candidate {number} differs from candidate 0 in more than widths and formats: "
                f"{theirs.name} is {_described(theirs)}, not {_described(mine)}"
            )


def _described(call: LayerCall) -> str:
    settings = ", ".join(f"{key}={value}" for key, value in call.settings.items())
    return f"{call.kind}({settings})"


def _check_parameters(family: Family) -> None:
    """Refuse parameters of several types, shared ones, and ones trained only in some candidates."""
    types = {p.dtype for member in family.members for c in member for p in _parameters(c).values()}
    if len(types) != 1:
        raise Unfit(f"parameters must have one floating-point type, not {len(types)}")
    if not any(p.requires_grad for call in family.first for p in _parameters(call).values()):
        raise Unfit("the networks have no trainable parameters")
    for number, call in enumerate(family.first):
        named = [_parameters(other).items() for other in family.calls(number)]
        if len({tuple(name for name, p in each if p.requires_grad) for each in named}) > 1:
            raise Unfit(f"{call.name} does not have the same trainable parameters everywhere")
    seen: set[int] = set()
    for row, member in enumerate(family.members):
        for call in {(id(call.module), row): call for call in member}.values():
            ids = {id(p) for p in _parameters(call).values()}
            if ids & seen:
                raise Unfit(f"{call.name} of candidate {row} shares a parameter with another layer")
            seen |= ids


def _parameters(call: LayerCall) -> dict[str, nn.Parameter]:
    module = call.module
    return {} if module is None else {n: p for n, p in module._parameters.items() if p is not None}


# --- one network as calls


class _Values:
    """The calls that made each value or last changed it in place, across values sharing memory."""

    def __init__(self, graph: fx.Graph) -> None:
        self.places = {node: place for place, node in enumerate(graph.nodes)}
        self.numbers: dict[fx.Node, int] = {}
        self.same: dict[fx.Node, list[fx.Node]] = {}  # values of the same shape and memory
        self.views: list[tuple[fx.Node, fx.Node]] = []  # pairs of different shape

    def __getitem__(self, node: Any) -> int:
        if node not in self.numbers:
            raise Unfit(f"{getattr(node, 'name', node)} is not recognised as an activation")
        return self.numbers[node]

    def enter(self, node: fx.Node, number: int, *, alias: bool, changes: bool, view: bool) -> None:
        """Record that call `number` made `node`, and how its memory relates to its input."""
        self.numbers[node] = number
        source = node.all_input_nodes[0] if node.all_input_nodes else node
        if view:
            self.views.append((source, node))
        if not (alias or changes):
            self.same[node] = [node]
            return
        group = self.same[node] = self.same[source]
        group.append(node)
        if changes:
            self._check_views(group, self.places[node], node.name)
            self.numbers.update(dict.fromkeys(group, number))

    def _check_views(self, group: list[fx.Node], now: int, name: str) -> None:
        """Refuse in-place changes of a value with views that are used later."""
        for pair in self.views:
            for mine, other in (pair, pair[::-1]):
                later = any(self.places[user] > now for n in self.same[other] for user in n.users)
                if mine in group and later:
                    raise Unfit(f"{name} changes in place a value that {other.name} is a view of")


def _calls(model: nn.Module) -> list[LayerCall]:
    graph, root = _graph_of(model)
    calls: list[LayerCall] = []
    values = _Values(graph)
    for node in graph.nodes:
        if node.op == "output":
            if values.numbers.get(node.args[0]) != len(calls) - 1:
                raise Unfit("the network does not return the output of its last layer")
            if calls[-1].settings.get("op") in PROBABILITIES:
                raise Unfit(f"losses are taken of what enters {calls[-1].name}, at the end")
            return calls
        if node.op == "placeholder":
            if calls:
                raise Unfit(f"the network has several inputs, {node.name} among them")
            calls.append(LayerCall("input", "the input"))
        elif _is_size(node):
            continue  # checked with the view that uses it
        else:
            calls.append(_call(node, root, values))
        number, view = len(calls) - 1, calls[-1].kind == "flatten"
        changes, alias = _in_place(node, root), calls[-1].settings.get("op") in SAME
        values.enter(node, number, alias=alias, changes=changes, view=view)
    raise Unfit("the network returns nothing")


def _graph_of(model: nn.Module) -> tuple[fx.Graph, nn.Module]:
    if isinstance(model, fx.GraphModule):
        return model.graph, model
    tracer = MaseTracer()
    root = nn.Sequential(model) if tracer.is_leaf_module(model, "") else model
    try:
        return tracer.trace(root), root
    except TraceError as error:
        raise Unfit(str(error)) from error


def check_traces(models: Sequence[nn.Module], x: Tensor) -> None:
    """Refuse a network if its graph computes something else for `x`, as after `b = a; b += 1`."""
    for model in {type(model): model for model in models}.values():
        graph, root = _graph_of(copy.deepcopy(model).to(x.device))
        root.eval()
        with torch.no_grad():
            by_graph, by_model = fx.Interpreter(root, graph=graph).run(x.clone()), root(x.clone())
        if not torch.equal(by_graph.nan_to_num(), by_model.nan_to_num()):
            raise Unfit(
                f"the graph of {type(model).__name__} computes something else than the model: "
                f"forward() changes a value in place that has two names"
            )


def _call(node: fx.Node, root: nn.Module, values: _Values) -> LayerCall:
    module = root.get_submodule(str(node.target)) if node.op == "call_module" else None
    op = identify(node, module).name
    inputs = tuple(values[value] for value in node.all_input_nodes if not _is_size(value))
    if module is not None:
        return _module_call(module, op, str(node.target), inputs)
    if op in ("flatten", "view", "reshape"):
        _check_flatten(node)
        return LayerCall("flatten", node.name, inputs)
    formats = _function_formats(node)
    if op == "add" and _is_plain_add(node):
        both = tuple(values[value] for value in node.args)
        return LayerCall("add", node.name, both, formats=formats)
    if op in POINTWISE or op in POOLS:
        settings, function = _function(node)
        kind: Kind = "pool" if op in POOLS else "pointwise"
        return LayerCall(kind, node.name, inputs, {"op": op} | settings, None, function, formats)
    raise Unfit(f"{node.name} is {op}, which populations do not support")


def _module_call(module: Any, op: str, name: str, inputs: tuple[int, ...]) -> LayerCall:
    cls = _float_class(module, name)
    formats = dict(module.formats) if isinstance(module, Quantized) else {}
    _check_formats(formats, name)
    settings = {"op": op, "class": cls.__name__, **_settings(module)}
    if cls in WEIGHTED:
        _check_layer(module, name)
        groups = getattr(module, "groups", 1)
        settings |= {"bias": module.bias is not None, "depthwise": groups > 1}
        return LayerCall(WEIGHTED[cls], name, inputs, settings, module, None, formats)
    if cls is nn.Flatten:
        if (module.start_dim, module.end_dim) != (1, -1):
            raise Unfit(f"{name} does not flatten all dimensions of a sample")
        return LayerCall("flatten", name, inputs)
    if op == "dropout" and module.p > 0:
        raise Unfit(f"{name} is dropout, which would draw other random numbers in a population")
    known = op in POINTWISE or op in POOLS or op == "dropout"
    if known and cls.__module__.startswith("torch.nn."):
        kind: Kind = "pool" if op in POOLS else "pointwise"
        return LayerCall(kind, name, inputs, settings, None, _apart(module, cls), formats)
    raise Unfit(f"{name} is a {type(module).__name__}, which populations do not support")


def _float_class(module: nn.Module, name: str) -> type[nn.Module]:
    """Return the class of the torch layer that a module computes, quantised or not."""
    cls: Any = unmasked_class(type(module))
    if any(getattr(module, hooks) for hooks in HOOKS) or hasattr(module, "parametrizations"):
        raise Unfit(f"{name} has hooks or parametrizations")
    if not isinstance(module, Quantized):
        return cls  # type: ignore[no-any-return]
    usual = LAYERS.get(module.float_class)
    if usual is None or module._overrides_rounding or cls.forward is not usual.forward:
        raise Unfit(f"{name} is a {cls.__name__}, which does more than quantise its operands")
    return module.float_class


def _settings(module: nn.Module) -> dict[str, Any]:
    """Return the settings of a layer, without its widths."""
    public = {k: v for k, v in vars(module).items() if not k.startswith("_")}
    return {k: v for k, v in public.items() if k not in NOT_SETTINGS and isinstance(v, SETTINGS)}


def _check_formats(formats: Mapping[str, NumberFormat], name: str) -> None:
    for operand, fmt in formats.items():
        if not fmt.deterministic:
            raise Unfit(
                f"{name} rounds {operand} stochastically, which would draw other "
                f"random numbers in a population"
            )
        if not (fmt._uses_common_rounding() or not fmt.rounds):
            raise Unfit(
                f"{name} rounds {operand} with {fmt.name}, which populations do not support"
            )


def _check_layer(module: Any, name: str) -> None:
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        depthwise = module.groups == module.in_channels == module.out_channels
        if module.groups > 1 and not depthwise:
            raise Unfit(f"{name} has {module.groups} groups; use one group, or one per channel")
        if module.padding_mode != "zeros":
            raise Unfit(f"{name} pads with {module.padding_mode} instead of zeros")
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and (
        module.momentum is None or module.running_mean is None
    ):
        raise Unfit(f"{name} does not have a moving average of its statistics")


def _apart(module: nn.Module, cls: type[nn.Module]) -> Callable[[Tensor], Tensor]:
    """Return the function of the float layer, without changing its input in place."""
    layer: Any = copy.copy(module)
    if hasattr(layer, "inplace"):
        layer.inplace = False
    forward: Any = cls.forward
    return lambda x: forward(layer, x)


# --- functions


def _function(node: fx.Node) -> tuple[dict[str, Any], Callable[[Tensor], Tensor]]:
    """Return the further arguments of a function of one tensor, and the function with them."""
    target: Any = node.target
    if isinstance(target, QuantizedFunction):
        target = target.target
    if node.op == "call_method":
        target = getattr(Tensor, str(target))
    name = getattr(target, "__name__", "")
    if name.endswith("_"):
        target = getattr(torch, name[:-1], None) or getattr(nn.functional, name[:-1])
    args = node.args[1:]
    kwargs = {k: v for k, v in node.kwargs.items() if k not in ("inplace", "config", "input")}
    if any(isinstance(value, fx.Node) for value in (*args, *kwargs.values())):
        raise Unfit(f"{node.name} depends on more than one tensor")
    return {"args": args, "kwargs": kwargs}, lambda x: target(x, *args, **kwargs)


def _function_formats(node: fx.Node) -> dict[str, NumberFormat]:
    if not isinstance(node.target, QuantizedFunction):
        return {}
    formats = dict(node.target.formats(node.kwargs["config"]))  # type: ignore[arg-type]
    _check_formats(formats, node.name)
    return formats


def _is_plain_add(node: fx.Node) -> bool:
    both = len(node.args) == 2 and all(isinstance(arg, fx.Node) for arg in node.args)
    return both and not node.kwargs.keys() - {"config"}


def _is_size(node: fx.Node) -> bool:
    """Whether a node is x.size(0), x.shape or x.shape[0], which views use."""
    if node.op == "call_method" and node.target == "size":
        return True
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1:] == ("shape",)
    return node.target is operator.getitem and _is_size(node.args[0])  # type: ignore[arg-type]


def _check_flatten(node: fx.Node) -> None:
    """Refuse reshapes other than to one row per sample."""
    rest: Any = (*node.args[1:], *node.kwargs.values())
    if identify(node).name == "flatten":
        fits = rest in ((1,), (1, -1))
    else:
        shape = rest[0] if len(rest) == 1 and isinstance(rest[0], tuple | list) else rest
        first = shape[0] if len(shape) == 2 and shape[1] == -1 else None
        fits = isinstance(first, fx.Node) and _is_size(first) and first.args[1:] == (0,)
    if not fits:
        raise Unfit(f"{node.name} does not reshape to one row per sample")


def _in_place(node: fx.Node, root: nn.Module) -> bool:
    if node.op == "call_module":
        return bool(getattr(root.get_submodule(str(node.target)), "inplace", False))
    target = node.target.target if isinstance(node.target, QuantizedFunction) else node.target
    name = getattr(target, "__name__", str(target))
    inplace = name.endswith("_") and not name.endswith("__")
    return inplace or name == "iadd" or bool(node.kwargs.get("inplace"))


# --- shapes of activations


def layouts(family: Family, *, maps: bool) -> list[bool]:
    """Return whether each call outputs feature maps or rows; `maps` is the layout of the input."""
    outputs: list[bool] = []
    for call in family.first:
        inputs = {outputs[number] for number in call.inputs}
        if call.kind == "input":
            outputs.append(maps)
        elif call.kind in ("linear", "conv", "pool"):
            wanted = call.kind != "linear"
            if inputs != {wanted}:
                kinds = ("rows", "maps")
                raise Unfit(f"{call.name} gets {kinds[not wanted]}, not {kinds[wanted]}")
            outputs.append(wanted)
        elif call.kind == "flatten":
            outputs.append(False)
        else:
            if len(inputs) != 1:
                raise Unfit(f"{call.name} adds rows and maps")
            outputs.append(inputs.pop())
    if outputs[-1]:
        raise Unfit("the network returns maps, not one row of scores per sample")
    return outputs


def widths_of(family: Family, channels: int | None = None) -> list[list[Any]]:
    """Return the output channels of each call for every candidate; `channels` are the input's.

    Flattened maps count by their channels, each of which is as many features as a map has pixels.
    """
    widths: list[list[Any]] = []
    for number, call in enumerate(family.first):
        calls: list[Any] = family.calls(number)
        if call.kind == "input":
            widths.append([channels] * len(family))
        elif call.kind in OUTPUTS:
            widths.append([getattr(c.module, OUTPUTS[call.kind]) for c in calls])
        else:
            widths.append(widths[call.inputs[0]])
        operands = zip(*(widths[i] for i in call.inputs), strict=True)
        if call.kind == "add" and any(a != b and None not in (a, b) for a, b in operands):
            raise Unfit(f"{call.name} adds operands of different widths")
    if len(set(widths[-1])) != 1:
        raise Unfit(f"candidates score different numbers of classes: {sorted(set(widths[-1]))}")
    return widths


def _check_layouts(family: Family) -> None:
    """Refuse networks that fit neither rows nor maps as input."""
    widths_of(family)
    reasons: dict[bool, Unfit] = {}
    for maps in (False, True):
        try:
            layouts(family, maps=maps)
        except Unfit as error:
            reasons[maps] = error
    if len(reasons) == 2:
        raise reasons[any(call.kind in ("conv", "pool") for call in family.first)]
