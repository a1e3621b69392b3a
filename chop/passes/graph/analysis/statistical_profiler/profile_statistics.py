"""Statistics of weights and activations, written into the software metadata."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

from annotated_types import Ge
from torch import Tensor, fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.operands import NAMED_OPERANDS
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.analysis.statistical_profiler.stat import Statistic, create_new_stat
from chop.passes.graph.describe.batches import (
    batches,
    check_count,
    check_generator,
    numbered,
    taken,
)
from chop.passes.graph.describe.interpreter import GraphRunner, RunError, restored_random_state
from chop.passes.graph.describe.nodes import fetch_attr
from chop.passes.options import NodeChoice, Problem, choices
from chop.passes.select import By, select
from chop.system.progress import progress_bar

logger = logging.getLogger(__name__)

Statistics = Mapping[str, Mapping[str, Any] | None]  # name -> options
Targets = dict[fx.Node, dict[str, dict[str, Statistic]]]  # node -> operand -> statistic by name


@graph_pass("profile_statistics", "analysis", needs=("common", "software"))
def profile_statistics_analysis_pass(
    graph: MaseGraph,
    *,
    by: By,
    target_weight_nodes: Sequence[str] = (),
    target_activation_nodes: Sequence[str] = (),
    weight_statistics: Statistics | None = None,
    activation_statistics: Statistics | None = None,
    input_generator: Any = None,
    num_samples: Annotated[int, Ge(1)] = 512,
    profile_output_activation: bool = False,
) -> None:
    """Write statistics of weights and activations to `software.args[...]["stat"]`.

    Nodes are chosen by op, by name, or by regular expression on names. `weight_statistics` and
    `activation_statistics` map the name of a statistic to its options. Activations come from
    `input_generator`, which yields dicts of inputs, until exactly `num_samples` samples were seen.
    `profile_output_activation` also profiles the results of the chosen nodes.
    """
    weights = _weight_targets(select(graph, by, target_weight_nodes), weight_statistics or {})
    nodes = select(graph, by, target_activation_nodes)
    activations = _activation_targets(nodes, activation_statistics or {}, profile_output_activation)
    needs_inputs = any(activations.values())
    if needs_inputs:
        check_generator("profile_statistics", "profile activations", input_generator)
    _profile_weights(graph, weights)
    if needs_inputs:
        _profile_activations(graph, activations, input_generator, num_samples)
    for targets in (weights, activations):
        for node, operands in targets.items():
            for operand, stats in operands.items():
                part = "results" if operand.startswith("data_out") else "args"
                exported = {name: stat.export() for name, stat in stats.items()}
                mase(node).software[part][operand]["stat"] = exported


@profile_statistics_analysis_pass.law
def _laws(options: Mapping[str, Any]) -> Iterator[Problem]:
    for table in ("weight_statistics", "activation_statistics"):
        for name, kwargs in (options[table] or {}).items():
            try:
                _new_stats({name: kwargs})
            except (ValueError, TypeError, KeyError) as error:
                yield Problem(f"{table}.{name}", str(error))


@profile_statistics_analysis_pass.chooses
def _chosen(options: Mapping[str, Any]) -> Iterator[NodeChoice]:
    for key in ("target_weight_nodes", "target_activation_nodes") if "by" in options else ():
        yield from choices(key, options["by"], options[key], or_module=True)


def _new_stats(statistics: Statistics) -> dict[str, Statistic]:
    return {name: create_new_stat(name, **(kwargs or {})) for name, kwargs in statistics.items()}


def _for_each(names: Iterable[str], statistics: Statistics) -> dict[str, dict[str, Statistic]]:
    """New statistics for each operand; with none requested, earlier results stay."""
    return {name: _new_stats(statistics) for name in names} if statistics else {}


def _weight_targets(nodes: Iterable[fx.Node], statistics: Statistics) -> Targets:
    targets: Targets = {}
    for node in nodes:
        if node.op != "call_module":
            logger.warning(
                "Node %s is not a call_module node, but is in target_weight_nodes. Skip.", node.name
            )
            continue
        names = [name for name in mase(node).software.args if not name.startswith("data_in")]
        targets[node] = _for_each(names, statistics)
    return targets


def _activation_targets(nodes: Iterable[fx.Node], statistics: Statistics, outputs: bool) -> Targets:
    targets: Targets = {}
    for node in nodes:
        software = mase(node).software
        # a module's other operands are its weights; a function takes weights like its data
        whole = node.op != "call_module"
        names = [n for n in software.get("args", {}) if whole or n.startswith("data_in")]
        if outputs:
            names += list(software.get("results", {}))
        targets[node] = _for_each(names, statistics)
    return targets


def _profile_weights(graph: MaseGraph, targets: Targets) -> None:
    """Update the statistics of every weight; the progress bar counts all nodes, as in the labs."""
    for node in progress_bar(
        graph.nodes, total=len(graph.nodes), desc="Profiling weight statistics"
    ):
        for name, stats in targets.get(node, {}).items():
            module = mase(node).module
            assert module is not None
            with _located_errors(node, name):
                for stat in stats.values():
                    stat.update_a_sample(fetch_attr(module, name))


@contextmanager
def _located_errors(node: fx.Node, operand: str) -> Iterator[None]:
    """Add the operand and node to the error of a statistic."""
    try:
        yield
    except ValueError as error:
        raise PassArgsError(
            f"pass 'profile_statistics', {operand} of node {node.name!r}: {error}"
        ) from error


def _profile_activations(
    graph: MaseGraph, targets: Targets, input_generator: Any, num_samples: int
) -> None:
    per_batch = getattr(input_generator, "batch_size", None)
    total = -(-num_samples // per_batch) if per_batch else None
    samples = 0
    batched: dict[tuple[fx.Node, str], bool] = {}
    with (
        restored_random_state(graph.model),
        progress_bar(total=total, desc="Profiling act statistics") as bar,
    ):
        for inputs, size in batches(graph, input_generator, num_samples):
            try:
                _StatisticsWatch(graph, targets, size, batched).run_unchanged(inputs)
            except RunError as error:
                raise PassArgsError(f"pass 'profile_statistics': {error}") from error.__cause__
            samples += size
            bar.update()
    check_count(samples, num_samples)


class _StatisticsWatch(GraphRunner):
    """Run a batch and pass the chosen operands to their statistics."""

    keep_random_state = False

    def __init__(
        self,
        graph: MaseGraph,
        targets: Targets,
        batch_size: int,
        batched: dict[tuple[fx.Node, str], bool],
    ) -> None:
        """`batched` records, from the first batch on, which operands hold one sample per row."""
        super().__init__(graph.model)
        self.targets, self.batch_size, self.batched = targets, batch_size, batched

    def run_node(self, n: fx.Node) -> Any:
        if not self.targets.get(n):
            return super().run_node(n)
        # arguments go first, before an in-place op changes them
        self._show(n, taken(n, *self.fetch_args_kwargs_from_env(n)))
        result = super().run_node(n)
        self._show(n, numbered("data_out", result))
        return result

    def _show(self, n: fx.Node, tensors: dict[str, Tensor]) -> None:
        for name in self.targets[n].keys() & tensors.keys():
            x = tensors[name]
            weight = name in NAMED_OPERANDS  # the same in every batch
            if weight and (n, name) in self.batched:
                continue
            rows = not weight and x.ndim > 0 and x.shape[0] == self.batch_size
            rows = self.batched.setdefault((n, name), rows)
            with _located_errors(n, name):
                for stat in self.targets[n][name].values():
                    (stat.update_a_batch if rows else stat.update_a_sample)(x)
