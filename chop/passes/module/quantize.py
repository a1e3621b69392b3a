"""Quantise the layers of an untraced model."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from chop.ir.graph.fast_paths import forbid_fast_paths
from chop.ir.ops import OpNames, module_op
from chop.passes.base import PassArgsError
from chop.passes.graph.describe.left_out import sentence, share_of
from chop.passes.graph.transforms.quantize import quantize
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized, has_layer, layer_for
from chop.passes.graph.transforms.quantize.resolve import layer_config
from chop.passes.graph.utils import deepsetattr
from chop.passes.module.base import module_pass
from chop.passes.select import By, node_name
from chop.registry import unknown

logger = logging.getLogger(__name__)

OPS_WITH_LAYERS = OpNames(has_layer)


@module_pass("quantize", "transform")
def quantize_module_transform_pass(
    module: nn.Module, *, by: By, default: Mapping[str, Any] | None = None, **per_key: Any
) -> tuple[nn.Module, dict[str, Any]]:
    """Quantise layers to number formats, chosen by op, by dotted name or by expression on names.

    The options are those of the graph pass `quantize`. Only modules are seen: functions inside
    forward() stay as they are.
    """
    tables = {key: table for key, table in per_key.items() if key not in quantize.IGNORED}
    configs = {key: quantize.node_config(key, table) for key, table in tables.items()}
    rest = quantize.node_config("default", default) if default is not None else None
    layers = _layers(module)
    _check_keys(by, configs, layers)
    done: dict[int, tuple[str, dict[str, Any] | None, nn.Module | None]] = {}
    for name, layer in layers.items():
        key = _key(by, configs, name, layer)
        config = configs[key] if key is not None else rest
        if config is not None and config["name"] is None:
            config = None
        if id(layer) not in done:  # a layer under two names is quantized once
            done[id(layer)] = name, config, _quantized_layer(name, layer, config)
        first, theirs, _ = done[id(layer)]
        if theirs != config:
            raise PassArgsError(
                f"module pass 'quantize': {first!r} and {name!r} are the same layer; "
                f"give them the same config"
            )
    changed = {name: new for name, m in layers.items() if (new := done[id(m)][2]) is not None}
    for name, new in changed.items():
        if name:
            deepsetattr(module, name, new)
    forbid_fast_paths(module, lambda part: isinstance(part, Quantized))
    _warn_of_float(module, layers)
    return changed.get("", module), {"quantized": list(changed)}


quantize_module_transform_pass.law(quantize.wrong_configs)
quantize_module_transform_pass.chooses(
    partial(quantize.chosen_nodes, ops=OPS_WITH_LAYERS, must_match=False)
)


def _layers(module: nn.Module) -> dict[str, nn.Module]:
    """The layers that can be quantized; attention reads the weights of its own parts itself."""
    read = {
        id(part)
        for attention in module.modules()
        if isinstance(attention, nn.MultiheadAttention)
        for part in attention.children()
    }
    return {
        name: layer
        for name, layer in module.named_modules(remove_duplicate=False)
        if id(layer) not in read and layer_for(type(layer)) is not None
    }


def quantizable_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of a model that can be quantised, by dotted name."""
    return _layers(module)


def _warn_of_float(module: nn.Module, layers: Mapping[str, nn.Module]) -> None:
    """Warn of modules with parameters that have no quantized form, with their share of them."""
    known = {id(p) for layer in layers.values() for p in layer.parameters()}
    left_out = {
        name: [p for p in part._parameters.values() if p is not None and id(p) not in known]
        for name, part in module.named_modules()
    }
    left_out = {name: parameters for name, parameters in left_out.items() if parameters}
    if left_out:
        kinds = {name: type(module.get_submodule(name)).__name__ for name in left_out}
        names = [f"{name} ({kind})" if name else kind for name, kind in kinds.items()]
        share = share_of((p for ps in left_out.values() for p in ps), module)
        stays = "stays in float" if len(names) == 1 else "stay in float"
        logger.warning("%s", sentence(names, "quantised", stays, f"{share} of the weights"))


def _quantized_layer(
    name: str, layer: nn.Module, config: dict[str, Any] | None
) -> nn.Module | None:
    if config is None:
        return None
    try:
        return quantize.quantized_layer(layer, layer_config(name, layer, config))
    except (ValueError, TypeError, KeyError) as error:
        raise PassArgsError(f"module pass 'quantize', layer {name!r}: {error}") from error


def _key(by: str, configs: Mapping[str, Any], name: str, layer: nn.Module) -> str | None:
    if by == "regex_name":
        return next((key for key in configs if re.fullmatch(key, name)), None)
    if by == "name":
        return next((key for key in (name, node_name(name)) if key in configs), None)
    cls: Any = type(layer)
    op = module_op(cls)
    return op.name if op is not None and op.name in configs else None


def _check_keys(by: str, configs: Mapping[str, Any], layers: Mapping[str, nn.Module]) -> None:
    for key in configs:
        if any(_key(by, {key: None}, n, m) is not None for n, m in layers.items()):
            continue
        if by == "name":
            raise PassArgsError(f"module pass 'quantize': {unknown('layer', key, list(layers))}")
        logger.warning("no layer of the model matches %s %r", by, key)
