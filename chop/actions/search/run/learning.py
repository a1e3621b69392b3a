"""Train the front of a study by gradients, and save its designs as graphs."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from chop.actions.search.space.learned import FILE, LearnedSpace, design_folder
from chop.actions.search.spec.settings import GradientTable
from chop.checkpoints import load_graph
from chop.dataset.data_module import facts_of
from chop.dotted import deepsetattr
from chop.files import write_whole
from chop.numerics.learned import LearnsBits
from chop.passes import run_pass
from chop.passes.graph.transforms.quantize.quantized_modules.widths import LearnsWidths
from chop.training.interruption import Interruption
from chop.training.learned import Checkpoint, LearnedDesign, LearnedFront, train_front

if TYPE_CHECKING:
    from chop.actions.search.spec.study_spec import StudySpec
    from chop.ir.graph.mase_graph import MaseGraph

logger = logging.getLogger(__name__)

SAVING = "saving the front, which --resume continues"


def learn_designs(spec: StudySpec) -> int:
    """Train the front of a study unless it is complete; return the number of its designs."""
    space, how = cast(LearnedSpace, spec.space), spec.settings.gradient
    assert how is not None
    assert space.folder is not None, "this process runs the study"
    if not space.is_trained:
        front = _trained(spec, space, how)
        _write(spec, space.folder, front)
    return min(len(space.facts), spec.settings.n_trials)


def _trained(spec: StudySpec, space: LearnedSpace, how: GradientTable) -> LearnedFront:
    parent, options = spec.parent, dataclasses.replace(how.front, seed=spec.parent.seed)
    assert space.folder is not None
    count, (low, high) = options.num_members, options.prices
    logger.info(
        "Training %s by gradients (%s), %s per unit of %s...",
        *("one network" if count == 1 else f"{count} networks", options.way),
        *(f"price {low:g} to {high:g}", options.cost_name),
    )
    with Interruption(then=SAVING) as interruption:
        front = train_front(
            space.learning,
            parent.data_module,
            options,
            task=parent.task,
            accelerator=parent.accelerator,
            teacher=teacher_of(spec, how),
            folder=space.folder / "training",
            on_checkpoint=_log,
            interrupted=lambda: interruption.received,
        )
    logger.info("Trained a front of %d designs in %.0f s", len(front.designs), front.report.seconds)
    return front


def _log(checkpoint: Checkpoint) -> None:
    logger.info("%s", checkpoint)


def teacher_of(spec: StudySpec, how: GradientTable) -> nn.Module | None:
    """Return the network from which a front learns: a saved graph, or the parent."""
    if not how.front.distill:
        return None
    if how.teacher is not None:
        return load_graph(how.teacher, spec.context.device).model
    model: nn.Module = spec.parent.graph.clone().model
    return model


def _write(spec: StudySpec, folder: Path, front: LearnedFront) -> None:
    """Save every design as a graph, then the list of all of them."""
    for number, design in enumerate(front.designs):
        graph = frozen(front.network(design))
        graph.meta["trained_on"] = facts_of(spec.parent.data_module) or {}
        graph.export(design_folder(folder, number))
    content = {
        "cost": front.cost,
        "designs": [_facts(design, front.metric) for design in front.designs],
        "report": dataclasses.asdict(front.report),
    }
    write_whole(folder / FILE, json.dumps(content) + "\n")


def _facts(design: LearnedDesign, metric: str) -> dict[str, Any]:
    """Return the facts of a design as its trial has them; runners measure it anew."""
    names = ("price", "cost", "member", "step")
    return {**{name: getattr(design, name) for name in names}, "score": design.metrics[metric]}


def frozen(graph: MaseGraph) -> MaseGraph:
    """Return the graph with ordinary layers in place of those that learn their bits."""
    graph.model.eval()
    learning = [m for m in graph.model.modules() if isinstance(m, LearnsBits)]
    if any(isinstance(layer, LearnsWidths) for layer in learning):
        graph, _ = run_pass("freeze_bits", graph, {})
    for name, layer in list(graph.model.named_modules()):
        if isinstance(layer, LearnsBits):
            deepsetattr(graph.model, name, layer.frozen())
    return graph
