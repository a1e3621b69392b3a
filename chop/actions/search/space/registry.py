"""The spaces by name; any transform pass is one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from chop.actions.search.space.base import Parent, Space
from chop.actions.search.space.hooks import HookSpace
from chop.actions.search.space.pass_spaces import Part, part_for
from chop.options import Options
from chop.registry import Registry, UnknownName
from chop.tools.get_input import InputGenerator, get_dummy_input

SpaceMaker = Callable[[str, Mapping[str, Any], Parent], Space]
SPACES: Registry[Any] = Registry("search space")
WHERE = "search.search_space"
SETTLING = 16  # batches from which batch norms of inherited weights count their statistics
SETUP_KEYS = ("by", "transform", "model_parallel")


def register_search_space(*names: str) -> Callable[[SpaceMaker], SpaceMaker]:
    """File a function `(name, table, parent) -> Space` under a name."""
    return SPACES.register(*names)


def space_of(table: Mapping[str, Any], parent: Parent) -> Space:
    """The space that `[search.search_space]` means."""
    name = table.get("name")
    if not isinstance(name, str):
        raise ValueError(f'{WHERE} needs a name, such as "graph/quantize/mixed_precision_ptq"')
    if name in SPACES:
        made = SPACES[name]
        return (
            _by_hand(name, made, table, parent)
            if isinstance(made, type)
            else made(name, table, parent)
        )
    return _by_pass(name, table, parent)


def _by_hand(name: str, cls: type[Any], table: Mapping[str, Any], parent: Parent) -> Space:
    """A space that somebody wrote as the labs do."""
    space: Any = HookSpace(name, space_with_hooks(cls, table, parent))
    return space  # type: ignore[no-any-return]


def space_with_hooks(cls: type[Any], table: Mapping[str, Any], parent: Parent) -> Any:
    """A space with the labs' four hooks, for the parent."""
    model, config = parent.graph.model, {k: v for k, v in table.items() if k != "name"}
    inputs = get_dummy_input(parent.model_info, parent.data_module, parent.task, "cpu", model=model)
    return cls(model, parent.model_info, config, inputs, parent.accelerator)


def check_name(name: str) -> None:
    """Refuse what is neither a space nor a pass."""
    from chop.passes.base import PASSES

    if name not in SPACES and name.removeprefix("graph/") not in PASSES:
        known = [*SPACES, *(f"graph/{p.name}" for p in PASSES.values() if p.kind == "transform")]
        raise UnknownName("search space", name, known)


def _by_pass(name: str, table: Mapping[str, Any], parent: Parent) -> Space:
    """`graph/prune`: the choices are those of the pass of that name."""
    check_name(name)
    return of_pass(name, name.removeprefix("graph/"), table, parent)


def of_pass(name: str, run: str, table: Mapping[str, Any], parent: Parent) -> Space:
    """The space of one pass."""
    setup = _setup(table)
    seed = _seed(table, WHERE)
    fixed = _fixed_of(run, table.get("options", {}))
    own = fixed.get(run, {})
    part = part_for(parent.graph, run, setup.get("by"), seed, f"{WHERE}.seed", own)
    return _space(name, {run: part}, parent, fixed)


def _fixed_of(run: str, options: Any) -> dict[str, dict[str, Any]]:
    """`[search.search_space.options]`: those of the pass, or of the one that widens its layers."""
    from chop.passes.base import PASSES

    where, passes = f"{WHERE}.options", dict.fromkeys((run, "redefine"))
    if not isinstance(options, Mapping):
        raise ValueError(f"{where} is a table of options of {run}, not {options!r}")
    owners = {key: [p for p in passes if key in PASSES[p].options] for key in options}
    for key in options:
        if not owners[key]:
            known = [*PASSES[run].options]
            raise UnknownName(f"option of {run} in {where}", key, known)
    return {p: {k: v for k, v in options.items() if owners[k][0] == p} for p in passes}


@register_search_space(
    "graph/quantize/mixed_precision_ptq",
    "graph/architecture/channel_multiplier",
)
def mixed_precision(name: str, table: Mapping[str, Any], parent: Parent) -> Space:
    """A number format for every node that can have one; the labs' names of widenings as well."""
    setup = _setup(table)
    if setup.get("by") is None:
        raise ValueError(f'{WHERE}.setup.by is missing; it is "name", "type" or "regex_name"')
    return of_pass(name, "quantize", table, parent)


@register_search_space("graph/transform")
def transform(name: str, table: Mapping[str, Any], parent: Parent) -> Space:
    """The pass that `setup.transform` names."""
    run = _setup(table).get("transform")
    if not isinstance(run, str):
        raise ValueError(f'{WHERE}.setup.transform names a pass, such as "prune"')
    return of_pass(name, run, table, parent)


@register_search_space("graph/joint")
def joint(name: str, table: Mapping[str, Any], parent: Parent) -> Space:
    """Several passes in the order of `[search.search_space.passes.<pass>]`, chosen together."""
    tables = table.get("passes")
    if not isinstance(tables, Mapping) or not tables:
        raise ValueError(
            f"{WHERE}.passes has a table for each pass, such as [{WHERE}.passes.prune]"
        )
    parts: dict[str, Part] = {}
    fixed: dict[str, dict[str, Any]] = {}
    for run, inner in tables.items():
        where = f"{WHERE}.passes.{run}"
        if not isinstance(inner, Mapping):
            raise ValueError(f"{where} is a table with seed, not {inner!r}")
        by = _setup(inner, where).get("by")
        fixed[run] = {k: v for k, v in inner.items() if k not in ("setup", "seed")}
        seed = _seed(inner, where)
        parts[run] = part_for(parent.graph, run, by, seed, f"{where}.seed", fixed[run])
    return _space(name, parts, parent, fixed)


def _setup(table: Mapping[str, Any], where: str = WHERE) -> Mapping[str, Any]:
    return Options.named(f"{where}.setup", SETUP_KEYS).check(table.get("setup", {}))


def _seed(table: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    seed = table.get("seed")
    if not isinstance(seed, Mapping) or not seed:
        raise ValueError(f"{where}.seed says what can be chosen; add [{where}.seed.default.config]")
    return seed


def _space(
    name: str,
    parts: Mapping[str, Part],
    parent: Parent,
    fixed: Mapping[str, Mapping[str, Any]],
) -> Space:
    return Space(
        name,
        parent.graph,
        parts,
        extra=lambda run: _generated(run, parent),
        fixed={run: options for run, options in fixed.items() if options},
        batches=functools.cache(lambda: _batches(parent)),
    )


def _batches(parent: Parent) -> list[Any]:
    """A few batches of training data that the seed of the search draws, on the device."""
    import torch

    device = next(parent.graph.model.parameters()).device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(parent.seed)
        found = _generator(parent, SETTLING)
        return [{name: x.to(device) for name, x in batch.items()} for batch in found]


def _generator(parent: Parent, max_batches: int | None = None) -> InputGenerator:
    return InputGenerator(
        parent.model_info,
        parent.data_module,
        parent.task,
        "train",
        max_batches,
        model=parent.graph.model,
    )


def _generated(run: str, parent: Parent) -> dict[str, Any]:
    """What a pass needs and a file cannot hold: batches of the training data."""
    from chop.passes.base import PASSES

    if "input_generator" not in PASSES[run].options:
        return {}
    return {"input_generator": _generator(parent)}
