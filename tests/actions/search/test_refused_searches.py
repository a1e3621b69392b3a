"""Own code that is wrong is one sentence, and a search that is refused moves no results."""

import json

import pytest

from chop.actions.search import Strategy, metric, register_runner

from . import test_predecessor as predecessor
from .runners.conftest import make_scene


@pytest.mark.parametrize(
    ("decorate", "said"),
    [
        (lambda: metric("m", side="hardwar", better="maximize"), "side must be software or hardw"),
        (lambda: metric("m", side="hardware", better="maximise"), "m must be maximize or minimize"),
        (lambda: register_runner("m", "software", m="most"), "m must be maximize or minimize"),
    ],
)
def test_a_metric_with_a_misspelt_side_or_direction_is_refused(own_runners, decorate, said):
    with pytest.raises(ValueError, match=f"runner 'm': {said}"):
        decorate()(type("Own", (predecessor.Runner,), {}))


def test_a_design_that_is_not_a_dictionary_is_refused_with_the_name_of_the_strategy(tmp_path):
    class Odd(Strategy):
        def ask(self, number):
            return 3

    from chop.actions.search.samplers.base import STRATEGIES, register_strategy

    register_strategy("odd")(Odd)
    try:
        with pytest.raises(ValueError, match=r"Odd\.ask must return a design as a dictionary"):
            predecessor.run(make_scene(), tmp_path, predecessor.tables(setup={"sampler": "odd"}))
    finally:
        del STRATEGIES._items["odd"]


def test_a_search_that_is_refused_leaves_the_results_of_the_earlier_one(tmp_path):
    context = make_scene()
    predecessor.run(context, tmp_path, predecessor.tables(setup={"n_trials": 2}))
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert json.loads(files["search.json"])["front"]
    table = predecessor.tables(setup={"n_trials": 2})
    table["search_space"]["setup"]["by"] = "typ"
    with pytest.raises(ValueError, match="by must be one of"):
        predecessor.run(context, tmp_path, table)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == files
