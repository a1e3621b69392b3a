"""The trials under way, and the phases that they go through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.metrics.rungs import KnownTrials
from chop.actions.search.samplers.base import Chosen


class Phase(Enum):
    """The phase of a trial."""

    ASKED = "asked"  # its design is known, and it waits for a worker
    RUNNING = "running"  # a worker measures it
    DONE = "done"  # its outcome is known and stored
    TOLD = "told"  # the sampler knows its outcome


# a trial waits again after its worker died; one that an earlier run has finished is never run
NEXT: Mapping[Phase, tuple[Phase, ...]] = {
    Phase.ASKED: (Phase.RUNNING, Phase.DONE),
    Phase.RUNNING: (Phase.DONE, Phase.ASKED),
    Phase.DONE: (Phase.TOLD,),
    Phase.TOLD: (),
}


@dataclass(slots=True)
class TrialEntry:
    """A trial that is under way."""

    number: int
    chosen: Chosen
    notes: Mapping[str, Any]  # what the sampler stores with it
    known: KnownTrials  # what was known when it was asked for
    phase: Phase = Phase.ASKED
    outcome: Outcome | None = None
    reserved: bool = False  # whether the storage has it, unfinished
    deaths: int = 0  # of workers that measured it
    alone: bool = False  # whether it is measured without the rest of its group


class TrialTable:
    """The trials under way by number, in groups of `group_size` that are measured together.

    A group is dropped as soon as the sampler knows all of its outcomes.
    """

    def __init__(self, group_size: int = 1) -> None:
        self.group_size = group_size
        self._entries: dict[int, TrialEntry] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._entries

    def __getitem__(self, number: int) -> TrialEntry:
        return self._entries[number]

    def add(self, entry: TrialEntry) -> None:
        """Add a trial that was just asked for."""
        assert entry.phase is Phase.ASKED
        assert entry.number not in self._entries
        self._entries[entry.number] = entry

    def move(self, number: int, phase: Phase, outcome: Outcome | None = None) -> TrialEntry:
        """Change the phase of a trial, which is DONE when it has an outcome."""
        entry = self._entries[number]
        assert phase in NEXT[entry.phase], f"trial {number} is {entry.phase.value}"
        assert (outcome is not None) == (phase is Phase.DONE)
        entry.phase, entry.outcome = phase, outcome or entry.outcome
        return entry

    def in_phase(self, phase: Phase) -> Iterator[TrialEntry]:
        """The trials in a phase, in the order of their numbers."""
        return (entry for _, entry in sorted(self._entries.items()) if entry.phase is phase)

    def numbers_of_group(self, number: int) -> range:
        """The numbers of all trials that are measured together with a trial."""
        first = number - number % self.group_size
        return range(first, first + self.group_size)

    def group(self, number: int) -> list[TrialEntry]:
        """The trials asked for so far that are measured together with a trial."""
        numbers = self.numbers_of_group(number)
        return [self._entries[n] for n in numbers if n in self._entries]

    def drop_group(self, number: int) -> None:
        """Forget a group of which the sampler knows all outcomes."""
        for entry in self.group(number):
            assert entry.phase is Phase.TOLD
            del self._entries[entry.number]
