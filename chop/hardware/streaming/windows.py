"""Windows of an image: padding, lines that are kept, and when each window is complete."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from chop.hardware.streaming.component import paced
from chop.hardware.streaming.stream import Places, Stream, channels_last, in_lanes

__all__ = ["Window", "by_pixel"]

PAD_DELAY, TAPS_DELAY = 1, 2  # clock cycles
SLACK = 6  # beats that wait in registers between the lines and their reader


@dataclass(frozen=True)
class Window:
    """How a kernel moves over an image; pairs are rows and columns."""

    channels: int
    size: tuple[int, int]  # of the image
    result: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]  # before the first row and column
    dilation: tuple[int, int]

    @classmethod
    def of(
        cls,
        shape: tuple[int, ...],
        result: tuple[int, ...],
        kernel: tuple[int, ...],
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
    ) -> Window:
        """Return the window of an op of one or two dimensions; a line is an image of one row."""

        def pair(numbers: tuple[int, ...], filler: int) -> tuple[int, int]:
            row, column = (filler, *numbers) if len(numbers) == 1 else numbers
            return row, column

        sizes = (pair(shape[1:], 1), pair(result[1:], 1), pair(kernel, 1))
        return cls(shape[0], *sizes, pair(stride, 1), pair(padding, 0), pair(dilation, 1))

    @cached_property
    def reach(self) -> tuple[int, int]:
        """The rows and columns that a window covers."""
        row, column = ((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))
        return row, column

    @cached_property
    def after(self) -> tuple[int, int]:
        """The padding after the last row and column."""
        row, column = (
            max(0, (n - 1) * s + r - p - m)
            for n, s, r, p, m in zip(
                self.result, self.stride, self.reach, self.padding, self.size, strict=True
            )
        )
        return row, column

    @property
    def padded(self) -> tuple[int, int]:
        """The size of the image with its padding."""
        row, column = (
            p + m + a for p, m, a in zip(self.padding, self.size, self.after, strict=True)
        )
        return row, column

    @property
    def is_padded(self) -> bool:
        return self.padded != self.size

    @property
    def first(self) -> tuple[int, int]:
        """The row and column of the padded image that complete the first window."""
        return self.reach[0] - 1, self.reach[1] - 1

    def parameters(self, beats: int) -> dict[str, int]:
        """Return the parameters of modules that read windows, for `beats` per pixel."""
        return {
            "BEATS": beats,
            "ROWS": self.size[0],
            "COLUMNS": self.size[1],
            "PAD_TOP": self.padding[0],
            "PAD_BOTTOM": self.after[0],
            "PAD_LEFT": self.padding[1],
            "PAD_RIGHT": self.after[1],
            "KERNEL_ROWS": self.kernel[0],
            "KERNEL_COLUMNS": self.kernel[1],
            "STRIDE_ROWS": self.stride[0],
            "STRIDE_COLUMNS": self.stride[1],
            "DILATION_ROWS": self.dilation[0],
            "DILATION_COLUMNS": self.dilation[1],
        }

    def kept_codes(self, lanes: int, beats: int, rows_in_window: int) -> int:
        """Return the codes that the lines keep; `rows_in_window` reach the second memory."""
        lines = (self.reach[0] - 1) * self.padded[1] * beats * lanes
        return lines + (self.reach[1] - 1) * beats * lanes * rows_in_window

    @cached_property
    def _seen(self) -> Places:
        """How many pixels of the image come up to each pixel of the padded one."""
        inside = np.zeros(self.padded, np.int64)
        top, left = self.padding
        inside[top : top + self.size[0], left : left + self.size[1]] = 1
        return np.cumsum(inside.reshape(-1))

    @cached_property
    def _last(self) -> Places:
        """The place in the padded image of the last pixel of each window."""
        rows, columns = (
            np.arange(n) * s + r - 1
            for n, s, r in zip(self.result, self.stride, self.reach, strict=True)
        )
        return (rows[:, None] * self.padded[1] + columns[None]).reshape(-1)

    def needed(self, beats: int) -> Places:
        """Return the beats of the image that each beat of the windows needs."""
        pixels = self._seen[self._last]
        beat = np.arange(1, beats + 1)
        inside = np.diff(self._seen, prepend=0)[self._last]
        needed = np.where(inside[:, None] == 1, (pixels[:, None] - 1) * beats + beat, 0)
        whole = np.maximum(pixels * beats, 1)
        return np.where(inside[:, None] == 1, needed, whole[:, None]).reshape(-1)

    def times(self, arrived: Places, beats: int) -> Places:
        """Return when the beats of windows are there, for the times of the beats of the image."""
        pixels = np.repeat(self._seen, beats)
        inside = np.repeat(np.diff(self._seen, prepend=0), beats)
        beat = np.tile(np.arange(beats), len(self._seen))
        last = np.where(inside == 1, (pixels - 1) * beats + beat, pixels * beats - 1)
        # padding before the first pixel is there before the image is, except that of whole windows
        ahead = np.arange(len(last)) < self._last[0] * beats
        ready = np.where((last < 0) & ahead, -len(last), arrived[np.maximum(last, 0)])
        delay = (PAD_DELAY if self.is_padded else 0) + TAPS_DELAY * self.num_taps
        emitted = paced(ready, 1) + delay
        return emitted.reshape(-1, beats)[self._last].reshape(-1)

    @property
    def num_taps(self) -> int:
        """How many of both directions need lines."""
        return sum(k > 1 or s > 1 for k, s in zip(self.kernel, self.stride, strict=True))

    def interval(self, beats: int, used: int) -> int:
        """Return the clock cycles between images whose windows are in use for `used` cycles each.

        Two windows are stored; while the padding and the first lines pass, there may be none.
        """
        whole = self.cycles(beats)
        ends = [(int(place) + 1) * beats for place in self._last]
        sent, done = 0, [0, 0]  # the clock of the lines, and when the last two windows were done
        finished = []
        for _ in range(3):
            before = 0
            for end in ends:
                sent += end - before
                stored = max(sent, done[-2] + beats)
                sent, before = max(sent, stored - SLACK), end
                done = [done[-1], max(stored, done[-1]) + used]
            sent += whole - before
            finished.append(done[-1])
        return finished[2] - finished[1]

    def elastic(self, beats: int, cycles: int, delivery: int, interval: int) -> int:
        """Return the beats to store before lines that are busy for `cycles` of `interval`.

        Before the first window of an image the reader of windows is idle, and while padding is
        inserted the sender is; a queue lets both go on.
        """
        total = self.size[0] * self.size[1] * beats
        if delivery <= total:  # the sender gives a beat in every cycle
            return 0
        lead = int(self.needed(beats)[0])
        depth = lead if cycles + lead * delivery // total > interval else 0
        rows = self.padding[0] + self.after[0]
        burst = (rows * self.padded[1] + self.padding[1] + self.after[1]) * beats
        return depth + -(-burst * total // delivery)

    def cycles(self, beats: int) -> int:
        """Return the clock cycles that the padded image takes."""
        return self.padded[0] * self.padded[1] * beats


def by_pixel(stream: Stream) -> Stream:
    """Return the stream if it comes pixel by pixel, or what it has to become."""
    if stream.pixels(stream.shape[0]) is not None:
        return stream
    return stream.moved(in_lanes(channels_last(stream.shape), 1))
