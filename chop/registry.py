"""One registry class for formats, passes, models, datasets, statistics and metrics."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MAX_LISTED = 40  # a message with hundreds of names does not help
MAX_BESIDE_HINT = 24  # with the closest name, a long list helps even less
# what users can register in a file of their own
IF_YOURS = "; if it is yours, import the file that registers it, on the command line with --import"


def nearest(name: object, known: Iterable[str]) -> str | None:
    """Return the known name closest to `name`, or None.

    >>> nearest("jsc_tiny", ["jsc-tiny", "vgg7"])
    'jsc-tiny'
    >>> nearest("", ["jsc-tiny"]) is None
    True
    """
    folded = {k.lower().replace("-", "_"): k for k in known}
    wanted = str(name).lower().replace("-", "_")
    close = difflib.get_close_matches(wanted, folded, n=1)
    return folded[close[0]] if close else None


def unknown(kind: str, name: object, known: Iterable[str], advice: str = "") -> str:
    """The message for an unknown `name`, with the closest known name and the list of names.

    A long list is left out if there is a closest name.

    >>> unknown("model", "vgg8", ["resnet18", "vgg7"])
    "unknown model 'vgg8'; did you mean 'vgg7'? (known: resnet18, vgg7)"
    """
    names = list(known)
    near = nearest(name, names)
    hint = f"; did you mean {near!r}?" if near else ""
    if near and len(names) > MAX_BESIDE_HINT:
        aside = f" ({advice.removeprefix('; ')})" if advice else ""
        return f"unknown {kind} {name!r}{hint}{aside}"
    listed = ", ".join(names[:MAX_LISTED]) or "none"
    more = f", … {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"unknown {kind} {name!r}{hint} (known: {listed}{more}){advice}"


def not_defined(owner: object, method: str, kind: str) -> NotImplementedError:
    """Return the error of a method that every class of a kind has to define."""
    return NotImplementedError(
        f"the class {type(owner).__name__} does not define {method}(), which every {kind} needs; "
        f"add the method"
    )


class UnknownName(KeyError):
    """A name that is not registered; the message contains the closest known name."""

    def __init__(self, kind: str, name: object, known: Iterable[str], advice: str = "") -> None:
        super().__init__(unknown(kind, name, known, advice))

    def __str__(self) -> str:  # KeyError shows the repr of its message; we want the message
        return str(self.args[0])


def identity(thing: object) -> tuple[Any, Any]:
    """Where an object was defined: equal for two runs of a notebook cell."""
    return getattr(thing, "__module__", None), getattr(thing, "__qualname__", id(thing))


class Registry(Mapping[str, T], Generic[T]):
    """Name -> object of one kind. The files of `package` register themselves on first use.

    Of a kind that is `for_users`, the message for an unknown name tells how to add one.
    """

    def __init__(self, kind: str, package: str | None = None, *, for_users: bool = False) -> None:
        self.kind, self._package, self._items = kind, package, dict[str, T]()
        self.advice = IF_YOURS if for_users else ""
        self._loading = False

    def register(self, *names: str, replace: bool = False) -> Callable[[T], T]:
        """Decorator that registers an object under `names`.

        The same definition run again, as in a notebook cell, replaces itself; two different
        definitions under one name are an error, unless `replace` is set.
        """

        def add(thing: T) -> T:
            for name in names:
                there = self._items.get(name)
                same = replace or identity(there) == identity(thing)
                if there is not None and not same:
                    raise ValueError(
                        f"{self.kind} {name!r} registered twice: {there!r} and {thing!r}; "
                        f"give one of them another name"
                    )
                self._items[name] = thing
            return thing

        return add

    def _load(self) -> dict[str, T]:
        if self._package and not self._loading:
            self._loading = True  # a file of the package may look things up while it is imported
            try:
                package = importlib.import_module(self._package)
                for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
                    importlib.import_module(module.name)
                self._package = None
            finally:
                self._loading = False
        return self._items

    def __getitem__(self, name: str) -> T:
        items = self._load()
        if name not in self:
            raise UnknownName(self.kind, name, sorted(items), self.advice)
        return items[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._load()

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())

    def __repr__(self) -> str:
        return f"<{self.kind} registry: {', '.join(sorted(self._load())) or 'empty'}>"
