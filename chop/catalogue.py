"""The contents of the registries as rows, for `ch list` and docs/reference.md."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One registry: a description, and a function that reads it (imports happen only then)."""

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
    from chop.passes.base import written
    from chop.passes.graph.analysis.statistical_profiler.stat import STAT_NAME_TO_CLS

    return [
        {
            "name": name,
            "options": [written(p) for p in inspect.signature(cls).parameters.values()],
            "about": _first_line(cls),
        }
        for name, cls in sorted(STAT_NAME_TO_CLS.items())
    ]


def _models() -> list[Row]:
    from chop.models.base import MODELS
    from chop.passes.base import written

    return [
        {
            "name": name,
            "tasks": spec.info.tasks,
            "type": str(spec.info.task_type),
            "options": [written(p) for p in spec.options],
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
    from chop.passes.base import written

    return [
        {
            "name": name,
            "side": cls.side,
            "metrics": [f"{metric} ({better})" for metric, better in cls.metrics.items()],
            "options": [written(option) for option in cls.options().values()],
            "about": _first_line(cls),
        }
        for name, cls in sorted(RUNNERS.items())
    ]


KINDS: dict[str, Kind] = {
    "datasets": Kind("data to train and test on", _datasets),
    "formats": Kind("number formats to quantise into", _formats),
    "models": Kind("models to start from", _models),
    "ops": Kind("the operations of a graph's nodes", _ops),
    "passes": Kind("analyses and transforms of a graph", _passes),
    "runners": Kind("metrics of a search", _runners),
    "statistics": Kind("statistics for profile_statistics", _statistics),
}
