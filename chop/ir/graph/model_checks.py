"""What is wrong with a model or its settings, before a graph is made of it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from itertools import chain
from types import ModuleType
from typing import Any

import torch
from torch import fx, nn
from torch.nn.parameter import is_lazy

from chop.registry import UnknownName

logger = logging.getLogger(__name__)

WANTED = "an nn.Module or an fx.GraphModule"
# keys that a model may set in its dict `patched_nodes`
PATCHED_KEYS = ("modules", "layers", "functions", "additional_inputs", "concrete_forward_args")


def check_model(model: object) -> None:
    """Refuse what no graph can be made of, with what to give instead."""
    wanted = f"MaseGraph takes {WANTED}"
    if isinstance(model, torch.export.ExportedProgram):
        raise TypeError(
            f"{wanted}, not an exported program, which has lost its layers; give the model itself: "
            f"MaseGraph(model, front_end='export', dummy_in=…)"
        )
    if hasattr(model, "_guards_fn"):
        logger.warning(
            "this is the module of an exported program, whose layers are functions; to keep "
            "them, give the model itself: MaseGraph(model, front_end='export', dummy_in=…)"
        )
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise TypeError(f"{wanted} itself, not its {type(model).__name__}; give model.module")
    if isinstance(model, type):
        raise TypeError(f"{wanted}, not the class {model.__name__}; call it: {model.__name__}(…)")
    if isinstance(model, str):
        raise TypeError(f"{wanted}, not the name {model!r}; build the model first")
    if not isinstance(model, nn.Module):
        raise TypeError(f"{wanted}, not {type(model).__name__} {model!r:.60}; build a model first")
    scripted = [n for n, m in model.named_modules() if isinstance(m, torch.jit.ScriptModule)]
    if (scripted and not isinstance(model, fx.GraphModule)) or hasattr(model, "_orig_mod"):
        what = f"layer {scripted[0]!r}" if scripted and scripted[0] else type(model).__name__
        raise TypeError(f"{wanted}, not the compiled {what}; give the model before compilation")
    if type(model).forward is nn.Module.forward:
        raise TypeError(
            f"{wanted} with a forward(); the class {type(model).__name__} has none; write one"
        )
    own = (*model._modules, *model._parameters, *model._buffers)
    taken = [name for name in own if name == "meta" or name in vars(fx.GraphModule)]
    if taken and not isinstance(model, fx.GraphModule):
        raise ValueError(
            f"torch.fx uses the name {taken[0]!r} itself; rename {taken[0]!r} of "
            f"{type(model).__name__}, for example to '{taken[0]}_layer'"
        )
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(
                f"{name!r} of {type(model).__name__} has no shape yet; "
                f"call the model once on an input before MaseGraph(model)"
            )


def _is_layer(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module)


def _is_function(value: object) -> bool:
    return callable(value) and hasattr(value, "__name__")  # fx names the node after it


def _check_all(where: str, values: Any, fits: Callable[[object], bool], what: str) -> None:
    for value in values:
        if not fits(value):
            raise TypeError(f"{where} takes {what}, not {value!r:.60}")


def checked_custom_ops(
    custom_ops: Mapping[str, Mapping[Any, Any]] | None,
) -> dict[str, dict[Any, Any]]:
    """Return the two tables of a user's ops, complete and checked."""
    kinds: dict[str, dict[Any, Any]] = {"modules": {}, "functions": {}}
    for kind, table in (custom_ops or {}).items():
        if kind not in kinds:
            raise UnknownName("key of custom_ops", kind, list(kinds))
        if not isinstance(table, Mapping):
            raise TypeError(f"custom_ops[{kind!r}] is a dict {{thing: {{}}}}, not {table!r:.60}")
        kinds[kind] = dict(table)
    _check_all('custom_ops["modules"]', kinds["modules"], _is_layer, "classes of modules")
    _check_all('custom_ops["functions"]', kinds["functions"], _is_function, "named functions")
    return kinds


def checked_patched_nodes(model: nn.Module) -> dict[str, Any]:
    """Return what a model says about functions and layers that tracing goes around."""
    patched: dict[str, Any] = getattr(model, "patched_nodes", None) or {}
    for key in patched:
        if key not in PATCHED_KEYS:
            raise UnknownName("key of patched_nodes", key, PATCHED_KEYS)
    for key, fits, what in (
        ("modules", lambda value: isinstance(value, ModuleType), "Python modules"),
        ("layers", _is_layer, "classes of modules"),
        ("functions", _is_function, "named functions"),
    ):
        _check_all(f'patched_nodes["{key}"]', patched.get(key, ()), fits, what)
    return patched


def defaults_of_others(model: nn.Module, keep: list[str]) -> dict[str, Any]:
    """Return the defaults of the arguments of forward() that are not kept as inputs."""
    params = inspect.signature(model.forward).parameters
    for name in keep:
        if name not in params:
            raise UnknownName("forward argument", name, list(params))
    return {
        name: param.default
        for name, param in params.items()
        if name not in keep and param.default is not param.empty
    }
