"""Arguments of forward() from example inputs."""

from __future__ import annotations

import inspect
import logging
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn

from chop.registry import UnknownName

logger = logging.getLogger(__name__)

# what tokenizers of transformers give besides `input_ids`
ENCODED = ("attention_mask", "token_type_ids", "special_tokens_mask", "offset_mapping", "length")


def given_arguments(
    model: nn.Module, dummy_in: Any, fixed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return example inputs by the names of forward(), in its order; those in `fixed` are not."""
    signature = inspect.signature(model.forward)
    named: dict[str, Any]
    if isinstance(dummy_in, Mapping):
        named = _by_name(signature, without_surplus(dummy_in, signature.parameters))
    elif isinstance(dummy_in, list | tuple | Tensor):
        values = [dummy_in] if isinstance(dummy_in, Tensor) else list(dummy_in)
        try:
            named = signature.bind_partial(*values).arguments
        except TypeError:
            count = len(signature.parameters)
            raise TypeError(
                f"dummy_in has {len(values)} inputs, and forward() takes {count}"
            ) from None
    else:
        raise TypeError(
            f"dummy_in is a dict of inputs by name, a tuple of them, or a tensor, "
            f"not {type(dummy_in).__name__} {dummy_in!r:.40}"
        )
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for name in fixed or {}:
        if name not in signature.parameters and not takes_any:
            names = list(signature.parameters)
            raise UnknownName("forward argument in cf_args", name, sorted(names))
        named.pop(name, None)
    required = [
        name
        for name, param in signature.parameters.items()
        if param.default is param.empty and "VAR" not in param.kind.name
    ]
    for name in required:
        if name not in named and name not in (fixed or {}):
            wanted = ", ".join(f"{each!r}: tensor" for each in required)
            raise TypeError(
                f"dummy_in has no value for the model's input {name!r}; give {{{wanted}}}"
            )
    return {name: named[name] for name in signature.parameters if name in named}


def without_surplus(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Drop what a tokenizer gives beyond the inputs `names` of a network of ids, with a warning."""
    dropped = [name for name in ENCODED if name in values and name not in names]
    if not dropped or "input_ids" not in values:
        return dict(values.items())
    logger.warning("the inputs have no %s; what the tokenizer gives is dropped", ", ".join(dropped))
    return {name: value for name, value in values.items() if name not in dropped}


def frozen_arguments(model: nn.Module, dummy_in: Any, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments that become part of a graph: `fixed`, and what dummy_in leaves None."""
    if dummy_in is None:
        return dict(fixed)
    given = given_arguments(model, dummy_in, fixed)
    parameters = inspect.signature(model.forward).parameters
    absent = [n for n, p in parameters.items() if p.default is None and n not in given]
    return {**dict.fromkeys(absent), **fixed}


def call_arguments(
    signature: inspect.Signature, values: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments to call forward() with, from values by its names.

    They are given by keyword where that is possible, as decorators of transformers add defaults by
    keyword themselves.
    """
    arguments = _by_name(signature, values)
    params = signature.parameters.values()
    star = next((p.name for p in params if p.kind is p.VAR_POSITIONAL), "")
    if arguments.get(star):
        bound = inspect.BoundArguments(signature, OrderedDict())
        bound.arguments.update((p.name, arguments[p.name]) for p in params if p.name in arguments)
        bound.apply_defaults()
        return bound.args, bound.kwargs
    first = [p.name for p in params if p.kind is p.POSITIONAL_ONLY and p.name in arguments]
    rest = next((p.name for p in params if p.kind is p.VAR_KEYWORD), "")
    named = {name: x for name, x in arguments.items() if name not in (*first, star, rest)}
    return tuple(arguments[name] for name in first), {**named, **arguments.get(rest, {})}


def _by_name(signature: inspect.Signature, values: dict[str, Any]) -> dict[str, Any]:
    params = signature.parameters
    unknown = [name for name in values if name not in params]
    rest = next((n for n, p in params.items() if p.kind is p.VAR_KEYWORD), None)
    if unknown and rest is None:
        raise UnknownName("input in dummy_in", unknown[0], list(params))
    if rest is not None:
        further = {name: values.pop(name) for name in unknown}
        values[rest] = {**values.get(rest, {}), **further}
        if not values[rest]:
            del values[rest]
    return values
