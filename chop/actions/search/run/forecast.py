"""How long the rest of a search takes, from the times at which its trials ended."""

from __future__ import annotations

import bisect

MOST = 2048  # moments that are kept
MEASURED = 64  # trials from which a growing time per trial can be told from noise


class Forecast:
    """Estimates the time left; each trial counts with its sampling, measuring and writing.

    The time of a trial may grow, as that of a sampler that looks at all earlier trials: growth is
    expected to continue for as many trials as it was seen.
    """

    def __init__(self) -> None:
        self._done: list[int] = []  # trials that had ended at each moment
        self._seconds: list[float] = []

    def note(self, done: int, seconds: float) -> None:
        """Take how many trials had ended at a moment."""
        self._done.append(done)
        self._seconds.append(seconds)
        if len(self._done) > MOST:  # the last one stays
            self._done, self._seconds = self._done[1::2], self._seconds[1::2]

    def seconds_left(self, total: int) -> float | None:
        """Return the time that the trials up to `total` take, None before any has ended."""
        if len(self._done) < 2:
            return None
        first = min(1, len(self._done) - 2)  # without the start of the workers, once there is more
        count, left = self._done[-1] - self._done[first], max(total - self._done[-1], 0)
        if count < MEASURED:
            return left * self._per_trial(first, -1)
        middle = bisect.bisect_left(self._done, self._done[first] + count / 2)
        if not first < middle < len(self._done) - 1:
            return left * self._per_trial(first, -1)
        before, recent = self._per_trial(first, middle), self._per_trial(middle, -1)
        growth = max(recent - before, 0.0) / (count / 2)  # per trial
        now = recent + growth * count / 4
        growing = min(left, count)
        steady = (left - growing) * (now + growth * growing)
        return growing * (now + growth * growing / 2) + steady

    def _per_trial(self, start: int, end: int) -> float:
        """Return the mean seconds of a trial between two of the moments."""
        count = max(self._done[end] - self._done[start], 1)
        return (self._seconds[end] - self._seconds[start]) / count
