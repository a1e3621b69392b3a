"""Groups of passes under the names that the tutorials use."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import GraphPass, Info, Pass, has_metadata, pass_name, run_pass
from chop.passes.graph.analysis.add_metadata import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms.pruning import prune_transform_pass
from chop.passes.graph.transforms.quantize import quantize_transform_pass
from chop.registry import UnknownName

__all__ = ["AutoPipeline", "CompressionPipeline"]

logger = logging.getLogger(__name__)

Step = Pass | GraphPass
REFERENCE = "self/"  # prefix of an option that means the info of an earlier pass


class AutoPipeline:
    """Groups of passes that run in order; options are by the names of their functions.

    An option `"self/quantize_transform_pass"` is the info of that pass, which ran earlier.
    """

    def __init__(self, pass_groups: Sequence[Sequence[Step]] = ()) -> None:
        self.pass_groups = [list(group) for group in pass_groups]

    def __call__(
        self,
        mg: MaseGraph,
        pass_args: Mapping[str, Mapping[str, Any]] | None = None,
        skip_passes: Iterable[Step] = (),
    ) -> tuple[MaseGraph, list[dict[str, Info]]]:
        """Run all groups; return the graph, and for each group the info of its passes by name."""
        options, skipped = self._checked(pass_args or {}), list(skip_passes)
        infos: dict[str, Info] = {}
        outputs: list[dict[str, Info]] = []
        for group in self.pass_groups:
            outputs.append({})
            for step in group:
                name = _name(step)
                if step in skipped or self.is_done(step, mg, options.get(name)):
                    logger.debug("Skipping pass: %s", name)
                    continue
                mg, infos[name] = run_pass(step, mg, _resolved(options.get(name), infos))
                outputs[-1][name] = infos[name]
        return mg, outputs

    def is_done(self, step: Step, mg: MaseGraph, options: Mapping[str, Any] | None) -> bool:
        """Return whether the graph has what a pass would give it."""
        return False

    def _checked(self, pass_args: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """Return the options by the names of functions; those of all passes are checked."""
        steps = {_name(step): step for group in self.pass_groups for step in group}
        short = {pass_name(step): name for name, step in steps.items()}
        options: dict[str, Mapping[str, Any]] = {}
        for name, given in pass_args.items():
            if name not in steps and name not in short:
                raise UnknownName("pass of the pipeline", name, list(steps))
            options[short.get(name, name)] = given
        for name, given in options.items():
            step = steps[name]
            if isinstance(step, GraphPass) and not any(map(_is_reference, given.values())):
                step.check(given)
        return options


class CompressionPipeline(AutoPipeline):
    """Adds metadata, quantises and prunes; a step without options is left out.

    Metadata come from the inputs of the capture, unless the graph has them already or
    `add_common_metadata_analysis_pass` is given `dummy_in`.
    """

    def __init__(self) -> None:
        describe: list[Step] = [init_metadata_analysis_pass, add_common_metadata_analysis_pass]
        super().__init__([[*describe, quantize_transform_pass, prune_transform_pass]])

    def is_done(self, step: Step, mg: MaseGraph, options: Mapping[str, Any] | None) -> bool:
        if options is not None:
            return False
        if step in (quantize_transform_pass, prune_transform_pass):
            return True
        return all(has_metadata(node, "common") for node in mg.nodes)


def _name(step: Step) -> str:
    return str(getattr(step, "__name__", step))


def _is_reference(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(REFERENCE)


def _resolved(options: Mapping[str, Any] | None, infos: Mapping[str, Info]) -> Any:
    """Return options with the infos of earlier passes in place of references."""
    if options is None:
        return None
    for value in filter(_is_reference, options.values()):
        if value.removeprefix(REFERENCE) not in infos:
            raise UnknownName("earlier pass", value.removeprefix(REFERENCE), list(infos))
    return {
        key: infos[value.removeprefix(REFERENCE)] if _is_reference(value) else value
        for key, value in options.items()
    }
