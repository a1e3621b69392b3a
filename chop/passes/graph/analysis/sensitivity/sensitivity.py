"""How sensitive each layer is to each format: it alone rounded, and all others rounded."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from tabulate import tabulate
from torch import Tensor
from torch.utils._pytree import tree_map_only

from chop.charts import Bars, bar_page
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import ops_with
from chop.ir.probabilities import final_op, return_scores
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.analysis.quantization.calculate_avg_bits import WEIGHTED
from chop.passes.graph.analysis.sensitivity.scores import LayerScore
from chop.passes.graph.describe.interpreter import input_values, restored_random_state
from chop.passes.graph.describe.rerun import Rerun
from chop.passes.graph.transforms.quantize.quantize import node_config, quantize_transform_pass
from chop.passes.options import NodeChoice, OutputPath, Problem, check_picture, choices
from chop.passes.select import By, matching, select
from chop.system.files import write_whole
from chop.system.log import show_logs_unless_configured

logger = logging.getLogger(__name__)

BATCHES = "yields dicts such as {'x': batch}, or pairs of these and targets"
Key = tuple[str, str]  # node, format
Measure = Literal["sqnr", "loss", "accuracy"]
WITH_WEIGHTS = (*WEIGHTED, *ops_with("inner_products"))


@graph_pass("sensitivity", "analysis", needs=("common",))
def sensitivity_analysis_pass(
    graph: MaseGraph,
    *,
    formats: Mapping[str, Mapping[str, Any]],
    input_generator: Any,
    by: By = "type",
    nodes: Sequence[str] | None = None,
    num_batches: Annotated[int, Ge(1)] = 1,
    loss: Callable[..., Any] | None = None,
    rank_by: Measure = "sqnr",
    file_name: OutputPath | None = None,
    picture: OutputPath | None = None,
    silent: bool = False,
) -> dict[str, Any]:
    """Rank layers by the loss of accuracy when only they are rounded, for each of several formats.

    `formats` maps names to configs of `quantize`: `{"int8": {"name": "integer", …}}`. `nodes` are
    chosen as there, by default all linear layers and convolutions.
    `input_generator` yields dicts of inputs, or pairs of these and targets, which add loss and
    accuracy. For each node and format, `alone` rounds only that node, and `all_but` rounds all
    others. Activations are reused, so this takes about one forward pass per layer and format. The
    most sensitive come first in `ranking`.
    """
    chosen = _chosen(graph, by, nodes)
    variants = {name: _rounded(graph, chosen, config) for name, config in formats.items()}
    batches = list(_batches(graph, input_generator, num_batches))
    _check_targets(rank_by, [target for _, target in batches])
    measured = _Measured(graph, variants, chosen, loss)
    with torch.no_grad(), restored_random_state(graph.model):
        for inputs, target in batches:
            measured.add(inputs, target)
    info = measured.info(rank_by)
    _report(info, graph, rank_by, silent, file_name, picture)
    return info


@sensitivity_analysis_pass.law
def _laws(options: Mapping[str, Any]) -> Iterator[Problem]:
    yield from check_picture(options)
    formats = options.get("formats")
    if formats is not None and not formats:
        yield Problem("formats", "formats is empty; give {'int8': {'name': 'integer', …}}")
    for name, config in (formats or {}).items():
        try:
            node_config(name, config)
        except PassArgsError as error:
            yield Problem(f"formats.{name}", str(error))


@sensitivity_analysis_pass.chooses
def _named(options: Mapping[str, Any]) -> Iterator[NodeChoice]:
    yield from choices("nodes", options["by"], options["nodes"], or_module=True)


def _chosen(graph: MaseGraph, by: Any, keys: Sequence[str] | None) -> list[str]:
    """Return the names of the nodes that match `keys`, or of all weighted layers."""
    weighted = [node for node in graph.nodes if mase(node).common.mase_op in WITH_WEIGHTS]
    if not (weighted if keys is None else matching(graph, by, list(keys))):
        wanted = ", ".join(WITH_WEIGHTS if keys is None else keys)
        raise PassArgsError(f"no node of the graph matches {wanted}; name others in nodes")
    return [node.name for node in (weighted if keys is None else select(graph, by, keys))]


def _rounded(graph: MaseGraph, nodes: list[str], config: Mapping[str, Any]) -> Rerun:
    """Return a copy of the graph in which all those nodes are rounded."""
    copy = graph.clone()
    table = {"config": dict(config.get("config", config))}
    quantize_transform_pass(copy, {"by": "name", **dict.fromkeys(nodes, table)})
    return Rerun(copy)


def _batches(
    graph: MaseGraph, source: Any, number: int
) -> Iterator[tuple[list[Any], Tensor | None]]:
    """Yield inputs in the order of the graph's inputs, with their targets."""
    if not isinstance(source, Iterable):
        raise PassArgsError(f"input_generator {BATCHES}; a {type(source).__name__} does not")
    for batch in islice(source, number):
        inputs, target = batch if isinstance(batch, list | tuple) else (batch, None)
        if isinstance(inputs, Tensor):
            inputs = {str(graph.inputs[0].target): inputs}
        if not isinstance(inputs, Mapping):
            raise PassArgsError(f"input_generator gave {type(inputs).__name__}; it {BATCHES}")
        yield input_values(graph, inputs, "input_generator"), target


def _check_targets(rank_by: Measure, targets: list[Tensor | None]) -> None:
    if not targets:
        raise PassArgsError("input_generator yields no batches; it must yield at least one")
    present = [target for target in targets if target is not None]
    if present and len(present) < len(targets):
        raise PassArgsError(
            "input_generator yields targets with some batches only; give all or none"
        )
    if rank_by != "sqnr" and not present:
        raise PassArgsError(
            f"rank_by = {rank_by!r} needs targets: let input_generator yield (inputs, targets)"
        )
    if rank_by == "accuracy" and present[0].is_floating_point():
        raise PassArgsError("rank_by = 'accuracy' needs classes as targets; rank by 'loss'")


class _Measured:
    """Scores of every node and format, updated batch by batch."""

    def __init__(
        self, graph: MaseGraph, variants: Mapping[str, Rerun], chosen: list[str], loss: Any
    ) -> None:
        self.plain, self.variants, self.loss = Rerun(graph.clone()), variants, loss
        final = final_op(graph.model)
        if final is not None and loss is None and final[0].name not in chosen:
            for rerun in (self.plain, *variants.values()):
                return_scores(rerun.graph.model)
        self.baseline = LayerScore()
        self.rounded = {name: LayerScore() for name in variants}
        keys = [(node, fmt) for node in chosen for fmt in variants]
        self.alone: dict[Key, LayerScore] = {key: LayerScore() for key in keys}
        self.all_but: dict[Key, LayerScore] = {key: LayerScore() for key in keys}
        self.ran, self.batches, self.classes = 0, 0, False

    def add(self, inputs: list[Any], target: Tensor | None) -> None:
        copied = tree_map_only(Tensor, torch.clone, inputs)
        exact = self.plain.all(copied)
        output = exact[next(reversed(exact))]
        self._check(inputs, output)
        self.batches += 1
        self.classes = target is not None and not target.is_floating_point()
        self.baseline.add(output, output, target, self.loss)
        for fmt, variant in self.variants.items():
            rounded = variant.all(copied)
            self.rounded[fmt].add(rounded[next(reversed(rounded))], output, target, self.loss)
            for node, _ in (key for key in self.alone if key[1] == fmt):
                one, ran = self.plain.after(node, variant.node(node, exact), exact)
                self.alone[node, fmt].add(one, output, target, self.loss)
                rest, again = variant.after(node, self.plain.node(node, rounded), rounded)
                self.all_but[node, fmt].add(rest, output, target, self.loss)
                self.ran += ran + again

    def _check(self, inputs: list[Any], output: Any) -> None:
        """Check that the remembered activations are those that the model computes."""
        copied = tree_map_only(Tensor, torch.clone, inputs)
        wanted = LayerScore()
        wanted.add(output, self.plain.graph.model(*copied), None, None)
        if not wanted.noise <= 1e-9 * wanted.signal:
            raise PassArgsError(
                "the graph writes into tensors that other nodes read, or draws random numbers, so "
                "that its activations cannot be remembered; write the model without in-place "
                "operations on views"
            )

    def info(self, rank_by: Measure) -> dict[str, Any]:
        layers: dict[str, dict[str, Any]] = {}
        for (node, fmt), score in self.alone.items():
            layers.setdefault(node, {})[fmt] = {
                "alone": score.row(self.baseline, self.classes),
                "all_but": self.all_but[node, fmt].row(self.baseline, self.classes),
            }
        scored = {key: layers[key[0]][key[1]]["alone"][rank_by] for key in self.alone}
        # a high loss is bad; for the other measures a low value is
        order = sorted(scored, key=lambda key: -scored[key] if rank_by == "loss" else scored[key])
        return {
            "baseline": self.baseline.row(classes=self.classes),
            "rounded": {f: s.row(self.baseline, self.classes) for f, s in self.rounded.items()},
            "layers": layers,
            "ranking": [
                {"node": node, "format": fmt, rank_by: scored[node, fmt]} for node, fmt in order
            ],
            "forwards": self.ran / len(self.plain.nodes) / self.batches,
        }


def _report(
    info: Mapping[str, Any],
    graph: MaseGraph,
    rank_by: Measure,
    silent: bool,
    file_name: OutputPath | None,
    picture: OutputPath | None,
) -> None:
    if not silent:
        show_logs_unless_configured()
        logger.info("Sensitivity, highest first (the layer alone rounded, and all others rounded):")
        logger.info("\n%s", table(info, graph))
    if file_name is not None:
        write_whole(file_name, json.dumps(_finite(info), indent=2) + "\n")
    if picture is not None:
        write_whole(picture, _picture(info, rank_by))


def table(info: Mapping[str, Any], graph: MaseGraph) -> str:
    """Format one row per node and format, in the order of the ranking."""
    ops = {node.name: mase(node).common.mase_op for node in graph.nodes}
    rows = []
    for entry in info["ranking"]:
        node, fmt = entry["node"], entry["format"]
        scores = info["layers"][node][fmt]
        row: dict[str, Any] = {"Node": node, "OP": ops[node], "Format": fmt}
        for how in ("alone", "all_but"):
            row |= {f"{key} {how}": round(value, 4) for key, value in scores[how].items()}
        rows.append(row)
    return tabulate(rows, headers="keys", tablefmt="orgtbl")


def _finite(value: Any) -> Any:
    """Replace infinities by None, as JSON has none: an SQNR without noise is null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _picture(info: Mapping[str, Any], rank_by: Measure) -> str:
    """Draw one bar chart per format; long bars mean high sensitivity."""
    titles = {"sqnr": "noise, % of the signal", "loss": "increase of the loss"}
    title = titles.get(rank_by, "decrease of the accuracy, %")
    panels = []
    for fmt in info["rounded"]:
        lost = {n: _lost(scores[fmt]["alone"], rank_by) for n, scores in info["layers"].items()}
        panels.append(Bars(f"{fmt}: {title}", lost))
    return bar_page(panels)


def _lost(row: Mapping[str, float], rank_by: Measure) -> float:
    if rank_by == "sqnr":
        return 100 * 10 ** (-row["sqnr"] / 20)
    change = row[f"{rank_by}_change"]
    return change if rank_by == "loss" else -100 * change
