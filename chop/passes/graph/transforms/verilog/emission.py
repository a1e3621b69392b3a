"""What the passes that emit share: the circuit of a graph, and which of its files are written."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from chop.hardware.circuit import Circuit
from chop.hardware.projects import HardwareProject, note_project
from chop.integers import IntegerGraph
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import PassArgsError
from chop.system.log import show_logs_unless_configured

logger = logging.getLogger(__name__)

Part = Literal["top", "components", "memories"]
# which pass writes which files
WRITTEN_BY: dict[Part, str] = {
    "top": "emit_verilog_top",
    "components": "emit_internal_rtl",
    "memories": "emit_bram",
}
KEY = "emission"  # in the graph's meta
MEMORIES = ("_source.sv", "_rom.dat")


@dataclass(frozen=True)
class Emission:
    """A circuit on its way to a project directory; `written` are the parts that are there."""

    project: HardwareProject
    circuit: Circuit
    integers: IntegerGraph
    written: frozenset[Part] = frozenset()

    def files(self, parts: Collection[Part]) -> dict[str, str]:
        """Return the source files of some parts."""
        return {n: t for n, t in self.circuit.files.items() if self._part(n) in parts}

    def _part(self, name: str) -> Part:
        if name == f"{self.circuit.top}.sv":
            return "top"
        return "memories" if name.endswith(MEMORIES) else "components"

    def write(self, graph: MaseGraph, part: Part) -> dict[str, object]:
        """Write the files of one more part, beside those that are written; return the info.

        All of them are replaced together: a directory never holds files of two circuits.
        """
        show_logs_unless_configured()
        written = self.written | {part}
        replace(self.circuit, files=self.files(written)).write(self.project.hardware)
        for folder in (self.project.sim, self.project.bench):
            folder.mkdir(parents=True, exist_ok=True)
        note_project(self.project)
        graph.meta[KEY] = replace(self, written=written)
        names = sorted(self.files([part]))
        logger.info("Emitted %s to %s", ", ".join(names) or "nothing", self.project.rtl)
        return {"project_dir": str(self.project.folder), "emitted": names}

    @property
    def missing(self) -> list[str]:
        """The passes that still have files to write."""
        return [WRITTEN_BY[p] for p in WRITTEN_BY if p not in self.written and self.files([p])]


def emission_of(graph: MaseGraph, name: str, project_dir: str | Path | None) -> Emission:
    """Return what emit_verilog_top has made of a graph, for the pass `name`."""
    emission = graph.meta.get(KEY)
    if not isinstance(emission, Emission):
        raise PassArgsError(
            f"pass {name!r} needs the circuit; run emit_verilog_top_transform_pass first"
        )
    if project_dir is None:
        return emission
    project = HardwareProject.at(project_dir)
    if project != emission.project:
        raise PassArgsError(
            f"project_dir: the circuit was emitted to {emission.project.folder}, not to "
            f"{project.folder}; run emit_verilog_top_transform_pass with this directory"
        )
    return emission
