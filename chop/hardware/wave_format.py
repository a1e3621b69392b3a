"""The formats of files with waves."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

__all__ = ["WaveFormat", "wave_format"]

WaveFormat = Literal["vcd", "fst"]


def wave_format(file: Path) -> WaveFormat:
    """Return the format of a file with waves, by its ending."""
    ending = file.suffix.lower().removeprefix(".")
    if ending not in get_args(WaveFormat):
        raise ValueError(f"waves are written to a file that ends in .vcd or .fst, not {file}")
    return ending  # type: ignore[return-value]
