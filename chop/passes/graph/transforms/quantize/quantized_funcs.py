"""Quantized functions: `add_integer(x, y, config=…)` for every function op and number format."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from chop.ir.operands import argument_names
from chop.ir.ops import OPS, OpSpec, StandIn
from chop.numerics import FORMATS, NumberFormat
from chop.passes.graph.transforms.quantize.config import layer_formats

UNSIGNED = frozenset({"relu"})  # negative inputs become 0 anyway, so the sign bit buys range


class QuantizedFunction(StandIn):
    """A function whose tensors are rounded first; `config` says into what."""

    own_arguments = frozenset({"config"})

    def __init__(self, target: Callable[..., Any], spec: OpSpec, fmt: type[NumberFormat]) -> None:
        functools.update_wrapper(self, target, updated=())
        self.target, self.spec = target, spec
        self.__name__ = self.__qualname__ = f"{spec.name}_{fmt.name}"
        self.__module__ = __name__
        names = argument_names(target, spec)
        self.named = dict(enumerate(names))
        # matmul's second operand is configured as `weight`, though torch calls it `other`
        self.data = [operand for operand in spec.quantized if operand not in names]

    def __call__(self, *args: Any, config: Mapping[str, Any], **kwargs: Any) -> Any:
        formats = self.formats(config)
        data = iter(self.data)

        def rounded(name: str, value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            operand = name if name in self.spec.quantized else next(data, None)
            return formats[operand](value) if operand in formats else value

        args = tuple(rounded(self.named.get(i, ""), value) for i, value in enumerate(args))
        kwargs = {name: rounded(name, value) for name, value in kwargs.items()}
        result = self.target(*args, **kwargs)
        return formats["data_out"](result) if "data_out" in formats else result

    def formats(self, config: Mapping[str, Any]) -> dict[str, NumberFormat]:
        """The format of each operand, as the op needs it."""
        return _formats(self.spec.name, self.spec.quantized, _frozen(config))

    def __repr__(self) -> str:
        return f"<quantized function {self.__name__}>"

    def __reduce__(self) -> tuple[Any, ...]:
        fmt = self.__name__.removeprefix(f"{self.spec.name}_")
        return _from_parts, (self.target, self.spec.name, fmt)


def _frozen(value: Any) -> Any:
    """A hashable form of a config, in which lists are tuples."""
    if isinstance(value, Mapping):
        return tuple((key, _frozen(item)) for key, item in value.items())
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


@functools.lru_cache(maxsize=1024)
def _formats(op: str, operands: tuple[str, ...], config: Any) -> dict[str, NumberFormat]:
    return {
        operand: fmt.for_operand(operand, non_negative=op in UNSIGNED and operand == "data_in")
        for operand, fmt in layer_formats(dict(config), dict.fromkeys(operands)).items()
    }


def _from_parts(target: Callable[..., Any], op: str, fmt: str) -> QuantizedFunction:
    return quantized_function(target, OPS[op], FORMATS[fmt])


@functools.cache
def quantized_function(
    target: Callable[..., Any], spec: OpSpec, fmt: type[NumberFormat]
) -> QuantizedFunction:
    """The quantized form of `target`; a method is given as torch.Tensor's function."""
    return QuantizedFunction(target, spec, fmt)


def has_function(spec: OpSpec) -> bool:
    return bool(spec.quantized and (spec.functions or spec.methods))


class _FunctionMap(Mapping[str, QuantizedFunction]):
    """`<op>_<format>` -> function, for every op that has one and every registered format."""

    def __getitem__(self, key: str) -> QuantizedFunction:
        for spec in OPS.values():
            fmt = key.removeprefix(f"{spec.name}_")
            if has_function(spec) and fmt != key and fmt in FORMATS:
                return quantized_function(_plain(spec), spec, FORMATS[fmt])
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return (f"{s.name}_{fmt}" for s in OPS.values() if has_function(s) for fmt in FORMATS)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _plain(spec: OpSpec) -> Callable[..., Any]:
    """Torch's own function of an op, rather than Python's operator."""
    preferred = getattr(torch, spec.name, None)
    return next((fn for fn in spec.functions if fn is preferred), spec.functions[0])


quantized_func_map = _FunctionMap()


def __getattr__(name: str) -> QuantizedFunction:
    """`from …quantized_funcs import add_integer`."""
    try:
        return quantized_func_map[name]
    except KeyError:
        raise AttributeError(f"no quantized function {name!r}") from None
