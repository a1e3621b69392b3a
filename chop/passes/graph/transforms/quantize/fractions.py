"""Fraction widths of fixed-point operands, from histograms or from tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from chop.numerics import from_config
from chop.numerics.histograms import Histogram
from chop.numerics.integer import Integer
from chop.numerics.thresholds import FRACTIONS, Range, range_of, squared_error
from chop.passes.graph.transforms.quantize.calibrated import ACTIVATIONS
from chop.passes.graph.transforms.quantize.marks import FRACTION, without_marks
from chop.passes.graph.transforms.quantize.observed import Observed

NEAR = (-1, 0, 1, 2)  # distances from the fraction with the least squared error that are tried

Config = dict[str, Any]


def integer_keys(
    known: Observed,
    config: Mapping[str, Any],
    measure: Callable[[Integer], float | None] | None = None,
) -> Config:
    """Return the fraction width of an operand, and its sign if all values are positive."""
    operand, signed = known.operand, {}
    histogram = known.histogram()
    is_open = not any(key in config for key in (f"{operand}_signed", "signed"))
    if is_open and operand in ACTIVATIONS and histogram.is_non_negative and not known.drops_sign:
        signed = {f"{operand}_signed": False}
    fmt = format_of({**without_marks(config), **signed}, known)
    return signed | {f"{operand}_{FRACTION}": fraction(known, histogram, fmt, measure)}


def format_of(config: Mapping[str, Any], known: Observed) -> Any:
    """Return the format of an operand as its op uses it."""
    fmt = from_config(config, known.operand)
    return fmt.for_operand(known.operand, non_negative=known.drops_sign)


def fraction(
    known: Observed,
    histogram: Histogram,
    fmt: Integer,
    measure: Callable[[Integer], float | None] | None = None,
) -> int:
    """Return the fraction width of `fmt` that the method of calibration chooses for an operand."""
    if histogram.limits[0] == 0:
        return fmt.width // 2  # every format holds zeros
    if known.method not in ("mse", "output"):
        method: Any = known.method
        wanted = range_of(histogram, method, fmt.width, percent=known.percentile, signed=fmt.signed)
        return covering(fmt, wanted)
    key = _key(fmt)
    if known.method == "output" and key in known.fractions:
        return known.fractions[key]
    best = _least_squares(known, histogram, fmt)
    if measure is None or (least := measure(replace(fmt, frac_width=best))) is None:
        return best
    near = {best + distance for distance in NEAR} | {fmt.width // 2}
    for other in sorted(f for f in near - {best} if _is_possible(f)):
        error = measure(replace(fmt, frac_width=other))
        if error is not None and error < least:
            best, least = other, error
    known.fractions[key] = best
    return best


def _key(fmt: Integer) -> str:
    """Return the options of a format besides its fraction, as text."""
    others = [f.name for f in fields(fmt) if f.name != FRACTION]
    return ", ".join(f"{name} = {getattr(fmt, name)}" for name in others)


def _least_squares(known: Observed, histogram: Histogram, fmt: Integer) -> int:
    values, weights = known.points(histogram)
    first = covering(fmt, (float(histogram.low.min()), float(histogram.high.max())))
    candidates = [f for f in range(first - 1, first + fmt.width + 2) if _is_possible(f)]
    errors = {f: squared_error(replace(fmt, frac_width=f), values, weights) for f in candidates}
    return min(errors, key=lambda f: (errors[f], -f))


def covering(fmt: Integer, wanted: Range) -> int:
    """Return the largest fraction width with which `fmt` clips nothing of a range.

    A number that is nearer to the last step than half of one is not clipped but rounded.
    """
    least, most = replace(fmt, frac_width=0).codes
    low, high = wanted
    possible = [(most + 0.5) / high] if high > 0 else []
    possible += [(0.5 - least) / -low] if low < 0 and fmt.signed else []
    if not possible:
        return fmt.width // 2
    return min(max(math.floor(math.log2(min(possible))), FRACTIONS[0]), FRACTIONS[1])


def _is_possible(fraction_width: int) -> bool:
    return FRACTIONS[0] <= fraction_width <= FRACTIONS[1]
