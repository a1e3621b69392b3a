"""Where prepared data lies on disk."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$MASE_CACHE`, or `~/.cache/mase`: never inside the installed package."""
    return Path(os.environ.get("MASE_CACHE") or Path.home() / ".cache" / "mase").expanduser()
