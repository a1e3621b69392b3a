"""The sections of the page that are text: facts, tables, failures."""

from __future__ import annotations

import datetime
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from chop.actions.search.metrics.outcome import NO_ERROR, last_line
from chop.actions.search.results.page.columns import metric_names
from chop.actions.search.results.page.markup import Html, join, table, tag
from chop.actions.search.results.page.numbers import (
    decimals,
    difference,
    duration,
    number,
    standard_error,
)
from chop.actions.search.results.page.record import Metrics, SearchRecord, Trial, finite

MAX_ROWS = 500  # of the front; the drawing shows all
MAX_METRICS = 6  # columns of the front; the chosen design lists all
MAX_BARS = 20
MAX_NUMBERS = 30
LONGEST_TRACEBACK = 8_000
SIMULATED = "Results on measured data may differ."
NAMES = {"mase": "MASE", "cpu": "CPU", "gpu": "GPU", "torch": "PyTorch"}


def title(record: SearchRecord) -> str:
    return f"{record.model} on {record.dataset_title or record.dataset}"


def subtitle(record: SearchRecord, *, is_live: bool = False) -> Html:
    """Return the objectives in words, and notes on an unfinished search and simulated data."""
    words = {"maximize": "highest", "minimize": "lowest"}
    goal = _listed([f"{words[o.direction]} {o.name}" for o in record.objectives])
    if record.summed:
        names = _listed([o.name for o in record.objectives])
        goal = f"{words[record.summed]} sum of scaled {names}"
    limits = f", where {_listed(record.constraints)}" if record.constraints else ""
    sentence = tag("p", f"Search of {record.space.name} for {goal}{limits}.", class_="lead")
    done = f"the page shows the {len(record.trials):,} trials that are done"
    more = "" if is_live else "; make it again for more, or follow the search with --live"
    notes = {
        "This search is running.": f"So far, {done}{more}.",
        "This search was cut off.": f"Until --resume continues it, {done}.",
        "Simulated data.": SIMULATED,
    }
    shown = (record.state == "running", record.state == "cut", record.simulated)
    made = [
        tag("p", tag("strong", note), f" {text}", class_="note") for note, text in notes.items()
    ]
    return join([sentence, *itertools.compress(made, shown)])


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""


def facts(record: SearchRecord) -> Html:
    """Return the list of counts, sizes and times."""
    states = Counter(trial.state for trial in record.trials)
    infeasible = sum(trial.is_complete and not trial.feasible for trial in record.trials)
    rows = {
        "Trials done": f"{states['COMPLETE']:,}",
        "Failed": f"{states['FAIL']:,}",
        "Pruned": f"{states['PRUNED']:,}",
        "Infeasible": f"{infeasible:,}" if record.constraints else None,
        "Still running": f"{states['RUNNING']:,}" if states["RUNNING"] else None,
        "On the front": f"{len(record.front):,}",
        "Size of the space": size(record.space.size),
        "Started": _moment(record.started),
        "Took": duration(record.seconds) + ("" if record.finished else ", not finished"),
    }
    return _definitions(rows, class_="facts")


def size(designs: int | str | None) -> Html | str:
    """Return the size of a space: all digits up to a billion, then a power of ten."""
    if designs is None:
        return "not countable"
    if isinstance(designs, str):
        return f"{designs} designs"
    if designs < 10**9:
        return f"{designs:,} designs"
    power = len(str(designs)) - 1
    return join([f"{designs / 10**power:.1f} × 10", tag("sup", power), " designs"])


def _moment(text: str | None) -> str | None:
    """Return a moment as `2026-01-31 14:05 UTC`; other text is returned unchanged."""
    try:
        moment = datetime.datetime.fromisoformat(text or "")
    except ValueError:
        return text
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname() or ''}".strip()


def _definitions(rows: Mapping[str, Any], **attributes: Any) -> Html:
    known = {name: value for name, value in rows.items() if value is not None}
    pairs = (tag("div", tag("dt", name), tag("dd", value)) for name, value in known.items())
    return tag("dl", *pairs, **attributes)


def front_table(record: SearchRecord) -> Html:
    """Return the table of the Pareto front, with the command that applies each design."""
    by_number = {trial.number: trial for trial in record.trials}
    designs = _best_first(record, [by_number[n] for n in record.front if n in by_number])
    if not designs:
        return tag("p", "No trial is on the front: none was completed within the constraints.")
    names = metric_names(record)[:MAX_METRICS]
    metrics = [record.metrics_of(trial) for trial in designs]
    digits = {name: decimals(m.get(name) for m in metrics) for name in names}
    arrows = {o.name: o.direction for o in [*record.objectives, *record.goals]}
    rows = [
        [
            tag("th", choose_button(trial.number), scope="row", data_value=trial.number),
            *(value_cell(m.get(name), digits[name], record.samples.get(name)) for name in names),
            tag("td", _apply(trial.number), class_="command"),
        ]
        for trial, m in list(zip(designs, metrics, strict=True))[:MAX_ROWS]
    ]
    columns = (sortable(n, arrows.get(n), is_sorted=not i) for i, n in enumerate(names))
    head = [sortable("trial"), *columns, "make it"]
    made = table("Designs of the Pareto front", head, rows, id="front-table")
    more = f"The first {MAX_ROWS} of {len(designs):,} designs; the drawing shows all."
    return join([made, tag("p", more) if len(designs) > MAX_ROWS else None])


def _best_first(record: SearchRecord, designs: list[Trial]) -> list[Trial]:
    """Sort designs by the first goal; those without it come last."""
    goal = record.goals[0]
    sign = -1 if goal.direction == "maximize" else 1
    value = {trial.number: record.metrics_of(trial).get(goal.name) for trial in designs}
    worst = float("inf")
    return sorted(designs, key=lambda t: worst if (v := value[t.number]) is None else sign * v)


# the arrow of a direction, its meaning, and the order that puts the best first
_DIRECTIONS: dict[str | None, tuple[str, str | None, str]] = {
    "maximize": (" ↑", "higher is better", "descending"),
    "minimize": (" ↓", "lower is better", "ascending"),
    None: ("", None, "none"),
}


def sortable(name: str, direction: str | None = None, *, is_sorted: bool = False) -> Html:
    """Return the head of a column by which a table can be sorted."""
    arrow, meaning, order = _DIRECTIONS[direction]
    button = tag("button", f"{name}{arrow}", type="button", class_="sort", title=meaning)
    return tag("th", button, scope="col", aria_sort=order if is_sorted else "none")


def choose_button(trial: int, search: int | None = None, name: str = "") -> Html:
    """Return the button that chooses a trial, of the named search if there are several."""
    label = f"Choose trial {trial}" + (f" of {name}" if name else "")
    facts = {"data_trial": trial, "data_search": search, "aria_label": label}
    return tag("button", trial, type="button", class_="choose", **facts)


def value_cell(value: float | None, digits: int, samples: int | None) -> Html:
    """Return the cell of a metric, with its standard error if it is a share of samples."""
    error = standard_error(value, samples)
    beside = None if error is None else tag("span", f" ± {number(error, digits)}", class_="quiet")
    shown = "" if value is None else value
    return tag("td", number(value, digits), beside, class_="n", data_value=shown)


def _apply(trial: int) -> Html:
    button = _copy(f"Copy the command that makes trial {trial}", data_apply=trial)
    return join([tag("code", f"ch search … --apply {trial}"), button])


def _copy(label: str, **attributes: Any) -> Html:
    return tag("button", "Copy", type="button", class_="copy", **attributes, aria_label=label)


def importance(record: SearchRecord) -> Html:
    """Return, for each objective, the importance of the choices."""
    panels = [_bars(name, shares) for name, shares in record.importance.items() if shares]
    if not panels:
        return tag("p", "Not known: it takes several completed trials that differ.")
    return tag("div", *panels, class_="panels")


def _bars(name: str, shares: dict[str, float | None]) -> Html:
    ranked = sorted(((v or 0.0, k) for k, v in shares.items()), key=lambda pair: -pair[0])
    rows = [
        # a key as the drawings call it too: seq_blocks_2 weight_width
        [key.replace("/config/", " ").replace("/", " "), _bar(share), f"{share:.3f}"]
        for share, key in ranked[:MAX_BARS]
    ]
    head = ["choice", tag("th", "share", scope="col", colspan=2)]
    rest = len(ranked) - MAX_BARS
    note = tag("p", f"and {rest} smaller ones", class_="quiet") if rest > 0 else None
    made = table(f"Importance of choices for {name}", head, rows, class_="bars")
    return tag("div", tag("h3", name), made, note)


def _bar(share: float) -> Html:
    drawn = tag("rect", width=f"{100 * min(max(share, 0.0), 1.0):.1f}%", height="100%")
    return tag("td", tag("svg", drawn, class_="bar", aria_hidden="true"), class_="drawn")


def failed(record: SearchRecord) -> Html:
    """Return the failures, each message once, with a traceback that is folded."""
    return join(map(_failure, failures(record.trials))) or tag("p", "No trial failed.")


def _failure(failure: Failure) -> Html:
    count, numbers = len(failure.numbers), ", ".join(map(str, failure.numbers[:MAX_NUMBERS]))
    numbers += f", … {count - MAX_NUMBERS} more" if count > MAX_NUMBERS else ""
    return tag(
        "details",
        tag("summary", tag("span", f"{count:,} ×", class_="count"), " ", failure.message),
        tag("p", f"Trials {numbers}. The first of them:"),
        tag("pre", failure.traceback[-LONGEST_TRACEBACK:], tabindex=0),
        class_="failure",
    )


def tested(record: SearchRecord) -> Html | None:
    """Return the scores on the validation and test splits; None if nothing was tested."""
    if not record.test:
        return None
    rows = []
    for design, scores in record.test.items():
        if not scores.keys() & {"validation", "test"}:
            scores = {"test": scores}
        seen, unseen = (_numbers(scores.get(split)) for split in ("validation", "test"))
        label = "baseline" if design == "baseline" else f"trial {design}"
        for name in dict.fromkeys([*seen, *unseen]):
            a, b = seen.get(name), unseen.get(name)
            digits = decimals([a, b])
            delta = "–" if a is None or b is None else difference(b - a, digits)
            numbers = (number(a, digits), number(b, digits), delta)
            rows.append([label, name, *(tag("td", n, class_="n") for n in numbers)])
    columns = ("validation", "test", "difference")
    head = ["design", "metric", *(tag("th", c, scope="col", class_="n") for c in columns)]
    return tag(
        "section",
        tag("h2", "Test and validation", id="tested"),
        tag("p", "The search chose by the validation split; it has not seen the test split."),
        table("Scores on the test and validation splits", head, rows),
        aria_labelledby="tested",
    )


def _numbers(scores: Any) -> Metrics:
    if not isinstance(scores, Mapping):
        return {}
    merged = scores
    if "software_metrics" in scores or "hardware_metrics" in scores:
        merged = {**scores.get("software_metrics", {}), **scores.get("hardware_metrics", {})}
    return {k: finite(v) for k, v in merged.items() if v is None or isinstance(v, (int, float))}


def origin(record: SearchRecord) -> Html:
    """Return all facts that are needed to repeat the search."""
    rows: dict[str, Any] = {"Model": record.model}
    rows |= {"Data set": record.dataset_title or record.dataset}
    known = {k: v for k, v in record.fingerprints.items() if v is not None}
    rows |= {f"Fingerprint, {k}": tag("code", v) for k, v in known.items()}
    rows |= {"Seed": record.seed, "Sampler": record.sampler, "Study": record.study}
    rows |= {"Storage": record.storage, "Workers": record.workers}
    rows |= {"Constraints": "; ".join(record.constraints) or None}
    facts = {**record.versions, **record.machine}
    rows |= {NAMES.get(key, key[:1].upper() + key[1:]): value for key, value in facts.items()}
    rows |= {"Started": _moment(record.started)}
    rows |= {"Finished": _moment(record.finished) or "not finished"}
    command = tag("pre", tag("code", record.command), tabindex=0)
    button = _copy("Copy the command of this search", data_whole=True)
    snippet = tag("div", command, button, class_="snippet")
    return join([snippet, _definitions(rows, class_="origin")])


@dataclass(frozen=True)
class Failure:
    """A message, the trials that ended with it, and the traceback of the first."""

    message: str
    numbers: tuple[int, ...]
    traceback: str


def failures(trials: Iterable[Trial]) -> list[Failure]:
    """Return the failures, the most frequent first."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.state == "FAIL":
            groups.setdefault(last_line(trial.error), []).append(trial)
    failures = [
        Failure(message, tuple(trial.number for trial in group), group[0].error or NO_ERROR)
        for message, group in groups.items()
    ]
    return sorted(failures, key=lambda failure: -len(failure.numbers))
