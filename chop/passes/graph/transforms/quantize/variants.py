"""Layer variants: layers with state, or that depend on their neighbours, beyond formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from chop.ir.ops import OPS
from chop.numerics import FORMATS
from chop.registry import Registry

Cls = TypeVar("Cls", bound=type[Any])
LAYER_VARIANTS: Registry[Any] = Registry("layer variant", room="layers")  # by "linear_logicnets"


def layer_variant(op: str, name: str) -> Callable[[Cls], Cls]:
    """Register the class that quantises layers of an op under the config name `name`.

    The class is `Quantized` and has `check_config(config)`, which raises an error for a bad config,
    and `from_float(layer, config)`. It may have `with_neighbours(configs, graph, baseline)`, which
    adds what a layer needs to know about neighbouring nodes to the configs by node.
    """

    def wrap(cls: Cls) -> Cls:
        if FORMATS.quoted(name) is not None:
            raise ValueError(f"{name!r} is a number format; give the layer variant another name")
        cls.variant_name = name
        LAYER_VARIANTS.register(f"{op}_{name}")(cls)
        return cls

    return wrap


def is_variant(name: Any) -> bool:
    """Return whether a config name means a layer variant rather than a number format."""
    return name not in FORMATS and any(cls.variant_name == name for cls in LAYER_VARIANTS.values())


def variant_of(op: str, name: str) -> Any:
    """Return the class for an op; raises an error that lists the supported ops."""
    cls = LAYER_VARIANTS.get(f"{op}_{name}")
    if cls is None:
        ops = [o for o in OPS if f"{o}_{name}" in LAYER_VARIANTS]
        raise ValueError(f"{name} is for {', '.join(ops)}, not for {op}; choose nodes of these ops")
    return cls


def check_variant(config: Mapping[str, Any]) -> None:
    """Raise an error for a config that no variant of its name accepts."""
    classes = LAYER_VARIANTS.values()
    next(cls for cls in classes if cls.variant_name == config["name"]).check_config(config)
