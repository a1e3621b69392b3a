"""Strategies as the labs write them: another `sampler_map`, or a `search` of one's own."""

import json

import optuna
import pytest
from chop.actions.search.search_space import get_search_space_cls
from chop.actions.search.strategies import (
    SEARCH_STRATEGY_MAP,
    SearchStrategyBase,
    SearchStrategyOptuna,
)

from chop.actions import search
from chop.actions.config import ConfigError
from chop.actions.search.samplers.base import Strategy

from .runners.conftest import network_of

WIDTHS = {"data_in_width": [4, 8], "data_in_frac_width": [None]}
WIDTHS |= {"weight_width": [2, 4, 8], "weight_frac_width": [None]}
SPACE = {
    "name": "graph/quantize/mixed_precision_ptq",
    "setup": {"by": "type"},
    "seed": {"linear": {"config": {"name": ["integer"], **WIDTHS}}},
}


class Backwards(Strategy):
    """The last design first."""

    looks_back = False

    def ask(self, number):
        size = self.context.choices.size
        return self.context.choices.nth(size - 1 - number) if number < size else None


class Mapped(SearchStrategyOptuna):
    """Ours, and what the lab sheet asks for."""

    def sampler_map(self, name):
        match name:
            case "backwards":
                return Backwards
            case "theirs":
                return optuna.samplers.BruteForceSampler(seed=3)
            case "nothing":
                return None
        return super().sampler_map(name)


class ByHand(SearchStrategyBase):
    """Looks at two designs, and keeps a file."""

    def search(self, search_space):
        lists = search_space.choices_flattened
        found = [
            search_space.flattened_indexes_to_config({k: i % len(v) for k, v in lists.items()})
            for i in range(2)
        ]
        graph = search_space.rebuild_model(found[1])
        kind = type(graph.model.get_submodule("seq_blocks.2")).__name__
        return kind, self.config["setup"]["colour"], self.save_dir


@pytest.fixture(autouse=True)
def _in_the_map():
    own = {"mapped": Mapped, "by-hand": ByHand}
    SEARCH_STRATEGY_MAP.update(own)
    yield
    for name in own:
        del SEARCH_STRATEGY_MAP[name]


@pytest.fixture(scope="module")
def network():
    return network_of("jsc-tiny")


def tables(name, sampler="tpe", n_trials=6, **more):
    setup = {"sampler": sampler, "n_trials": n_trials, **more}
    return {
        "search_space": SPACE,
        "strategy": {
            "name": name,
            "hw_runner": {"average_bitwidth": {}},
            "setup": setup,
            "metrics": {"average_bitwidth": {}},
        },
    }


def widths(results):
    return [list(results.designs[n].values()) for n in sorted(results.designs)]


def test_a_strategy_of_sampler_map_is_asked(network, tmp_path):
    ours = search(*network, tables("optuna", "brute"), tmp_path / "a", "cpu")
    theirs = search(*network, tables("mapped", "backwards"), tmp_path / "b", "cpu")
    assert sorted(map(repr, widths(ours))) == sorted(map(repr, widths(theirs)))
    assert widths(theirs)[0][3] == 8  # the last design
    about = json.loads((tmp_path / "b" / "search.json").read_text())
    assert about["sampler"] == "backwards"


def test_a_sampler_of_optunas_is_asked_and_resumed(network, tmp_path):
    whole = search(*network, tables("mapped", "theirs"), tmp_path / "a", "cpu")
    assert len({repr(row) for row in widths(whole)}) == 6
    search(*network, tables("mapped", "theirs", 3), tmp_path / "b", "cpu")
    resumed = search(*network, tables("mapped", "theirs"), tmp_path / "b", "cpu", resume=True)
    assert widths(resumed) == widths(whole)


def test_a_sampler_that_has_no_more_designs_ends_the_search(network, tmp_path):
    table = tables("mapped", "theirs", 50, in_flight=1)
    results = search(*network, table, tmp_path, "cpu")
    assert len(results.outcomes) == len({repr(row) for row in widths(results)}) == 6


def test_names_that_it_leaves_to_us_are_ours(network, tmp_path):
    ours = search(*network, tables("optuna", "random"), tmp_path / "a", "cpu")
    theirs = search(*network, tables("mapped", "random"), tmp_path / "b", "cpu")
    assert widths(ours) == widths(theirs)


def test_a_notebook_calls_the_class_itself(network, tmp_path):
    model, info, task, dataset_info, data = network
    facts = (info, data, dataset_info, task)
    made = Mapped(*facts, tables("mapped", "backwards")["strategy"], "cpu", tmp_path)
    x = {"x": data.train_dataset[:4][0]}
    space = get_search_space_cls(SPACE["name"])(model, info, SPACE, x, "cpu")
    results = made.search(space)
    assert len(results.outcomes) == 6
    assert (tmp_path / "best.json").exists()


def test_a_search_of_ones_own_gets_a_space_with_the_hooks(network, tmp_path):
    made = tables("by-hand", colour="green")
    found = search(*network, made, tmp_path, "cpu")
    assert found == ("LinearInteger", "green", tmp_path)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (tables("mapped", "nothing"), "for 'nothing' it returns None; add a case for it"),
        (tables("mapped", "quicksand"), "unknown sampler 'quicksand'"),
        (tables("maped", "random"), "maped"),
        (
            tables("mapped", "theirs", sampler_options={"seed": 3}),
            "only for samplers given by name; pass seed to BruteForceSampler itself",
        ),
        (
            tables("by-hand") | {"search_space": {"name": "graph/joint", "passes": {}}},
            "ByHand needs a search space with the labs' hooks, which 'graph/joint' lacks",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused(network, tmp_path, table, said):
    with pytest.raises((ConfigError, KeyError), match=said):
        search(*network, table, tmp_path, "cpu")


MINE = """
import optuna
from chop.actions.search.strategies import SEARCH_STRATEGY_MAP, SearchStrategyOptuna

class Mine(SearchStrategyOptuna):
    def sampler_map(self, name):
        return optuna.samplers.RandomSampler(seed=5)

SEARCH_STRATEGY_MAP["mine"] = Mine
"""


@pytest.mark.slow
def test_the_command_takes_them_from_a_file(searches):
    (searches.folder / "mine.py").write_text(MINE)
    config = searches.config("n_trials = 5\nsampler = 'whatever'")
    config.write_text(config.read_text().replace('name = "optuna"', 'name = "mine"'))
    flags = ("--import", searches.folder / "mine.py")
    searches.run(config, *flags, out="one")
    searches.run(config, *flags, "--workers", 2, out="two")
    assert len(searches.table("one")) == 5
    assert searches.table("one") == searches.table("two")
    searches.run(config, *flags, "--apply", "best", out="one")
    assert list(searches.results("one").glob("trial_*"))


def test_the_values_of_a_range_are_listed_for_the_labs_hooks(network):
    model, info, _, _, data = network
    cls = get_search_space_cls(SPACE["name"])
    dummy = {"x": data.train_dataset[0][0][None]}

    def listed(width):
        seed = {"linear": {"config": {**SPACE["seed"]["linear"]["config"], "weight_width": width}}}
        made = cls(model, info, {**SPACE, "seed": seed}, dummy, "cpu")
        made.build_search_space()
        return made.choices_flattened["seq_blocks_2/config/weight_width"]

    assert listed({"min": 2, "max": 8, "step": 3}) == [2, 5, 8]
    assert listed({"min": 2, "max": 4}) == [2, 3, 4]


def test_a_space_that_is_not_a_table_is_refused(network, tmp_path):
    with pytest.raises(ConfigError, match=r"add a table \[search\.search_space\]"):
        search(*network, tables("optuna") | {"search_space": 1}, tmp_path, "cpu")
