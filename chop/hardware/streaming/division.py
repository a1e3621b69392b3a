"""Division by a constant, as a multiplication with its reciprocal that is exact."""

from __future__ import annotations

from dataclasses import dataclass

from chop.hardware.streaming.component import Natural
from chop.hardware.streaming.stream import Stream
from chop.integers import Word

__all__ = ["DIVIDE_DELAY", "ROUNDINGS", "Division"]

DIVIDE_DELAY = 4  # clock cycles
ROUNDINGS = {"floor": 0, "up": 1, "even": 2}  # as the modules number them


@dataclass(frozen=True)
class Division:
    """code · 2^-shift / divisor, rounded as a word does."""

    stream: Stream
    divisor: int
    shift: int
    word: Word

    @property
    def left(self) -> int:
        return max(-self.shift, 0)

    @property
    def width(self) -> int:
        """The bits of the quotient."""
        return self.stream.width + self.left + 2

    def parameters(self) -> dict[str, int]:
        """Return the parameters of fixed_divide."""
        # beyond these shifts every quotient is below one half
        right = min(max(self.shift, 0), self.stream.width + 2)
        twice = (2 * self.divisor) << right
        # the largest magnitude of the number, and as many divisors as make all positive
        largest = (2 << (self.stream.width + self.left)) + twice
        raised = max(1, (-(-largest // twice) - 1).bit_length())
        number = (largest + (twice << raised)).bit_length()
        shift = number + twice.bit_length()
        reciprocal = -(-(1 << shift) // twice)
        if max(reciprocal, twice).bit_length() > 127:
            raise ValueError(
                f"a division of {self.stream.width} bits by {self.divisor} needs more than 127 "
                f"bits; use narrower formats"
            )
        return {
            "IN_WIDTH": self.stream.width,
            "IN_SIGNED": int(self.stream.signed),
            "OUT_WIDTH": self.width,
            "LEFT": self.left,
            "ROUNDING": ROUNDINGS[self.word.rounding],
            "DIVISOR": Natural(twice),
            "RECIPROCAL": Natural(reciprocal),
            "RAISED": raised,
            "NUMBER": number,
            "FACTOR": reciprocal.bit_length(),
            "SHIFT": shift,
        }
