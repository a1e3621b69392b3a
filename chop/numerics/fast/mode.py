"""Whether formats may run as kernels: MASE_FUSED, or `set_fused`.

- `auto`, the default: kernels where they are available; no call waits for the C++ library.
- `on`: on the CPU the first call waits for the C++ library; a warning gives the reason if it fails.
- `off`: formats run as plain torch operations.
"""

from __future__ import annotations

import os
from typing import Literal, get_args

Mode = Literal["auto", "off", "on"]

current: Mode


def set_fused(mode: Mode) -> None:
    """Choose how formats run; overrides MASE_FUSED."""
    global current
    if mode not in get_args(Mode):
        raise ValueError(f"MASE_FUSED must be one of {', '.join(get_args(Mode))}, not {mode!r}")
    current = mode


def fused_mode() -> Mode:
    """Return the mode that `set_fused` or MASE_FUSED chose."""
    return current


set_fused(os.environ.get("MASE_FUSED", "auto").lower())  # type: ignore[arg-type]
