"""The parent of a search whose designs have calibrated numbers: it is calibrated once."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from chop.actions.search.space.base import Parent
from chop.actions.search.space.untraced import is_module_style
from chop.actions.transform.calibration import asks_for_calibration, output_error_of
from chop.dataset.nested import on_device
from chop.tools.get_input import InputGenerator

logger = logging.getLogger(__name__)

WHERE = "search.search_space.calibrate"
NOTED = ("method", "percentile")  # what a study records of a calibration


def calibrated_parent(table: Mapping[str, Any], parent: Parent) -> Parent:
    """Return the parent with histograms if designs in `[search.search_space]` need them.

    `[search.search_space.calibrate]` has the options of `calibrate`.
    """
    from chop.passes.graph.transforms.quantize.observed import has_histograms

    options = table.get("calibrate", {})
    if not isinstance(options, Mapping):
        raise ValueError(f"{WHERE} must be a table of options of calibrate, not {options!r:.80}")
    if is_module_style(table) or not asks_for_calibration(_choices(table)):
        if "calibrate" in table:
            logger.warning("%s is ignored: no choice of the search space is calibrated", WHERE)
        return parent
    if has_histograms(parent.graph) and not options:
        return parent
    told = (
        ""
        if "calibrate" in table
        else f", with default options (add a table {WHERE} to change them)"
    )
    logger.info("The search space has calibrated numbers: calibrating the parent once%s", told)
    return dataclasses.replace(parent, graph=_calibrated(parent, options))


def _choices(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: table.get(key) for key in ("seed", "passes")}


def _calibrated(parent: Parent, options: Mapping[str, Any]) -> Any:
    """Return a calibrated copy of the parent's graph."""
    import torch

    from chop.passes.base import PassArgsError
    from chop.passes.graph.analysis.calibrate import calibrate_analysis_pass

    graph = parent.graph.clone()
    device = next((p.device for p in graph.model.parameters()), torch.device("cpu"))
    facts = (parent.model_info, parent.data_module, parent.task, "train")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(parent.seed)  # a study that is resumed sees the same samples
        batches = InputGenerator(*facts, model=graph.model)
        settings = {
            "output_error": output_error_of(parent.task),
            "silent": True,
            **options,
            "input_generator": _OnDevice(batches, device),
        }
        try:
            calibrate_analysis_pass(graph, settings)
        except PassArgsError as error:
            raise PassArgsError(f"{WHERE}: {error}" if options else str(error)) from error
    return graph


class _OnDevice:
    """Batches on the device of the parent."""

    def __init__(self, batches: InputGenerator, device: Any) -> None:
        self._batches, self._device, self.batch_size = batches, device, batches.batch_size

    def __iter__(self) -> Any:
        return (on_device(batch, self._device) for batch in self._batches)


def calibration_of(graph: Any) -> dict[str, Any]:
    """Return the settings with which a graph was calibrated; empty if it was not."""
    from chop.ir.graph.mase_metadata import mase
    from chop.passes.graph.transforms.quantize.observed import ENTRY

    entries = (
        entry[ENTRY]
        for node in getattr(graph, "nodes", ())
        for entry in mase(node).parameters.get("software", {}).get("args", {}).values()
        if ENTRY in entry
    )
    first: Mapping[str, Any] = next(entries, {})
    return {key: first[key] for key in NOTED if key in first}
