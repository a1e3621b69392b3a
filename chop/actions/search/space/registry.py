"""Search spaces by name, besides which every transform pass has one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

from chop.actions.search.space.base import Parent, Space
from chop.actions.search.space.hooks import HookSpace
from chop.actions.search.space.pass_spaces import PassSpace, pass_space
from chop.actions.search.space.untraced import NAME as UNTRACED
from chop.actions.search.space.untraced import is_module_style, module_space
from chop.dataset.nested import on_device
from chop.options import Options
from chop.registry import Registry, UnknownName
from chop.tools.get_input import InputGenerator, get_dummy_input

SpaceMaker = Callable[[str, Mapping[str, Any], Parent], Space]
SPACES: Registry[Any] = Registry("search space", for_users=True)
WHERE = "search.search_space"
NORM_BATCHES = 16  # for the statistics of batch norms with inherited weights
SETUP_KEYS = ("by", "transform", "model_parallel")


def register_search_space(*names: str) -> Callable[[SpaceMaker], SpaceMaker]:
    """Register a function `(name, table, parent) -> Space` by name."""
    return SPACES.register(*names)


def space_of(table: Mapping[str, Any], parent: Parent) -> Space:
    """Return the space that `[search.search_space]` describes."""
    name = table.get("name")
    if not isinstance(name, str):
        raise ValueError(f'{WHERE} needs a name, such as "graph/quantize/mixed_precision_ptq"')
    if is_module_style(table):
        return untraced(name, table, parent)
    if name not in SPACES:
        check_name(name)
        return of_pass(name, name.removeprefix("graph/"), table, parent)
    maker = SPACES[name]
    if isinstance(maker, type):
        return cast(Space, HookSpace(name, space_with_hooks(maker, table, parent)))
    return cast(Space, maker(name, table, parent))


def space_with_hooks(cls: type[Any], table: Mapping[str, Any], parent: Parent) -> Any:
    """Return an instance of a class with the labs' hooks, for the parent."""
    model, config = parent.graph.model, {k: v for k, v in table.items() if k != "name"}
    inputs = get_dummy_input(parent.model_info, parent.data_module, parent.task, "cpu", model=model)
    return cls(model, parent.model_info, config, inputs, parent.accelerator)


def check_name(name: str) -> None:
    """Refuse a name of neither a space nor a pass."""
    from chop.passes.base import PASSES

    if name not in SPACES and name.removeprefix("graph/") not in PASSES:
        passes = PASSES.values()
        varied = [p.name for p in passes if p.kind == "transform" and not p.writes_files]
        known = [*SPACES, *(f"graph/{p}" for p in sorted(varied))]
        raise UnknownName("search space", name, known, SPACES.advice)


def of_pass(name: str, run: str, table: Mapping[str, Any], parent: Parent) -> Space:
    """Return the space of one pass."""
    by = _setup(table).get("by")
    seed = _seed(table, WHERE)
    fixed = _fixed_of(run, table.get("options", {}))
    space = pass_space(parent.graph, run, by, seed, f"{WHERE}.seed", fixed.get(run, {}))
    return _space(name, {run: space}, parent, fixed)


def _fixed_of(run: str, options: Any) -> dict[str, dict[str, Any]]:
    """Return `[search.search_space.options]` by pass: `run`, or `redefine`, which widens layers."""
    from chop.passes.base import PASSES

    where, passes = f"{WHERE}.options", dict.fromkeys((run, "redefine"))
    if not isinstance(options, Mapping):
        raise ValueError(f"{where} must be a table of options of {run}, not {options!r}")
    owners = {key: [p for p in passes if key in PASSES[p].options] for key in options}
    for key in options:
        if not owners[key]:
            raise UnknownName(f"option of {run} in {where}", key, list(PASSES[run].options))
    return {p: {k: v for k, v in options.items() if owners[k][0] == p} for p in passes}


@register_search_space(
    "graph/quantize/mixed_precision_ptq", "graph/architecture/channel_multiplier"
)
def mixed_precision(name: str, table: Mapping[str, Any], parent: Parent) -> Space:
    """Number formats for all nodes that can have one, and the labs' names of wider layers."""
    if _setup(table).get("by") is None:
        raise ValueError(f'{WHERE}.setup.by is missing; it is "name", "type" or "regex_name"')
    return of_pass(name, "quantize", table, parent)


@register_search_space(UNTRACED)
def untraced(name: str, table: Mapping[str, Any], parent: Parent) -> Space:
    """Number formats for all layers of a model that cannot be traced."""
    by = _setup(table).get("by") or "name"
    return module_space(table, by, _seed(table, WHERE), parent.graph, WHERE)


@register_search_space("graph/transform")
def transform(name: str, table: Mapping[str, Any], parent: Parent) -> Space:
    """The pass that `setup.transform` names."""
    run = _setup(table).get("transform")
    if not isinstance(run, str):
        raise ValueError(f'{WHERE}.setup.transform must name a pass, such as "prune"')
    return of_pass(name, run, table, parent)


@register_search_space("graph/joint")
def joint(name: str, table: Mapping[str, Any], parent: Parent) -> Space:
    """Several passes together, in the order of `[search.search_space.passes.<pass>]`."""
    tables = table.get("passes")
    if not isinstance(tables, Mapping) or not tables:
        raise ValueError(
            f"{WHERE}.passes must have a table for each pass, such as [{WHERE}.passes.prune]"
        )
    spaces: dict[str, PassSpace] = {}
    fixed: dict[str, dict[str, Any]] = {}
    for run, inner in tables.items():
        where = f"{WHERE}.passes.{run}"
        if not isinstance(inner, Mapping):
            raise ValueError(f"{where} must be a table with seed, not {inner!r}")
        by = _setup(inner, where).get("by")
        fixed[run] = {k: v for k, v in inner.items() if k not in ("setup", "seed")}
        seed = _seed(inner, where)
        spaces[run] = pass_space(parent.graph, run, by, seed, f"{where}.seed", fixed[run])
    return _space(name, spaces, parent, fixed)


def _setup(table: Mapping[str, Any], where: str = WHERE) -> Mapping[str, Any]:
    return Options.named(f"{where}.setup", SETUP_KEYS).check(table.get("setup", {}))


def _seed(table: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    seed = table.get("seed")
    if not isinstance(seed, Mapping) or not seed:
        raise ValueError(f"{where}.seed is missing; add [{where}.seed.default.config] with choices")
    return seed


def _space(
    name: str, passes: Mapping[str, PassSpace], parent: Parent, fixed: Mapping[str, Any]
) -> Space:
    return Space(
        name,
        parent.graph,
        passes,
        extra=lambda run: generated_options(run, parent),
        fixed={run: options for run, options in fixed.items() if options},
        batches=functools.cache(lambda: _batches(parent)),
    )


def _batches(parent: Parent) -> list[Any]:
    """Return a few batches of training data, drawn with the seed of the search, on the device."""
    import torch

    device = next(parent.graph.model.parameters()).device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(parent.seed)
        batches = _generator(parent, NORM_BATCHES)
        return [on_device(batch, device) for batch in batches]


def _generator(parent: Parent, max_batches: int | None = None) -> InputGenerator:
    facts = (parent.model_info, parent.data_module, parent.task, "train", max_batches)
    return InputGenerator(*facts, model=parent.graph.model)


def generated_options(run: str, parent: Parent) -> dict[str, Any]:
    """Return options of a pass that no file can hold: batches of the training data."""
    from chop.passes.base import PASSES

    needed = "input_generator" in PASSES[run].options
    return {"input_generator": _generator(parent)} if needed else {}
