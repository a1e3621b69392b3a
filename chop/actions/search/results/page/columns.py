"""The data of a page, by columns: thousands of trials take a few megabytes.

A column is `{"numbers": [...]}`, one entry per trial, or `{"values": [...], "index": [...]}`, where
`index` points into `values`; without `index` all trials have the one value. Equal columns are
stored once.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chop.actions.search.metrics.outcome import last_line
from chop.actions.search.results.layers import layers_of
from chop.actions.search.results.page.numbers import compact, decimals
from chop.actions.search.results.page.progress import Curve, curves
from chop.actions.search.results.page.record import Metrics, SearchRecord, Trial

MAX_CHARACTERS = 4_000_000  # of data in a page; beyond it, configs are kept for the front alone
FEW = 64  # distinct values up to which a column of numbers is an index


class Columns:
    """A list of columns in which equal ones are stored once."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []
        self._known: dict[str, int] = {}

    def add(self, entries: Sequence[Any]) -> int:
        """Add a column unless it is known, and return its number."""
        column = _encoded(entries)
        number = self._known.setdefault(json.dumps(column, sort_keys=True), len(self.kept))
        if number == len(self.kept):
            self.kept.append(column)
        return number


def _encoded(entries: Sequence[Any]) -> dict[str, Any]:
    places: dict[Any, int] = {}
    index = [places.setdefault(_key(entry), len(places)) for entry in entries]
    if len(places) > FEW and all(e is None or isinstance(e, (int, float)) for e in entries):
        return {"numbers": list(entries)}
    values = [json.loads(key) if isinstance(key, str) else key[1] for key in places]
    return {"values": values} if len(values) <= 1 else {"values": values, "index": index}


def _key(entry: Any) -> Any:
    """Return a hashable form of an entry, in which True differs from 1."""
    is_plain = entry is None or isinstance(entry, (int, float, str))
    return (type(entry), entry) if is_plain else json.dumps(entry)


def page_data(record: SearchRecord) -> dict[str, Any]:
    """Return the data of the drawings; of too many trials, only the front has its configs."""
    data = _page_data(record, with_all_configs=True)
    if len(json.dumps(data)) > MAX_CHARACTERS:
        data = _page_data(record, with_all_configs=False)
    return data


def _page_data(record: SearchRecord, *, with_all_configs: bool) -> dict[str, Any]:
    shown = [trial for trial in record.trials if trial.state in ("COMPLETE", "PRUNED")]
    place = {trial.number: i for i, trial in enumerate(shown)}
    detailed = place.keys() if with_all_configs else {*record.front, record.chosen}
    configs = [dict(flattened(t.config)) if t.number in detailed else {} for t in shown]
    columns = Columns()
    layers = _LayerReader(record.layers)
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
        "params": by_key([trial.params for trial in shown], columns),
        "config": by_key(configs, columns),
        "configs_of_all": with_all_configs,
        "layers": by_key([layers(trial) for trial in shown], columns),
        "failed": _failed(record, columns),
        "importance": _total_importance(record),
        "curves": [_curve(curve) for curve in curves(record)],
        "trials": 1 + max((trial.number for trial in record.trials), default=-1),
        "columns": columns.kept,
    }


def _curve(curve: Curve) -> dict[str, Any]:
    points = [(number, compact(value)) for number, value in curve.points]
    return {**vars(curve), "points": points, "baseline": compact(curve.baseline)}


def _metrics(
    record: SearchRecord, shown: Sequence[Trial], columns: Columns
) -> list[dict[str, Any]]:
    """Return the columns of all metrics, the objectives first."""
    measured = [record.metrics_of(trial) for trial in shown]
    base: Metrics = record.baseline.metrics if record.baseline else {}
    directions = {o.name: o.direction for o in [*record.objectives, *record.goals]}
    return [
        {
            "name": name,
            "direction": directions.get(name),
            "objective": any(objective.name == name for objective in record.objectives),
            "decimals": decimals([*(m.get(name) for m in measured), base.get(name)]),
            "baselines": [compact(base.get(name))],
            "samples": [record.samples[name]] if name in record.samples else None,
            "column": columns.add([compact(m.get(name)) for m in measured]),
        }
        for name in metric_names(record)
    ]


def metric_names(record: SearchRecord) -> list[str]:
    """Return the metrics of all trials, goals and objectives before the others."""
    names = [o.name for o in [*record.goals, *record.objectives]]
    names += [name for trial in record.trials for name in trial.metrics]
    return list(dict.fromkeys(names))


def by_key(rows: Sequence[Mapping[str, Any]], columns: Columns) -> dict[str, int]:
    """Add a column for each key of the rows, and return their numbers."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: columns.add([row.get(key) for row in rows]) for key in keys}


def flattened(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield pairs such as `("seq_blocks_2/config/weight_width", 4)`, named like parameters."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{above}{key}/")
        else:
            yield sys.intern(f"{above}{key}"), value  # all designs share the key


class _LayerReader:
    """Reads the bits of designs as `{"seq_blocks_2/weight_bits": 4, …}`.

    They come from the config of a design if the search has not stored its layers.
    """

    def __init__(self, parent: Mapping[str, Mapping[str, Any]]) -> None:
        self._parent = {name: _flat_layer(name, facts) for name, facts in parent.items()}
        self._known: dict[tuple[str, int], dict[str, Any]] = {}  # of tables that designs share

    def __call__(self, trial: Trial) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if trial.layers or not trial.config:
            for name, facts in (trial.layers or {}).items():
                found |= _flat_layer(name, facts)
            return found
        for name in self._parent or trial.config:
            found |= self._parent.get(name, {})
            found |= self._formatted(name, trial.config.get(name))
        return found

    def _formatted(self, name: str, table: Any) -> dict[str, Any]:
        """Return the format and the bits of one node, empty if it has no number format."""
        if name == "default" or not isinstance(table, Mapping):
            return {}
        key = name, id(table)
        if key not in self._known:
            facts = layers_of({name: table}).get(name, {"format": "float"})
            self._known[key] = {} if facts["format"] == "float" else _flat_layer(name, facts)
        return self._known[key]


def _flat_layer(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    pairs = ((f"{name}/{fact}", value) for fact, value in facts.items())
    return {key: compact(v) if isinstance(v, float) else v for key, v in pairs}


def _failed(record: SearchRecord, columns: Columns) -> dict[str, Any]:
    """Return numbers, times, choices and messages of the trials that failed."""
    trials = [trial for trial in record.trials if trial.state == "FAIL"]
    return {
        "number": [trial.number for trial in trials],
        "seconds": columns.add([compact(trial.seconds) for trial in trials]),
        "params": by_key([trial.params for trial in trials], columns),
        "error": columns.add([last_line(trial.error) for trial in trials]),
    }


def _total_importance(record: SearchRecord) -> dict[str, float]:
    """Return the importance of each parameter for all objectives together."""
    total = Counter[str]()
    for shares in record.importance.values():
        total.update({name: share or 0.0 for name, share in shares.items()})
    return {name: float(f"{share:.4g}") for name, share in total.items()}
