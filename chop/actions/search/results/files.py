"""The files of a search (best.json, log.json, study.pkl, search.json) and its table."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import math
import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.search.metrics.objectives import Objectives
from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.results.importance import importance
from chop.actions.search.results.layers import layers_of
from chop.actions.search.results.table import front_table, spread
from chop.actions.search.run.loop import front_of
from chop.actions.search.samplers.base import Chosen
from chop.actions.search.samplers.optuna import study_in_memory
from chop.actions.search.store.study_store import StudyStore
from chop.system.files import whole_file

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

DIGITS = 10  # of the labs' files
AS_GOOD = 0.01  # of the best value: what counts as equally good
REMEMBERED = 512  # tables that are remembered with their text while a file is written
VERSION = 1  # of search.json
FULL = "the trials are kept: free some space, and --resume writes the results"

Config = Mapping[str, Any]
Facts = dict[str, Any]
# the table `default` of every design in the labs' files
DEFAULT_QUANTIZATION_CONFIG = {
    "config": {"name": "integer", "bypass": True}
    | {"bias_frac_width": 5, "bias_width": 8, "data_in_frac_width": 5, "data_in_width": 8}
    | {"weight_frac_width": 3, "weight_width": 8}
}


class Results:
    """The finished trials of a study with their designs."""

    def __init__(
        self,
        store: StudyStore,
        objectives: Objectives,
        config_of: Any,
        layers: Callable[[dict[str, Any]], Facts] = layers_of,
        operands: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._layers_of, self._layers = layers, dict[int, Facts]()
        self.store, self.objectives = store, objectives
        self.designs: Mapping[int, Chosen] = store.designs
        self.outcomes = store.outcomes
        self._config_of, self._operands = config_of, operands
        self._configs: dict[int, dict[str, Any]] = {}

    def config(self, number: int) -> dict[str, Any]:
        """Return the design of a trial as it is saved."""
        if number not in self._configs:
            self._configs[number] = self._config_of(self.designs[number])
        return self._configs[number]

    @functools.cached_property
    def best(self) -> list[Outcome]:
        """The Pareto front; of several trials of one design, the first."""
        designs: list[Chosen] = []
        best = []
        for out in front_of(self.outcomes.values(), self.objectives):
            if self.designs[out.number] not in designs:
                designs.append(self.designs[out.number])
                best.append(out)
        return best

    @property
    def chosen(self) -> Outcome | None:
        """The best trial: the first of `ranked`."""
        return next(iter(self.ranked), None)

    @property
    def ranked(self) -> list[Outcome]:
        """The front, those about as good as the best first, then by distance to the ideal point.

        As good is within 1 % of the best in every software metric that is an objective.
        """
        best = self.best
        good = self._as_good(best)
        return [*self._by_distance(good), *self._by_distance([o for o in best if o not in good])]

    def numbers(self, designs: str | int) -> list[int]:
        """Return the trials of "front", of "best", or so many of `ranked`."""
        ranked = [out.number for out in self.ranked]
        if designs == "front":
            return sorted(ranked)
        return ranked[: 1 if designs == "best" else int(designs)]

    def _by_distance(self, best: list[Outcome]) -> list[Outcome]:
        if not best:
            return []
        costs = [self.objectives.costs(out.values or ()) for out in best]
        low, high = ([f(column) for column in zip(*costs, strict=True)] for f in (min, max))

        def distance(i: int) -> float:
            spans = zip(costs[i], low, high, strict=True)
            return float(sum(((c - a) / (b - a)) ** 2 for c, a, b in spans if b > a))

        return [best[i] for i in sorted(range(len(best)), key=distance)]

    def _as_good(self, best: list[Outcome]) -> list[Outcome]:
        kept = best
        for objective in () if self.objectives.summed else self.objectives.members:
            if not best or any(objective.name not in out.software for out in best):
                continue
            sign = 1 if objective.direction == "maximize" else -1
            top = max(sign * out.software[objective.name] for out in best)
            near = top - AS_GOOD * abs(top)
            kept = [out for out in kept if sign * out.software[objective.name] >= near] or kept
        return kept

    def nearest_miss(self) -> str:
        """Return which constraints no design meets, and the design that is nearest to them."""
        missed = [o for o in self.outcomes.values() if o.state == "COMPLETE" and not o.feasible]
        if not missed:
            return ""
        nearest = min(missed, key=lambda out: sum(max(0.0, v) for v in out.violations))
        metrics = {**nearest.software, **nearest.hardware}
        constraints = self.objectives.constraints
        values = ", ".join(f"{c.metric} = {metrics[c.metric]:.4g}" for c in constraints)
        wanted = " and ".join(map(str, constraints))
        return f"No design meets {wanted}; nearest is trial {nearest.number}: {values}"

    def table(
        self, most: int | None = None, baseline: Mapping[str, Mapping[str, Any]] | None = None
    ) -> str:
        """Return a table of the Pareto front, the best value of the first objective first.

        With `most`, only so many designs are shown, evenly spread; `baseline` is the parent's row.
        """
        by_first = sorted(self.best, key=lambda out: self.objectives.costs(out.values or ()))
        objectives = [objective.name for objective in self.objectives.members]
        tables = () if baseline is None else baseline.values()
        parent = {name: value for table in tables for name, value in table.items()}
        shown = spread(by_first, most)
        return front_table(shown, self.designs, objectives, parent or None, self._operands)

    # --- files

    def write(self, folder: Path, facts: Mapping[str, Any], extra: Config) -> None:
        """Write all files, each atomically and row by row: together they are large."""
        _write(folder / "best.json", labs_json(self._best_rows(extra)))
        _write(folder / "log.json", labs_json(self._log_rows(extra)))
        _write(folder / "search.json", self._page_json(facts))
        self._pickle(folder / "study.pkl")
        self._configs.clear()

    def _best_rows(self, extra: Config) -> Iterator[dict[str, Any]]:
        for out in self.best:
            yield {
                "number": out.number,
                "value": list(out.values or ()),
                **_metrics(out),
                "sampled_config": {**self.config(out.number), **extra},
            }

    def _log_rows(self, extra: Config) -> Iterator[dict[str, Any]]:
        count = len(self.objectives.directions)
        names = ["value"] if count == 1 else [f"values_{i}" for i in range(count)]
        for _, out in sorted(self.outcomes.items()):
            start = round(out.started * 1e3)
            yield {
                "number": out.number,
                **dict(zip(names, out.values or [None] * count, strict=True)),
                "datetime_start": start,
                "datetime_complete": start + round(out.seconds * 1e3),
                "duration": round(out.seconds * 1e3),
                "user_attrs_hardware_metrics": dict(out.hardware),
                "user_attrs_sampled_config": {**self.config(out.number), **extra},
                "user_attrs_scaled_metrics": dict(out.scaled),
                "user_attrs_software_metrics": dict(out.software),
                **({"user_attrs_error": out.error} if out.error else {}),
                "state": out.state,
            }

    def _page_json(self, facts: Mapping[str, Any]) -> Iterator[str]:
        """Yield search.json, trial by trial."""
        header, trials, summary = self.content(facts)
        yield json.dumps(header).removesuffix("}") + ', "trials": ['
        for i, trial in enumerate(trials):
            yield (", " if i else "") + json.dumps(trial)
        yield "], " + json.dumps(summary).removeprefix("{") + "\n"

    def content(self, facts: Mapping[str, Any]) -> tuple[Facts, Iterator[Facts], Facts]:
        """Return what search.json holds: facts of the search, its trials, and a summary of them."""
        chosen, objectives = self.chosen, self.objectives
        front = [out.number for out in self.best]
        on_front = set(front)
        header = {
            **facts,
            "version": VERSION,
            "objectives": [dataclasses.asdict(objective) for objective in objectives.members],
            "summed": objectives.summed,
            "constraints": list(map(str, objectives.constraints)),
        }
        summary = {"front": front, "chosen": chosen and chosen.number}
        outcomes = (out for _, out in sorted(self.outcomes.items()))
        trials = (plain(self._page_row(out, out.number in on_front)) for out in outcomes)
        return plain(header), trials, plain({**summary, "importance": self._importance()})

    def _page_row(self, out: Outcome, with_layers: bool) -> dict[str, Any]:
        config = self.config(out.number)
        began = datetime.datetime.fromtimestamp(out.started).isoformat(timespec="milliseconds")
        return {
            "number": out.number,
            "state": out.state,
            "values": out.values,
            "feasible": out.feasible,
            "params": self._open(self.designs[out.number]),
            "config": config,
            **_metrics(out),
            "layers": self._layers_in(out.number) if with_layers else {},
            "seconds": out.seconds,
            "started": began,
            "worker": out.worker,
            "error": out.error,
            **({"rungs": {r: s.metrics for r, s in out.rungs.items()}} if out.rungs else {}),
        }

    def _layers_in(self, number: int) -> Facts:
        """Return the layers of a design, for which a network may have to be built."""
        if number not in self._layers:
            self._layers[number] = self._layers_of(self.config(number))
        return self._layers[number]

    def _open(self, chosen: Chosen) -> dict[str, Any]:
        return {p.key: chosen[p.key] for p in self.store.choices.open if p.key in chosen}

    def _importance(self) -> dict[str, dict[str, float]]:
        """Return the importance of each key for each objective."""
        names = ["sum"] if self.objectives.summed else [o.name for o in self.objectives.members]
        # in the order of numbers, as sums of floats depend on the order in which workers finish
        complete = [o for _, o in sorted(self.outcomes.items()) if o.values is not None]
        rows = [self._open(self.designs[o.number]) for o in complete]
        return {
            name: importance(rows, [(o.values or ())[i] for o in complete])
            for i, name in enumerate(names)
        }

    def _pickle(self, path: Path) -> None:
        """Write a study in memory, for use with Optuna itself."""
        import optuna

        storage, directions = optuna.storages.InMemoryStorage(), list(self.objectives.directions)
        names = {"study_name": self.store.study, "storage": storage}
        study = study_in_memory(directions=directions, **names)
        study_id = storage.get_study_id_from_name(study.study_name)
        for trial in self.store.frozen_trials():
            trial.user_attrs["sampled_config"] = self.config(trial.number)
            _add_uncopied(storage, study_id, trial)
        with whole_file(path, advice=FULL) as part, part.open("wb") as file:
            pickle.dump(study, file)


def _add_uncopied(storage: BaseStorage, study_id: int, trial: FrozenTrial) -> None:
    """Add a trial to a storage in memory without the copy that it would make."""
    vars(trial)["__deepcopy__"] = lambda memo: trial
    storage.create_new_trial(study_id, trial)
    del vars(trial)["__deepcopy__"]


def _metrics(out: Outcome) -> dict[str, dict[str, float]]:
    tables = {"software": out.software, "hardware": out.hardware, "scaled": out.scaled}
    return {f"{name}_metrics": dict(table) for name, table in tables.items()}


def _write(path: Path, parts: Iterable[str]) -> None:
    with whole_file(path, advice=FULL) as part, part.open("w", encoding="utf-8") as file:
        file.writelines(parts)


def plain(value: Any) -> Any:
    """Return a value as JSON has it; numbers that are not finite become null."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    return str(value)


def labs_json(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield rows as the labs' files have them: indented by four, `"key":value`, ten decimals."""
    writer, empty = _Writer(), True
    for i, row in enumerate(rows):
        yield ("{\n" if empty else ",\n") + f'    "{i}":{writer.written(row, "    ")}'
        empty = False
    yield "{}" if empty else "\n}"


class _Writer:
    """`json.dumps` with an indent, in a fraction of the time."""

    def __init__(self) -> None:
        # tables that many designs share; each is kept, so that nothing else gets its id
        self._known: dict[tuple[int, str], tuple[Any, str]] = {}

    def written(self, value: Any, margin: str) -> str:
        inner = margin + "    "
        if isinstance(value, dict):
            return self._table(value, margin, inner)
        if isinstance(value, list | tuple):
            lines = [inner + self.written(item, inner) for item in value]
            return "[\n" + ",\n".join(lines) + f"\n{margin}]" if lines else "[]"
        if isinstance(value, float):
            return repr(round(value, DIGITS)) if math.isfinite(value) else "null"
        if value is None or isinstance(value, bool):
            return {None: "null", True: "true", False: "false"}[value]
        return repr(value) if isinstance(value, int) else _text(str(value))

    def _table(self, value: dict[str, Any], margin: str, inner: str) -> str:
        known = self._known.get((id(value), margin))
        if known is not None:
            return known[1]
        lines = [f"{inner}{_text(str(k))}:{self.written(v, inner)}" for k, v in value.items()]
        text = "{\n" + ",\n".join(lines) + f"\n{margin}}}" if lines else "{}"
        if len(self._known) >= REMEMBERED:  # most of them are of one design alone
            self._known.clear()
        self._known[id(value), margin] = (value, text)
        return text


_text = json.encoder.encode_basestring_ascii
