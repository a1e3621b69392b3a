"""Arguments of forward() from example inputs."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from chop.registry import UnknownName


def given_arguments(
    model: nn.Module, dummy_in: Any, fixed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return example inputs by the names of forward(), in its order; those in `fixed` are not."""
    signature = inspect.signature(model.forward)
    named: dict[str, Any]
    if isinstance(dummy_in, Mapping):
        named = _by_name(signature, dict(dummy_in.items()))
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


def frozen_arguments(model: nn.Module, dummy_in: Any, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments that become part of a graph: `fixed`, and what dummy_in leaves None."""
    if dummy_in is None:
        return dict(fixed)
    given = given_arguments(model, dummy_in, fixed)
    parameters = inspect.signature(model.forward).parameters
    absent = [n for n, p in parameters.items() if p.default is None and n not in given]
    return {**dict.fromkeys(absent), **fixed}


def bound_arguments(signature: inspect.Signature, values: dict[str, Any]) -> inspect.BoundArguments:
    """Return arguments for forward(), from values by its names."""
    arguments = _by_name(signature, values)
    bound = inspect.BoundArguments(signature, OrderedDict())
    for name in signature.parameters:
        if name in arguments:
            bound.arguments[name] = arguments[name]
    bound.apply_defaults()
    return bound


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
