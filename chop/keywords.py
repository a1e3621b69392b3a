"""Options that users give by name, checked against the function that takes them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any


def checked(owner: str, function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` as the annotations of `function` say; one of another type is refused.

    >>> checked("model 'mlp'", lambda hidden: None, {"hidden": [1]})
    {'hidden': [1]}
    """
    types = _types(function) if options else {}
    typed = dict(options)
    for name in options.keys() & types.keys():
        try:
            typed[name] = _as_type(types[name], options[name])
        except ValueError as error:
            kind = inspect.signature(function).parameters[name].annotation
            shown = kind if isinstance(kind, str) else inspect.formatannotation(kind)
            raise ValueError(
                f"option {name!r} of {owner} is {shown}, not {options[name]!r}"
            ) from error
    return typed


def no_option(owner: str, surplus: str, there: list[str]) -> ValueError:
    """The error about an option that `owner` does not have."""
    has = f"it has {', '.join(there)}" if there else "it has none"
    return ValueError(f"{owner} has no option {surplus!r}; {has}")


def _types(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of the parameters that have one."""
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except NameError:  # of something that the user's file imports for type checks only
        return {}
    return {name: p.annotation for name, p in parameters.items() if p.annotation is not p.empty}


def _as_type(annotation: Any, value: object) -> Any:
    """`value` as `annotation` says; it may come from TOML, which has no tuples, paths or enums."""
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

    try:
        adapter = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:  # a type that brings rules of its own
        adapter = TypeAdapter(annotation)
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError:
        return adapter.validate_json(json.dumps(value, default=repr), strict=True)
