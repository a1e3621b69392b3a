"""Uniform designs come first: the widest, the narrowest, and the parent's own."""

import pytest

from chop.actions.search.samplers.base import STRATEGIES, SamplerContext, strategy_named
from chop.actions.search.space.choices import Choices, OneOf, Parameter, Range
from chop.actions.search.space.uniform import uniform_designs

from .conftest import CHOICES, NUMBERS, TWO, Shuffled, recorded, run_loop

pytestmark = pytest.mark.usefixtures("no_disk")


def choices(**keys):
    """Choices by key: lists, or ranges."""
    made = {key: OneOf(tuple(c)) if isinstance(c, list) else c for key, c in keys.items()}
    return Choices([Parameter(key, choice) for key, choice in made.items()])


def values(designs, key):
    return [design[key] for design in designs]


# --- which designs


@pytest.mark.parametrize(
    ("choice", "widest", "narrowest"),
    [
        pytest.param([3, 8, 4], 8, 3, id="by value, not by place"),
        pytest.param([None, 2, 4], 4, 2, id="numbers before NA"),
        pytest.param([True, False], True, True, id="true is not a number"),
        pytest.param([[1, 16], [1, 32]], [1, 16], [1, 16], id="lists: the first"),
        pytest.param(Range(2, 9, 3), 8, 2, id="the last step of a range"),
        pytest.param(Range(0.1, 0.7), 0.7, 0.1, id="a continuous range"),
    ],
)
def test_the_widest_has_the_largest_number_of_every_key(choice, widest, narrowest):
    designs = uniform_designs(choices(**{"a/width": [4, 8], "b/any": choice}))
    assert values(designs, "b/any") == [widest, narrowest]


def test_the_sparsest_is_the_narrowest():
    designs = uniform_designs(choices(**{"weight/sparsity": [0.1, 0.5], "width": [4, 8]}))
    assert designs == (
        {"weight/sparsity": 0.1, "width": 8},
        {"weight/sparsity": 0.5, "width": 4},
    )


@pytest.mark.parametrize(
    ("fraction", "widest", "narrowest"),
    [
        pytest.param([1, None], None, None, id="NA"),
        pytest.param([8, 1, 5], 5, 1, id="nearest to half"),
        pytest.param(Range(0, 8), 4, 1, id="of a range"),
    ],
)
def test_fraction_bits_are_about_half_of_the_width(fraction, widest, narrowest):
    keys = {"a/data_in_frac_width": fraction, "a/data_in_width": [3, 8]}
    assert values(uniform_designs(choices(**keys)), "a/data_in_frac_width") == [widest, narrowest]


WIDTHS = {
    "data_in_width": (2, 16),
    "data_in_frac_width": (None,),
    "weight_width": (2, 16),
    "weight_frac_width": (None,),
}
FP8 = {"data_in_exponent_width": (4,), "weight_exponent_width": (4,)}


def node(names, **keys):
    """The choices of a node, whose keys are those of `integer`, and of fp8 if it is offered."""
    head = "a/config/name"
    made = [Parameter(head, OneOf(names))]
    made += [Parameter(f"a/config/{k}", OneOf(v), head, ("integer",)) for k, v in keys.items()]
    if "fp8" in names:
        made += [Parameter(f"a/config/{k}", OneOf(v), head, ("fp8",)) for k, v in FP8.items()]
        shared = ("integer", "fp8")
        made = [
            p if "frac" not in p.key else Parameter(p.key, p.choice, head, shared) for p in made
        ]
    return Choices(made)


def test_of_several_formats_the_bits_of_their_numbers_decide():
    designs = uniform_designs(node(("fp8", "integer"), **WIDTHS))
    assert values(designs, "a/config/name") == ["integer", "integer"]
    narrow = WIDTHS | {"data_in_width": (4,), "weight_width": (4,)}
    designs = uniform_designs(node(("integer", "fp8"), **narrow))
    assert values(designs, "a/config/name") == ["fp8", "integer"]


def test_float_is_the_widest_and_the_parents_own_which_is_tried_once():
    designs = uniform_designs(node(("integer", None), **WIDTHS))
    assert designs[0] == {"a/config/name": None}
    assert designs[1]["a/config/weight_width"] == 2
    assert len(designs) == 2


def test_the_parents_own_design_comes_last():
    keys = {"f/config/name": ["output_only"], "f/config/channel_multiplier": [0.5, 1, 2]}
    keys |= {"g/config/name": ["input_only"]}
    designs = uniform_designs(choices(**keys))
    assert values(designs, "f/config/channel_multiplier") == [2, 0.5, 1]
    assert len(uniform_designs(choices(**{"weight/sparsity": [0.0, 0.5, 0.9]}))) == 2
    assert len(uniform_designs(choices(**{"weight/sparsity": [0.1, 0.5, 0.9]}))) == 2


def test_texts_alone_have_no_widest():
    assert uniform_designs(choices(last=["ReLU", "Tanh"])) == ()


# --- in a search


def test_a_design_has_one_index():
    for index in range(CHOICES.size):
        assert CHOICES.index(CHOICES.nth(index)) == index


@pytest.mark.parametrize(
    "sampler", sorted({cls: name for name, cls in STRATEGIES.items() if cls.chooses}.values())
)
def test_every_sampler_begins_with_them(tmp_path, sampler):
    space, directions = (NUMBERS, TWO[:1]) if sampler == "cmaes" else (CHOICES, TWO)
    engine = Shuffled(3, directions)
    run_loop(tmp_path / "s", sampler, engine, choices=space, n_trials=12)
    wanted = uniform_designs(space)
    assert len(wanted) >= 2
    designs = [chosen for _, chosen, *_ in recorded(tmp_path / "s", space, directions)]
    assert designs[: len(wanted)] == list(wanted)
    assert any(design not in wanted for design in designs)


def test_the_most_useful_come_first_when_there_are_few_trials(tmp_path):
    run_loop(tmp_path / "s", "nsgaii", Shuffled(1, TWO), n_trials=1)
    assert [chosen for _, chosen, *_ in recorded(tmp_path / "s")] == [uniform_designs(CHOICES)[0]]


def test_brute_force_tries_every_design_once(tmp_path):
    loop = run_loop(tmp_path / "s", "brute", Shuffled(2, TWO), n_trials=10_000)
    designs = [repr(chosen) for _, chosen, *_ in recorded(tmp_path / "s")]
    assert len(designs) == len(set(designs)) == CHOICES.size == loop.progress.total


def test_they_can_be_switched_off(tmp_path):
    run_loop(tmp_path / "s", "random", Shuffled(1, TWO), n_trials=4, uniform_first=False)
    designs = [chosen for _, chosen, *_ in recorded(tmp_path / "s")]
    assert designs[0] != uniform_designs(CHOICES)[0]
    random = strategy_named("random")(SamplerContext(CHOICES, TWO, 4, 7))
    assert designs == [random.ask(number) for number in range(4)]


@pytest.mark.slow
def test_a_study_that_began_with_them_is_not_resumed_without_them(searches):
    searches.run(searches.config("n_trials = 3"))
    config = searches.config("n_trials = 6\nuniform_first = false")
    assert "its uniform_first is True, not False" in searches.run(config, "--resume", check=2)
