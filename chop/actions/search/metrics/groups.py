"""Groups of trials that a runner measures together, and their files until they are stored."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

from torch import nn

from chop.actions.search.metrics.base import Metrics, Runner, Trial
from chop.actions.search.metrics.identity import identity
from chop.registry import not_defined

logger = logging.getLogger(__name__)


class Design(Protocol):
    """A trial and its network."""

    @property
    def number(self) -> int: ...

    @property
    def model(self) -> nn.Module: ...


class GroupRunner(Runner):
    """A runner that can measure several trials at once."""

    group_size: int  # trials that are measured together

    def together(self, trials: Sequence[Trial]) -> dict[int, Metrics | Exception]:
        """Return the result of each trial by number; missing trials have to be run alone."""
        raise not_defined(self, "together", "group runner")

    def check_trials(self, count: int) -> None:
        """Refuse a number of trials with an incomplete group, if its results would be others."""

    def file_of(self, trials: Sequence[Trial], name: object, facts: object) -> Path | None:
        """Return a file for trials of a group, which is removed once those of the group are stored.

        Other parents, trials and `facts` have other files.
        """
        folder = self.context.folder
        if folder is None:
            return None
        designs = [(trial.number, trial.config) for trial in trials]
        digest = hashlib.sha256(repr((self._identity, facts, designs)).encode()).hexdigest()[:12]
        folder.mkdir(parents=True, exist_ok=True)
        first = trials[0].number - trials[0].number % self.group_size
        return folder / f"{first}-{name}-{digest}.pt"

    @cached_property
    def _identity(self) -> str:
        return identity(self.context.model, self.context.data_module, self.context.seed)


class OneByOne:
    """Logs why designs are not trained together, once for each reason."""

    def __init__(self, user: str) -> None:
        self._user = user
        self._logged: set[str] = set()

    def warn(self, designs: Sequence[Design], why: str) -> None:
        if why not in self._logged:
            self._logged.add(why)
            numbers = ", ".join(str(design.number) for design in designs)
            logger.warning("%s: trials %s are trained one by one: %s", self._user, numbers, why)


def forget(folder: Path, first: int) -> None:
    """Remove the files of a group after its trials are stored."""
    for file in folder.glob(f"{first}-*.pt"):
        file.unlink(missing_ok=True)
    for part in folder.glob(f".{first}-*.part"):  # of killed processes
        shutil.rmtree(part, ignore_errors=True)
    with contextlib.suppress(OSError):  # other processes have files in it
        folder.rmdir()


def forget_recorded(folder: Path, recorded: Collection[int], group: int, trials: int) -> None:
    """Remove what killed processes have left of groups that are finished."""
    firsts = {int(file.name.partition("-")[0]) for file in folder.glob("[0-9]*-*.pt")}
    for first in firsts:
        if all(number in recorded for number in range(first, min(first + group, trials))):
            forget(folder, first)
