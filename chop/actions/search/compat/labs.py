"""The classes of the labs, a space with four hooks and a strategy that searches it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from chop.actions.config import ConfigError
from chop.actions.search.results.files import DEFAULT_QUANTIZATION_CONFIG, Results
from chop.actions.search.run_study import choose_study, run_study
from chop.actions.search.samplers.base import STRATEGIES, MakeStrategy, Strategy, strategy_named
from chop.actions.search.samplers.optuna import UserSampler, quiet
from chop.actions.search.space.base import Parent
from chop.actions.search.space.choices import Parameter, flatten_dict, unflatten_dict
from chop.actions.search.space.hooks import HookSpace, SearchSpaceBase
from chop.actions.search.space.registry import SPACES, mixed_precision, space_of, space_with_hooks
from chop.actions.search.spec.settings import Settings, settings_of
from chop.actions.search.spec.study_spec import build_spec
from chop.actions.search.store.location import StudyLocation
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes import Pipeline
from chop.registry import not_defined

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
MAX_VALUES = 10_000  # of a key whose values are listed


class GraphSearchSpaceMixedPrecisionPTQ(SearchSpaceBase):
    """A number format for every node, by the labs' names."""

    def build_search_space(self) -> None:
        table = {"name": "graph/quantize/mixed_precision_ptq", **self.config}
        parent = _traced_parent(self.model, self.model_info, self.dummy_input)
        self._space = space_of(table, parent)
        self.choices_flattened = {p.key: _listed(p) for p in self._space.choices.parameters}
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
    """Return all values of a key, as the labs' hooks need them."""
    count = parameter.choice.count
    if count is None or count > MAX_VALUES:
        raise ValueError(
            f"{parameter.key} is a range of more than {MAX_VALUES:,} values, too many for a "
            f"strategy with the labs' hooks; give a list, or a range with a step"
        )
    return [parameter.choice.nth(i) for i in range(count)]


def _traced_parent(
    model: nn.Module,
    model_info: Any,
    dummy_input: Mapping[str, Any] | None,
    task: str = "cls",
    data_module: Any = None,
    accelerator: str = "auto",
) -> Parent:
    steps: list[Any] = ["init_metadata", ("add_common_metadata", {"dummy_in": dummy_input})]
    graph, _ = Pipeline(steps)(MaseGraph(model, dummy_in=dummy_input))
    return Parent(graph, model_info, task, data_module, accelerator)


class SearchStrategyBase:
    """Made with the table `[search.strategy]` of a file; `search` searches a space."""

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
        """Search the space."""
        raise not_defined(self, "search", "search strategy")


class SearchStrategyOptuna(SearchStrategyBase):
    """The labs' strategy: everything that `[search.strategy]` can say."""

    def sampler_map(self, name: str) -> Any:
        """Return the strategy or the Optuna sampler for the name in `setup.sampler`."""
        return strategy_named(name)

    @property
    def strategy(self) -> MakeStrategy:
        """Return the strategy that `sampler_map` gives for these tables."""
        from optuna.samplers import BaseSampler

        name = str((self.config.get("setup") or {}).get("sampler", "tpe"))
        with quiet():
            sampler = self.sampler_map(name)
        if isinstance(sampler, BaseSampler):
            return functools.partial(UserSampler, instance=sampler)
        if isinstance(sampler, type) and issubclass(sampler, Strategy):
            return sampler
        raise ConfigError(
            f"sampler_map must return a strategy or an Optuna sampler, but for {name!r} it returns "
            f"{sampler!r}; add a case for it"
        )

    def search(self, search_space: SearchSpaceBase) -> Results:
        """Search, and write the files to `save_dir`."""
        model, inputs = search_space.model, search_space.dummy_input
        facts = (self.task, self.data_module, str(self.accelerator))
        parent = _traced_parent(model, self.model_info, inputs, *facts)
        tables = {"search_space": {"name": "own"}, "strategy": {**self.config, "name": "optuna"}}
        settings = settings_of(tables, own=self.strategy)
        location = choose_study(StudyLocation(self.save_dir))
        space: Any = HookSpace("own", search_space)
        more = {"folder": location.snapshots, "given_space": space}
        spec = build_spec(parent, tables, settings, model_name=type(model).__name__, **more)
        return run_study(spec, location, self.visualizer)


SEARCH_SPACE_MAP = SPACES
SEARCH_STRATEGY_MAP: dict[str, type[SearchStrategyBase]] = {"optuna": SearchStrategyOptuna}
SAMPLERS = STRATEGIES


def strategy_class_of(search: Mapping[str, Any]) -> type[SearchStrategyBase] | None:
    """Return the user's class for the name in these tables, None for a built-in strategy."""
    table = search.get("strategy")
    name = table.get("name", "optuna") if isinstance(table, Mapping) else ""
    cls = SEARCH_STRATEGY_MAP.get(str(name).lower())
    return None if cls is SearchStrategyOptuna else cls


def searches_itself(cls: type[SearchStrategyBase] | None) -> bool:
    """Whether a class does more than choose a sampler."""
    return cls is not None and cls.search is not SearchStrategyOptuna.search


def search_with(
    cls: type[SearchStrategyBase],
    parent: Parent,
    tables: Mapping[str, Any],
    folder: Path,
    run: Callable[[Mapping[str, Any], Settings], Any],
    visualizer: Any = None,
) -> Any:
    """Search with a class of the user: by its own `search`, or by `run` with its sampler."""
    data, table = parent.data_module, tables["strategy"]
    facts = (parent.model_info, data, data.dataset_info, parent.task)
    strategy = cls(*facts, table, parent.accelerator, folder, visualizer)
    if isinstance(strategy, SearchStrategyOptuna) and not searches_itself(cls):
        tables = {**tables, "strategy": {**table, "name": "optuna"}}
        return run(tables, settings_of(tables, own=strategy.strategy))
    table = tables["search_space"]
    space_class = get_search_space_cls(str(table.get("name")))
    if not isinstance(space_class, type):
        raise ConfigError(
            f"{cls.__name__} needs a search space with the labs' hooks, which "
            f"{table['name']!r} lacks; use graph/quantize/mixed_precision_ptq, or a subclass of "
            f"SearchSpaceBase"
        )
    space = space_with_hooks(space_class, table, parent)
    space.build_search_space()
    return strategy.search(space)


def get_search_space_cls(name: str) -> Any:
    """Return what is registered under a name; for the labs' own space, a class with hooks."""
    maker = SPACES[name]
    return GraphSearchSpaceMixedPrecisionPTQ if maker is mixed_precision else maker


def get_search_strategy_cls(name: str) -> type[SearchStrategyBase]:
    """Return the class of a strategy, which is Optuna's unless the user has added one."""
    if name.lower() not in SEARCH_STRATEGY_MAP:
        strategy_named(name)
    return SEARCH_STRATEGY_MAP.get(name.lower(), SearchStrategyOptuna)
