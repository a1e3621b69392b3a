"""Options that a signature or a dataclass declares: checked, explained and written down.

Passes, runners, samplers, tables of files, models, data sets, training and the command line all
check their options here. pydantic is imported when the first value is checked.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import json
import numbers
import re
import typing
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval

from chop.registry import nearest

Form = Literal["python", "file", "text"]  # where a value comes from
Noun = Literal["option", "key"]  # of a call, or of a table
REQUIRED: Any = inspect.Parameter.empty
UNIONS = (typing.Union, UnionType)
SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
MAX_SHOWN = 80  # characters of a value in a message

PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Share = Annotated[float, Interval(ge=0, le=1)]


@dataclass(frozen=True)
class Problem:
    """What is wrong with the option `key`, dotted if it lies inside a table."""

    key: str
    text: str


class WrongOptions(ValueError):
    """Options that cannot be used: the message is the first of the `problems`."""

    def __init__(self, *problems: str) -> None:
        super().__init__(problems[0])
        self.problems = problems


@dataclass(frozen=True)
class Older:
    """Older names of an option, and older spellings of its values, that are still accepted."""

    names: tuple[str, ...] = ()
    values: Mapping[Any, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Says:
    """What a value must be, as a message says it: `Says("must be a number other than 0")`."""

    text: str


@dataclass(frozen=True)
class Fault:
    """A rule that a value breaks: `path` is where it lies, `hint` ends the message."""

    path: str
    rule: str
    value: Any
    hint: str


@dataclass(frozen=True)
class Option:
    """The name, type and default of an option."""

    name: str
    hint: Any = Any
    default: Any = REQUIRED
    older: Older = Older()

    def __str__(self) -> str:
        """Return the option as a signature declares it: `num_samples: int = 512`."""
        kind = "" if self.hint is Any else f": {written(self.hint)}"
        return f"{self.name}{kind}" + ("" if self.default is REQUIRED else f" = {self.default!r}")

    @functools.cached_property
    def kinds(self) -> tuple[Any, ...]:
        """The plain types that the value may have, besides None."""
        return tuple(kind for kind, _ in _parts(self.hint))

    @functools.cached_property
    def marks(self) -> tuple[Any, ...]:
        """What `Annotated` adds to the type."""
        return tuple(mark for _, marks in _parts(self.hint) for mark in marks)

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values that can be listed."""
        literals = (typing.get_args(k) for k in self.kinds if typing.get_origin(k) is Literal)
        return tuple(value for values in literals for value in values)

    def read(
        self, value: Any, form: Form = "python", *, finite: bool = False
    ) -> tuple[Any, list[Fault]]:
        """Return the typed value, and the rules that it breaks."""
        from pydantic import ValidationError

        if self.hint is Any:
            return value, []
        if isinstance(value, Hashable) and not isinstance(value, Mapping):
            value = self.older.values.get(value, value)
        try:
            return self._validated(value, form, self._adapter(finite)), []
        except ValidationError as error:
            return value, list(self._faults(value, error.errors()))

    def _validated(self, value: Any, form: Form, adapter: Any) -> Any:
        from pydantic import ValidationError

        if form == "text":
            return adapter.validate_strings(value)
        if form == "file":
            return adapter.validate_json(json.dumps(value, default=str), strict=True)
        if isinstance(value, numbers.Integral) and not isinstance(value, int):
            value = int(value)  # of numpy
        if isinstance(value, str) and typing.get_origin(self.kinds[0]) is Sequence:
            value = (value,)  # one name counts as a list of one
        value = next((_as_dict(value, kind) for kind in self.kinds if _is_mapping(kind)), value)
        try:
            return adapter.validate_python(value, strict=True)
        except ValidationError as error:
            try:  # TOML has no tuples, paths or enums
                return adapter.validate_json(json.dumps(value), strict=True)
            except (TypeError, ValueError):
                raise error from None

    def _faults(self, value: Any, errors: list[Any]) -> Iterator[Fault]:
        says = next((mark.text for mark in self.marks if isinstance(mark, Says)), None)
        hint = did_you_mean(value, [c for c in self.choices if isinstance(c, str)])
        if says is not None:
            yield Fault("", says, value, hint)
        elif len(self.kinds) > 1:  # each type has its own complaint about the same value
            rules = [_rule(error) for error in errors if len(error["loc"]) == 1]
            joined = dict.fromkeys(rule.removeprefix("should be ") for rule in rules)
            rule = f"should be {', or '.join(joined)}" if joined else _rule(errors[0])
            yield Fault("", rule, value, hint)
        else:
            for error in errors:
                path = ".".join(str(step) for step in error["loc"])
                yield Fault(path, _rule(error), error["input"], "" if path else hint)

    def _adapter(self, finite: bool) -> Any:
        """Return pydantic's view of the type, which takes long to make."""
        from pydantic import ConfigDict, PydanticUserError, TypeAdapter

        adapters = self.__dict__.setdefault("_adapters", {})
        if finite not in adapters:
            config = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=not finite)
            try:
                adapters[finite] = TypeAdapter(self.hint, config=config)
            except PydanticUserError:  # a type with a configuration of its own
                adapters[finite] = TypeAdapter(self.hint)
        return adapters[finite]


def _is_mapping(kind: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _as_dict(value: Any, kind: Any) -> Any:
    """Return any mapping as a dict, which pydantic demands; so do the tables inside `kind`."""
    if not isinstance(value, Mapping):
        return value
    inner = next(iter(typing.get_args(kind)[1:]), Any)
    kinds = [part for part, _ in _parts(inner) if _is_mapping(part)]
    if not kinds:
        return value if isinstance(value, dict) else dict(value)
    return {key: _as_dict(item, kinds[0]) for key, item in value.items()}


def _rule(entry: Mapping[str, Any]) -> str:
    text: str = entry["msg"]
    return text.removeprefix("Input ").partition(", unable")[0]


def _parts(hint: Any, marks: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield the plain types of a hint, except None, each with what `Annotated` adds."""
    if hasattr(hint, "__metadata__"):
        yield from _parts(hint.__origin__, (*marks, *hint.__metadata__))
    elif typing.get_origin(hint) in UNIONS:
        for part in typing.get_args(hint):
            yield from _parts(part, marks)
    elif hint is not NoneType:
        yield hint, marks


def bounds(marks: Iterable[Any], signs: Mapping[str, str] = SIGNS) -> str:
    """Return the limits of a number, as in ` >= 1`."""
    limits = [(sign, getattr(m, name, None)) for m in marks for name, sign in signs.items()]
    return " and".join(f" {sign} {limit}" for sign, limit in limits if limit is not None)


def written(hint: Any) -> str:
    """Return a type as a signature writes it, a bounded number as in `int >= 1`."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hasattr(hint, "__metadata__"):
        return written(hint.__origin__) + bounds(hint.__metadata__)
    if origin in UNIONS:
        return " | ".join(map(written, args))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if origin is not None and origin is not collections.abc.Callable:
        return f"{origin.__name__}[{', '.join(map(written, args))}]"
    known = {NoneType: "None", Ellipsis: "..."}
    return known.get(hint) or re.sub(r"\b(?!torch\b)\w+\.", "", inspect.formatannotation(hint))


@dataclass(frozen=True)
class Options:
    """All options of `owner`, as in "pass 'prune'" or "search.strategy.setup"."""

    owner: str
    known: Mapping[str, Option]
    noun: Noun = "option"
    takes_any: bool = False
    finite: bool = False  # whether infinity and NaN are refused

    @classmethod
    def named(cls, owner: str, names: Iterable[str]) -> Options:
        """Return keys of a table that are not required, and are read elsewhere."""
        return cls(owner, {name: Option(name, default=None) for name in names}, "key")

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the typed values; wrong ones are refused."""
        typed, problems = self.read(values)
        if problems:
            raise WrongOptions(*(self.sentence(problem.text) for problem in problems))
        return typed

    def read(self, values: Any) -> tuple[dict[str, Any], list[Problem]]:
        """Return the typed values by their present names, and all problems."""
        if not isinstance(values, Mapping):
            return {}, [Problem("", self._not_a_table(values))]
        present = {old: o.name for o in self.known.values() for old in o.older.names}
        present |= {name: name for name in self.known}
        problems = list(self._unknown_or_missing(values, present))
        typed: dict[str, Any] = {}
        for key, value in values.items():
            option = self.known.get(present.get(key, ""), Option(key))
            value, faults = option.read(value, finite=self.finite)
            problems += [self._wrong(option, key, fault) for fault in faults]
            first = typed.setdefault(option.name, value)
            if first is not value and first != value:
                both = " and ".join(repr(k) for k in values if present.get(k) == option.name)
                text = f"{both}, which are the same option; omit one of them"
                problems.append(Problem(key, f"{self.owner} has {text}"))
        return typed, problems

    def sentence(self, text: str) -> str:
        """Return the text of a problem for readers who do not see what it belongs to."""
        return text if not self.owner or self.owner in text else f"{self.owner}: {text}"

    def written(self) -> list[str]:
        """Return each option as its signature declares it, each key by its name."""
        names = [str(o) if self.noun == "option" else o.name for o in self.known.values()]
        return names + ["…"] * self.takes_any

    def _unknown_or_missing(
        self, values: Mapping[str, Any], present: Mapping[str, str]
    ) -> Iterator[Problem]:
        names = ", ".join(self.written())
        listed = f" ({self.noun}s: {names})" if names else f"; it has no {self.noun}s, so omit it"
        unknown = [key for key in values if key not in present and not self.takes_any]
        for key in unknown:
            hint = did_you_mean(key, present)
            yield Problem(key, f"{self.owner} has no {self.noun} {key!r}{hint}{listed}")
        given = {present.get(key) for key in values}
        for name, option in self.known.items() if not unknown else ():  # which may be the misspelt
            if option.default is REQUIRED and name not in given:
                yield Problem(name, f"{self.owner} needs the {self.noun} {name!r}{listed}")

    def _wrong(self, option: Option, key: str, fault: Fault) -> Problem:
        path = f"{key}.{fault.path}" if fault.path else key
        if self.noun == "option":
            text = f"option {path!r} is {shown(fault.value)}, but it {fault.rule}{fault.hint}"
            return Problem(path, f"{text} (option: {option})")
        where = f"{self.owner}.{path}" if self.owner else path
        colon = ":" if fault.rule.startswith("should ") else ""
        rule = fault.rule.replace("a valid dictionary", "a table")
        return Problem(path, f"{where}{colon} {rule}, not {shown(fault.value)}{fault.hint}")

    def _not_a_table(self, value: Any) -> str:
        if self.noun == "option":
            kind, names = type(value).__name__, ", ".join(self.written())
            listed = f"; they are {names}" if names else ""
            return f"{self.owner} takes its options as a dict, not {kind}{listed}"
        few = len(self.known) in (1, 2)
        keys = f"with {' and '.join(self.known)}" if few else "of options"
        return f"{self.owner} must be a table {keys}, not {shown(value)}"


def did_you_mean(name: object, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of a message about an unknown name: the nearest known one.

    >>> did_you_mean("sampels", ["samples", "seed"])
    "; did you mean 'samples'?"
    """
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else otherwise


def shown(value: object) -> str:
    """Return a value as a message shows it: in one short line, a tensor by its shape."""
    if hasattr(value, "shape") and hasattr(value, "requires_grad"):
        return f"a tensor of shape {list(value.shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def options_of(source: Callable[..., Any]) -> dict[str, Option]:
    """Return the options that a function, a class or a dataclass takes by name, in their order.

    A type that cannot be read, as one that is imported for type checkers only, is not checked.

    >>> [str(option) for option in options_of(lambda *, rank=2: None).values()]
    ['rank = 2']
    """
    try:
        parameters = inspect.signature(source, eval_str=True).parameters
    except NameError:
        parameters = inspect.signature(source).parameters
    by_name = [
        p for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    unreadable = [p for p in by_name if p.annotation is p.empty or isinstance(p.annotation, str)]
    return {
        p.name: Option(p.name, Any if p in unreadable else p.annotation, p.default) for p in by_name
    }


def takes_any(source: Callable[..., Any]) -> bool:
    """Return whether a function takes options by any name."""
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(source).parameters.values())


def options_of_class(cls: type, base: type) -> tuple[dict[str, Option], bool]:
    """Return what the constructors of a class take besides `self` and a context, and whether any.

    What a constructor takes by `**options` it hands to the next class, up to `base`.
    """
    options: dict[str, Option] = {}
    classes = [c for c in cls.__mro__[: cls.__mro__.index(base)] if "__init__" in vars(c)]
    for init in (vars(c)["__init__"] for c in classes):
        taken = list(inspect.signature(init).parameters)[2:]
        options = {k: v for k, v in options_of(init).items() if k in taken} | options
        if not takes_any(init):
            return options, False
    return options, bool(classes)
