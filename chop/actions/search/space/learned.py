"""The space whose designs are trained: layers that learn their bits, and the front of a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from chop.actions.search.space.base import Candidate, Parent, Space
from chop.actions.search.space.choices import Choices, Parameter, Range
from chop.actions.search.space.learned_names import LEARNED, MAX_DESIGNS
from chop.actions.search.space.registry import (
    WHERE,
    generated_options,
    register_search_space,
)
from chop.numerics.learned import LearnsBits
from chop.options import Options
from chop.system.files import read_json
from chop.system.log import quieter

if TYPE_CHECKING:
    from chop.ir.graph.mase_graph import MaseGraph

FILE = "front.json"  # is written last: the front is complete
AGAIN = "delete {} to train the front again"
KEYS = ("name", "passes")
Config = dict[str, Any]


class LearnedSpace:
    """The designs of a trained front, with the interface of `Space`.

    `learning` is the network with layers that learn; the designs are graphs in `folder`.
    """

    joint = False

    def __init__(
        self, parent: Parent, learning: MaseGraph, passes: Mapping[str, Mapping[str, Any]]
    ) -> None:
        from chop.training.learned.prices import LIMITS

        self.name, self.graph, self.learning = LEARNED, parent.graph, learning
        self.fixed = {name: dict(options) for name, options in passes.items()}
        self.choices = Choices(
            [
                Parameter("design", Range(0, MAX_DESIGNS - 1)),
                Parameter("price", Range(0.0, LIMITS[1])),
            ]
        )
        self.folder: Path | None = None
        self._facts: list[Config] | None = None

    @property
    def is_trained(self) -> bool:
        return self.folder is not None and (self.folder / FILE).exists()

    @property
    def facts(self) -> list[Config]:
        """What is known of each design; none before the front is trained."""
        if self._facts is None and self.is_trained:
            assert self.folder is not None
            self._facts = _designs_in(self.folder / FILE)
        return self._facts or []

    def listed(self) -> Sequence[Config]:
        """Return the designs, the cheapest first, as the strategy asks for them."""
        return [{"design": k, "price": facts["price"]} for k, facts in enumerate(self.facts)]

    def config_of(self, chosen: Mapping[str, Any]) -> Config:
        number = int(chosen["design"])
        if not 0 <= number < len(self.facts):
            raise ValueError(
                f"the front in {self.folder} has {len(self.facts)} designs, and none of the number "
                f"{number}; {AGAIN.format(self.folder)}"
            )
        return {"design": number, **self.facts[number]}

    def build(self, config: Config) -> MaseGraph:
        """Return the network of a design as a new graph."""
        from chop.checkpoints import load_graph

        if self.folder is None:
            raise ValueError("the designs of a front are files of this machine; use engine = local")
        device = next(self.graph.model.parameters()).device
        with quieter("chop", logging.WARNING):
            return load_graph(design_folder(self.folder, config["design"]), device)

    shaped = build

    def keeps_shapes(self, config: Config) -> bool:
        """Whether a design has the layers of the parent: its layers have widths of their own."""
        return False

    def candidate(self, config: Config) -> Candidate:
        graph = self.build(config)
        return Candidate(graph.model, lambda: graph)

    separate_candidate = candidate

    def expect_training(self) -> None:
        """Do nothing: every candidate is read from its file."""


def _designs_in(file: Path) -> list[Config]:
    """Return what a front records of its designs."""
    advice = AGAIN.format(file.parent)
    designs = read_json(file, advice=advice).get("designs")
    tables: list[Any] = designs if isinstance(designs, list) else [None]
    if not all(isinstance(t, dict) and isinstance(t.get("price"), int | float) for t in tables):
        raise ValueError(
            f"{file} is damaged: its designs are not a list of tables with prices; {advice}"
        )
    return tables


def design_folder(folder: Path, number: int) -> Path:
    """Return the folder of the graph of a design."""
    return folder / f"design_{number}"


@register_search_space(LEARNED)
def learned(name: str, table: Mapping[str, Any], parent: Parent) -> Space:
    """The network itself, or after the passes of `[search.search_space.passes.<pass>]`."""
    Options.named(WHERE, KEYS).check(table)
    passes = table.get("passes", {})
    for run, options in passes.items():
        if not isinstance(options, Mapping):
            raise ValueError(f"{WHERE}.passes.{run} must be a table of options, not {options!r}")
    learning = _learning(parent, passes)
    if not any(isinstance(layer, LearnsBits) for layer in learning.model.modules()):
        raise ValueError(
            f"no layer of the network learns its bits; add a table [{WHERE}.passes.learn_bits], "
            f"or use a model such as jsc-table"
        )
    return cast(Space, LearnedSpace(parent, learning, passes))


def _learning(parent: Parent, passes: Mapping[str, Mapping[str, Any]]) -> MaseGraph:
    """Return the network after the passes, which are applied in their order."""
    from chop.passes import run_pass

    graph = parent.graph.clone()
    with quieter("chop.passes"):
        for run, options in passes.items():
            graph, _ = run_pass(run, graph, {**generated_options(run, parent), **options})
    return graph
