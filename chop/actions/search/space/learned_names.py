"""Names and places of designs that are trained as a whole."""

from __future__ import annotations

from pathlib import Path

LEARNED = "graph/learned"  # the space of these designs
MAX_DESIGNS = 10_000


def designs_beside(snapshots: Path) -> Path:
    """Return the folder with the trained designs of the study with these snapshots."""
    return snapshots.with_suffix(".designs")
