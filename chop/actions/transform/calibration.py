"""The run of `calibrate` that a quantisation with "calibrated" numbers needs before it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from chop.actions.transform.plan import PassStep, placed

logger = logging.getLogger(__name__)

CALIBRATED = "calibrated"  # as in chop.numerics.affine, which would import torch
AFFINE = "affine"
MAX_WIDTHS = 4  # that a table shows


def with_calibration(steps: list[PassStep], graph: Any, folder: Path | None) -> list[PassStep]:
    """Return the steps with a run of `calibrate` before the first one that needs it.

    A run that the file asks for gets the widths of the quantisation after it, for its table.
    """
    from chop.passes.base import PASSES
    from chop.passes.graph.transforms.quantize.observed import has_histograms

    needing = next((i for i, step in enumerate(steps) if _asks(step)), None)
    if needing is None:
        return steps
    widths = widths_of(steps[needing].options)
    for i, step in enumerate(steps[:needing]):
        if step.name == "calibrate":
            told = replace(step, options={"widths": widths, **step.options})
            return [*steps[:i], told, *steps[i + 1 :]]
    if has_histograms(graph):
        return steps
    logger.info(
        "%s asks for calibrated numbers: running calibrate before it, with its default options "
        "(add a table passes.calibrate to change them)",
        steps[needing].place,
    )
    run = PASSES["calibrate"]
    options = {"widths": widths}
    options = options if folder is None else placed(run, options, folder, steps[:needing])
    step = PassStep("calibrate", "passes.calibrate", run, options)
    return [*steps[:needing], step, *steps[needing:]]


def output_error_of(task: str) -> str:
    """Return how the output of a network for a task is compared."""
    from chop.dataset.base import TASK_NAMES

    return "squared" if TASK_NAMES.get(task, task) in ("reg", "dense") else "divergence"


def _asks(step: PassStep) -> bool:
    if step.name == "quantize_static":
        return True
    return step.name == "quantize" and asks_for_calibration(step.options)


def asks_for_calibration(options: Any) -> bool:
    """Return whether tables, or lists of choices, leave something to calibration."""
    return CALIBRATED in set(_leaves(options)) or _lacks_scale(options)


def _lacks_scale(table: Any) -> bool:
    """Return whether an affine activation has no scale in a table, or in one inside it."""
    if not isinstance(table, Mapping):
        return False
    if any(_lacks_scale(inner) for inner in table.values()):
        return True
    names = table.get("name")
    if AFFINE not in (names if isinstance(names, list | tuple) else [names]):
        return False
    own = table.get(AFFINE)  # keys for that format alone
    keys = {**table, **own} if isinstance(own, Mapping) else table
    return any(
        f"{operand}_width" in keys and not {f"{operand}_scale", "scale"} & keys.keys()
        for operand in ("data_in", "data_out")
    )


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the texts in nested tables and lists."""
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(item)
    elif isinstance(value, str):
        yield value


def widths_of(options: Any) -> list[int]:
    """Return the widths of the operands that are to be calibrated, the widest first."""
    found = set(_widths(options))
    return sorted(found, reverse=True)[:MAX_WIDTHS] or [8]


def _widths(table: Any) -> Iterator[int]:
    if isinstance(table, Mapping):
        for key, value in table.items():
            yield from _widths(value)
            if CALIBRATED in set(_leaves(value)) and str(key).endswith("_frac_width"):
                width = table.get(f"{str(key).removesuffix('_frac_width')}_width")
                wide = width if isinstance(width, list) else [width]
                yield from (w for w in wide if isinstance(w, int) and w >= 2)
