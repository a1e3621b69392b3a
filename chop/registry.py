"""Registries: by name for formats, passes, models and the like, by class for what ops become."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import itertools
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from chop import extensions

K = TypeVar("K", bound=Hashable)
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


class Entries(Mapping[K, T], Generic[K, T]):
    """Key -> object of one kind. The files of `packages` register themselves on first use.

    First those that contain the key in double quotes are imported (or what `look_for` imports),
    then all of them, then the modules named `room` of all methods. Of a kind that is `for_users`,
    the message for what is not there tells how to add it.
    """

    fix: ClassVar[str]  # of two different objects under one key

    def __init__(
        self,
        kind: str,
        *packages: str,
        room: str | None = None,
        look_for: Callable[[Any], object] | None = None,
        for_users: bool = False,
    ) -> None:
        self.kind, self._packages, self._items = kind, packages, dict[K, T]()
        self._room, self._methods = room, 0  # how many packages of methods were asked
        self._look_for = look_for or self._import_quoting
        self.advice = IF_YOURS if for_users else ""
        self._looked = set[tuple[Any, int]]()  # keys, and how many packages of methods there were
        self._loading = dict[int, frozenset[K]]()  # threads, and the keys that were there before

    def register(self, *keys: K, replace: bool = False) -> Callable[[T], T]:
        """Decorator that registers an object under `keys`.

        The same definition run again, as in a notebook cell, replaces itself; two different
        definitions under one key are an error, unless `replace` is set. With it, a definition of
        yours also wins over one from a file that is imported later.
        """

        def add(thing: T) -> T:
            for key in keys:
                there = self._items.get(key)
                if replace and key in self._loading.get(threading.get_ident(), ()):
                    continue  # it was replaced before its own file was imported
                same = replace or identity(there) == identity(thing)
                if there is not None and not same:
                    raise ValueError(
                        f"{self.kind} {self.name_of(key)!r} registered twice: {there!r} and "
                        f"{thing!r}; {self.fix}"
                    )
                self._items[key] = thing
            return thing

        return add

    @staticmethod
    def name_of(key: Any) -> str:
        """Return how messages name a key."""
        return str(key)

    def present(self, key: K) -> T | None:
        """Return what is registered under a key so far; nothing is imported."""
        return self._items.get(key)

    def own(self) -> dict[K, T]:
        """Return what is registered so far, with our files imported but not those of methods."""
        return self._load(methods=False)

    @contextlib.contextmanager
    def _importing(self) -> Iterator[bool]:
        """Yield whether files are to be imported; one of them may look things up while it is."""
        thread = threading.get_ident()
        asks_methods = self._room and self._methods < len(extensions.METHODS)
        if thread in self._loading or not (self._packages or asks_methods):
            yield False
            return
        self._loading[thread] = frozenset(self._items)
        try:
            yield True
        finally:
            del self._loading[thread]

    def _files(self, *, methods: bool) -> dict[str, Path]:
        """Return the modules of the packages, and of all methods, with their files."""
        files = dict(item for name in self._packages for item in _files_of(name))
        return files | (extensions.modules_of_methods(self._room) if methods and self._room else {})

    def _import_quoting(self, key: Any) -> None:
        """Import the modules in which a text stands in quotes."""
        if not key or not isinstance(key, str):  # a docstring begins with an empty one
            return
        for name, file in self._files(methods=True).items():
            if f'"{key}"' in file.read_text(encoding="utf-8"):
                importlib.import_module(name)

    def quoted(self, key: K) -> T | None:
        """Return what is registered under a key so far, or by the files that have it in quotes."""
        self._look(key)
        return self._items.get(key)

    def _look(self, key: Any) -> None:
        looked = (key, len(extensions.METHODS))
        if key not in self._items and looked not in self._looked:
            with self._importing() as is_first:
                if is_first:
                    self._look_for(key)
                    self._looked.add(looked)

    def _load(self, *, methods: bool = True) -> dict[K, T]:
        with self._importing() as is_first:  # other threads wait for the imports
            if is_first:
                asked = len(extensions.METHODS)
                for name in self._files(methods=methods):
                    importlib.import_module(name)
                self._packages = ()
                if methods:
                    self._methods = asked
        return self._items

    def _registered(self, key: Any) -> K | None:
        """Return the key under which there is an object for `key`."""
        if not isinstance(key, Hashable):
            return None
        self._look(key)
        return key if key in self._items or key in self.own() or key in self._load() else None

    def _missing(self, key: Any) -> KeyError:
        return UnknownName(self.kind, key, sorted(map(self.name_of, self._load())), self.advice)

    def __getitem__(self, key: K) -> T:
        registered = self._registered(key)
        if registered is None:
            raise self._missing(key)
        return self._items[registered]

    def __contains__(self, key: object) -> bool:
        return self._registered(key) is not None

    def __iter__(self) -> Iterator[K]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())

    def __repr__(self) -> str:
        names = ", ".join(sorted(map(self.name_of, self._load())))
        return f"<{self.kind} registry: {names or 'empty'}>"


def _files_of(name: str) -> Iterator[tuple[str, Path]]:
    """Yield a module, or the modules of a package, with their files."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, name
    yield name, Path(str(spec.origin))
    for folder in map(Path, spec.submodule_search_locations or ()):
        packages = {file.parent for file in folder.rglob("__init__.py")}
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            if file.parent in packages and all(map(str.isidentifier, parts)):
                yield ".".join((name, *parts)).removesuffix(".__init__"), file


class Registry(Entries[str, T]):
    """Name -> object of one kind."""

    fix = "give one of them another name"

    def _registered(self, key: Any) -> str | None:
        return super()._registered(key) if isinstance(key, str) else None


class ByClass(Entries[type, T]):
    """Class -> object of one kind; a class without one has that of the nearest it inherits from."""

    fix = "keep one of them"

    @staticmethod
    def name_of(key: Any) -> str:
        return getattr(key, "__name__", str(key))

    def _registered(self, key: Any) -> type | None:
        classes, items = getattr(key, "__mro__", ()), self.own()
        nearer = [*itertools.takewhile(lambda cls: cls not in items, classes)]
        # a method registers classes of its own
        if nearer == [*classes] or any(extensions.is_of_method(cls.__module__) for cls in nearer):
            items = self._load()
        return next((cls for cls in classes if cls in items), None)

    def _missing(self, key: Any) -> KeyError:
        advice = self.advice or "; register one"
        return UnknownClass(f"{self.name_of(key)} has no {self.kind}{advice}")


class UnknownClass(UnknownName):
    """A class for which nothing is registered."""

    def __init__(self, message: str) -> None:
        KeyError.__init__(self, message)
