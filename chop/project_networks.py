"""Which network a project stands for, among all that its runs have made."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chop.system.files import best_checkpoint, read_json, write_whole

__all__ = ["Made", "ProjectNetwork", "is_saved", "networks_of", "note_design"]

TRAINED = Path("software", "training_ckpts")
TRANSFORMED = Path("software", "transform", "transformed_ckpt")
SEARCHED = Path("software", "search_ckpts")
NOTE = "network.json"  # in SEARCHED: the design that was retrained or applied last
# a stranger's note cannot name a place outside the directory
PLACE = re.compile(r"trial_\d+|[^/\\]+\.retrained/trial_\d+/transformed_ckpt")

Made = Literal["training", "design", "transform"]


@dataclass(frozen=True)
class ProjectNetwork:
    """A network that a run of a project has saved, and what a message calls it."""

    path: Path
    load_type: Literal["mz", "pl"]
    made: Made
    about: str


def networks_of(
    project: Path, *, without: Collection[Made] = (), kinds: Collection[str] = ("mz", "pl")
) -> Iterator[ProjectNetwork]:
    """Yield the networks of a project, or of a directory of training, the best first.

    That is a network that was trained in its number formats, else the design that was retrained or
    applied last, else the transformed network, else the newest checkpoint. Those that a command
    makes itself are left out of what it starts from by `without`.
    """
    for network in _all(project):
        if network.made not in without and network.load_type in kinds:
            yield network


def _all(project: Path) -> Iterator[ProjectNetwork]:
    yield from _trained_in(project, graphs=True)  # or the directory of training itself
    yield from _trained_in(project / TRAINED, graphs=True)
    design = _noted_design(project / SEARCHED)
    if design is not None:
        yield design
    if is_saved(project / TRANSFORMED):
        about = "the transformed network"
        yield ProjectNetwork(project / TRANSFORMED, "mz", "transform", about)
    yield from _trained_in(project, graphs=False)
    yield from _trained_in(project / TRAINED, graphs=False)


def _trained_in(folder: Path, *, graphs: bool) -> Iterator[ProjectNetwork]:
    """Yield the graph, or else the checkpoint, of the last training run in a directory."""
    best = best_checkpoint(folder)
    if best is None:
        return
    graph = folder / best.stem.replace("best", "transformed_ckpt", 1)
    if graphs and is_saved(graph):
        yield ProjectNetwork(graph, "mz", "training", "the network trained in its number formats")
    elif not graphs:
        yield ProjectNetwork(best, "pl", "training", "the newest checkpoint")


def is_saved(folder: Path) -> bool:
    """Return whether a directory holds a graph, or transformed layers."""
    from chop.ir.graph.saved_files import has_saved_modules, is_saved_graph

    return is_saved_graph(folder) or has_saved_modules(folder)


def note_design(folder: Path, network: Path, how: Literal["retrained", "applied"]) -> None:
    """Note, in the directory of a search, the design that was retrained or applied last."""
    content = {"network": network.relative_to(folder).as_posix(), "how": how}
    write_whole(folder / NOTE, json.dumps(content) + "\n")


def _noted_design(folder: Path) -> ProjectNetwork | None:
    file = folder / NOTE
    if not file.is_file():
        return None
    advice = "delete it, and run ch search --apply again"
    content = read_json(file, advice=advice)
    place, how = content.get("network"), content.get("how")
    if not isinstance(place, str) or not PLACE.fullmatch(place):
        raise ValueError(f"{file} does not name a design of this search; {advice}")
    if not is_saved(folder / place):
        return None  # it was removed
    about = f"the design that was {'retrained' if how == 'retrained' else 'applied'} last"
    return ProjectNetwork(folder / place, "mz", "design", about)
