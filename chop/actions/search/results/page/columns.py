"""Trials as columns: thousands of them in a page of a few megabytes.

A column is `{"numbers": [...]}`, one entry a trial, or `{"values": [...], "index": [...]}`, where
`index` points into `values`; without `index` all trials have the one value. Columns that say the
same are kept once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chop.actions.search.results.page.numbers import compact, decimals
from chop.actions.search.results.page.progress import curves
from chop.actions.search.results.page.record import Metrics, SearchRecord, Trial

__all__ = ["page_data"]

MOST_CHARACTERS = 4_000_000  # of data in a page; beyond it, configs are kept for the front alone
FEW = 64  # distinct values up to which a column of numbers is an index


class Columns:
    """Columns under their numbers, each different one once."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []
        self._known: dict[str, int] = {}

    def add(self, entries: Sequence[Any]) -> int:
        """The number of this column."""
        column = _encoded(entries)
        text = json.dumps(column, sort_keys=True)
        if text not in self._known:
            self._known[text] = len(self.kept)
            self.kept.append(column)
        return self._known[text]


def _encoded(entries: Sequence[Any]) -> dict[str, Any]:
    places: dict[Any, int] = {}
    index = [places.setdefault(_key(entry), len(places)) for entry in entries]
    if len(places) > FEW and all(e is None or isinstance(e, (int, float)) for e in entries):
        return {"numbers": list(entries)}
    values = list(map(_value, places))
    return {"values": values} if len(values) <= 1 else {"values": values, "index": index}


def _key(entry: Any) -> Any:
    """Something to look `entry` up by; True is not 1."""
    is_plain = entry is None or isinstance(entry, (int, float, str))
    return (type(entry), entry) if is_plain else json.dumps(entry)


def _value(key: Any) -> Any:
    return json.loads(key) if isinstance(key, str) else key[1]


def page_data(record: SearchRecord) -> dict[str, Any]:
    """All that the drawings of a page need; with too many trials, less of their configs."""
    data = _page_data(record, everywhere=True)
    if len(json.dumps(data)) > MOST_CHARACTERS:
        data = _page_data(record, everywhere=False)
    return data


def _page_data(record: SearchRecord, *, everywhere: bool) -> dict[str, Any]:
    shown = [trial for trial in record.trials if trial.state in ("COMPLETE", "PRUNED")]
    place = {trial.number: i for i, trial in enumerate(shown)}
    kept = {*record.front, record.chosen}
    detailed = [everywhere or trial.number in kept for trial in shown]
    columns = Columns()
    return {
        "command": record.command,
        "goals": len(record.goals),
        "number": [trial.number for trial in shown],
        "pruned": columns.add([not trial.is_complete for trial in shown]),
        "feasible": columns.add([trial.feasible for trial in shown]),
        "seconds": columns.add([compact(trial.seconds) for trial in shown]),
        "front": [place[number] for number in record.front if number in place],
        "chosen": place.get(record.chosen) if record.chosen is not None else None,
        "metrics": _metrics(record, shown, columns),
        "params": _by_key([trial.params for trial in shown], columns),
        "config": _by_key(
            [
                dict(flattened(trial.config)) if keep else {}
                for trial, keep in zip(shown, detailed, strict=True)
            ],
            columns,
        ),
        "configs_of_all": everywhere,
        "layers": _by_key([_layers(trial) for trial in shown], columns),
        "importance": _total_importance(record),
        "curves": [
            {
                "title": curve.title,
                "about": curve.about,
                "points": [(number, compact(value)) for number, value in curve.points],
                "baseline": compact(curve.baseline),
            }
            for curve in curves(record)
        ],
        "trials": 1 + max((trial.number for trial in record.trials), default=-1),
        "columns": columns.kept,
    }


def _metrics(
    record: SearchRecord, shown: Sequence[Trial], columns: Columns
) -> list[dict[str, Any]]:
    """Objectives first, then whatever else was measured."""
    measured = [record.metrics_of(trial) for trial in shown]
    base: Metrics = record.baseline.metrics if record.baseline else {}
    directions = {o.name: o.direction for o in [*record.objectives, *record.goals]}
    return [
        {
            "name": name,
            "direction": directions.get(name),
            "objective": any(objective.name == name for objective in record.objectives),
            "decimals": decimals([*(m.get(name) for m in measured), base.get(name)]),
            "baseline": compact(base.get(name)),
            "column": columns.add([compact(m.get(name)) for m in measured]),
        }
        for name in metric_names(record)
    ]


def metric_names(record: SearchRecord) -> list[str]:
    """Every metric that some trial has, goals and objectives before the others."""
    names = [o.name for o in [*record.goals, *record.objectives]]
    names += [name for trial in record.trials for name in trial.metrics]
    return list(dict.fromkeys(names))


def _by_key(rows: Sequence[Mapping[str, Any]], columns: Columns) -> dict[str, int]:
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: columns.add([row.get(key) for row in rows]) for key in keys}


def flattened(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """`("seq_blocks_2/config/weight_width", 4)` and so on, as parameters are called."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{above}{key}/")
        else:
            yield sys.intern(f"{above}{key}"), value  # one of which all designs share


WIDTHS = {"data_in_bits": "data_in_width", "weight_bits": "weight_width"}


def _layers(trial: Trial) -> dict[str, Any]:
    """`{"seq_blocks_2/weight_bits": 4, …}`; from the config where the search noted no layers."""
    if trial.layers is not None:
        return {key: _short(value) for key, value in flattened(trial.layers)}
    found: dict[str, Any] = {}
    for name, entry in trial.config.items():
        config = entry.get("config") if isinstance(entry, Mapping) else None
        if name == "default" or not isinstance(config, Mapping) or not config.get("name"):
            continue
        found[f"{name}/format"] = config["name"]
        found |= {f"{name}/{bits}": config[k] for bits, k in WIDTHS.items() if k in config}
    return found


def _short(value: Any) -> Any:
    return compact(value) if isinstance(value, float) else value


def _total_importance(record: SearchRecord) -> dict[str, float]:
    """Of each parameter, for all objectives together: which ones to show first."""
    total: dict[str, float] = {}
    for shares in record.importance.values():
        for name, share in shares.items():
            total[name] = total.get(name, 0.0) + (share or 0.0)
    return {name: float(f"{share:.4g}") for name, share in total.items()}
