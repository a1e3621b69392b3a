"""Rules for layers of a saved graph, the same for writing and reading.

Layers are created without running their constructors, with the attributes in the file. These must
neither hide a method nor omit what the constructor would have set.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from torch import nn

from chop.ir.graph.names import ForeignName, is_known

INTERNAL = frozenset(vars(nn.Module()))
NAME = re.compile(r"(?!__)\w+", re.ASCII)
# text attributes by which a layer looks up its own attributes
LOOKED_UP = frozenset({"_flat_weights_names", "_all_weights", "_keys"})
FUNCTIONS = frozenset({"activation", "distance_function"})  # attributes that may hold a function
REGISTERS = frozenset({"register_buffer", "register_parameter", "add_module", "register_module"})


def check_layer(
    name: str,
    cls: type,
    attributes: Mapping[str, Any],
    tensors: Iterable[str],
    children: Iterable[str],
) -> None:
    """Raise an error for a layer with forbidden names, or without what its class needs."""
    where = f"layer {name!r} ({cls.__name__})"
    names = [*attributes, *tensors, *children]
    for key in names:
        _check_name(where, cls, key, plain=key in attributes)
    twice = [key for key, count in Counter(names).items() if count > 1]
    if twice:
        raise ForeignName(f"{where} has {twice[0]!r} twice")
    for key, value in attributes.items():
        _check_value(where, cls, key, value)
        looked_up = [x for x in _leaves(value) if isinstance(x, str)] if key in LOOKED_UP else []
        strange = [text for text in looked_up if text not in names]
        if strange:
            raise ForeignName(
                f"{key!r} of {where} names {strange[0]!r:.60}, which it does not have"
            )
    missing = sorted(_needed(cls) - set(names))
    if missing:
        raise ValueError(
            f"{where} lacks the attribute {missing[0]!r}, which its constructor sets; "
            f"save the graph again"
        )


def derived_attributes(cls: type) -> tuple[tuple[str, ...], Callable[[Any], Any] | None]:
    """Attributes that are derived from the others, and the function that derives them."""
    attributes = tuple(getattr(cls, "derived_attributes", ()))
    derive = getattr(cls, "derive", None) if attributes else None
    if not issubclass(cls, nn.RNNBase):
        return attributes, derive

    def derive_both(layer: Any) -> None:
        layer._init_flat_weights()  # private; the constructor, which is not run, calls it
        if derive is not None:
            derive(layer)

    return (*attributes, "_flat_weights", "_flat_weight_refs"), derive_both


def may_be_set(cls: type, key: str, plain: bool = False) -> bool:
    """Return whether a file may give a layer this name; `plain`: to a value, not to a layer."""
    free = NAME.fullmatch(key) and key not in INTERNAL and not hasattr(nn.Module, key)
    taken = (*derived_attributes(cls)[0], "parametrizations", "meta")
    return bool(free) and key not in taken and not _is_of_class(cls, key, plain)


def _check_name(where: str, cls: type, key: str, plain: bool) -> None:
    if not may_be_set(cls, key, plain):
        raise ForeignName(f"{key!r:.60} of {where} is not an attribute that a file may set")


def _is_of_class(cls: type, key: str, plain: bool) -> bool:
    """Whether the class defines this name; users' constants may be replaced."""
    known = inspect.getattr_static(cls, key, None)
    behaves = callable(known) or hasattr(known, "__get__")
    return known is not None and (behaves or not plain or is_known(cls))


def _check_value(where: str, cls: type, key: str, value: Any) -> None:
    """Refuse functions and classes, except in users' layers and in a few of torch's."""
    if not is_known(cls):
        return
    leaves = list(_leaves(value))
    if key in FUNCTIONS and any(isinstance(leaf, type) for leaf in leaves):
        raise ForeignName(f"{key!r} of {where} may not be a class, which would be constructed")
    if key not in FUNCTIONS and any(map(callable, leaves)):
        raise ForeignName(f"{key!r} of {where} may not be a function or a class")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _leaves(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


@cache
def _needed(cls: type) -> frozenset[str]:
    """The attributes that the constructors of a class always set; empty for users' layers."""
    attributes: set[str] = set()
    for base in cls.__mro__ if is_known(cls) else ():
        if base in (nn.Module, object) or "__init__" not in vars(base):
            continue
        body = _body(vars(base)["__init__"])
        if not any(isinstance(node, ast.Return) for each in body for node in ast.walk(each)):
            attributes |= _always_set(body) or set()
    return frozenset(attributes) - set(derived_attributes(cls)[0])


def _body(constructor: Any) -> list[ast.stmt]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(constructor)))
    except (OSError, TypeError, SyntaxError):  # a class without source
        return []
    (function,) = tree.body
    return function.body if isinstance(function, ast.FunctionDef) else []


def _always_set(body: list[ast.stmt]) -> set[str] | None:
    """The attributes that are set after `body` has run; None if it never finishes."""
    attributes: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.Raise):
            return None
        if isinstance(statement, ast.If):
            ways = [_always_set(statement.body), _always_set(statement.orelse)]
            ended = [way for way in ways if way is not None]
            if not ended:
                return None
            attributes |= set.intersection(*ended)
        elif isinstance(statement, ast.With):
            attributes |= _always_set(statement.body) or set()
        else:
            attributes |= set(_set(statement)) | set(_set(getattr(statement, "value", None)))
    return attributes


def _set(node: ast.AST | None) -> Iterator[str]:
    """The attributes of `self` that a statement or a call sets directly."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            yield from (key for part in parts if (key := _of_self(part)))
    elif isinstance(node, ast.Call) and _of_self(node.func) in REGISTERS:
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value


def _of_self(node: ast.AST) -> str:
    """Return `x` for `self.x`, "" for any other expression."""
    is_of_self = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    return node.attr if is_of_self and isinstance(node, ast.Attribute) else ""
