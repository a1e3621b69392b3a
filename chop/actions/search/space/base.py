"""A space: a parent network, and what may be chosen about each of its nodes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chop.actions.search.space.choices import Choices, Parameter
from chop.actions.search.space.pass_spaces import Config, NodePart, Part
from chop.log import quieter

if TYPE_CHECKING:
    from torch import nn

    from chop.ir.graph.mase_graph import MaseGraph


NOTHING: Mapping[str, Mapping[str, Any]] = {}


@dataclass(frozen=True)
class Parent:
    """The network that is searched, with its data and its device."""

    graph: MaseGraph  # with metadata, on its device; never changed
    model_info: Any
    task: str
    data_module: Any  # prepared and set up
    accelerator: str = "auto"
    seed: int = 0
    trained: bool = True  # whether its weights are trained


@dataclass(frozen=True)
class Candidate:
    """A network to be measured; it is lent until the next one is asked for."""

    model: nn.Module
    make_graph: Callable[[], MaseGraph]
    fresh: tuple[str, ...] = ()


class Space:
    """Designs of one parent: which there are, and the network of each."""

    def __init__(
        self,
        name: str,
        graph: MaseGraph,
        parts: Mapping[str, Part],
        *,
        extra: Callable[[str], Mapping[str, Any]] = lambda name: {},
        fixed: Mapping[str, Mapping[str, Any]] = NOTHING,
        batches: Callable[[], Iterable[Any]] = lambda: (),
    ) -> None:
        self.name, self.graph, self.parts = name, graph, dict(parts)
        self._extra = extra  # options of a pass that no file can hold
        self.fixed = fixed  # options of a pass that are the same for all designs
        self._batches = batches  # of training data
        self.choices = Choices(
            [_below(label, p) for label, part in self.parts.items() for p in part.parameters]
            if self.joint
            else next(iter(self.parts.values())).parameters
        )
        if not self.choices.open:
            raise ValueError(
                "the search space is empty: every key of search.search_space.seed has only one "
                "choice, or matches no node; give lists of several choices"
            )

    @property
    def joint(self) -> bool:
        """Whether several passes are searched together."""
        return len(self.parts) > 1

    def config_of(self, chosen: Mapping[str, Any]) -> Config:
        """A design as it is saved."""
        if not self.joint:
            (part,) = self.parts.values()
            return part.config(chosen)
        return {
            label: part.config(
                {k.removeprefix(f"{label}/"): v for k, v in chosen.items() if _is_below(label, k)}
            )
            for label, part in self.parts.items()
        }

    def steps(self, config: Config) -> list[tuple[str, Config]]:
        """The passes that make the design of the parent."""
        if not self.joint:
            (part,) = self.parts.values()
            return part.steps(config)
        return [s for label, part in self.parts.items() for s in part.steps(config[label])]

    def build(self, config: Config) -> MaseGraph:
        """The design as a graph of its own."""
        return self._built(config)[0]

    def _built(self, config: Config) -> tuple[MaseGraph, tuple[str, ...]]:
        from chop.passes import run_pass

        graph, fresh = self.graph.clone(), list[str]()
        with quieter("chop.passes"):  # reports are for one network, not for thousands of designs
            for name, options in self.steps(config):
                fixed = self.fixed.get(name, {})
                graph, info = run_pass(name, graph, {**self._extra(name), **fixed, **options})
                fresh += info.get("fresh", [])
            self._settle(graph)
        return graph, tuple(fresh)

    def _settle(self, graph: MaseGraph) -> None:
        """Let the batch norms of a network that inherits weights see what they now get."""
        from chop.passes.graph.transforms.redefine import reestimate_batch_norm

        if any(fixed.get("weights") == "inherit" for fixed in self.fixed.values()):
            reestimate_batch_norm(graph, self._batches())

    def candidate(self, config: Config) -> Candidate:
        """The design as cheaply as it can be had; it is never what an earlier one was."""
        if self._only_formats(config):
            prepared = self._in_place
            prepared.apply(config)
            return Candidate(prepared.graph.model, prepared.noted)
        return self.separate_candidate(config)

    def separate_candidate(self, config: Config) -> Candidate:
        """Return the design as a network that later designs do not reuse."""
        graph, fresh = self._built(config)
        return Candidate(graph.model, lambda: graph, fresh)

    def expect_training(self) -> None:
        """Candidates are going to be trained, each from the weights of the parent."""
        self._in_place.expect_training()

    @functools.cached_property
    def _in_place(self) -> Any:
        from chop.actions.search.space.reconfigure import InPlace

        return InPlace(self.graph)

    def _only_formats(self, config: Config) -> bool:
        from chop.numerics import FORMATS

        if self.joint or not isinstance(next(iter(self.parts.values())), NodePart):
            return False
        names = {table["config"]["name"] for table in config.values()} - {None}
        return all(name in FORMATS for name in names) and self._quantizes

    @property
    def _quantizes(self) -> bool:
        (part,) = self.parts.values()
        return isinstance(part, NodePart) and part.run.name == "quantize"


def _below(label: str, parameter: Parameter) -> Parameter:
    parent = None if parameter.parent is None else f"{label}/{parameter.parent}"
    return Parameter(f"{label}/{parameter.key}", parameter.choice, parent, parameter.when)


def _is_below(label: str, key: str) -> bool:
    return key.startswith(f"{label}/")
