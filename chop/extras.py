"""Packages that only some features need: how to install them."""

from __future__ import annotations

from pathlib import Path

__all__ = ["install_command"]

ROOT = Path(__file__).parents[1]


def install_command(extra: str, root: Path = ROOT) -> str:
    """Return the command that installs an extra: in a clone with pinned versions, else by name."""
    if (root / "constraints.txt").is_file():
        return f'.venv/bin/pip install -c constraints.txt -e ".[{extra}]"'
    return f'pip install "mase[{extra}]"'
