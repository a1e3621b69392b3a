"""A range is sampled, never listed: `{min = 1, max = 10**18}` takes no longer than `[1, 2]`."""

import json
import math

import pytest

from chop.actions.search.samplers.base import SamplerContext, strategy_named
from chop.actions.search.space.choices import Choices, OneOf, Parameter, choice_of

from .conftest import InOrder, Killed, recorded, run_loop

WIDE = 10**18
SAMPLERS = {
    **{name: {} for name in ("random", "tpe", "qmc", "cmaes")},
    **{name: {"population_size": 4} for name in ("nsgaii", "nsgaiii")},
    "gp": {"n_startup_trials": 4},
}


def wide(**keys):
    """A space with a wide range, and a short list."""
    seed = choice_of({"min": 1, "max": WIDE, **keys}, "seed.width")
    return Choices([Parameter("width", seed), Parameter("bits", OneOf((2, 4, 8)))])


@pytest.mark.parametrize("keys", [{}, {"log": True}], ids=["linear", "log"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_draws_from_a_wide_range(sampler, keys):
    choices = wide(**keys)
    strategy = strategy_named(sampler)(
        SamplerContext(choices, ("maximize",), 8, 0), **SAMPLERS[sampler]
    )
    widths = []
    for number in range(8):
        chosen = strategy.ask(number)
        widths.append(chosen["width"])
        assert choices.decoded(choices.encoded(chosen)) == chosen
        strategy.tell(number, [float(chosen["width"] % 1000)])
    assert all(type(width) is int and 1 <= width <= WIDE for width in widths)
    assert len(set(widths)) > 3, "a generation may try a design again"


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsgaii", "gp"])
def test_a_search_of_a_wide_range_that_was_killed_goes_on_as_if_it_had_not(tmp_path, sampler):
    """What a storage keeps of a number is all of it."""
    one, n_trials = ("maximize",), 10
    options = {"choices": wide(), "n_trials": n_trials, "sampler_options": SAMPLERS[sampler]}
    run_loop(tmp_path / "whole", sampler, InOrder(1, one), **options)
    with pytest.raises(Killed):
        run_loop(tmp_path / "cut", sampler, InOrder(1, one, lives=6), **options)
    run_loop(tmp_path / "cut", sampler, InOrder(1, one), **options)
    whole, cut = (recorded(tmp_path / name, wide(), one) for name in ("whole", "cut"))
    assert len(whole) == n_trials
    assert cut == whole


def test_a_wide_range_has_a_size_and_places():
    choices = wide()
    assert choices.size == 3 * WIDE
    places = [0, 1, 3 * WIDE // 2, 3 * WIDE - 1]
    designs = [choices.nth(place) for place in places]
    assert designs[0] == {"width": 1, "bits": 2}
    assert designs[-1] == {"width": WIDE, "bits": 8}
    assert len({repr(design) for design in designs}) == len(places)


def test_brute_force_refuses_more_designs_than_it_could_ever_try():
    with pytest.raises(ValueError, match=r"about 10\^18 designs.*; use tpe, random or nsgaii"):
        strategy_named("grid")(SamplerContext(wide(), ("maximize",), 10, 0))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"max": 10**400}, r"^k\.max = 1000.*; use a number of at most 2\*\*53"),
        ({"max": 2**53 + 1}, r"^k\.max = 9007199254740993 .*; use a number of at most 2\*\*53"),
        ({"min": -(2**60) - 1}, r"^k\.min = -"),
        ({"max": WIDE, "step": 3}, r"^k.*leave step out, or set max to at most 2\*\*53"),
    ],
)
def test_a_number_that_no_storage_can_keep_is_refused(keys, said):
    with pytest.raises(ValueError, match=said):
        choice_of({"min": 1, "max": 9, **keys}, "k")


@pytest.mark.parametrize(
    ("said", "values"),
    [
        (".*nan.*, which is not equal to itself; ", [math.nan, [math.nan, 1], [[2, math.nan]]]),
        (".*; choices are numbers, text, true, false", [object(), {1, 2}, 3j]),
    ],
)
def test_a_choice_that_no_file_can_hold_is_refused(said, values):
    for value in values:
        with pytest.raises(ValueError, match=f"^k offers {said}"):
            choice_of([0.5, value], "k")


# --- the command

FILE = """
model = "jsc-tiny"
dataset = "jsc-sim"
max_epochs = 1
[search]
train_parent = true
[search.search_space]
name = "{space}"
[search.search_space.setup]
by = "name"
[search.search_space.seed.{node}.config]
{choices}
[search.strategy.sw_runner.basic_train]
[search.strategy.metrics]
accuracy.scale = 1.0
[search.strategy.setup]
sampler = "{sampler}"
"""
LAB = "graph/quantize/mixed_precision_ptq"


def refused(here, tmp_path, choices, *, space=LAB, node="seq_blocks_2", sampler="tpe"):
    """What `ch search` says of such choices; nothing has been trained for them."""
    file = tmp_path / "a.toml"
    file.write_text(FILE.format(space=space, node=node, choices=choices, sampler=sampler))
    code, _, said = here("search", "--config", file, "--project-dir", tmp_path / "out")
    assert code == 2, said
    assert "Training the parent" not in said
    assert not list(tmp_path.glob("out/*/software/search_ckpts"))
    sentence = said.splitlines()[-1]
    assert sentence.startswith("ch: ")
    return sentence


@pytest.mark.parametrize("space", [LAB, "graph/redefine"])
@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('"../x"', "channel_multiplier is '../x'; give a number above 0 and below 1000000"),
        ("[[1]]", "channel_multiplier is [[1]], a list; give one number"),
        ("-0.0", "channel_multiplier is -0.0; give a number above 0 and below 1000000"),
        ("1e9", "channel_multiplier is 1000000000.0; give a number above 0 and below 1000000"),
        ("{ a = 1 }", "channel_multiplier offers {'a': 1}; choices are numbers, text, true, false"),
        ("nan", "channel_multiplier offers nan, which is not equal to itself"),
    ],
)
def test_a_multiplier_that_no_layer_can_have_is_refused_first(here, tmp_path, space, written, said):
    choices = f'name = ["both"]\nchannel_multiplier = [1, {written}]'
    sentence = refused(here, tmp_path, choices, space=space)
    assert "search.search_space.seed.seq_blocks_2.config.channel_multiplier" in sentence
    assert said in sentence


@pytest.mark.parametrize("sampler", ["tpe", "random", "brute"])
def test_a_width_that_no_layer_can_have_is_refused_first(here, tmp_path, sampler):
    choices = 'name = ["both"]\nwidth = { min = 1, max = 1000000000000000000 }'
    sentence = refused(here, tmp_path, choices, sampler=sampler)
    assert "config.width = " in sentence
    assert sentence.endswith("; give a number above 0 and below 1000000")


PRUNE = """
model = "jsc-tiny"
dataset = "jsc-sim"
[search.search_space]
name = "graph/prune"
[search.search_space.seed]
seed = { min = 1, max = 1_000_000_000_000_000_000 }
weight.sparsity = [0.1, 0.5]
weight.method = ["random"]
[search.strategy.sw_runner.basic_evaluation]
num_samples = 64
allow_untrained = true
[search.strategy.metrics]
accuracy.scale = 1.0
[search.strategy.setup]
n_trials = 4
sampler = "tpe"
"""


def test_a_search_tries_values_of_a_wide_range(here, tmp_path):
    (tmp_path / "a.toml").write_text(PRUNE)
    words = ("search", "--config", tmp_path / "a.toml", "--project-dir", tmp_path / "out")
    code, _, said = here(*words, "--project", "p", "--no-progress")
    assert code == 0, said
    assert "1 to 1000000000000000000" in said
    log = json.loads((tmp_path / "out/p/software/search_ckpts/log.json").read_text())
    seeds = [row["user_attrs_sampled_config"]["seed"] for row in log.values()]
    assert seeds[0] == seeds[1], "the densest and the sparsest"
    assert len({seed for seed in seeds if 1 <= seed <= WIDE}) == 3
