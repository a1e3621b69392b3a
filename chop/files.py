"""Files that users name, and the folder for what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(file: str | Path, text: str) -> Path:
    """Write a file, and the folders above it; a folder cannot be written."""
    path = Path(file)
    if path.is_dir():
        raise IsADirectoryError(f"{str(file)!r} is a folder; name a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def cache_folder() -> Path:
    """`$MASE_CACHE`, or `mase` in the user's cache: never inside the installed package."""
    own = os.environ.get("MASE_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own).expanduser() if own else Path(shared) / "mase"
