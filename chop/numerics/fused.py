"""Rounding in one pass over memory, bit for bit equal to the format's `round`.

The plan of a format names a rule of `kernels/` and its arguments (`NumberFormat.plan`).
`fast.cuda` executes it by Triton, `fast.cpu` by a C++ library. Everything else (no compiler,
small or unusual tensors, float64, tracing, vmap, export) runs the format's `round`.
`fast.mode` reads the environment variable MASE_FUSED.
"""

from __future__ import annotations

from torch import Tensor

from chop.numerics.fast import mode
from chop.numerics.fast.cpu import round_on_cpu
from chop.numerics.fast.cuda import Slices, on_device_of, round_on_cuda, rule_of, runs_kernels
from chop.numerics.fast.mode import fused_mode, set_fused
from chop.numerics.fast.plans import PlannedFormat
from chop.numerics.scratch import is_plain

__all__ = [
    "Slices",
    "fused_mode",
    "on_device_of",
    "rounded",
    "rule_of",
    "runs_kernels",
    "set_fused",
]


def rounded(fmt: PlannedFormat, x: Tensor) -> Tensor:
    """Return `fmt.rounded(x)`, computed by the fastest available path."""
    if mode.current == "off" or not is_plain(x):
        return fmt.rounded(x)
    if x.is_cuda:
        result = round_on_cuda(fmt, x)
    elif x.device.type == "cpu":
        result = round_on_cpu(fmt, x)
    else:
        result = None
    return fmt.rounded(x) if result is None else result
