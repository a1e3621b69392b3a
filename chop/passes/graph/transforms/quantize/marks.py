"""The mark "calibrated" in a config: what calibration is to choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.numerics import FORMATS, format_in
from chop.numerics.affine import CALIBRATED as CALIBRATED
from chop.registry import nearest

OPERANDS = ("data_in", "weight", "bias", "data_out")
FRACTION = "frac_width"
SCALES = ("scale", "zero_point")

Config = dict[str, Any]


def is_calibrated(config: Mapping[str, Any]) -> bool:
    """Return whether a config leaves something to calibration."""
    return config["name"] in FORMATS and bool(marked(config))


def is_fixed_point(config: Mapping[str, Any]) -> bool:
    """Return whether a config is of fixed-point numbers, which have fraction widths."""
    return config["name"] in FORMATS and FRACTION in FORMATS[config["name"]].calibrated_keys


def is_mark(value: Any) -> bool:
    """Return whether a value of a config is left to calibration."""
    return isinstance(value, str) and value == CALIBRATED


def without_marks(config: Mapping[str, Any]) -> Config:
    """Return the config with a default for each fraction width that is left to calibration.

    Another key that is left to it is refused, except a scale or a zero point, and so are other
    words in their places.
    """
    checked = dict(config)
    _check_texts(config)
    for key in [key for key, value in config.items() if is_mark(value)]:
        if key.endswith(FRACTION):
            checked[key] = None
        elif not key.endswith(format_in(config).calibrated_keys):
            raise ValueError(
                f"{key} cannot be {CALIBRATED!r}, as only fraction widths of integer, and scales "
                f"and zero points of affine can; give a number"
            )
    return checked


def _check_texts(config: Mapping[str, Any]) -> None:
    """Refuse a text other than "calibrated" where a number can be left to calibration."""
    endings = format_in(config).calibrated_keys
    for key, value in config.items():
        if key.endswith(endings) and isinstance(value, str) and not is_mark(value):
            hint = f"; did you mean {CALIBRATED!r}?" if nearest(value, [CALIBRATED]) else ""
            raise ValueError(f"{key} must be a number or {CALIBRATED!r}, not {value!r:.40}{hint}")


def marked(config: Mapping[str, Any]) -> list[str]:
    """Return the operands with numbers that are left to calibration.

    A scale that is not given is left to it; a bias without one takes the product of two scales.
    """
    if is_fixed_point(config):
        return [o for o in OPERANDS if is_mark(config.get(f"{o}_{FRACTION}"))]
    if not FORMATS[config["name"]].calibrated_keys:
        without_marks(config)
        return []
    present = [o for o in OPERANDS if o != "bias" and f"{o}_width" in config]
    return [o for o in present if any(is_mark(value) for value in _scales(config, o))]


def _scales(config: Mapping[str, Any], operand: str) -> list[Any]:
    defaults = {"scale": CALIBRATED, "zero_point": 0}
    return [config.get(f"{operand}_{key}", config.get(key, defaults[key])) for key in SCALES]


def with_bias(config: Mapping[str, Any]) -> Config:
    """Return the config with the keys of a bias that takes those of the weight.

    Its values need other fractions than the weight's.
    """
    cls = FORMATS[config["name"]]
    own = [f"bias_{key}" for key in cls.precision_keys()]
    if not is_mark(config.get(f"weight_{FRACTION}")) or any(key in config for key in own):
        return dict(config)
    keys = [*cls.precision_keys(), *cls.refinement_keys()]
    taken = {f"bias_{key}": config[f"weight_{key}"] for key in keys if f"weight_{key}" in config}
    return taken | dict(config)
