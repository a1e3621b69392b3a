"""Rows of everything that is registered, for `ch list` and the reference in the docs."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chop.options import options_of

Row = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of registered things: its description, registry, and the columns after the name."""

    about: str
    registry: str  # "module:NAME", imported when the rows are read
    columns: Callable[[Any], Row]

    def rows(self) -> list[Row]:
        """Return a row for each registered thing, sorted by name.

        If any of them has more than one name, all rows have a column with the other names.
        """
        registry = pkgutil.resolve_name(self.registry)
        named: dict[int, list[str]] = {}
        for name, thing in registry.items():  # the first name comes first
            named.setdefault(id(thing), []).append(name)
        several = any(len(names) > 1 for names in named.values())
        return [
            {"name": name}
            | ({"aliases": aliases} if several else {})
            | self.columns(registry[name])
            for name, *aliases in sorted(named.values())
        ]


def _first_line(obj: object) -> str:
    return (inspect.getdoc(obj) or "").partition("\n")[0]


KINDS: dict[str, Kind] = {
    "datasets": Kind(
        "data sets to train and test on",
        "chop.dataset.base:DATASETS",
        lambda spec: {
            "input": list(spec.info.image_size or filter(None, [spec.info.num_features])),
            "task": spec.info.known_task or "–",
            "classes": spec.info.num_classes or "–",
            "simulated": spec.info.simulated,
            "about": _first_line(spec.load),
        },
    ),
    "examples": Kind(
        "example configurations for --config",
        "chop.actions.examples:EXAMPLES",
        lambda example: {"about": example.about, "command": example.command},
    ),
    "exports": Kind(
        "what ONNX files hold of each number format, and what they refuse",
        "chop.passes.graph.interface.export_onnx.formats:LISTED",
        lambda row: {
            **{target: export.summary for target, export in row.items()},
            "about": next((e.reason for k, e in row.items() if k != "onnx" and e.reason), ""),
        },
    ),
    "formats": Kind(
        "number formats for quantisation",
        "chop.numerics:FORMATS",
        lambda cls: {"precision": cls.precision_keys(), "about": _first_line(cls)},
    ),
    "models": Kind(
        "built-in models",
        "chop.models.base:MODELS",
        lambda spec: {
            "tasks": spec.info.tasks,
            "type": str(spec.info.task_type),
            "options": [str(option) for option in spec.options.values()],
            "traceable": spec.info.is_fx_traceable,
            "about": _first_line(spec.build),
        },
    ),
    "ops": Kind(
        "operations of the nodes of a graph",
        "chop.ir.ops:OPS",
        lambda op: {
            "type": op.mase_type,
            "modules": [cls.__name__ for cls in op.modules],
            "quantized": list(op.quantized),
        },
    ),
    "passes": Kind(
        "analyses and transforms of a graph",
        "chop.passes:PASSES",
        lambda p: {
            "kind": p.kind,
            "options": p.written_options(),
            "needs": list(p.needs),
            "python_only": p.python_only,
            "about": _first_line(p.fn),
        },
    ),
    "runners": Kind(
        "metrics that a search can measure",
        "chop.actions.search.metrics.base:RUNNERS",
        lambda cls: {
            "side": cls.side,
            "metrics": [f"{metric} ({better})" for metric, better in cls.metrics.items()],
            "options": [str(option) for option in cls.options().values()],
            "about": _first_line(cls),
        },
    ),
    "samplers": Kind(
        "strategies that choose the designs of a search",
        "chop.actions.search.samplers.base:STRATEGIES",
        lambda cls: {"options": list(cls.options() or ()), "about": _first_line(cls)},
    ),
    "statistics": Kind(
        "statistics for profile_statistics",
        "chop.passes.graph.analysis.statistical_profiler.stat:STAT_NAME_TO_CLS",
        lambda cls: {
            "options": [str(option) for option in options_of(cls).values()],
            "about": _first_line(cls),
        },
    ),
}
