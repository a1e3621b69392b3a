"""A search space: the designs of a parent network, and the network of each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from chop.actions.search.space.choices import Choices
from chop.actions.search.space.pass_spaces import Config, NodePassSpace, PassSpace
from chop.system.log import quieter

if TYPE_CHECKING:
    from torch import nn

    from chop.ir.graph.mase_graph import MaseGraph


NO_OPTIONS: Mapping[str, Mapping[str, Any]] = {}


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
    """A network to be measured; the next candidate may reuse its modules."""

    model: nn.Module
    make_graph: Callable[[], MaseGraph]
    fresh: tuple[str, ...] = ()


class Space:
    """All designs of one parent, and the network of each."""

    def __init__(
        self,
        name: str,
        graph: MaseGraph,
        passes: Mapping[str, PassSpace],
        *,
        extra: Callable[[str], Mapping[str, Any]] = lambda name: {},
        fixed: Mapping[str, Mapping[str, Any]] = NO_OPTIONS,
        batches: Callable[[], Iterable[Any]] = lambda: (),
    ) -> None:
        self.name, self.graph, self.passes = name, graph, dict(passes)
        self.joint = len(passes) > 1  # whether several passes are searched together
        self._extra = extra  # options of a pass that no file can hold
        self.fixed = fixed  # options of a pass that are the same for all designs
        self._batches = batches  # of training data
        self._prefixes = {label: f"{label}/" if self.joint else "" for label in passes}
        self.choices = Choices(
            [
                replace(p, key=prefix + p.key, parent=p.parent and prefix + p.parent)
                for label, prefix in self._prefixes.items()
                for p in passes[label].parameters
            ]
        )
        if not self.choices.open:
            raise ValueError(
                "the search space is empty: every key of search.search_space.seed has only one "
                "choice, or matches no node; give lists of several choices"
            )

    def config_of(self, chosen: Mapping[str, Any]) -> Config:
        """Return a design as it is saved."""
        configs = {}
        for label, prefix in self._prefixes.items():
            own = {k.removeprefix(prefix): v for k, v in chosen.items() if k.startswith(prefix)}
            configs[label] = self.passes[label].config(own)
        return configs if self.joint else next(iter(configs.values()))

    def steps(self, config: Config) -> list[tuple[str, Config]]:
        """Return the passes that turn the parent into a design, with their options."""
        configs = config if self.joint else dict.fromkeys(self.passes, config)
        return [s for label, space in self.passes.items() for s in space.steps(configs[label])]

    def build(self, config: Config) -> MaseGraph:
        """Return the network of a design as a new graph."""
        return self._built(config)[0]

    def _built(self, config: Config) -> tuple[MaseGraph, tuple[str, ...]]:
        from chop.passes.graph.transforms.redefine import reestimate_batch_norm

        graph, fresh = self._transformed(config)
        if any(fixed.get("weights") == "inherit" for fixed in self.fixed.values()):
            with quieter("chop.passes"):
                reestimate_batch_norm(graph, self._batches())
        return graph, fresh

    def _transformed(self, config: Config) -> tuple[MaseGraph, tuple[str, ...]]:
        """Return the network of a design, with the statistics of batch norms of the parent."""
        from chop.passes import run_pass

        graph, fresh = self.graph.clone(), list[str]()
        with quieter("chop.passes"):  # reports are for one network, not for thousands of designs
            for name, options in self.steps(config):
                fixed = self.fixed.get(name, {})
                graph, info = run_pass(name, graph, {**self._extra(name), **fixed, **options})
                fresh += info.get("fresh", [])
        return graph, tuple(fresh)

    def shaped(self, config: Config) -> MaseGraph:
        """Return a network with the layers of a design, to look at only: it cannot be scored."""
        import torch

        with torch.random.fork_rng():
            return self._transformed(config)[0]

    def keeps_shapes(self, config: Config) -> bool:
        """Return whether a design has the layers of the parent, at most in other formats."""
        return all(
            name == "prune" or (name == "quantize" and _has_only_formats(options))
            for name, options in self.steps(config)
        )

    def candidate(self, config: Config) -> Candidate:
        """Return the network of a design, by reconfiguring the last one if that is possible."""
        if self._only_formats(config):
            self._reconfigurable.apply(config)
            return Candidate(self._reconfigurable.graph.model, self._reconfigurable.noted)
        return self.separate_candidate(config)

    def separate_candidate(self, config: Config) -> Candidate:
        """Return the network of a design, which later designs do not reuse."""
        graph, fresh = self._built(config)
        return Candidate(graph.model, lambda: graph, fresh)

    def expect_training(self) -> None:
        """Let each candidate start from the parent's weights, as candidates will be trained."""
        self._reconfigurable.expect_training()

    @functools.cached_property
    def _reconfigurable(self) -> Any:
        from chop.actions.search.space.reconfigure import ReconfigurableGraph

        return ReconfigurableGraph(self.graph)

    def _only_formats(self, config: Config) -> bool:
        space = next(iter(self.passes.values()))
        if self.joint or not isinstance(space, NodePassSpace) or space.run.name != "quantize":
            return False
        return _has_only_formats(config)


def _has_only_formats(config: Config) -> bool:
    """Return whether all tables of nodes name number formats, or nothing."""
    from chop.numerics import FORMATS

    tables = [table["config"] for table in config.values() if isinstance(table, Mapping)]
    return all(table["name"] in FORMATS for table in tables if table["name"] is not None)
