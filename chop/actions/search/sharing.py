"""Thousands of trials differ in a few numbers: the rest is kept once."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


class Common:
    """What many trials have in common, of which one is enough."""

    def __init__(self) -> None:
        self._distributions: dict[str, BaseDistribution] = {}

    def share(self, trial: FrozenTrial) -> None:
        one = self._distributions.setdefault
        # by how they are written: True equals 1, and is another choice
        trial.distributions = {
            sys.intern(key): one(repr(each), each) for key, each in trial.distributions.items()
        }
        trial.params = interned(trial.params)
        trial.user_attrs = interned(trial.user_attrs)


def interned(table: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a table whose keys are the same objects as those of others."""
    return {
        sys.intern(key): interned(value) if isinstance(value, dict) else value
        for key, value in table.items()
    }
