"""The parts of the page that are text: facts, tables, failures."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from chop.actions.search.results.page.columns import metric_names
from chop.actions.search.results.page.failures import failures
from chop.actions.search.results.page.markup import Html, join, table, tag
from chop.actions.search.results.page.numbers import decimals, difference, duration, number
from chop.actions.search.results.page.record import Metrics, SearchRecord, Trial, finite

__all__ = ["facts", "failed", "front_table", "importance", "origin", "subtitle", "tested", "title"]

MOST_ROWS = 500  # of the front; the drawing shows all
MOST_METRICS = 6  # columns of the front; the chosen design lists all
MOST_BARS = 20
MOST_NUMBERS = 30
LONGEST_TRACEBACK = 8_000


def title(record: SearchRecord) -> str:
    return f"{record.model} on {record.dataset_title or record.dataset}"


def subtitle(record: SearchRecord) -> Html:
    """What was wanted, in words, and whether the data are real."""
    words = {"maximize": "highest", "minimize": "lowest"}
    wanted = [f"{words[o.direction]} {o.name}" for o in record.objectives]
    if record.summed:
        goal = (
            f"{words[record.summed]} sum of scaled {_listed([o.name for o in record.objectives])}"
        )
    else:
        goal = _listed(wanted)
    limits = f", where {_listed(record.constraints)}" if record.constraints else ""
    sentence = tag("p", f"Search of {record.space.name} for {goal}{limits}.", class_="lead")
    note = tag(
        "p",
        tag("strong", "Simulated data."),
        " These numbers say nothing about real measurements.",
        class_="note",
    )
    return join([sentence, _unfinished(record), note if record.simulated else None])


def _unfinished(record: SearchRecord) -> Html | None:
    """Whether there is more to come."""
    if record.state is None:
        return None
    done = f"the page shows the {len(record.trials):,} trials that are done"
    if record.state == "running":
        return tag(
            "p",
            tag("strong", "This search is running."),
            f" So far, {done}; make it again for more.",
            class_="note",
        )
    return tag(
        "p",
        tag("strong", "This search was cut off."),
        f" Until --resume goes on with it, {done}.",
        class_="note",
    )


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""


def facts(record: SearchRecord) -> Html:
    """The numbers that one asks for first."""
    states = Counter(trial.state for trial in record.trials)
    infeasible = sum(trial.is_complete and not trial.feasible for trial in record.trials)
    rows = {
        "Trials done": f"{states['COMPLETE']:,}",
        "Failed": f"{states['FAIL']:,}",
        "Pruned": f"{states['PRUNED']:,}",
        "Infeasible": f"{infeasible:,}" if record.constraints else None,
        "Still running": f"{states['RUNNING']:,}" if states["RUNNING"] else None,
        "On the front": f"{len(record.front):,}",
        "Size of the space": _size(record.space.size),
        "Started": _moment(record.started),
        "Took": duration(record.seconds) + ("" if record.finished else ", not finished"),
    }
    return _definitions(rows, class_="facts")


def _size(designs: int | str | None) -> Html | str:
    """All digits up to a billion, then a power of ten."""
    if designs is None:
        return "not countable"
    if isinstance(designs, str):
        return f"{designs} designs"
    if designs < 10**9:
        return f"{designs:,} designs"
    power = len(str(designs)) - 1
    return join([f"{designs / 10**power:.1f} × 10", tag("sup", power), " designs"])


def _moment(text: str | None) -> str | None:
    """`2026-01-31 14:05 UTC`; text that is no moment stays as it is."""
    try:
        moment = datetime.datetime.fromisoformat(text or "")
    except ValueError:
        return text
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname() or ''}".strip()


def _definitions(rows: Mapping[str, Any], **attributes: Any) -> Html:
    pairs = (
        tag("div", tag("dt", name), tag("dd", value))
        for name, value in rows.items()
        if value is not None
    )
    return tag("dl", *pairs, **attributes)


def front_table(record: SearchRecord) -> Html:
    """The designs that no other beats, each with the command that makes it."""
    by_number = {trial.number: trial for trial in record.trials}
    designs = _best_first(record, [by_number[n] for n in record.front if n in by_number])
    if not designs:
        return tag("p", "No trial is on the front: none was completed within the constraints.")
    names = metric_names(record)[:MOST_METRICS]
    metrics = [record.metrics_of(trial) for trial in designs]
    digits = {name: decimals(m.get(name) for m in metrics) for name in names}
    arrows = {o.name: o.direction for o in [*record.objectives, *record.goals]}
    rows = [
        [
            tag("th", _choose(trial.number), scope="row", data_value=trial.number),
            *(_value(m.get(name), digits[name]) for name in names),
            tag("td", _apply(trial.number), class_="command"),
        ]
        for trial, m in list(zip(designs, metrics, strict=True))[:MOST_ROWS]
    ]
    head = [
        _sortable("trial"),
        *(_sortable(n, arrows.get(n), is_sorted=not i) for i, n in enumerate(names)),
    ]
    made = table("Designs of the Pareto front", [*head, "make it"], rows, id="front-table")
    more = f"The first {MOST_ROWS} of {len(designs):,} designs; the drawing shows all."
    return join([made, tag("p", more) if len(designs) > MOST_ROWS else None])


def _best_first(record: SearchRecord, designs: list[Trial]) -> list[Trial]:
    """By the first goal; those without it last."""
    goal = record.goals[0]
    sign = -1 if goal.direction == "maximize" else 1
    value = {trial.number: record.metrics_of(trial).get(goal.name) for trial in designs}
    worst = float("inf")
    return sorted(designs, key=lambda t: worst if (v := value[t.number]) is None else sign * v)


class _Towards(NamedTuple):
    """How a direction is drawn, said, and sorted best first."""

    arrow: str
    meaning: str | None
    order: str


_TOWARDS = {
    "maximize": _Towards(" ↑", "higher is better", "descending"),
    "minimize": _Towards(" ↓", "lower is better", "ascending"),
    None: _Towards("", None, "none"),
}


def _sortable(name: str, direction: str | None = None, *, is_sorted: bool = False) -> Html:
    towards = _TOWARDS[direction]
    label = f"{name}{towards.arrow}"
    button = tag("button", label, type="button", class_="sort", title=towards.meaning)
    return tag("th", button, scope="col", aria_sort=towards.order if is_sorted else "none")


def _choose(trial: int) -> Html:
    label = f"Choose trial {trial}"
    return tag("button", trial, type="button", class_="choose", data_trial=trial, aria_label=label)


def _value(value: float | None, digits: int) -> Html:
    return tag("td", number(value, digits), class_="n", data_value="" if value is None else value)


def _apply(trial: int) -> Html:
    label = f"Copy the command that makes trial {trial}"
    button = tag("button", "Copy", type="button", class_="copy", data_apply=trial, aria_label=label)
    return join([tag("code", f"ch search … --apply {trial}"), button])


def importance(record: SearchRecord) -> Html:
    """For each objective, which choices decided it."""
    panels = [_bars(name, shares) for name, shares in record.importance.items() if shares]
    if not panels:
        return tag("p", "Not known: it takes several completed trials that differ.")
    return tag("div", *panels, class_="panels")


def _bars(name: str, shares: dict[str, float | None]) -> Html:
    ranked = sorted(((v or 0.0, k) for k, v in shares.items()), key=lambda pair: -pair[0])
    rows = [[_words(key), _bar(share), f"{share:.3f}"] for share, key in ranked[:MOST_BARS]]
    head = ["choice", tag("th", "share", scope="col", colspan=2)]
    rest = len(ranked) - MOST_BARS
    note = tag("p", f"and {rest} smaller ones", class_="quiet") if rest > 0 else None
    made = table(f"Importance of choices for {name}", head, rows, class_="bars")
    return tag("div", tag("h3", name), made, note)


def _words(key: str) -> str:
    """`seq_blocks_2 weight_width`, as the drawings call it too."""
    return key.replace("/config/", " ").replace("/", " ")


def _bar(share: float) -> Html:
    drawn = tag("rect", width=f"{100 * min(max(share, 0.0), 1.0):.1f}%", height="100%")
    return tag("td", tag("svg", drawn, class_="bar", aria_hidden="true"), class_="drawn")


def failed(record: SearchRecord) -> Html:
    """What went wrong, folded, the same message once."""
    groups = failures(record.trials)
    if not groups:
        return tag("p", "No trial failed.")
    return join(
        tag(
            "details",
            tag(
                "summary",
                tag("span", f"{len(group.numbers):,} ×", class_="count"),
                " ",
                group.message,
            ),
            tag("p", f"Trials {_some(group.numbers)}. The first of them:"),
            tag("pre", group.traceback[-LONGEST_TRACEBACK:], tabindex=0),
            class_="failure",
        )
        for group in groups
    )


def _some(numbers: tuple[int, ...]) -> str:
    more = f", … {len(numbers) - MOST_NUMBERS} more" if len(numbers) > MOST_NUMBERS else ""
    return ", ".join(map(str, numbers[:MOST_NUMBERS])) + more


def tested(record: SearchRecord) -> Html | None:
    """What the search saw beside what it never saw; None if nothing was tested."""
    if not record.test:
        return None
    rows = []
    for design, found in record.test.items():
        scores = found if found.keys() & {"validation", "test"} else {"test": found}
        seen, unseen = (_numbers(scores.get(split)) for split in ("validation", "test"))
        label = "baseline" if design == "baseline" else f"trial {design}"
        for name in dict.fromkeys([*seen, *unseen]):
            a, b = seen.get(name), unseen.get(name)
            digits = decimals([a, b])
            delta = "–" if a is None or b is None else difference(b - a, digits)
            numbers = (number(a, digits), number(b, digits), delta)
            rows.append([label, name, *(tag("td", n, class_="n") for n in numbers)])
    head = ["design", "metric", *(tag("th", h, scope="col", class_="n") for h in _SPLITS)]
    return tag(
        "section",
        tag("h2", "Test and validation", id="tested"),
        tag("p", "The search chose by the validation split; it has not seen the test split."),
        table("Scores on the test and validation splits", head, rows),
        aria_labelledby="tested",
    )


_SPLITS = ("validation", "test", "difference")


def _numbers(scores: Any) -> Metrics:
    if not isinstance(scores, Mapping):
        return {}
    merged = scores
    if "software_metrics" in scores or "hardware_metrics" in scores:
        merged = {**scores.get("software_metrics", {}), **scores.get("hardware_metrics", {})}
    return {k: finite(v) for k, v in merged.items() if v is None or isinstance(v, (int, float))}


def origin(record: SearchRecord) -> Html:
    """All that it takes to do it again."""
    rows: dict[str, Any] = {
        "Model": record.model,
        "Data set": record.dataset_title or record.dataset,
    }
    rows |= {f"Fingerprint, {k}": tag("code", v) for k, v in record.fingerprints.items()}
    rows |= {"Seed": record.seed, "Sampler": record.sampler, "Study": record.study}
    rows |= {"Storage": record.storage, "Workers": record.workers}
    rows |= {"Constraints": "; ".join(record.constraints) or None}
    rows |= {_name(k): v for k, v in record.versions.items()}
    rows |= {_name(k): v for k, v in record.machine.items()}
    rows |= {"Started": _moment(record.started)}
    rows |= {"Finished": _moment(record.finished) or "not finished"}
    return join(
        [
            tag(
                "div",
                tag("pre", tag("code", record.command), tabindex=0),
                _copy(),
                class_="snippet",
            ),
            _definitions(rows, class_="origin"),
        ]
    )


NAMES = {"mase": "MASE", "cpu": "CPU", "gpu": "GPU", "torch": "PyTorch"}


def _name(key: str) -> str:
    return NAMES.get(key, key[:1].upper() + key[1:])


def _copy() -> Html:
    label = "Copy the command of this search"
    return tag("button", "Copy", type="button", class_="copy", data_whole=True, aria_label=label)
