"""Rows of everything that is registered, for `ch list` and the reference in the docs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chop.options import options_of

Row = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of registered things: a description, and a function that reads its registry."""

    about: str
    rows: Callable[[], list[Row]]


def _first_line(obj: object) -> str:
    return (inspect.getdoc(obj) or "").partition("\n")[0]


def _formats() -> list[Row]:
    from chop.numerics import FORMATS

    return [
        {"name": name, "precision": cls.precision_keys(), "about": _first_line(cls)}
        for name, cls in sorted(FORMATS.items())
    ]


def _passes() -> list[Row]:
    from chop.passes import PASSES

    return [
        {
            "name": name,
            "kind": p.kind,
            "options": p.written_options(),
            "needs": list(p.needs),
            "python_only": p.python_only,
            "about": _first_line(p.fn),
        }
        for name, p in sorted(PASSES.items())
    ]


def _ops() -> list[Row]:
    from chop.ir.ops import OPS

    return [
        {
            "name": name,
            "type": op.mase_type,
            "modules": [cls.__name__ for cls in op.modules],
            "quantized": list(op.quantized),
        }
        for name, op in sorted(OPS.items())
    ]


def _statistics() -> list[Row]:
    from chop.passes.graph.analysis.statistical_profiler.stat import STAT_NAME_TO_CLS

    return [
        {
            "name": name,
            "options": [str(option) for option in options_of(cls).values()],
            "about": _first_line(cls),
        }
        for name, cls in sorted(STAT_NAME_TO_CLS.items())
    ]


def _models() -> list[Row]:
    from chop.models.base import MODELS

    return [
        {
            "name": name,
            "tasks": spec.info.tasks,
            "type": str(spec.info.task_type),
            "options": [str(option) for option in spec.options.values()],
            "traceable": spec.info.is_fx_traceable,
            "about": _first_line(spec.build),
        }
        for name, spec in sorted(MODELS.items())
    ]


def _datasets() -> list[Row]:
    from chop.dataset.base import DATASETS

    return [
        {
            "name": name,
            "input": list(spec.info.image_size or filter(None, [spec.info.num_features])),
            "classes": spec.info.num_classes,
            "simulated": spec.info.simulated,
            "about": _first_line(spec.load),
        }
        for name, spec in sorted(DATASETS.items())
    ]


def _runners() -> list[Row]:
    from chop.actions.search.metrics.base import RUNNERS

    return [
        {
            "name": name,
            "side": cls.side,
            "metrics": [f"{metric} ({better})" for metric, better in cls.metrics.items()],
            "options": [str(option) for option in cls.options().values()],
            "about": _first_line(cls),
        }
        for name, cls in sorted(RUNNERS.items())
    ]


KINDS: dict[str, Kind] = {
    "datasets": Kind("data sets to train and test on", _datasets),
    "formats": Kind("number formats for quantisation", _formats),
    "models": Kind("networks to start from", _models),
    "ops": Kind("operations of the nodes of a graph", _ops),
    "passes": Kind("analyses and transforms of a graph", _passes),
    "runners": Kind("metrics of a search", _runners),
    "statistics": Kind("statistics for profile_statistics", _statistics),
}
