"""Refuse a study of designs that cannot be measured or emitted, before anything is trained."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from chop.actions.config import ConfigError
from chop.actions.search.metrics.base import Trial
from chop.actions.search.space.base import Space
from chop.actions.search.space.learned import LearnedSpace
from chop.actions.search.space.untraced import UntracedModel
from chop.actions.search.spec.study_spec import StudySpec
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph.describe.formats import is_float_network
from chop.passes.graph.transforms.integers import integer_graph
from chop.system.log import quieter

logger = logging.getLogger(__name__)

Check = Callable[[Trial], Any]


def check_feasible(spec: StudySpec) -> None:
    """Convert and estimate untrained designs, as runners and circuits will: one must be possible.

    A search that measures no circuit only warns of designs without a meaning in integers.
    """
    if isinstance(spec.parent.graph, UntracedModel) or not isinstance(
        spec.space, Space | LearnedSpace
    ):
        return
    designs = [Trial(-1, {}, 0, lambda g=graph: g, graph.model) for graph in _designs(spec)]  # type: ignore[misc]
    for runner in spec.runners:
        if reason := _why_none(designs, runner.check):
            where = f"{spec.where}search.strategy.{runner.side[:1]}w_runner.{runner.name}"
            raise ConfigError(f"{where}: no design of this search can be measured: {reason}")
    settings = spec.settings
    tables = {"search.emit": settings.emit, "search.synthesize": settings.synthesize}
    wanted = next((name for name, table in tables.items() if table is not None), None)
    quantised = [trial for trial in designs if not is_float_network(trial.graph)]
    if wanted is not None and (reason := _why_none(quantised or designs, _estimated)):
        raise ConfigError(f"{spec.where}{wanted}: no design of this search has a circuit: {reason}")
    if quantised and (reason := _why_none(quantised, lambda trial: integer_graph(trial.graph))):
        logger.warning(
            "The designs of this search have no meaning in integers, so that they can be "
            "neither emitted nor verified: %s",
            reason,
        )


def _estimated(trial: Trial) -> Any:
    from chop.hardware.estimate import estimate

    return estimate(integer_graph(trial.graph))


def _designs(spec: StudySpec) -> Iterator[MaseGraph]:
    """Yield the uniform designs of a space, or the network of a front before it is trained."""
    with quieter("chop", logging.ERROR):
        if isinstance(spec.space, LearnedSpace):
            from chop.actions.search.run.learning import frozen

            graph = frozen(spec.space.learning.clone())
            graph.model.eval()
            yield graph
            return
        for design in spec.sampler_context.uniform:
            graph = spec.space.shaped(spec.space.config_of(design))
            graph.model.eval()
            yield graph


def _why_none(designs: list[Trial], check: Check) -> str | None:
    """Return why a check refuses the first design; None if it accepts one of them."""
    reasons = []
    for design in designs:
        try:
            with quieter("chop", logging.ERROR):
                check(design)
        except Exception as error:  # whatever it is, each trial would end with it
            reasons.append(str(error))
        else:
            return None
    return reasons[0] if reasons else None
