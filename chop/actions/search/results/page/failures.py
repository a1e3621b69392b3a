"""The failed trials of a search, grouped by their messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chop.actions.search.metrics.outcome import NO_ERROR, last_line
from chop.actions.search.results.page.record import Trial


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
