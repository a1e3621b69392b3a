"""What a person sees of a search: the plan before, a bar meanwhile."""

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

EVERY = 30.0  # seconds between lines where no bar can be drawn
SHOWN = 12  # rows of a plan


def plan(space: Space, settings: Settings, workers: int, seconds: float | None) -> str:
    """Nodes, choices, size, trials, time and disk: what is about to happen."""
    from tabulate import tabulate

    rows = [
        (p.key, _shown(p.choice.plain()), "" if p.parent is None else f"for {_shown(p.when)}")
        for p in space.choices.open
    ]
    columns = 3 if any(when for *_, when in rows) else 2
    cut = [row[:columns] for row in rows[:SHOWN]]
    table = tabulate(cut, ("Key", "Choices", "Only")[:columns], "orgtbl", disable_numparse=True)
    more = f"\n… and {len(rows) - SHOWN} keys more" if len(rows) > SHOWN else ""
    return f"{table}{more}\n{summary(space, settings, workers, seconds)}"


def summary(space: Space, settings: Settings, workers: int, seconds: float | None) -> str:
    """The numbers of the plan."""
    size = space.choices.size
    trials = settings.n_trials if size is None else min(settings.n_trials, _limit(settings, size))
    designs = "no end of designs" if size is None else _counted(size, "design")
    nodes = len({p.key.rpartition("/config/")[0] for p in space.choices.open})
    disk = trials * (400 + 60 * len(space.choices.parameters))
    keys, hands = _counted(len(space.choices.open), "key"), _counted(workers, "worker")
    said = [
        f"{_counted(nodes, 'node')}, {keys} with a choice, {designs}",
        (
            f"{_counted(trials, 'trial')} by {settings.sampler}, "
            f"{objectives_text(settings.objectives)}"
        ),
        f"about {_bytes(disk)} on disk",
    ]
    if seconds is not None and not settings.trains:
        said.append(f"about {_time(trials * seconds / min(workers, trials))} on {hands}")
    else:
        said.append(f"{hands}; the time left is shown after the first trial")
    return "\n".join(said)


def _limit(settings: Settings, size: int) -> int:
    return size if settings.sampler.startswith(("brute", "grid")) else settings.n_trials


def _counted(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{shown_size(number)} {what}s"


def objectives_text(objectives: Objectives) -> str:
    """What is searched for, as a sentence."""
    said = ", ".join(f"{g.direction} {g.name}" for g in objectives.members)
    if objectives.summed:
        terms = " ".join(f"{objectives.weight(g):+g} {g.name}" for g in objectives.members)
        said = f"one objective: {objectives.summed} {terms}"
    limits = "".join(f"; {c}" for c in objectives.constraints)
    return said + limits


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
    """A bar on a terminal; elsewhere a line from time to time."""
    if not wanted or not sys.stderr.isatty():
        yield _lines(objectives, log)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with RichProgress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, note="", count="")

        def show(progress: Progress) -> None:
            total = "" if progress.total is None else f"/{progress.total:,}"
            bar.update(
                task,
                total=progress.total,
                completed=progress.done,
                note=state(progress, objectives),
                count=f"{progress.done:,}{total} trials",
            )

        yield show


def _lines(objectives: Objectives, log: Callable[[str], None]) -> Show:
    last = time.monotonic()

    def show(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            said = f"{_counted(progress.done, 'trial')}, {state(progress, objectives)}"
            left, rate = (progress.total or progress.done) - progress.done, progress.per_second
            log(said if rate is None else f"{said}, {_time(left / max(rate, 1e-9))} left")

    return show


def state(progress: Progress, objectives: Objectives) -> str:
    """Best so far, size of the front, speed, what went wrong."""
    said = []
    members = progress.front.costs
    if members and len(objectives.directions) == 1:
        best = members[0][0]
        said.append(f"best {-best if objectives.directions[0] == 'maximize' else best:.4g}")
    elif members:
        said.append(f"front {len(members)}")
        for i, (objective, direction) in enumerate(
            zip(objectives.members, objectives.directions, strict=True)
        ):
            best = min(member[i] for member in members)
            best = (-best if direction == "maximize" else best) / objective.scale
            said.append(f"{objective.name} {best:.4g}")
    if progress.per_second is not None:
        said.append(f"{progress.per_second:.3g} trials/s")
    if progress.failed:
        said.append(f"{progress.failed} failed")
    if progress.stopped:
        said.append(f"{progress.stopped} stopped early")
    return "  ".join(said)
