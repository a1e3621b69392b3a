"""Map the arguments of a call to operands: bound by signature, any arity, with keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from inspect import Parameter
from itertools import count
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.graph.mase_metadata import TensorMeta
from chop.ir.operators import Overload
from chop.ir.ops import OpSpec, StandIn

# tensors that always keep the name of their parameter; all others are data_in_0, data_in_1, …
_NAMED = "weight bias running_mean running_var condition index mask"
NAMED_OPERANDS = frozenset(_NAMED.split())
# torch's schemas give a dtype, a layout and a memory format the type int
SCHEMA_TYPES: dict[str, Any] = {
    "Tensor": TensorMeta,
    "int": (int, torch.dtype, torch.layout, torch.memory_format),
    "float": (int, float),
    "number": (int, float, complex),
    "bool": bool,
    "str": str,
    "Device": (torch.device, str),
}


@dataclass(frozen=True)
class Param:
    name: str
    kind: str = "Any"  # torch's schema type, which distinguishes overloads
    keyword_only: bool = False
    repeated: bool = False  # *shape
    keyword: str = ""  # if the call's keyword differs: dim0= is dim_0


ANY_KEYWORD = Param("**", keyword_only=True)


CallSignature = tuple[Param, ...]  # one way to call a target


def _bound(
    params: CallSignature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return argument names -> values as passed, or None if they do not fit."""
    bound: dict[str, Any] = {}
    rest = list(args)
    renamed = {param.keyword: param.name for param in params if param.keyword}
    kwargs = {renamed.get(name, name): value for name, value in kwargs.items()}
    for param in params:
        if param.repeated:
            bound |= _repeated(param.name, rest)
            rest = []
        elif rest and not param.keyword_only:
            bound[param.name] = rest.pop(0)
    known = kwargs.keys() <= {param.name for param in params} or ANY_KEYWORD in params
    if rest or kwargs.keys() & bound.keys() or not known:
        return None
    return bound | kwargs


def _repeated(name: str, values: list[Any]) -> dict[str, Any]:
    """`view(2, -1)` -> shape_0, shape_1; `view((2, -1))` -> shape, as it was called."""
    if len(values) == 1 and isinstance(values[0], list | tuple):
        return {name: values[0]}
    return {f"{name}_{i}": value for i, value in enumerate(values)}


def _is(kind: str, value: Any) -> bool:
    if kind.startswith("Optional["):
        return value is None or _is(kind[9:-1], value)
    if kind.startswith("List["):
        inner = kind[5:-1]
        many = value if isinstance(value, list | tuple) else [value]
        return all(_is(inner, one) for one in many)
    return isinstance(value, SCHEMA_TYPES.get(kind, object))


def _of_names(names: Sequence[str]) -> CallSignature:
    """A signature with these positional names; keywords keep their names."""
    params = []
    for written in names:
        name, _, keyword = written.removeprefix("*").partition("=")
        params.append(Param(name, repeated=written.startswith("*"), keyword=keyword))
    return (*params, ANY_KEYWORD)


@lru_cache(maxsize=4096)
def _of_function(fn: Callable[..., Any], skip_first: bool = False) -> list[CallSignature]:
    try:
        params = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return []
    if [p.kind for p in params] == [Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD]:
        return []  # (*args, **kwargs) has no information
    return [tuple(_of_parameter(p) for p in params[skip_first:])]


def _of_parameter(p: Parameter) -> Param:
    if p.kind is p.VAR_KEYWORD:
        return ANY_KEYWORD
    return Param(p.name, keyword_only=p.kind is p.KEYWORD_ONLY, repeated=p.kind is p.VAR_POSITIONAL)


def _of_schemas(name: str, method: bool = False) -> list[CallSignature]:
    # private, but the public torch.ops.aten lacks the overloads for numbers
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    return [_of_schema(schema, method) for schema in schemas]


def _of_schema(schema: torch.FunctionSchema, method: bool = False) -> CallSignature:
    arguments = schema.arguments
    if method:  # torch.where(condition, x, y), but x.where(condition, y)
        arguments = sorted(arguments, key=lambda a: a.name != "self")
    named = [("input" if a.name == "self" else a.name, a) for a in arguments]
    return tuple(Param(n, str(a.type), a.kwarg_only) for n, a in named)


@lru_cache(maxsize=4096)
def _calls(op: str, target: Any, names: tuple[str, ...]) -> list[CallSignature]:
    if names:
        return [_of_names(names)]
    if op == "call_method":
        return _of_schemas(target, method=True)
    if isinstance(target, Overload):
        return [_of_schema(target._schema)]
    # F.max_pool2d and the like dispatch on `return_indices` to a Python function, and only this
    # table, which is private, knows which
    table: Any = torch._jit_internal.boolean_dispatched
    fn = table[target]["if_false"] if target in table else target
    if isinstance(fn, FunctionType):
        return _of_function(fn)
    spelt = getattr(fn, "__name__", "")  # of an overload: "add.Tensor"
    return _of_function(fn) or _of_schemas(spelt) or _of_schemas(spelt.rpartition(".")[0])


def _bind(
    calls: list[CallSignature], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Bind by the overload with matching types, else by the first with enough arguments."""
    positional = {f"arg_{i}": value for i, value in enumerate(args)}
    candidates = [
        (call, bound) for call in calls if (bound := _bound(call, args, kwargs)) is not None
    ]
    for call, bound in candidates:
        if all(_is(param.kind, bound[param.name]) for param in call if param.name in bound):
            return bound
    return candidates[0][1] if candidates else positional | dict(kwargs)


def _inside(value: Any) -> dict[Any, Any] | None:
    """The contents of a list, tuple, dict, slice or dataclass; None for any other value."""
    if isinstance(value, TensorMeta | torch.Size):
        return None
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if isinstance(value, slice):
        return {"start": value.start, "stop": value.stop, "step": value.step}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to the contents of a container; return `value` if nothing changed."""
    inside = _inside(value) or {}
    changed = {key: change(item) for key, item in inside.items()}
    if all(changed[key] is item for key, item in inside.items()):
        return value
    for kind in (list, tuple):
        if isinstance(value, kind):
            return kind(changed.values())
    return slice(*changed.values()) if isinstance(value, slice) else changed


def described(value: Any, keep: Callable[[Tensor], Tensor] | None = None) -> Any:
    """Replace every tensor in `value` by a TensorMeta; `keep(tensor)` is stored as its value."""
    if not isinstance(value, Tensor):
        return _mapped(value, lambda item: described(item, keep))
    meta = TensorMeta.of(value)
    if keep:
        meta.value = keep(value)
    return meta


def mapped_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return `value` with `change` applied to each leaf that `flatten` yields."""
    if _inside(value) is None:
        return change(value)
    return _mapped(value, lambda item: mapped_leaves(item, change))


def flatten(value: Any) -> Iterator[Any]:
    """The leaves of nested lists, tuples, dicts, slices and dataclasses."""
    inside = _inside(value)
    if inside is None:
        yield value
        return
    for item in inside.values():
        yield from flatten(item)


class _Operands(dict[str, Any]):
    """Collects operands; every tensor gets its own record, even if it is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.number = count()

    def add(self, tensor: TensorMeta, name: str | None = None) -> str:
        name = name or f"data_in_{next(self.number)}"
        self[name] = tensor.clone()
        return name

    def add_inside(self, value: Any) -> Any:
        """Replace each tensor in `value` by the name of its operand."""
        return self.add(value) if isinstance(value, TensorMeta) else _mapped(value, self.add_inside)


def keeps_name(spec: OpSpec, parameter: str) -> bool:
    """Return whether a tensor that a function takes has the name of its parameter as an operand.

    Of several weights and biases, as those of attention, each has its own.
    """
    several = "inner_products" in spec.traits and ("weight" in parameter or "bias" in parameter)
    return several or parameter in NAMED_OPERANDS


def argument_names(target: Any, spec: OpSpec) -> list[str]:
    """Return the names of a function's positional arguments; `*operands` stands for any number."""
    calls = _calls("call_function", target, spec.params)
    known = [param for param in calls[0] if param is not ANY_KEYWORD] if calls else []
    return [f"*{param.name}" if param.repeated else param.name for param in known]


def bind_operands(
    node: fx.Node,
    spec: OpSpec,
    module: nn.Module | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    """`common.args` of a node: tensors by operand name, everything else by argument name.

    `args` and `kwargs` are those of the node, with every fx node replaced by its result and tensors
    by TensorMeta.
    """
    if module is not None:
        bound = _bind(_of_function(type(module).forward, skip_first=True), args, kwargs)
    else:
        target: Any = node.target
        if isinstance(target, StandIn):
            kwargs = {k: v for k, v in kwargs.items() if k not in target.own_arguments}
            target = target.target
        bound = _bind(_calls(node.op, target, spec.params), args, kwargs)
    operands = _Operands()
    for param, value in bound.items():
        if isinstance(value, TensorMeta):
            named = module is None and keeps_name(spec, param)
            operands.add(value, param if named else None)
            continue
        leaves = list(flatten(value))
        named_inside = operands.add_inside(value)
        if not leaves or not all(isinstance(leaf, TensorMeta) for leaf in leaves):
            operands[param] = named_inside
    return operands
