"""Quantisation configs of one layer or function, checked."""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torch import Tensor

from chop.numerics import FORMATS, NumberFormat, config_keys, format_in, from_config
from chop.passes.graph.transforms.quantize.variants import LAYER_VARIANTS
from chop.registry import UnknownName

logger = logging.getLogger(__name__)

# keys besides those of formats that older configs contain
OTHER_KEYS = (
    *("data_in_skip_first_dim", "binary_training", "node_meta_stat"),
    *("additional_layers_inputs", "additional_layers_outputs"),
)
# keys that say how to round, of which ignoring one would compute other numbers than asked for
ARITHMETIC = ("rounding", "overflow")
OPERANDS = ("data_in", "weight", "bias", "data_out")


def without_na(config: Any) -> Any:
    """A copy in which TOML's "NA" is None."""
    if isinstance(config, Mapping):
        return {key: without_na(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return type(config)(without_na(value) for value in config)
    return None if config == "NA" else config


def config_in(table: Any) -> Mapping[str, Any] | None:
    """Return the config in a table `{"config": {…}}`, or a plain dict; None for anything else."""
    config = table.get("config", table) if isinstance(table, Mapping) else None
    return config if isinstance(config, Mapping) else None


@functools.cache
def known_keys(name: str) -> frozenset[str]:
    """The keys that a config of that format may have."""
    return frozenset([*config_keys(name, OPERANDS), *OTHER_KEYS])


def is_key_of_any_format(key: str) -> bool:
    """Return whether a config of any number format or layer variant may have the key."""
    variants = (getattr(cls, "config_keys", ()) for cls in LAYER_VARIANTS.values())
    return any(key in known_keys(name) for name in FORMATS) or any(key in keys for keys in variants)


def check_known(owner: str, config: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse a key that no format has, and `rounding` or `overflow` of another format.

    Other keys of other formats are ignored with a warning.
    """
    surplus = [key for key in config if key not in known]
    for key in surplus:
        if not isinstance(key, str) or not is_key_of_any_format(key):
            raise UnknownName(f"key of {owner}", key, sorted(known))
        if key.endswith(ARITHMETIC):
            raise ValueError(f"{owner} has no {key!r}, which only integer has; leave it out")
    if surplus:
        warn_of_surplus(owner, tuple(surplus))


@functools.cache  # the same config is read for every layer, and for every trial of a search
def warn_of_surplus(owner: str, keys: tuple[str, ...]) -> None:
    """Warn once that keys of other formats are ignored."""
    these = ", ".join(map(repr, keys))
    ignored = "it is ignored" if len(keys) == 1 else "they are ignored"
    logger.warning("%s has no %s, which other formats have; %s", owner, these, ignored)


def layer_formats(config: Mapping[str, Any], operands: Iterable[str]) -> dict[str, NumberFormat]:
    """The format of each operand; empty if the layer is bypassed.

    `data_out` is optional: with any key of it, results are rounded too.
    """
    config = dict(without_na(config))
    cls = format_in(config)
    if "data_in_skip_first_dim" in config and "batched" in cls.refinement_keys():
        config["data_in_batched"] = config.pop("data_in_skip_first_dim")  # the older name
    check_known(cls.config_name(), config, known_keys(config["name"]))
    if config.get("bypass", False) not in (True, False, None):
        raise ValueError(f"bypass is {config['bypass']!r}; give true or false")
    if config.get("bypass"):
        return {}
    wanted = list(operands)
    if any(f"data_out_{key}" in config for key in cls.precision_keys()):
        wanted.append("data_out")
    return {operand: from_config(config, operand) for operand in wanted}


def as_in_place(operand: Any, rounded: Any, result: Any, final: Any) -> Any:
    """The result of a call; an in-place op, which returns its operand, also writes to it.

    The operand is `rounded` rather than the caller's tensor, which other nodes may read later.
    """
    if isinstance(operand, Tensor) and result is rounded is not operand:
        return operand.copy_(final)
    return final
