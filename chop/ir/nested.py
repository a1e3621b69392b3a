"""Nested values with their tensors taken out, and the named outputs of a graph."""

from __future__ import annotations

import copy
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

TENSORS = (Tensor,)
TRACED = (Tensor, torch.SymInt)  # values that differ between runs of one graph


PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)


def is_plain(value: Any) -> bool:
    """Return whether a value can be written into a graph as it is."""
    return isinstance(value, PLAIN)


@dataclass(frozen=True)
class TensorPlace:
    """The place of a tensor in a template."""

    index: int


@dataclass(frozen=True)
class Nest:
    """A container in a template: its contents by key, and a sample to rebuild it from."""

    sample: Any
    items: Mapping[Any, Any]

    @property
    def by_attribute(self) -> bool:
        """Whether the contents are attributes rather than items."""
        return not isinstance(self.sample, list | tuple | Mapping)


def separated(value: Any, kinds: tuple[type, ...] = TENSORS) -> tuple[Any, list[Any]]:
    """Return `value` with its tensors replaced by slots, and the tensors in order."""
    found: list[Any] = []

    def taken(item: Any) -> Any:
        if isinstance(item, kinds):
            found.append(item)
            return TensorPlace(len(found) - 1)
        inside = contents(item)
        return item if inside is None else Nest(item, {k: taken(v) for k, v in inside.items()})

    return taken(value), found


def contents(value: Any) -> dict[Any, Any] | None:
    """The contents of a list, tuple, mapping, slice or dataclass; None for any other value."""
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if isinstance(value, slice):
        return {key: getattr(value, key) for key in ("start", "stop", "step")}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def filled(template: Any, values: Sequence[Any]) -> Any:
    """Return the value of a template, of its original classes, with `values` in its slots."""
    return mapped(template, lambda slot: values[slot.index], rebuilt)


def mapped(
    template: Any,
    leaf: Callable[[TensorPlace], Any],
    container: Callable[[Any, dict[Any, Any]], Any],
) -> Any:
    """Return a template with `leaf` applied to slots and `container` to rebuilt containers."""
    if isinstance(template, TensorPlace):
        return leaf(template)
    if isinstance(template, Nest):
        items = {key: mapped(item, leaf, container) for key, item in template.items.items()}
        return container(template.sample, items)
    return template


def rebuilt(sample: Any, items: dict[Any, Any]) -> Any:
    """Return a container of the class of `sample` with other contents."""
    if type(sample) in (list, tuple, dict):
        return type(sample)(items if isinstance(sample, dict) else items.values())
    if isinstance(sample, slice):
        return slice(*items.values())
    if isinstance(sample, torch.Size):
        return tuple(items.values())
    if isinstance(sample, tuple):  # a named tuple
        return type(sample)(*items.values())
    if isinstance(sample, list):
        return type(sample)(items.values())
    if is_dataclass(sample) and isinstance(sample, Mapping):  # as outputs of transformers are
        return type(sample)(**items)
    new = copy.copy(sample)
    if isinstance(sample, MutableMapping):
        new.update(items)
    elif isinstance(sample, Mapping):
        return dict(items)
    else:
        for key, item in items.items():
            object.__setattr__(new, key, item)
    return new


def slot_paths(template: Any, path: tuple[Any, ...] = ()) -> dict[int, tuple[Any, ...]]:
    """Return the keys that lead to each slot; a key is (key, whether it is an attribute)."""
    if isinstance(template, TensorPlace):
        return {template.index: path}
    found: dict[int, tuple[Any, ...]] = {}
    if isinstance(template, Nest):
        for key, item in template.items.items():
            found |= slot_paths(item, (*path, (key, template.by_attribute)))
    return found


class NamedOutput(OrderedDict[str, Any]):
    """Results by name, read as attributes, by key, or by index: `out.logits`, `out[0]`.

    A result that is None is an attribute only, as in transformers.
    """

    def __init__(self, *args: Any, **values: Any) -> None:
        given = dict(*args, **values)
        super().__init__((key, value) for key, value in given.items() if value is not None)
        vars(self).update(given)

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the results that are not None."""
        return tuple(OrderedDict.values(self))


def named_output(**values: Any) -> NamedOutput:
    """Return the results of a graph by name."""
    return NamedOutput(values)


def named_tuple(names: Sequence[str], *values: Any) -> tuple[Any, ...]:
    """Return a tuple with named fields."""
    made: tuple[Any, ...] = _tuple_class(tuple(names))(*values)
    return made


@lru_cache(maxsize=256)
def _tuple_class(names: tuple[str, ...]) -> Any:
    return namedtuple("Output", names)
