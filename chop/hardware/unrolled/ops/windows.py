"""Places of the elements that a convolution or a pool takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["OUTSIDE", "windows"]

OUTSIDE = -1  # in the padding
Places = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def windows(
    shape: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    outputs: Sequence[int],
) -> Places:
    """Return the elements of each window, as places in a flat array of `shape`.

    The result has the shape (windows, elements of the kernel); shapes are without the channels.
    """
    result = np.zeros((*outputs, *kernel), np.int64)
    outside = np.zeros(result.shape, bool)
    rank = len(shape)
    for axis, size in enumerate(shape):
        first = np.arange(outputs[axis]) * stride[axis] - padding[axis]
        place = first[:, None] + np.arange(kernel[axis]) * dilation[axis]
        form = [1] * (2 * rank)
        form[axis], form[rank + axis] = place.shape
        place = place.reshape(form)
        outside |= (place < 0) | (place >= size)
        result = result * size + place
    result[outside] = OUTSIDE
    return result.reshape(int(np.prod(outputs)), int(np.prod(kernel)))
