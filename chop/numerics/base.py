"""A number format: which numbers exist, and how a float becomes one of them."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from chop.registry import Registry

FORMATS: Registry[type[NumberFormat]] = Registry("number format", package="chop.numerics")


@dataclass(frozen=True)
class NumberFormat(abc.ABC):
    """Required fields, in order, are the `precision` list and the `<operand>_<field>` config keys.

    Fields with a default refine the format and stay out of the published precision.
    """

    name: ClassVar[str]  # `type` in metadata, `name` in TOML: "integer"
    suffix: ClassVar[str]  # class names: LinearInteger
    elementwise: ClassVar[bool] = True  # one fixed grid per element; block formats are not

    def __init_subclass__(cls, name: str, suffix: str) -> None:
        cls.name, cls.suffix = name, suffix
        FORMATS.register(name)(cls)

    @abc.abstractmethod
    def quantize(self, x: Tensor) -> Tensor:
        """The nearest representable values, same shape and dtype; gradients pass through."""

    @property
    @abc.abstractmethod
    def bits(self) -> float:
        """Average storage bits per element."""

    def for_operand(self, operand: str, *, non_negative: bool = False) -> Self:
        """The format as it serves one operand: batches are not blocked, signs may be spared."""
        return self

    @classmethod
    def precision_keys(cls) -> list[str]:
        return [f.name for f in fields(cls) if f.default is MISSING]

    @property
    def precision(self) -> list[Any]:
        return [getattr(self, key) for key in self.precision_keys()]

    def __call__(self, x: Tensor) -> Tensor:
        return self.quantize(x)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor) -> Tensor:
        return rounded

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def straight_through(x: Tensor, rounded: Tensor) -> Tensor:
    """Value of `rounded`, bit for bit; gradient of `x`."""
    through: Tensor = _StraightThrough.apply(x, rounded.detach())
    return through


def from_precision(name: str, precision: list[Any]) -> NumberFormat:
    """`"integer", [8, 4]` -> Integer(8, 4); the inverse of `fmt.name, fmt.precision`."""
    cls = FORMATS[name]
    keys = cls.precision_keys()
    if not isinstance(precision, list | tuple) or len(precision) != len(keys):
        raise ValueError(f"{name} needs the precision [{', '.join(keys)}], not {precision!r}")
    return cls(*precision)


def from_config(config: Mapping[str, Any], operand: str) -> NumberFormat:
    """The format of one operand: {"name": "integer", "weight_width": 8, …}, "weight"."""
    cls = FORMATS[config["name"]]
    if operand == "bias" and f"bias_{cls.precision_keys()[0]}" not in config:
        operand = "weight"
    wanted = [f"{operand}_{key}" for key in cls.precision_keys()]
    missing = [key for key in wanted if key not in config]
    if missing:
        raise ValueError(
            f"{cls.name} needs {wanted} for {operand!r}; missing {missing} in {dict(config)}"
        )
    return cls(*(config[key] for key in wanted))


@cache
def from_dtype(dtype: torch.dtype) -> NumberFormat:
    """How torch itself stores `dtype`: float32 -> Float(32), int64 -> Integer(64, 0)."""
    bits = 1 if dtype == torch.bool else 8 * dtype.itemsize
    if dtype.is_floating_point or dtype.is_complex:
        return from_precision("float", [bits])
    return from_precision("integer", [bits, 0])
