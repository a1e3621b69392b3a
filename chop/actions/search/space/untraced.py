"""The search space of a model without a graph: `style = "module"`."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from chop.actions.search.space.base import Candidate, Space
from chop.actions.search.space.checks import refuse_choices
from chop.actions.search.space.choices import Parameter
from chop.actions.search.space.pass_spaces import (
    MAX_TABLES,
    Config,
    NodePassSpace,
    check_formats,
    keys_of_format,
)
from chop.actions.search.space.seeds import node_parameters, seed_of_nodes
from chop.passes.graph.transforms.redefine.width_requests import WIDENINGS
from chop.system.caches import Lru
from chop.system.log import quieter

if TYPE_CHECKING:
    from torch import nn

    from chop.ir.graph.mase_graph import MaseGraph

NAME = "module/quantize"
NAMES = (NAME, "quantize", "graph/quantize", "graph/quantize/mixed_precision_ptq")
STYLES = ("graph", "module")


def is_module_style(table: Mapping[str, Any]) -> bool:
    """Whether `[search.search_space]` is for a model without a graph; refuse unknown styles."""
    name, style = table.get("name"), table.get("style")
    if style is None:
        return bool(name == NAME)
    if style not in STYLES:
        raise ValueError(f"search.search_space.style must be graph or module, not {style!r:.40}")
    if style == "module" and name not in NAMES:
        raise ValueError(
            f"search.search_space.name is {name!r}, but the module style searches number formats "
            f'only; set name = "{NAME}"'
        )
    if style == "graph" and name == NAME:
        raise ValueError(f'search.search_space.name is {NAME!r}; set style = "module" or omit it')
    return bool(style == "module")


@dataclass
class UntracedModel:
    """A model without a graph, with what a search needs of a graph."""

    model: nn.Module
    meta: dict[str, Any] = field(default_factory=dict)  # what it was made from and trained on
    front_end: ClassVar[str] = "module"  # in place of the front end that made a graph

    def clone(self) -> UntracedModel:
        """Return an independent copy."""
        return UntracedModel(copy.deepcopy(self.model), dict(self.meta))

    def export(self, path: str | Path) -> Path:
        """Save its transformed layers and its weights to a directory."""
        from chop.ir.graph.saved_modules import save_modules

        return save_modules(self.model, path, notes=self.meta)


@dataclass(frozen=True, eq=False)
class _Layer:
    """A layer with the attributes of a node by which seeds are matched."""

    name: str
    meta: Mapping[str, Any]


class LayerPassSpace(NodePassSpace):
    """The choices for the formats of the layers of a model without a graph."""

    def __init__(self, model: nn.Module, by: str, seed: Mapping[str, Any], where: str) -> None:
        from chop.passes.module.base import PASSES
        from chop.passes.module.quantize import quantizable_layers

        self.run = PASSES["quantize"]
        layers = quantizable_layers(model)
        first: dict[int, str] = {}
        self.nodes = list(layers)
        self.first = {name: first.setdefault(id(m), name) for name, m in layers.items()}
        self.parameters = []
        self._tables, self._numbers = Lru(MAX_TABLES), Lru(MAX_TABLES)
        self._layers = layers
        nodes: list[Any] = [_described(name, layer) for name, layer in layers.items()]
        graph: Any = SimpleNamespace(nodes=nodes)
        checked = set()
        for node, table in seed_of_nodes(graph, nodes, by, seed, where).items():
            if self.first[node.name] != node.name:
                continue
            parameters = node_parameters(f"{node.name}/config", table, keys_of_format)
            check = functools.partial(self._check_layer, layers[node.name], node.name, parameters)
            check_formats(node, parameters, check, table.where)
            if (kind := (table.where, node.meta["mase"].common.mase_op)) not in checked:
                refuse_choices(parameters, check, table.where, parameters[0])
                checked.add(kind)
            self.parameters += parameters

    def _check_layer(
        self, layer: nn.Module, name: str, keys: list[Parameter], chosen: Mapping[str, Any]
    ) -> None:
        """Raise what the pass would raise for the table of a layer."""
        from chop.passes.graph.transforms.quantize.quantize import node_config, quantized_layer
        from chop.passes.graph.transforms.quantize.resolve import layer_config

        config = {p.key.rpartition("/")[2]: chosen[p.key] for p in keys if p.exists(chosen)}
        if config.get("name") in WIDENINGS:
            raise ValueError(f"{config['name']} changes widths, which needs a graph; omit it")
        if config.get("name") is None:
            return
        try:
            checked = node_config(name, {"config": config})
            quantized_layer(layer, layer_config(name, layer, checked))
        except (TypeError, KeyError) as error:
            raise ValueError(str(error)) from error

    def _calibrated(self, node: str, config: Config) -> Config:
        from chop.passes.graph.transforms.quantize.resolve import layer_config

        return layer_config(node, self._layers[node], config)


def _described(name: str, layer: nn.Module) -> _Layer:
    from chop.ir.ops import module_op

    cls: Any = type(layer)
    op = module_op(cls)
    common = SimpleNamespace(mase_op=op.name if op is not None else cls.__name__)
    return _Layer(name, {"mase": SimpleNamespace(common=common)})


class ModuleSpace(Space):
    """All designs of a model without a graph; each is made from a copy by the module pass."""

    def _built(self, config: Config) -> tuple[MaseGraph, tuple[str, ...]]:
        from chop.passes.module.base import PASSES

        design = cast(UntracedModel, self.graph.clone())
        with quieter("chop.passes"):  # reports are for one network, not for thousands of designs
            for name, options in self.steps(config):
                design.model, _ = PASSES[name](design.model, options)
        return cast("MaseGraph", design), ()

    def candidate(self, config: Config) -> Candidate:
        return self.separate_candidate(config)

    def keeps_shapes(self, config: Config) -> bool:
        """Whether a design has the shapes of the parent: formats do not change them."""
        return True

    def expect_training(self) -> None:
        """Do nothing: every candidate is a copy of the parent."""


def module_space(
    table: Mapping[str, Any], by: str, seed: Mapping[str, Any], graph: Any, where: str
) -> Space:
    """Return the space of the formats of a model without a graph."""
    if "passes" in table or "options" in table:
        key = "passes" if "passes" in table else "options"
        raise ValueError(f"search.search_space.{key} needs a graph; omit it in the module style")
    layers = LayerPassSpace(graph.model, by, seed, f"{where}.seed")
    return ModuleSpace(NAME, graph, {"quantize": layers})
