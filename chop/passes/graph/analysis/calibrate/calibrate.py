"""Run data through a float graph once, and keep a histogram of every activation."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from tabulate import tabulate
from torch import Tensor, fx
from torch.utils._pytree import tree_map_only

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.numerics.histograms import BINS, Histogram
from chop.numerics.thresholds import PERCENTILE
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.analysis.calibrate.budget import affordable_samples
from chop.passes.graph.analysis.calibrate.table import drawn, rows_of
from chop.passes.graph.analysis.calibrate.watch import HistogramWatch, KeptInputs, Targets
from chop.passes.graph.describe.batches import batches, check_count, check_generator
from chop.passes.graph.describe.interpreter import RunError, device_of, restored_random_state
from chop.passes.graph.transforms.quantize.marks import OPERANDS
from chop.passes.graph.transforms.quantize.observed import ENTRY, is_parameter, places
from chop.passes.graph.transforms.quantize.output_error import INPUTS, Distance
from chop.passes.graph.transforms.quantize.quantize import why_not_quantized
from chop.passes.graph.transforms.repair.channels import require_float
from chop.passes.options import OutputPath, Problem, check_picture
from chop.system.files import write_whole
from chop.system.log import show_logs_unless_configured
from chop.system.progress import progress_bar

logger = logging.getLogger(__name__)

Method = Literal["output", "mse", "minmax", "percentile", "entropy"]
SAMPLES = 512
MIN_PERCENTILE = 50  # a share such as 0.99 in place of 99 would clip nearly everything
WIDTHS = (2, 32)  # the narrowest and the widest that the table is for


@graph_pass("calibrate", "analysis", needs=("common", "software"))
def calibrate_analysis_pass(
    graph: MaseGraph,
    *,
    input_generator: Any = None,
    method: Method = "output",
    percentile: Annotated[float, Gt(0), Le(100)] = PERCENTILE,
    per_channel: bool = False,
    num_samples: Annotated[int, Ge(1)] = SAMPLES,
    num_batches: Annotated[int, Ge(1)] | None = None,
    bins: Annotated[int, Ge(16)] = BINS,
    output_error: Distance = "divergence",
    widths: Sequence[int] = (8,),
    picture: OutputPath | None = None,
    silent: bool = False,
) -> dict[str, Any]:
    """Observe the activations of a float graph, for formats that are to be "calibrated".

    One pass over data from `input_generator`, which yields dicts of inputs, in evaluation mode:
    `num_samples` samples, or instead `num_batches` batches. Of each operand a histogram of `bins`
    bins stays in `software.args[...]["calibration"]`, for a tensor or `per_channel`; values beyond
    its range double the range and merge bins, so that its memory does not grow.

    `quantize` then chooses, for the width that it is asked for, the range of `method`: all values
    (`minmax`), `percentile` per cent of them, the least squared error (`mse`), the least
    divergence of the distribution (`entropy`), or (`output`) the least error of the network's
    output on a few samples that stay in memory, from the least squared error on; this error is
    `output_error`, the divergence of the classes' probabilities or the squared error. `output`
    is slow for large networks, the largest of which get `mse`. Activations without negative values
    become unsigned.

    The table of ranges at `widths` is logged unless `silent`, and returned as `calibrated`;
    `picture` draws the histograms with what is clipped.
    """
    require_float("calibrate", graph)
    targets = _targets(graph)
    method, kept = _affordable(graph, targets, method)
    limit = num_samples if num_batches is None else None
    found = _observe(
        graph, targets, _Source(input_generator, limit, num_batches), kept, bins, per_channel
    )
    _note(graph, found, {"method": method, "percentile": float(percentile)})
    graph.meta.pop(INPUTS, None)
    if kept is not None:
        graph.meta[INPUTS] = {"inputs": kept.joined(), "distance": output_error}
    rows = list(rows_of(list(targets), widths))
    if not silent:
        _show(rows)
    if picture is not None:
        write_whole(picture, drawn(graph, rows))
    return {"calibrated": rows}


@calibrate_analysis_pass.law
def _laws(options: Mapping[str, Any]) -> Iterator[Problem]:
    yield from check_picture(options)
    yield from _unlikely_percentage(options["percentile"])
    if options["num_batches"] is not None and options["num_samples"] != SAMPLES:
        yield Problem(
            "num_samples", "num_samples and num_batches cannot both be given; leave out one of them"
        )
    if options["bins"] % 4:
        yield Problem("bins", f"bins must be a multiple of 4, not {options['bins']}")
    for width in options["widths"]:
        whole = isinstance(width, int) and not isinstance(width, bool)
        if not whole or not WIDTHS[0] <= width <= WIDTHS[1]:
            low, high = WIDTHS
            yield Problem("widths", f"a width is an integer from {low} to {high}, not {width!r}")


def _affordable(
    graph: MaseGraph, targets: Targets, method: Method
) -> tuple[Method, KeptInputs | None]:
    """Return the method, or `mse` for a network too large for `output`, and what keeps inputs."""
    if method != "output":
        return method, None
    most = affordable_samples(graph, targets)
    if most:
        return method, KeptInputs(most)
    show_logs_unless_configured()
    logger.info("The network is too large for the method 'output'; using 'mse' in its place")
    return "mse", None


def _unlikely_percentage(percentile: float) -> Iterator[Problem]:
    if percentile < MIN_PERCENTILE:
        meant = f"; did you mean {100 * percentile:g}?" if percentile <= 1 else ""
        yield Problem(
            "percentile",
            f"percentile must be a percentage from {MIN_PERCENTILE} to 100, "
            f"not {percentile:g}{meant}",
        )


def _targets(graph: MaseGraph) -> Targets:
    """Return the activations to observe: operands and results of nodes that can be quantized."""
    targets: Targets = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output") or why_not_quantized(node) is not None:
            continue
        found = [place for operand in OPERANDS for place in places(node, operand, "integer")]
        targets[node] = {
            (part, name): None
            for part, name in dict.fromkeys(found)
            if isinstance(name, str) and not is_parameter(node, name)
        }
    if not targets:
        raise PassArgsError("pass 'calibrate': the graph has no node that can be quantized")
    return targets


class _Source:
    """The batches that are asked for, of at most so many samples."""

    def __init__(self, generator: Any, num_samples: int | None, num_batches: int | None) -> None:
        check_generator("calibrate", "observe the activations", generator)
        self.generator, self.num_samples, self.num_batches = generator, num_samples, num_batches
        self.samples = self.batches = 0

    def of(self, graph: MaseGraph) -> Iterator[tuple[list[Any], int]]:
        """Yield the inputs of each batch, and their number of samples."""
        most = self.num_samples or 2**62
        device = device_of(graph.model)
        for inputs, size in batches(graph, self.generator, most):
            yield tree_map_only(Tensor, lambda x: x.to(device), inputs), size
            self.samples, self.batches = self.samples + size, self.batches + 1
            if self.batches == self.num_batches:
                return

    @property
    def total(self) -> int | None:
        """The number of batches, if it is known."""
        per_batch = getattr(self.generator, "batch_size", None)
        by_samples = -(-self.num_samples // per_batch) if per_batch and self.num_samples else None
        known = [number for number in (by_samples, self.num_batches) if number is not None]
        return min(known, default=None)

    def check(self) -> None:
        """Refuse a generator that is exhausted, and warn of one that ended early."""
        if self.num_samples is not None:
            check_count(self.samples, self.num_samples)
        elif self.num_batches is not None:
            check_count(self.batches, self.num_batches, "batches")


def _observe(
    graph: MaseGraph,
    targets: Targets,
    source: _Source,
    kept: KeptInputs | None,
    bins: int,
    per_channel: bool,
) -> dict[fx.Node, dict[tuple[str, str], Histogram]]:
    """Return the histogram of every target."""
    watch = HistogramWatch(graph, targets, bins, per_channel)
    with (
        restored_random_state(graph.model),
        progress_bar(total=source.total, desc="Calibrating") as bar,
    ):
        for inputs, size in source.of(graph):
            try:
                watch.run_unchanged(inputs)
            except RunError as error:
                raise PassArgsError(f"pass 'calibrate': {error}") from error.__cause__
            if kept is not None:
                kept.add(inputs, size, watch.bytes_of_run)
            bar.update()
    source.check()
    return watch.histograms


def _note(graph: MaseGraph, found: Any, settings: Mapping[str, Any]) -> None:
    """Write histograms and settings into the metadata, without those of an earlier run."""
    for node in graph.nodes:
        software = mase(node).software
        software.pop("fractions", None)
        for part in ("args", "results"):
            for entry in software.get(part, {}).values():
                entry.pop(ENTRY, None)
    for node, histograms in found.items():
        software = mase(node).software
        for (part, name), histogram in histograms.items():
            software[part][name][ENTRY] = {**settings, "histogram": histogram.plain()}
        for name, entry in software["args"].items():
            if is_parameter(node, name):
                entry[ENTRY] = dict(settings)


def _show(rows: list[dict[str, Any]]) -> None:
    show_logs_unless_configured()
    logger.info(
        "Calibrated ranges, here as fixed-point numbers; quantize chooses those of its formats:"
    )
    logger.info("\n%s", tabulate(rows, headers="keys", tablefmt="orgtbl", floatfmt=".4g"))
