"""The chosen designs of a search, trained as populations."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Sequence
from pathlib import Path

from chop.actions.search.results.retrain import RETRAINERS, RetrainedDesign, finish
from chop.actions.search.spec.study_spec import StudySpec
from chop.methods.population.groups import POPULATION, StackableGroups
from chop.methods.population.population import Report
from chop.methods.population.train import train_population
from chop.training.tasks import task_named

logger = logging.getLogger(__name__)


@RETRAINERS.register("population")
def retrain_populations(
    spec: StudySpec, folder: Path, designs: Sequence[RetrainedDesign]
) -> list[int]:
    """Train designs that can be stacked at once; return the numbers of those that diverged."""
    for design in designs:
        design.graph = design.untrained()
    usual = POPULATION.get(spec.context.device.type, POPULATION["cpu"])
    size = spec.group_size if spec.group_size > 1 else usual
    families: StackableGroups[RetrainedDesign] = StackableGroups(
        "search.retrain",
        designs[0].options,
        spec.parent.data_module.train_dataset,
        task_named(spec.parent.task),
    )
    ended: dict[int, str] = {}
    for i in range(0, len(designs), size):
        population = designs[i : i + size]
        ended |= families.trained(population, lambda _, family: _train_family(folder, family))
    for design in designs:
        del design.graph
    return [number for number, why in ended.items() if why == "diverged"]


def _train_family(folder: Path, family: Sequence[RetrainedDesign]) -> dict[int, str]:
    """Train stackable designs, save and test them; return why the training of each ended."""
    logger.info(
        "Retraining trials %s as one population...", ", ".join(str(d.number) for d in family)
    )
    parent, marks = family[0].parent, repr([(d.number, d.mark) for d in family])
    # the file name is the same only for the same designs and options
    snapshot = folder / f"population-{hashlib.sha256(marks.encode()).hexdigest()[:12]}.pt"
    outcomes = train_population(
        [design.model for design in family],
        (parent.data_module.train_dataset, parent.data_module.val_dataset),
        [design.options for design in family],
        batch_size=parent.data_module.batch_size,
        device=parent.accelerator,
        on_epoch=_log_epoch,
        snapshot=snapshot,
        resume=True,
        keep_best=True,
    )
    ended = {d.number: out.stopped for d, out in zip(family, outcomes, strict=True)}
    finish([design for design in family if ended[design.number] != "diverged"])
    snapshot.unlink(missing_ok=True)
    return ended


def _log_epoch(reports: Sequence[Report]) -> None:
    """Log one line for each epoch."""
    losses = [report.loss for report in reports if math.isfinite(report.loss)]
    if losses:
        logger.info(
            "Epoch %d  %d designs  val_loss_epoch %.4f to %.4f",
            *(reports[0].epochs, len(reports), min(losses), max(losses)),
        )
