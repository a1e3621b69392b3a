"""Search spaces of single passes: the choices for a pass, and its options for a design."""

from __future__ import annotations

import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from chop.actions.search.space.checks import Check, problem_of, refuse_choices, some_values
from chop.actions.search.space.choices import Parameter, choice_of, unflatten_dict
from chop.actions.search.space.operands import lacking_operands
from chop.actions.search.space.seeds import node_parameters, seed_of_nodes
from chop.ir.graph.mase_metadata import mase
from chop.passes.graph.transforms.redefine.width_requests import WIDENINGS
from chop.registry import UnknownName
from chop.system.caches import Lru

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from torch import fx

    from chop.ir.graph.mase_graph import MaseGraph
    from chop.passes.base import GraphPass
    from chop.passes.graph.transforms.quantize.resolve import Resolver

Config = dict[str, Any]
UNCHANGED = {"name": None}
NO_OPTIONS: Mapping[str, Any] = {}
MAX_TABLES = 10_000  # of nodes that are cached, over all designs


def frozen(config: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a hashable form of a config, in which lists are tuples."""
    return tuple((key, _frozen(value)) for key, value in config.items())


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


class PassSpace(ABC):
    """The choices for one pass."""

    parameters: list[Parameter]

    @abstractmethod
    def config(self, chosen: Mapping[str, Any]) -> Config:
        """Return a design as it is saved, from the values of the parameters."""

    @abstractmethod
    def steps(self, config: Config) -> list[tuple[str, Config]]:
        """Return the passes that make the design, with their options."""


class NodePassSpace(PassSpace):
    """The choices for a pass that takes a table for each node: quantize, redefine."""

    def __init__(
        self, graph: MaseGraph, run: GraphPass, by: str, seed: Mapping[str, Any], where: str
    ) -> None:
        self.run, self._graph = run, graph
        self._tables: Lru[Any, Config] = Lru(MAX_TABLES)
        self._numbers: Lru[Any, Config] = Lru(MAX_TABLES)
        self._resolver: Resolver | None = None
        nodes = list(_eligible(graph, run.name, by, seed))
        self.nodes = [node.name for node in nodes]
        tables = seed_of_nodes(graph.fx_graph, nodes, by, seed, where)
        self.first = _first_calls(graph, nodes)
        self.parameters = []
        checked: set[tuple[str, str]] = set()  # tables, for an op
        lacking = lacking_operands(graph, nodes) if run.name == "quantize" else {}
        for node, table in tables.items():
            if self.first[node.name] != node.name:
                continue
            parameters = node_parameters(f"{node.name}/config", table, keys_of_format)
            parameters = [p for p in parameters if not _is_of(p.key, lacking.get(node.name, ()))]
            check = functools.partial(self._check, graph, node, parameters)
            if run.name == "quantize":
                check_formats(node, parameters, check, table.where)
            if (kind := (table.where, mase(node).common.mase_op)) not in checked:
                refuse_choices(parameters, check, table.where, parameters[0])
                checked.add(kind)
            self.parameters += parameters
        if run.name == "quantize":
            self._calibrate_choices()

    def _check(
        self, graph: MaseGraph, node: fx.Node, keys: list[Parameter], chosen: Mapping[str, Any]
    ) -> None:
        """Raise what the pass would raise for a node's table."""
        from chop.passes.base import PASSES
        from chop.passes.graph.transforms.quantize.quantize import node_config, quantized_form
        from chop.passes.graph.transforms.quantize.variants import is_variant

        config = {p.key.rpartition("/")[2]: chosen[p.key] for p in keys if p.exists(chosen)}
        name, table = config.get("name"), {"by": "name", node.name: {"config": config}}
        if name in WIDENINGS:
            PASSES["redefine"].check(table)
        elif self.run.name != "quantize":
            self.run.check(table)
        elif name is not None and not is_variant(name):
            checked = node_config(node.name, {"config": config})
            quantized_form(graph, node, self._resolved(node.name, checked))

    def config(self, chosen: Mapping[str, Any]) -> Config:
        """Return the tables of all nodes that can be changed, also of those that are not."""
        configs: dict[str, dict[str, Any]] = {}
        for key, value in chosen.items():
            node, _, name = key.partition("/config/")
            configs.setdefault(node, {})[name] = value
        numbers = {node: self._resolved(node, config) for node, config in configs.items()}
        return {node: self._table(numbers.get(self.first[node], UNCHANGED)) for node in self.nodes}

    def _resolved(self, node: str, config: Config) -> Config:
        """Return the config of a node with numbers for what it leaves to calibration."""
        from chop.passes.graph.transforms.quantize.marks import is_calibrated

        if not is_calibrated(config):
            return config
        return self._numbers.get_or((node, frozen(config)), self._calibrated, node, config)

    def _calibrated(self, node: str, config: Config) -> Config:
        from chop.passes.graph.transforms.quantize.resolve import Resolver

        if self._resolver is None:
            self._resolver = Resolver(self._graph)
            self._by_name = {n.name: n for n in self._graph.nodes}
        return self._resolver.config(self._by_name[node], config)

    def _calibrate_choices(self) -> None:
        """Choose the numbers of all widths that are offered, for this process and for workers."""
        nodes: dict[str, list[Parameter]] = {}
        for parameter in self.parameters:
            nodes.setdefault(parameter.key.partition("/config/")[0], []).append(parameter)
        for node, parameters in nodes.items():
            for config in _calibrated_choices(parameters):
                self._resolved(node, config)

    def _table(self, config: Mapping[str, Any]) -> Config:
        """Return the table of one node; equal ones are the same object, which is read-only."""
        return self._tables.get_or(frozen(config), lambda: {"config": dict(config)})

    def steps(self, config: Config) -> list[tuple[str, Config]]:
        widened: Config = {}
        others: Config = {}
        for node, table in config.items():
            name = (table.get("config") or {}).get("name") if isinstance(table, Mapping) else None
            if name is not None:
                (widened if name in WIDENINGS else others)[node] = table
        steps = [("redefine", widened), (self.run.name, others)]
        return [(name, {"by": "name", **tables}) for name, tables in steps if tables]


def _is_of(key: str, operands: tuple[str, ...]) -> bool:
    return any(key.rpartition("/")[2].startswith(f"{operand}_") for operand in operands)


class OptionPassSpace(PassSpace):
    """The choices for the options of a pass: prune, prune_channels."""

    def __init__(
        self, run: GraphPass, seed: Mapping[str, Any], where: str, fixed: Mapping[str, Any]
    ) -> None:
        self.run = run
        for key, other in run.ignored(seed).items():
            logger.warning("%s.%s is an option of %s, not of %s", where, key, other, run.name)
            seed = {name: choices for name, choices in seed.items() if name != key}
        self.parameters = list(_leaves(seed, "", where))
        if not self.parameters:
            raise ValueError(f"{where} is empty; give choices for options of {run.name}")
        generated = {"input_generator": ()} if "input_generator" in run.options else {}
        constant = {**generated, **fixed}
        refuse_choices(
            self.parameters, lambda chosen: run.check({**constant, **self.config(chosen)}), where
        )

    def config(self, chosen: Mapping[str, Any]) -> Config:
        return unflatten_dict(chosen)

    def steps(self, config: Config) -> list[tuple[str, Config]]:
        return [(self.run.name, config)]


def _leaves(seed: Mapping[str, Any], path: str, where: str) -> Iterator[Parameter]:
    for key, value in seed.items():
        inner = f"{path}/{key}" if path else key
        if isinstance(value, Mapping) and not {"min", "max"} <= value.keys():
            yield from _leaves(value, inner, f"{where}.{key}")
        else:
            yield Parameter(inner, choice_of(value, f"{where}.{key}"))


def _calibrated_choices(parameters: list[Parameter]) -> Iterator[Config]:
    """Yield configs of a node with each width that is offered for a calibrated operand."""
    from chop.passes.graph.transforms.quantize.marks import CALIBRATED, FRACTION

    head = parameters[0]
    for name in some_values(head):
        own = [p for p in parameters if p.exists({head.key: name})]
        values = {p.key.rpartition("/")[2]: some_values(p) for p in own}
        usual = {key: offered[0] for key, offered in values.items()} | {"name": name}
        for key in [k for k, offered in values.items() if CALIBRATED in offered]:
            width = f"{key.removesuffix(FRACTION)}width"
            for bits in values.get(width, ()):
                yield usual | {key: CALIBRATED, width: bits}


def pass_space(
    graph: MaseGraph,
    name: str,
    by: str | None,
    seed: Mapping[str, Any],
    where: str,
    fixed: Mapping[str, Any] = NO_OPTIONS,
) -> PassSpace:
    """Return the space of a registered pass; all designs have the options `fixed`."""
    from chop.passes.base import PASSES

    run = PASSES[name]
    if run.kind != "transform":
        raise ValueError(f"{where}: {name} is an {run.kind} pass; a search varies a transform")
    if run.writes_files:
        raise ValueError(f"{where}: {name} writes files; a search varies a pass that does not")
    _warn_of_left_out(graph, name)
    if run.open_ended and "by" in run.options:
        for key in fixed:
            if key not in run.options:
                raise UnknownName(f"option of {name} beside {where}", key, list(run.options))
        run.check({"by": "name", **fixed})
        return NodePassSpace(graph, run, by or "name", seed, where)
    return OptionPassSpace(run, seed, where, fixed)


def _warn_of_left_out(graph: MaseGraph, name: str) -> None:
    """Warn once of layers with weights that no design of the search changes."""
    if name == "quantize":
        from chop.passes.graph.transforms.quantize.quantize import warn_of_float

        warn_of_float(graph)
    if name == "prune":
        from chop.passes.graph.transforms.pruning.plan import warn_of_unpruned

        warn_of_unpruned(graph)


def _eligible(graph: MaseGraph, name: str, by: str, seed: Mapping[str, Any]) -> Iterator[fx.Node]:
    from chop.passes.graph.transforms.quantize.quantize import why_not_quantized
    from chop.passes.select import spellings

    for node, names in spellings(graph.nodes).items():
        if node.op not in ("call_module", "call_function", "call_method"):
            continue
        why = why_not_quantized(node) if name == "quantize" else None
        if why is None:
            yield node
        elif by == "name" and (key := next((name for name in names if name in seed), None)):
            raise ValueError(f"search.search_space.seed.{key}: the node {why}")


def _first_calls(graph: MaseGraph, nodes: list[fx.Node]) -> dict[str, str]:
    """Return the first node that calls the same module: two calls of a layer are one choice."""
    first: dict[Any, str] = {}
    return {
        node.name: first.setdefault(node.target if node.op == "call_module" else node, node.name)
        for node in nodes
    }


def check_formats(node: fx.Node, keys: list[Parameter], check: Check, where: str) -> None:
    """Refuse unknown formats of a node, and formats without the keys that they need."""
    from chop.numerics import FORMATS
    from chop.passes.graph.transforms.quantize.variants import is_variant

    usual = {p.key: p.choice.nth(0) for p in keys}
    for name in some_values(keys[0]):
        if name is None or name in WIDENINGS or is_variant(name):
            continue
        if name not in FORMATS:
            raise UnknownName(f"number format in {where}.name", str(name), list(FORMATS))
        problem = problem_of(check, usual | {keys[0].key: name})
        if problem is not None:
            raise ValueError(f"{where}: {node.name}: {problem}")


def keys_of_format(name: Any) -> frozenset[str] | None:
    """Return the keys of a number format, None for any other name."""
    from chop.numerics import FORMATS
    from chop.passes.graph.transforms.quantize.config import known_keys

    return known_keys(name) if name in FORMATS else None
