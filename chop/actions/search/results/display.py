"""The plan that a search logs first, and its progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from chop.actions.search.metrics.objectives import Objectives
from chop.actions.search.run.loop import Progress
from chop.actions.search.space.base import Space
from chop.actions.search.space.choices import shown_size
from chop.actions.search.spec.settings import Settings

FIRST, EVERY = 3.0, 30.0  # seconds until the first line, and between lines, where there is no bar
SHOWN = 12  # rows of a plan


def plan(space: Space, settings: Settings, workers: int) -> str:
    """Return a table of the choices, and the summary of the search."""
    from tabulate import tabulate

    rows = [
        (p.key, _shown(p.choice.plain()), "" if p.parent is None else f"for {_shown(p.when)}")
        for p in space.choices.open
    ]
    columns = 3 if any(when for *_, when in rows) else 2
    cut = [row[:columns] for row in rows[:SHOWN]]
    table = tabulate(cut, ("Key", "Choices", "Only")[:columns], "orgtbl", disable_numparse=True)
    more = f"\n… and {len(rows) - SHOWN} keys more" if len(rows) > SHOWN else ""
    return f"{table}{more}\n{summary(space, settings, workers)}"


def summary(space: Space, settings: Settings, workers: int) -> str:
    """Return nodes, designs, trials, objectives, disk space and workers, one line each.

    The time that a search takes depends on its sampler too, and is shown once it was measured.
    """
    size = space.choices.size
    is_exhaustive = settings.sampler.startswith(("brute", "grid"))
    trials = min(settings.n_trials, size) if is_exhaustive and size else settings.n_trials
    designs = "no end of designs" if size is None else _counted(size, "design")
    nodes = len({p.key.rpartition("/config/")[0] for p in space.choices.open})
    disk = trials * (400 + 60 * len(space.choices.parameters))
    keys, engine = _counted(len(space.choices.open), "key"), _counted(workers, "worker")
    goal = objectives_text(settings.objectives)
    return (
        f"{_counted(nodes, 'node')}, {keys} with a choice, {designs}\n"
        f"{_counted(trials, 'trial')} by {settings.sampler}, {goal}\n"
        f"about {_bytes(disk)} on disk\n"
        f"{engine}; the time left is shown after the first trials"
    )


def _counted(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{shown_size(number)} {what}s"


def objectives_text(objectives: Objectives) -> str:
    """Return the objectives and constraints as a sentence."""
    text = ", ".join(f"{o.direction} {o.name}" for o in objectives.members)
    if objectives.summed:
        terms = " ".join(f"{objectives.weight(o):+g} {o.name}" for o in objectives.members)
        text = f"one objective: {objectives.summed} {terms}"
    return "; ".join([text, *map(str, objectives.constraints)])


def _shown(value: Any) -> str:
    text = str(value)
    if isinstance(value, dict):  # a range
        steps = f" by {value['step']}" if "step" in value else ""
        text = f"{value['min']} to {value['max']}{steps}{', log' if value.get('log') else ''}"
    return text if len(text) <= 60 else text[:59] + "…"


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.0f} TB"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


Show = Callable[[Progress], None]


@contextmanager
def progress_bar(
    objectives: Objectives, *, wanted: bool, log: Callable[[str], None]
) -> Iterator[Show]:
    """Yield a function that draws a bar on a terminal, or else logs a line from time to time."""
    if not wanted or not sys.stderr.isatty():
        yield _lines(objectives, log)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as RichProgress

    text = TextColumn("{task.fields[text]}")  # a narrow terminal cuts its end
    with RichProgress(BarColumn(), text, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, text="")

        def show(progress: Progress) -> None:
            total = "" if progress.total is None else f"/{progress.total:,}"
            count = f"{progress.done:,}{total} trials"
            parts = (count, time_left(progress), state(progress, objectives))
            written = "  ".join(part for part in parts if part)
            bar.update(task, total=progress.total, completed=progress.done, text=written)

        yield show


def _lines(objectives: Objectives, log: Callable[[str], None]) -> Show:
    due = time.monotonic() + min(FIRST, EVERY)

    def show(progress: Progress) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + EVERY
            count = _counted(progress.done, "trial")
            parts = (count, state(progress, objectives), time_left(progress))
            log(", ".join(part for part in parts if part))

    return show


def time_left(progress: Progress) -> str:
    """Return the expected time until the last trial, empty if it is not known."""
    seconds = progress.seconds_left
    return "" if seconds is None else f"about {_time(seconds)} left"


def state(progress: Progress, objectives: Objectives) -> str:
    """Return the best values, the size of the front, the speed, and the number of failures."""
    parts = []
    points = progress.front.costs
    best = objectives.costs([min(column) for column in zip(*points, strict=True)]) if points else ()
    if len(best) == 1:
        parts.append(f"best {best[0]:.4g}")
    elif best:
        parts.append(f"front {len(points)}")
        members = zip(objectives.members, best, strict=True)
        parts += [f"{objective.name} {value / objective.scale:.4g}" for objective, value in members]
    if progress.per_second is not None:
        parts.append(f"{progress.per_second:.3g} trials/s")
    counts = {"failed": progress.failed, "stopped early": progress.stopped}
    return "  ".join([*parts, *(f"{count} {what}" for what, count in counts.items() if count)])
