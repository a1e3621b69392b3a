"""The files by which the folder of a saved graph, or of saved layers, is recognised."""

from __future__ import annotations

from pathlib import Path

from chop.system.files import restore_folder

GRAPH, LAYERS = "graph.json", "layers.json"


def is_saved_graph(folder: str | Path) -> bool:
    """Whether `folder` looks like one that `save_graph` wrote."""
    return _has(folder, GRAPH)


def has_saved_modules(folder: str | Path) -> bool:
    """Whether `folder` looks like one that `save_modules` wrote."""
    return _has(folder, LAYERS)


def _has(folder: str | Path, file: str) -> bool:
    restore_folder(folder)
    return (Path(folder).expanduser() / file).is_file()
