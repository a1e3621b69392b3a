"""Records: dicts with typed attributes for their documented keys."""

from __future__ import annotations

import typing
from typing import Any, ClassVar, Self


class _Key:
    """Attribute `x.shape` <-> item `x["shape"]`. The dict is the only storage."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, record: dict[str, Any] | None, owner: type) -> Any:
        if record is None:
            return self
        try:
            return record[self.name]
        except KeyError:
            raise AttributeError(
                f"{owner.__name__} has no {self.name!r} yet; it has {sorted(record)}"
            ) from None

    def __set__(self, record: dict[str, Any], value: Any) -> None:
        record[self.name] = value


class Record(dict[str, Any]):
    """A dict with fields. Assigning a plain dict to a record's field converts it to that record."""

    _kinds: ClassVar[dict[str, type[Record]]] = {}  # key -> record class; "*" for any other key

    def __init_subclass__(cls, of: type[Record] | None = None) -> None:
        cls._kinds = {**cls._kinds, **({"*": of} if of else {})}
        annotations = vars(cls).get("__annotations__", {})
        for name, hint in typing.get_type_hints(cls).items():
            if name not in annotations or typing.get_origin(hint) is ClassVar:
                continue
            if hasattr(dict, name):
                raise TypeError(f"{cls.__name__}.{name} would hide dict.{name}")
            setattr(cls, name, _Key(name))
            if isinstance(hint, type) and issubclass(hint, Record):
                cls._kinds[name] = hint

    @classmethod
    def fields(cls) -> dict[str, type[Record]]:
        """The keys of nested records, with their classes."""
        return {key: kind for key, kind in cls._kinds.items() if key != "*"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.update(*args, **kwargs)

    def __setitem__(self, key: str, value: Any) -> None:
        kind = self._kinds.get(key) or self._kinds.get("*")
        if kind and isinstance(value, dict) and not isinstance(value, kind):
            value = kind(value)
        super().__setitem__(key, value)

    if not typing.TYPE_CHECKING:  # a visible __setattr__ would make mypy accept any attribute

        def __setattr__(self, name: str, value: Any) -> None:
            if not hasattr(type(self), name):
                raise AttributeError(
                    f"{type(self).__name__} has no field {name!r}; free-form keys go through [...]"
                )
            object.__setattr__(self, name, value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]
        self.update(other)
        return self

    def clone(self) -> Self:
        """Copy the whole tree; tensors and other leaves are shared."""
        new = type(self).__new__(type(self))
        # nested values are already records, so no conversion is needed
        dict.update(new, {key: copied(value) for key, value in self.items()})
        return new


def copied(value: Any) -> Any:
    """Copy nested dicts, lists and records; their leaves are shared."""
    if isinstance(value, Record):
        return value.clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if type(value) is list:
        return [copied(item) for item in value]
    return value
