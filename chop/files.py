"""Files that users name."""

from __future__ import annotations

from pathlib import Path


def write_text(file: str | Path, text: str) -> Path:
    """Write a file, and the folders above it; a folder cannot be written."""
    path = Path(file)
    if path.is_dir():
        raise IsADirectoryError(f"{str(file)!r} is a folder; name a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
