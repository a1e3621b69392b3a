"""Quantize the layers of a model that was never traced."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from torch import nn

from chop.ir.ops import module_op, op_named
from chop.passes.base import PassArgsError
from chop.passes.graph.transforms.quantize.quantize import node_config, quantized_layer
from chop.passes.graph.transforms.quantize.quantized_modules import LAYERS
from chop.passes.graph.utils import deepsetattr
from chop.passes.module.base import module_pass
from chop.registry import unknown


@module_pass("quantize", "transform")
def quantize_module_transform_pass(
    module: nn.Module,
    *,
    by: Literal["type", "name", "regex_name"],
    default: Mapping[str, Any] | None = None,
    **per_key: Any,
) -> tuple[nn.Module, dict[str, Any]]:
    """Put layers into number formats, chosen by op, by dotted name or by expression on names.

    The options are those of the graph pass `quantize`. Only modules are seen: functions inside
    forward() stay as they are.
    """
    configs = {key: node_config(key, table) for key, table in per_key.items()}
    rest = node_config("default", default) if default is not None else None
    layers = {n: m for n, m in module.named_modules(remove_duplicate=False) if _layer(m)}
    _check_keys(by, configs, layers)
    made: dict[int, nn.Module] = {}  # a layer under two names is quantized once
    for name, layer in layers.items():
        key = _key(by, configs, name, layer)
        config = configs[key] if key is not None else rest
        if config is None or config["name"] is None:
            continue
        try:
            made.setdefault(id(layer), quantized_layer(layer, config))
        except (ValueError, TypeError, KeyError) as error:
            raise PassArgsError(f"module pass 'quantize', layer {name!r}: {error}") from error
    if id(module) in made:
        return made[id(module)], {"quantized": [""]}
    changed = [name for name, layer in layers.items() if id(layer) in made]
    for name in changed:
        deepsetattr(module, name, made[id(layers[name])])
    return module, {"quantized": changed}


def _layer(module: nn.Module) -> bool:
    return any(base in LAYERS for base in type(module).__mro__)


def _key(by: str, configs: Mapping[str, Any], name: str, layer: nn.Module) -> str | None:
    if by == "regex_name":
        return next((key for key in configs if re.fullmatch(key, name)), None)
    if by == "name":
        return name if name in configs else None
    cls: Any = type(layer)
    op = module_op(cls)
    return op.name if op is not None and op.name in configs else None


def _check_keys(by: str, configs: Mapping[str, Any], layers: Mapping[str, nn.Module]) -> None:
    for key in configs:
        if by == "type":
            op_named(key)
        elif by == "name" and key not in layers:
            raise PassArgsError(f"module pass 'quantize': {unknown('layer', key, list(layers))}")
