"""The outcome of one trial."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from chop.actions.search.metrics.base import RungScore

State = Literal["COMPLETE", "FAIL", "PRUNED"]
NO_ERROR = "no error was recorded"


def last_line(error: str | None) -> str:
    """Return the last line of a traceback, which names the error."""
    return ((error or "").strip() or NO_ERROR).rpartition("\n")[2].strip()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that is stored of a trial besides its design."""

    number: int
    state: State
    values: tuple[float, ...] | None = None
    violations: tuple[float, ...] = ()
    software: Mapping[str, float] = field(default_factory=dict)
    hardware: Mapping[str, float] = field(default_factory=dict)
    scaled: Mapping[str, float] = field(default_factory=dict)
    rungs: Mapping[int, RungScore] = field(default_factory=dict)  # its scores, by epoch
    started: float = field(default_factory=time.time)
    seconds: float = 0.0
    worker: str = ""
    error: str | None = None

    @property
    def cause(self) -> str:
        """The last line of the error."""
        return last_line(self.error)

    @property
    def feasible(self) -> bool:
        """Whether it was measured and meets all constraints."""
        return self.state == "COMPLETE" and all(v <= 0 for v in self.violations)
