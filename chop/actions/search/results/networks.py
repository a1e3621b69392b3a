"""The network of a design as it is delivered, and a note of the one that the project stands for."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from chop.actions.search.results.files import Results
from chop.actions.search.run.worker import Worker
from chop.actions.search.store.location import StudyLocation
from chop.actions.train import trained_graph
from chop.checkpoints import load_graph, load_model
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.saved_files import is_saved_graph
from chop.project_networks import is_saved, note_design
from chop.training.names import Names

logger = logging.getLogger(__name__)

RESULT = "result.json"  # of a design that was retrained to the end


def network_of(worker: Worker, results: Results, location: StudyLocation, number: int) -> MaseGraph:
    """Return the network of a trial: retrained if it was, else as its trial measured it."""
    retrained = retrained_network(location, number)
    if retrained is not None:
        return _loaded(worker, retrained)
    if (location.retrained / f"trial_{number}").is_dir():
        logger.warning(
            "The retraining of trial %d was not completed, so its network is the one that the "
            "search measured; complete it with --resume",
            number,
        )
    graph = worker.rebuilt(number, results.designs[number])
    graph.model.cpu()
    return graph


def retrained_network(location: StudyLocation, number: int) -> Path | None:
    """Return where the retrained network of a trial is saved; None if it was not retrained."""
    folder = location.retrained / f"trial_{number}"
    graph = trained_graph(Names(folder))
    return graph if (folder / RESULT).is_file() and is_saved(graph) else None


def _loaded(worker: Worker, folder: Path) -> MaseGraph:
    """Return the network of a directory; one without a graph is made of the parent's model."""
    if is_saved_graph(folder):
        return load_graph(folder)
    network: Any = worker.spec.parent.graph.clone()  # an `UntracedModel`
    network.model = load_model(folder, "mz", network.model)
    return network  # type: ignore[no-any-return]


def note_retrained(results: Results, location: StudyLocation) -> None:
    """Note the best of the designs that were retrained as the network of the project."""
    for outcome in results.ranked:
        if (network := retrained_network(location, outcome.number)) is not None:
            note_design(location.folder, network, "retrained")
            return
