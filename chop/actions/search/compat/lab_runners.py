"""Runners as the labs call them: `get_sw_runner(…)(data_module, model, sampled_config)`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import fx, nn

from chop.actions.search.metrics.base import RUNNERS, Runner, RunnerContext, Trial, check_options
from chop.devices import parse_accelerator
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import has_metadata
from chop.passes.graph import add_common_metadata_analysis_pass, init_metadata_analysis_pass
from chop.registry import UnknownName
from chop.tools.get_input import get_dummy_input

# options that keep the labs' figures
LAB_OPTIONS: dict[str, dict[str, Any]] = {"average_bitwidth": {"count": "weights"}}
TABLES = {"software": "sw_runner", "hardware": "hw_runner"}


class RunnersOf(Mapping[str, type[Runner]]):
    """The runners of one side, by name."""

    def __init__(self, side: str) -> None:
        self.side = side

    def __getitem__(self, name: str) -> type[Runner]:
        if name not in list(self):
            raise UnknownName(f"{self.side} runner", name, sorted(self))
        return RUNNERS[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, cls in RUNNERS.items() if cls.side == self.side)

    def __len__(self) -> int:
        return sum(1 for _ in self)


SW_RUNNERS, HW_RUNNERS = map(RunnersOf, TABLES)


class LabRunner:
    """A runner that is called with data and a model; the first model counts as the parent."""

    def __init__(
        self,
        cls: type[Runner],
        model_info: Any,
        task: str,
        dataset_info: Any,
        accelerator: str,
        config: Mapping[str, Any] | None,
    ) -> None:
        where = f"{TABLES[cls.side]}.{cls.name}"
        table = {**LAB_OPTIONS.get(cls.name, {}), **(config or {})}
        self._cls, self._options = cls, check_options(cls, table, where)
        self.model_info, self.task, self.dataset_info = model_info, task, dataset_info
        self.device = parse_accelerator(accelerator)
        self._runner: Runner | None = None
        self._calls = 0

    @property
    def available_metrics(self) -> tuple[str, ...]:
        if self._runner is not None:
            return tuple(self._runner.metrics)
        return tuple(self._cls.metrics_for(self.task))

    def __call__(
        self, data_module: Any, model: MaseGraph | nn.Module, sampled_config: dict[str, Any]
    ) -> dict[str, float]:
        graph = model if isinstance(model, MaseGraph) else self._captured(data_module, model)
        graph.model.to(self.device)
        if self._runner is None or self._runner.context.data_module is not data_module:
            self._runner = self._cls(self._context(data_module, graph), **self._options)
        module = graph.model if isinstance(model, MaseGraph) else model
        make_graph = functools.partial(self._with_metadata, graph, data_module)
        trial = Trial(self._calls, sampled_config, 0, make_graph, module)
        self._calls += 1
        return dict(self._runner(trial))

    def _captured(self, data_module: Any, model: nn.Module) -> MaseGraph:
        """Return the graph of a model, by way of a batch if torch.fx alone cannot read it."""
        if isinstance(model, fx.GraphModule):
            return MaseGraph(model)
        _set_up(data_module)
        facts = (self.model_info, data_module, self.task, self.device)
        inputs = get_dummy_input(*facts, model=model.to(self.device))
        return MaseGraph(model, dummy_in=inputs)

    def _context(self, data_module: Any, graph: MaseGraph) -> RunnerContext:
        _set_up(data_module)
        parent, info = self._with_metadata(graph.clone(), data_module), self.dataset_info
        return RunnerContext(parent, self.model_info, self.task, data_module, info, self.device)

    def _with_metadata(self, graph: MaseGraph, data_module: Any) -> MaseGraph:
        """Return the graph with metadata, which are added if they are missing."""
        if all(has_metadata(node, "common") for node in graph.nodes):
            return graph
        facts = (self.model_info, data_module, self.task, self.device)
        inputs = get_dummy_input(*facts, model=graph.model)
        init_metadata_analysis_pass(graph)
        add_common_metadata_analysis_pass(graph, {"dummy_in": inputs, "add_value": False})
        return graph


def _set_up(data_module: Any) -> None:
    if data_module.train_dataset is None:
        data_module.prepare_data()
        data_module.setup()


def _getter(side: str, runners: Mapping[str, Any]) -> Callable[..., LabRunner]:
    """Return the function that makes a runner of one side by its name."""

    def get(
        name: str,
        model_info: Any,
        task: str,
        dataset_info: Any,
        accelerator: str,
        config: Mapping[str, Any] | None = None,
    ) -> LabRunner:
        return LabRunner(runners[name], model_info, task, dataset_info, accelerator, config)

    get.__name__ = get.__qualname__ = f"get_{side}_runner"
    get.__doc__ = (
        f"Return the runner of `[search.strategy.{side}_runner.<name>]`, its table `config`."
    )
    return get


get_sw_runner, get_hw_runner = _getter("sw", SW_RUNNERS), _getter("hw", HW_RUNNERS)
