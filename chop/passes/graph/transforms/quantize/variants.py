"""Layers that are more than operands in formats: with state or neighbours of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from chop.ir.ops import OPS
from chop.registry import Registry, UnknownName

Cls = TypeVar("Cls", bound=type[Any])
LAYER_VARIANTS: Registry[Any] = Registry("layer variant")  # "linear_logicnets" -> class


def layer_variant(op: str, name: str) -> Callable[[Cls], Cls]:
    """Register a class as what the config name `name` makes of layers of an op.

    The class has `check_config(config)`, which refuses what it cannot take, and
    `from_float(layer, config)`, and is `Quantized`. It may have `with_neighbours(configs, graph,
    baseline)`, which adds to configs by node what a layer has to know of the nodes around it.
    """

    def wrap(cls: Cls) -> Cls:
        cls.variant_name = name
        LAYER_VARIANTS.register(f"{op}_{name}")(cls)
        return cls

    return wrap


def is_variant(name: Any) -> bool:
    """Whether a config name means a layer variant and not a number format."""
    return any(cls.variant_name == name for cls in LAYER_VARIANTS.values())


def variant_of(op: str, name: str) -> Any:
    """The class for an op; an op that has none is refused with those that have."""
    found = LAYER_VARIANTS.get(f"{op}_{name}")
    if found is None:
        ops = [o for o in OPS if f"{o}_{name}" in LAYER_VARIANTS]
        raise ValueError(f"{name} is for {', '.join(ops)}, not for {op}; choose nodes of these ops")
    return found


def check_variant(config: Mapping[str, Any]) -> None:
    """Refuse a config that no variant of its name takes."""
    for cls in LAYER_VARIANTS.values():
        if cls.variant_name == config["name"]:
            cls.check_config(config)
            return
    raise UnknownName("layer variant", str(config["name"]), list(LAYER_VARIANTS))
