"""The classes of the labs: a space with four hooks, and a strategy that searches it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.config import ConfigError
from chop.actions.search.results.files import DEFAULT_QUANTIZATION_CONFIG, Results
from chop.actions.search.run_study import run_study
from chop.actions.search.samplers.base import STRATEGIES, MakeStrategy, Strategy, strategy_named
from chop.actions.search.samplers.optuna import Given, quiet
from chop.actions.search.space.choices import (
    Parameter,
    flatten_dict,
    unflatten_dict,
)
from chop.actions.search.space.hooks import HookSpace, SearchSpaceBase
from chop.actions.search.space.registry import (
    SPACES,
    SpaceMaker,
    mixed_precision,
    space_of,
    space_with_hooks,
)
from chop.actions.search.spec.problem import Problem
from chop.actions.search.store.location import StudyLocation

if TYPE_CHECKING:
    from torch import nn

    from chop.ir.graph.mase_graph import MaseGraph

__all__ = [
    "DEFAULT_QUANTIZATION_CONFIG",
    "SEARCH_SPACE_MAP",
    "SEARCH_STRATEGY_MAP",
    "GraphSearchSpaceMixedPrecisionPTQ",
    "SearchSpaceBase",
    "SearchStrategyBase",
    "SearchStrategyOptuna",
    "flatten_dict",
    "get_search_space_cls",
    "get_search_strategy_cls",
    "unflatten_dict",
]


LONGEST = 10_000  # values of a key that a list may have


class GraphSearchSpaceMixedPrecisionPTQ(SearchSpaceBase):
    """A number format for every node, by the labs' names."""

    def build_search_space(self) -> None:
        table = {"name": "graph/quantize/mixed_precision_ptq", **self.config}
        self._problem = _bare_problem(self.model, self.model_info, self.dummy_input)
        self._space = space_of(table, self._problem)
        every = self._space.choices.parameters
        self.choices_flattened = {p.key: _listed(p) for p in every}
        self.choice_lengths_flattened = {k: len(v) for k, v in self.choices_flattened.items()}

    def flattened_indexes_to_config(self, indexes: Mapping[str, int]) -> dict[str, Any]:
        chosen = {key: self.choices_flattened[key][index] for key, index in indexes.items()}
        config = self._space.config_of(chosen)
        return {**config, "default": DEFAULT_QUANTIZATION_CONFIG, "by": "name"}

    def rebuild_model(self, sampled_config: dict[str, Any], is_eval_mode: bool = True) -> MaseGraph:
        nodes = {k: v for k, v in sampled_config.items() if k not in ("default", "by")}
        graph = self._space.build(nodes)
        graph.model.train(not is_eval_mode)
        return graph


def _listed(parameter: Parameter) -> list[Any]:
    """All values of a key, as the labs' hooks have them."""
    count = parameter.choice.count
    if count is None or count > LONGEST:
        raise ValueError(
            f"{parameter.key} is a range of more than {LONGEST:,} values, too many for a strategy "
            f"with the labs' hooks; give a list, or a range with a step"
        )
    return [parameter.choice.nth(i) for i in range(count)]


def _bare_problem(
    model: nn.Module, model_info: Any, dummy_input: Mapping[str, Any] | None
) -> Problem:
    """What a space needs of a problem: a graph with metadata."""
    from chop.ir.graph.mase_graph import MaseGraph
    from chop.passes import Pipeline

    steps: list[Any] = ["init_metadata", ("add_common_metadata", {"dummy_in": dummy_input})]
    graph, _ = Pipeline(steps)(MaseGraph(model))
    return Problem(graph, model_info, "cls", None, {})


class SearchStrategyBase:
    """Made with the tables of a file; `search` goes through a space."""

    is_iterative = True

    def __init__(
        self,
        model_info: Any,
        data_module: Any,
        dataset_info: Any,
        task: str,
        config: Mapping[str, Any],
        accelerator: Any,
        save_dir: str | Path,
        visualizer: Any = None,
    ) -> None:
        self.model_info, self.data_module, self.dataset_info = model_info, data_module, dataset_info
        self.task, self.config, self.accelerator = task, dict(config), accelerator
        self.save_dir, self.visualizer = Path(save_dir), visualizer
        self._post_init_setup()

    def _post_init_setup(self) -> None:
        """A hook for subclasses."""

    def search(self, search_space: SearchSpaceBase) -> Any:
        """Go through the space."""
        raise NotImplementedError


class SearchStrategyOptuna(SearchStrategyBase):
    """The labs' strategy: everything that `[search.strategy]` can say."""

    def sampler_map(self, name: str) -> Any:
        """What samples under the name in `setup.sampler`: a strategy, or a sampler of Optuna's."""
        return strategy_named(name)

    @property
    def strategy(self) -> MakeStrategy:
        """What `sampler_map` has for these tables."""
        from optuna.samplers import BaseSampler

        name = str((self.config.get("setup") or {}).get("sampler", "tpe"))
        with quiet():
            found = self.sampler_map(name)
        if isinstance(found, BaseSampler):
            return functools.partial(Given, given=found)
        if isinstance(found, type) and issubclass(found, Strategy):
            return found
        raise ConfigError(
            f"sampler_map must return a strategy or an Optuna sampler, but for {name!r} it returns "
            f"{found!r}; add a case for it"
        )

    def search(self, search_space: SearchSpaceBase) -> Results:
        """Search; the files go to `save_dir`."""
        graph = _bare_problem(search_space.model, self.model_info, search_space.dummy_input).graph
        tables = {"search_space": {"name": "own"}, "strategy": {**self.config, "name": "optuna"}}
        problem = Problem(
            graph,
            self.model_info,
            self.task,
            self.data_module,
            tables,
            str(self.accelerator),
            own_space=HookSpace("own", search_space),
            own_strategy=self.strategy,
        )
        location = StudyLocation(self.save_dir, progress=True)
        return run_study(
            problem, location, {"model": type(search_space.model).__name__}, self.visualizer
        )


SEARCH_SPACE_MAP = SPACES
SEARCH_STRATEGY_MAP: dict[str, type[SearchStrategyBase]] = {"optuna": SearchStrategyOptuna}
SAMPLERS = STRATEGIES


def own_strategy(search: Mapping[str, Any]) -> type[SearchStrategyBase] | None:
    """The class that somebody has put into the map, under the name of these tables."""
    table = search.get("strategy")
    name = table.get("name", "optuna") if isinstance(table, Mapping) else ""
    found = SEARCH_STRATEGY_MAP.get(str(name).lower())
    return None if found is SearchStrategyOptuna else found


def searches_itself(cls: type[SearchStrategyBase]) -> bool:
    """Whether a class does more than to choose a sampler."""
    return cls.search is not SearchStrategyOptuna.search


def conduct_by(
    cls: type[SearchStrategyBase],
    problem: Problem,
    folder: Path,
    go: Callable[[Problem], Any],
    visualizer: Any = None,
) -> Any:
    """Search by such a class; `go` with it if it is ours with another `sampler_map`."""
    strategy = problem.search["strategy"]
    data, device = problem.data_module, problem.accelerator
    facts = (problem.model_info, data, data.dataset_info, problem.task)
    made = cls(*facts, strategy, device, folder, visualizer)
    if isinstance(made, SearchStrategyOptuna) and not searches_itself(cls):
        tables = {**problem.search, "strategy": {**strategy, "name": "optuna"}}
        return go(dataclasses.replace(problem, search=tables, own_strategy=made.strategy))
    table = problem.search["search_space"]
    space = get_search_space_cls(str(table.get("name")))
    if not isinstance(space, type):
        raise ConfigError(
            f"{cls.__name__} needs a search space with the labs' hooks, which "
            f"{table['name']!r} lacks; use graph/quantize/mixed_precision_ptq, or a subclass of "
            f"SearchSpaceBase"
        )
    prepared = space_with_hooks(space, table, problem)
    prepared.build_search_space()
    return made.search(prepared)


def get_search_space_cls(name: str) -> SpaceMaker | type[Any]:
    """What is registered under a name; a class with hooks for the labs' own space."""
    found = SPACES[name]
    return GraphSearchSpaceMixedPrecisionPTQ if found is mixed_precision else found


def get_search_strategy_cls(name: str) -> type[SearchStrategyBase]:
    """The class of a strategy; every one is Optuna's, with one sampler or another."""
    if name.lower() not in SEARCH_STRATEGY_MAP:
        strategy_named(name)
    return SEARCH_STRATEGY_MAP.get(name.lower(), SearchStrategyOptuna)
