"""Options of a signature or a dataclass: types, problems, near names and documentation."""

import enum
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from annotated_types import Ge, Lt
from hypothesis import given
from hypothesis import strategies as st

from chop.options import (
    REQUIRED,
    Older,
    Option,
    Options,
    PositiveInt,
    Says,
    WrongOptions,
    did_you_mean,
    options_of,
    options_of_class,
    shown,
    takes_any,
)


class Colour(enum.Enum):
    RED = "red"


# a type -> values that it takes, and how they are then; values that it does not take
KINDS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "int": (int, [(3, 3), (np.int64(3), 3)], ["3", 1.5, True, None]),
    "float": (float, [(1, 1.0), (0.5, 0.5)], ["0.5", True, None]),
    "bool": (bool, [(True, True)], [1, "yes", None]),
    "str": (str, [("a", "a")], [3, None, Colour.RED]),
    "optional": (int | None, [(None, None), (3, 3)], ["3"]),
    "bounded": (Annotated[int, Ge(1), Lt(9)], [(1, 1)], [0, 9, -1]),
    "choice": (Literal["a", "b"], [("a", "a")], ["c", 1, None]),
    "either": (Literal["all"] | PositiveInt, [("all", "all"), (2, 2)], ["none", 0]),
    "list": (list[int], [([1, 2], [1, 2])], [["1"], 3, "12"]),
    "names": (Sequence[str], [("a", ("a",)), (["a", "b"], ["a", "b"])], [[3], 3]),
    "tuple": (tuple[int, int], [([1, 2], (1, 2)), ((1, 2), (1, 2))], [[1], "12"]),
    "path": (Path, [("a/b", Path("a/b")), (Path("a"), Path("a"))], [3, None]),
    "enum": (Colour, [("red", Colour.RED), (Colour.RED, Colour.RED)], ["blue", 3]),
    "table": (dict[str, int], [({"a": 1}, {"a": 1})], [{"a": "b"}, 3, ["a"]]),
    "anything": (Any, [("a", "a"), (None, None)], []),
    "object": (torch.device, [(torch.device("cpu"), torch.device("cpu"))], ["cpu", 3]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("noun", ["option", "key"])
def test_a_value_is_typed_or_refused_in_one_sentence_that_shows_it(kind, noun):
    hint, good, bad = KINDS[kind]
    options = Options("thing", {"size": Option("size", hint)}, noun)
    for value, typed in good:
        assert options.check({"size": value}) == {"size": typed}
    for value in bad:
        with pytest.raises(WrongOptions) as caught:
            options.check({"size": value})
        assert str(caught.value).startswith(("thing: option 'size", "thing.size"))
        assert "\n" not in str(caught.value)
        inner = [*value.values()] if isinstance(value, dict) else value
        assert shown(value) in str(caught.value) or shown(inner[0]) in str(caught.value)


@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, unique=True), st.data())
def test_all_problems_are_found_at_once_and_only_they(kinds, data):
    known, values, wrong = {}, {}, set()
    for kind in kinds:
        hint, good, bad = KINDS[kind]
        known[kind] = Option(kind, hint)
        choices = [(value, False) for value, _ in good] + [(value, True) for value in bad]
        values[kind], is_wrong = data.draw(st.sampled_from(choices))
        wrong |= {kind} if is_wrong else set()
    missing = data.draw(st.sampled_from([None, *kinds]))
    if missing is not None:
        values.pop(missing)
        wrong = (wrong - {missing}) | {missing}
    before = dict(values)
    typed, problems = Options("thing", known).read(values)
    assert {problem.key.partition(".")[0] for problem in problems} == wrong
    assert typed.keys() == values.keys()
    assert all(values[key] is before[key] for key in before), "the caller's values are theirs"


@given(st.sampled_from(["learning_rate", "max_epochs", "schedule"]), st.data())
def test_a_misspelt_name_is_answered_with_the_nearest(name, data):
    cut = data.draw(st.integers(0, len(name) - 1))
    misspelt = name[:cut] + name[cut + 1 :]
    known = {key: Option(key) for key in ("learning_rate", "max_epochs", "schedule")}
    problems = Options("thing", known, "key").read({misspelt: 1})[1]
    assert f"has no key {misspelt!r}; did you mean {name!r}? (keys: " in problems[0].text


def test_a_name_that_resembles_none_is_answered_with_all():
    known = {"rank": Option("rank", int, 2)}
    (problem,) = Options("pass 'x'", known).read({"colour": 1})[1]
    assert problem.text == "pass 'x' has no option 'colour' (options: rank: int = 2)"
    assert did_you_mean("colour", known, " (see the docs)") == " (see the docs)"


def test_a_value_that_resembles_a_choice_is_answered_with_it():
    options = Options("t", {"by": Option("by", Literal["type", "name"] | None)}, "key")
    with pytest.raises(ValueError, match=r"t.by: .* 'typ'; did you mean 'type'\?$"):
        options.check({"by": "typ"})


def test_older_names_and_spellings_are_accepted_and_two_names_must_agree():
    older = Older(("lr_scheduler",), {"constant_with_warmup": "constant"})
    option = Option("schedule", Literal["constant", "cosine"], "cosine", older)
    options = Options("t", {"schedule": option}, "key")
    assert options.check({"lr_scheduler": "constant_with_warmup"}) == {"schedule": "constant"}
    assert options.check({"lr_scheduler": "cosine", "schedule": "cosine"})
    with pytest.raises(ValueError, match="t has 'schedule' and 'lr_scheduler', which are the same"):
        options.check({"schedule": "cosine", "lr_scheduler": "constant"})
    with pytest.raises(ValueError, match=r"t\.lr_scheduler: should be"):
        options.check({"lr_scheduler": "step"})


def test_a_type_may_bring_its_own_words():
    hint = Annotated[float, Ge(0), Says("is a price, such as 2.5")]
    with pytest.raises(ValueError, match=r"^shop\.price is a price, such as 2\.5, not -1$"):
        Options("shop", {"price": Option("price", hint)}, "key").check({"price": -1})


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_infinity_is_refused_where_it_is_asked_for(value):
    known = {"rate": Option("rate", float)}
    assert Options("t", known).check({"rate": value})
    with pytest.raises(ValueError, match="finite number"):
        Options("t", known, finite=True).check({"rate": value})


@pytest.mark.parametrize("table", [3, "a", ["a"], None])
def test_what_is_no_table_is_refused(table):
    for noun, text in (
        ("option", "takes its options as a dict"),
        ("key", "must be a table with a"),
    ):
        with pytest.raises(ValueError, match=text):
            Options("t", {"a": Option("a", int, 1)}, noun).check(table)


def function(graph, by: "Literal['type', 'name']", *, rank: Annotated[int, Ge(1)] = 2, free=None):
    """One of each."""


@dataclass
class Settings:
    n_jobs: PositiveInt = 1
    names: list[str] = field(default_factory=list)
    file: Path | None = None


def test_options_are_written_down_as_they_are_declared():
    assert [str(option) for option in options_of(function).values()] == [
        "graph",
        "by: Literal['type', 'name']",
        "rank: int >= 1 = 2",
        "free = None",
    ]
    assert [str(o) for o in options_of(Settings).values()][::2] == [
        "n_jobs: int >= 1 = 1",
        "file: Path | None = None",
    ]
    assert options_of(function)["by"].default is REQUIRED
    assert options_of(Settings)["names"].hint == list[str]


@pytest.mark.parametrize(("kind", "text"), [
    (dict[str, int | None], "dict[str, int | None]"),
    (tuple[int, ...], "tuple[int, ...]"),
    (Sequence[Literal[1, "a"]], "Sequence[Literal[1, 'a']]"),
    (torch.device | str, "torch.device | str"),
    (Path, "Path"),
])  # fmt: skip
def test_every_kind_of_type_can_be_written_down(kind, text):
    assert str(Option("x", kind)) == f"x: {text}"


class Base:
    def __init__(self, context): ...


class Wide(Base):
    def __init__(self, context, *, width: int = 1, **options): ...


class Deep(Wide):
    def __init__(self, context, depth: float = 0.5, **options): ...


def test_a_class_takes_what_the_classes_take_that_it_hands_options_to():
    options, any_other = options_of_class(Deep, Base)
    assert {name: o.hint for name, o in options.items()} == {"depth": float, "width": int}
    assert any_other
    assert options_of_class(Base, Base) == ({}, False)


def test_types_that_cannot_be_read_are_not_checked():
    def vague(x: "NotImported" = 3, *, y: int = 4, **more): ...  # noqa: F821

    assert options_of(vague)["x"].hint is Any
    assert takes_any(vague)
    assert Options("t", options_of(vague), takes_any=True).check({"x": "a", "z": 1})


def test_importing_options_does_not_import_pydantic():
    import subprocess

    code = "import sys, chop.options, chop.training.options; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
