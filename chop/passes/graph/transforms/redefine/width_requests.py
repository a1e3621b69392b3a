"""Requested widths of layers and repeats of blocks, checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.passes.base import PassArgsError
from chop.passes.graph.transforms.quantize.config import config_in, without_na
from chop.passes.graph.utils import vf
from chop.passes.select import By, select
from chop.registry import unknown

WIDENINGS = ("output_only", "both", "input_only")
WIDTHS = ("width", "out_features", "out_channels")
LARGEST = 1_000_000  # factor or channels: more than any layer has
KEYS = ("name", "channel_multiplier", *WIDTHS, "repeat")
# keys of a sampled search config besides the keys of nodes
IGNORED = ("accelerator",)


@dataclass(frozen=True)
class WidthRequest:
    """One table: the side of a layer to change, by which factor or to which width, and repeats."""

    name: str | None = None
    multiplier: float | None = None
    width: int | None = None
    repeat: int | None = None

    @classmethod
    def read(cls, key: str, table: Any) -> WidthRequest:
        """Read a table `{"config": {…}}`; a plain dict of these keys counts as one."""
        config = config_in(table)
        if config is None:
            raise PassArgsError(
                f"{key!r} needs a table {{'config': {{'name': 'both', 'channel_multiplier': 2}}}}, "
                f"not {table!r:.80}"
            )
        if config is not table and len(table) > 1:
            other = next(name for name in table if name != "config")
            raise PassArgsError(f"{key!r}: {other!r} is next to 'config'; put it inside")
        config = without_na(config)
        for name in config:
            if name not in KEYS:
                raise PassArgsError(f"{key!r}: {unknown('key', name, KEYS)}")
        return cls(
            _name(key, config),
            _number(key, config, "channel_multiplier"),
            _width(key, config),
            _repeat(key, config),
        )._checked(key)

    def _checked(self, key: str) -> WidthRequest:
        if self.multiplier is not None and self.width is not None:
            raise PassArgsError(f"{key!r} has channel_multiplier and a width; give one of them")
        missing = self.multiplier is None and self.width is None
        if self.name in ("output_only", "both") and missing and self.repeat is None:
            raise PassArgsError(f"{key!r} is {self.name!r} and needs channel_multiplier or width")
        if self.name == "input_only" and self.width is not None:
            raise PassArgsError(
                f"{key!r} is 'input_only', so the number of outputs cannot change; "
                f"omit the width, or use 'both'"
            )
        return self

    @property
    def changes_outputs(self) -> bool:
        return self.name != "input_only" and not (self.multiplier is None and self.width is None)

    @property
    def idle(self) -> bool:
        return self.name is None and not self.changes_outputs and self.repeat is None

    def of(self, original: int) -> int:
        """The new width of a layer with that many outputs; at least 1."""
        if self.width is not None:
            return self.width
        return max(1, round(original * (1 if self.multiplier is None else self.multiplier)))


def _name(key: str, config: Mapping[str, Any]) -> str | None:
    name: str | None = config.get(
        "name", "both" if config.keys() & {"channel_multiplier", *WIDTHS} else None
    )
    if name is not None and name not in WIDENINGS:
        raise PassArgsError(f"{key!r}: {unknown('name', str(name), WIDENINGS)}")
    return name


def _number(key: str, config: Mapping[str, Any], which: str) -> float | None:
    value = config.get(which)
    if value is None or config.get("name", "both") is None:  # how the labs leave a layer out
        return None
    if isinstance(value, list | tuple):
        raise PassArgsError(
            f"{key!r}: {which} is {value!r:.40}, a list; give one number, as choices are for "
            f"[search.search_space.seed]"
        )
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST:
        raise PassArgsError(
            f"{key!r}: {which} is {value!r:.40}; give a number above 0 and below {LARGEST}"
        )
    return value


def _width(key: str, config: Mapping[str, Any]) -> int | None:
    keys = [which for which in WIDTHS if config.get(which) is not None]
    if len(keys) > 1:
        raise PassArgsError(f"{key!r} has {keys[0]} and {keys[1]}; give one of them")
    value = _number(key, config, keys[0]) if keys else None
    if value is not None and not isinstance(value, int):
        raise PassArgsError(f"{key!r}: {keys[0]} is {value!r}; give an integer")
    return value


def _repeat(key: str, config: Mapping[str, Any]) -> int | None:
    value = config.get("repeat")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise PassArgsError(
            f"{key!r}: repeat is {value!r:.40}; give an integer, 0 to skip the block"
        )
    return value


@dataclass(frozen=True)
class RedefinePlan:
    """The requests of a call by dotted name: of named layers, of all others, of blocks."""

    chosen: dict[str, WidthRequest]
    others: dict[str, WidthRequest]
    repeats: dict[str, int]
    by_name: bool


def read_plan(
    graph: MaseGraph, by: By, default: Any, tables: Mapping[str, Any], kinds: Collection[str]
) -> RedefinePlan:
    """Read all requests and check them against the graph; nothing is changed yet."""
    choices = {key: WidthRequest.read(key, t) for key, t in tables.items() if key not in IGNORED}
    rest = WidthRequest.read("default", default) if default is not None else WidthRequest()
    blocks: dict[str, int] = {}
    if by == "name":
        choices = _without_blocks(graph, choices, blocks)
    for key in choices if by == "type" else ():
        if key not in kinds and not choices[key].idle:
            these = ", ".join(kinds)
            raise PassArgsError(f"op {key!r} cannot be redefined here; these can: {these}")
    selected = {node: choices[key] for node, key in select(graph, by, choices).items()}
    if by == "name":
        _check_kinds(selected, kinds)
    layers = [node for node in graph.nodes if is_layer(node, kinds)]
    chosen = _by_module({node: selected[node] for node in layers if node in selected})
    others = {str(n.target): rest for n in layers if str(n.target) not in chosen}
    repeats = {t: c.repeat for t, c in {**others, **chosen}.items() if c.repeat is not None}
    return RedefinePlan(chosen, others, {**repeats, **blocks}, by == "name")


def _check_kinds(selected: Mapping[fx.Node, WidthRequest], kinds: Collection[str]) -> None:
    """Raise an error for nodes named by the user that cannot be redefined."""
    for node, choice in selected.items():
        if not choice.idle and not is_layer(node, kinds):
            how = "" if node.op == "call_module" else ", which is not called as a layer"
            raise PassArgsError(
                f"node {node.name!r} is {mase(node).common.mase_op}{how}; "
                f"these can be redefined here: {', '.join(kinds)}"
            )


def _by_module(chosen: Mapping[fx.Node, WidthRequest]) -> dict[str, WidthRequest]:
    first: dict[str, fx.Node] = {}
    for node, choice in chosen.items():
        other = first.setdefault(str(node.target), node)
        if chosen[other] != choice:
            raise PassArgsError(
                f"nodes {other.name!r} and {node.name!r} call the same module {node.target!r}; "
                f"give them the same config"
            )
    return {target: chosen[node] for target, node in first.items()}


def is_layer(node: fx.Node, kinds: Collection[str]) -> bool:
    """Return whether a node calls a layer of these ops with a weight parameter."""
    module = mase(node).module
    named = module is not None and module._parameters.get("weight") is not None
    return named and mase(node).common.mase_op in kinds


def _without_blocks(
    graph: MaseGraph, choices: Mapping[str, WidthRequest], repeats: dict[str, int]
) -> dict[str, WidthRequest]:
    """Requests by node name; those of modules with several layers go to `repeats`."""
    from chop.passes.graph.transforms.redefine.blocks import containers
    from chop.passes.graph.transforms.redefine.original_widths import Original

    names = dict.fromkeys(node.name for node in graph.nodes)
    targets = {str(node.target): node.name for node in graph.nodes if node.op == "call_module"}
    blocks = containers(graph)
    gone = {t for t, count in Original.of(graph).repeats.items() if count == 0}
    skipped = {vf(name): name for name in gone} | {name: name for name in gone}
    left: dict[str, WidthRequest] = {}
    for key, choice in choices.items():
        if key in names or key in targets:
            left[key if key in names else targets[key]] = choice
        elif key in skipped:
            if not choice.idle and choice.repeat != 0:
                text = "was skipped before and is gone; start from a copy of the original"
                raise PassArgsError(f"block {key!r} {text}")
        elif key in blocks:
            if choice.name is not None:
                raise PassArgsError(
                    f"{key!r} is a block of several layers, which takes repeat alone; "
                    f"name its layers to change their widths"
                )
            if choice.repeat is not None:
                repeats[blocks[key]] = choice.repeat
        else:
            raise PassArgsError(unknown("node", key, [*names, *targets, *blocks]))
    return left
