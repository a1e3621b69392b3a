"""Quantized functions: `add_integer(x, y, config=…)` for every function op and number format."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.operands import argument_names
from chop.ir.ops import NAMESPACES, OPS, OpSpec, drops_sign
from chop.numerics import FORMATS, NumberFormat
from chop.passes.graph.describe.formats import FormattedFunction
from chop.passes.graph.transforms.quantize.composed_funcs import composed_form
from chop.passes.graph.transforms.quantize.config import as_in_place, layer_formats
from chop.system.caches import Lru

MAX_CACHED = 1000  # configs of one function whose formats are remembered


class QuantizedFunction(FormattedFunction):
    """A function that rounds its operands first, to the formats in `config`.

    Floating-point tensors are rounded, and so are Python floats, as in `x * 0.3`; integers and
    arguments that are not operands, such as masks, stay unchanged. A function of several products,
    such as attention, also rounds the operands of those inside.
    """

    own_arguments = frozenset({"config"})

    def __init__(self, target: Callable[..., Any], spec: OpSpec, fmt: type[NumberFormat]) -> None:
        functools.update_wrapper(self, target, updated=())
        self.target, self.spec, self.format_name = target, spec, fmt.name
        self.__name__, self.__qualname__ = f"{spec.name}_{fmt.name}", _path(target, spec, fmt.name)
        self.__module__ = __name__
        self._known: Lru[Any, dict[str, NumberFormat]] = Lru(MAX_CACHED)  # by config
        names = argument_names(target, spec)
        self.names = [name for name in names if not name.startswith("*")]
        self.repeated = next((name[1:] for name in names if name.startswith("*")), None)
        named = () if self.repeated else spec.quantized
        # matmul's second operand is configured as `weight`, although torch calls it `other`
        others = iter([operand for operand in named if operand not in self.names])
        self.operands = {name: name if name in named else next(others, None) for name in self.names}
        self.composed = composed_form(target)
        if self.composed is not None and self.composed.operands is not None:
            self.operands = {name: self.composed.operands.get(name) for name in self.names}

    def __call__(self, *args: Any, config: Mapping[str, Any], **kwargs: Any) -> Any:
        rest = self._rest(args)
        proxies = (a for a in (*args, *rest, *kwargs.values()) if isinstance(a, fx.Proxy))
        proxy = next(proxies, None)
        if proxy is not None:  # tracing keeps this function as one node
            kwargs["config"] = dict(config)
            return proxy.tracer.create_proxy("call_function", self, args, kwargs)
        return self.rounded(self.formats(config), args, kwargs)

    def rounded(
        self, formats: Mapping[str, NumberFormat], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Return the result for operands in these formats; one without a format is not rounded."""
        new = [
            _rounded(a, formats.get(operand or "")) for _, operand, a in self.arguments(args, {})
        ]
        if self.repeated and len(args) != len(new):  # they came in a list
            new = [*new[: len(self.names)], new[len(self.names) :]]
        new += args[len(new) :]
        kwargs = {
            name: _rounded(value, formats.get(self.operands.get(name) or ""))
            for name, value in kwargs.items()
        }
        if self.composed is not None and "data_in" in formats:
            result = self.composed.call(formats["data_in"], *new, **kwargs)
        else:
            result = self.target(*new, **kwargs)
        final = _final(result, formats.get("data_out"))
        return as_in_place(args[0], new[0], result, final) if args else final

    def arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[str, str | None, Any]]:
        """Yield the name, the operand and the value of each argument, and of each in a list."""
        for name, value in zip(self.names, args, strict=False):
            yield name, self.operands[name], value
        last = len(self.spec.quantized) - 1
        for i, value in enumerate(self._rest(args)):
            yield f"{self.repeated}_{i}", self.spec.quantized[min(i, last)], value
        for name, value in kwargs.items():
            yield name, self.operands.get(name), value

    def _rest(self, args: Sequence[Any]) -> Sequence[Any]:
        """Return the operands of a function that takes any number, one by one or in a list."""
        rest = args[len(self.names) :] if self.repeated else ()
        return rest[0] if len(rest) == 1 and isinstance(rest[0], list | tuple) else rest

    def formats(self, config: Mapping[str, Any]) -> dict[str, NumberFormat]:
        """Return the format of each operand, as the op needs it."""
        return self._known.get_or(_frozen(config), self._formats, config)

    def _formats(self, config: Mapping[str, Any]) -> dict[str, NumberFormat]:
        operands = dict.fromkeys(self.spec.quantized)
        return {
            operand: fmt.for_operand(operand, non_negative=drops_sign(self.spec.name, operand))
            for operand, fmt in layer_formats(config, operands).items()
        }

    def __repr__(self) -> str:
        return f"<quantized function {self.__name__}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_parts, (self.target, self.spec.name, self.format_name)


def _final(result: Any, fmt: NumberFormat | None) -> Any:
    """Return a result in the format of results, of several the first."""
    if fmt is None:
        return result
    return (fmt(result[0]), *result[1:]) if isinstance(result, tuple) else fmt(result)


def _rounded(value: Any, fmt: NumberFormat | None) -> Any:
    number = value.is_floating_point() if isinstance(value, Tensor) else type(value) is float
    return fmt(value) if fmt is not None and number else value


def _frozen(value: Any) -> Any:
    """A hashable form of a config, in which lists are tuples."""
    if isinstance(value, Mapping):
        return tuple((key, _frozen(item)) for key, item in value.items())
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _from_parts(target: Callable[..., Any], op: str, fmt: str) -> QuantizedFunction:
    return quantized_function(target, OPS[op], FORMATS[fmt])


@functools.cache
def quantized_function(
    target: Callable[..., Any], spec: OpSpec, fmt: type[NumberFormat]
) -> QuantizedFunction:
    """Return the quantized form of `target`; a method comes as torch.Tensor's function."""
    return QuantizedFunction(target, spec, fmt)


def float_target(node: fx.Node) -> Any:
    """The float function of a node; for a method, the function of torch.Tensor."""
    if isinstance(node.target, QuantizedFunction):
        return node.target.target
    if node.op == "call_method":
        return getattr(torch.Tensor, str(node.target))
    return node.target


def has_function(spec: OpSpec) -> bool:
    """Return whether the functions of an op have a quantized form, besides its layers."""
    if "inner_products" in spec.traits:  # most of their functions take lists of weights
        return any(composed_form(function) is not None for function in spec.functions)
    return bool(spec.quantized and (spec.functions or spec.methods))


def _plain(spec: OpSpec) -> Callable[..., Any]:
    """Return torch's function of an op, rather than Python's operator."""
    preferred = getattr(torch, spec.name, None)
    return next((fn for fn in spec.functions if fn is preferred), spec.functions[0])


def _is_in(space: Any, fn: Callable[..., Any]) -> bool:
    return getattr(space, getattr(fn, "__name__", ""), None) is fn


_SPACES = {space.__name__.rpartition(".")[2]: space for space in NAMESPACES}


def _path(target: Callable[..., Any], spec: OpSpec, fmt: str) -> str:
    """The name of a function in this module, by which pickled graphs import it.

    `add_integer` is torch.add's; that of `x += y` is `add_integer__operator__iadd`.
    """
    name = f"{spec.name}_{fmt}"
    target_name = getattr(target, "__name__", "")
    space = next((key for key, s in _SPACES.items() if _is_in(s, target)), None)
    return name if space is None or target is _plain(spec) else f"{name}__{space}__{target_name}"


class _FunctionMap(Mapping[str, QuantizedFunction]):
    """`<op>_<format>` -> function, for every op that has one and every registered format."""

    def __getitem__(self, key: str) -> QuantizedFunction:
        key = f"mul_{key.removeprefix('mult_')}" if key.startswith("mult_") else key  # older name
        for spec in OPS.values():
            fmt = key.removeprefix(f"{spec.name}_")
            if has_function(spec) and fmt != key and fmt in FORMATS:
                return quantized_function(_plain(spec), spec, FORMATS[fmt])
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return (f"{s.name}_{fmt}" for s in OPS.values() if has_function(s) for fmt in FORMATS)

    def __len__(self) -> int:
        return sum(1 for _ in self)


quantized_func_map = _FunctionMap()


def __getattr__(name: str) -> QuantizedFunction:
    """`from …quantized_funcs import add_integer`; see `_path` for the rest of a longer name."""
    key, _, target = name.partition("__")
    space, _, target_name = target.partition("__")
    try:
        function = quantized_func_map[key]
        if not target:
            return function
        home = _SPACES[space]
        spelt = {fn.__name__: fn for fn in function.spec.functions if _is_in(home, fn)}
        return _from_parts(spelt[target_name], function.spec.name, function.format_name)
    except KeyError:
        raise AttributeError(f"no quantized function {name!r}") from None
