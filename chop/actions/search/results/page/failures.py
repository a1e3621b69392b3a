"""Failed trials, those with the same message together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chop.actions.search.results.page.record import Trial

__all__ = ["Failure", "failures"]

UNKNOWN = "no error was recorded"


@dataclass(frozen=True)
class Failure:
    """A message, the trials that ended with it, and the traceback of the first."""

    message: str
    numbers: tuple[int, ...]
    traceback: str


def failures(trials: Iterable[Trial]) -> list[Failure]:
    """The most frequent first."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.state == "FAIL":
            groups.setdefault(_message(trial.error), []).append(trial)
    found = [
        Failure(message, tuple(trial.number for trial in group), group[0].error or UNKNOWN)
        for message, group in groups.items()
    ]
    return sorted(found, key=lambda failure: -len(failure.numbers))


def _message(error: str | None) -> str:
    """A traceback's last line says what happened."""
    lines = (error or "").strip().splitlines()
    return lines[-1].strip() if lines else UNKNOWN
