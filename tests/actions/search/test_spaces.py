"""What can be chosen, and that a candidate is what its design says, whatever was there before."""

import json
import logging
import math
import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from chop.actions.search.results.description import _written_size
from chop.actions.search.samplers.base import SamplerContext, strategy_named
from chop.actions.search.space import pass_spaces
from chop.actions.search.space.base import Parent, Space
from chop.actions.search.space.choices import (
    Choices,
    OneOf,
    Parameter,
    Range,
    choice_of,
    flatten_dict,
    unflatten_dict,
)
from chop.actions.search.space.pass_spaces import frozen, pass_space
from chop.actions.search.space.registry import space_of
from chop.actions.search.spec.settings import settings_of
from chop.ir.graph.mase_metadata import mase
from chop.passes.graph import quantize_transform_pass
from chop.registry import UnknownName

from .conftest import tables
from .runners.conftest import graph_of, settle

INTEGER = {
    "name": ["integer"],
    **{f"{operand}_width": [4, 8] for operand in ("data_in", "weight", "bias")},
    **{f"{operand}_frac_width": [2] for operand in ("data_in", "weight", "bias")},
}
LEAVE = {"name": [None]}


class Net(nn.Module):
    """Layers, one of them called twice, a norm, and functions."""

    def __init__(self):
        super().__init__()
        self.fc1, self.shared, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.norm, self.relu = nn.BatchNorm1d(8), nn.ReLU()

    def forward(self, x):
        x = self.relu(self.norm(self.fc1(x)))
        x = torch.add(self.shared(x), self.shared(self.relu(x)))
        return torch.matmul(self.fc2(x), torch.ones(5, 5))


def make_graph():
    torch.manual_seed(1)
    return graph_of(settle(Net(), torch.randn(32, 6)), torch.randn(4, 6))


@pytest.fixture(scope="module")
def graph():
    return make_graph()


def space(graph, seed, by="name", run="quantize"):
    seed = {key: {"config": table} for key, table in seed.items()}
    return Space("graph/quantize", graph, {run: pass_space(graph, run, by, seed, "seed")})


def varied(made):
    return {p.key.partition("/")[0] for p in made.choices.open}


# --- seeds


@pytest.mark.parametrize(
    ("by", "key", "nodes"),
    [
        ("name", "fc1", {"fc1"}),
        ("name", "add", {"add"}),
        ("type", "linear", {"fc1", "shared", "fc2"}),
        ("type", "relu", {"relu"}),
        ("regex_name", "fc[0-9]", {"fc1", "fc2"}),
        ("regex_name", "f.*|shared", {"fc1", "fc2", "shared"}),
        ("name", "default", {"fc1", "shared", "fc2", "relu", "add", "matmul"}),
    ],
)
def test_a_seed_is_for_the_nodes_that_it_names(graph, by, key, nodes):
    table = {"name": ["integer", None], "data_in_width": [4, 8], "data_in_frac_width": [2]}
    table |= {k: v for k, v in INTEGER.items() if "weight" in k or "bias" in k}
    assert nodes <= varied(space(graph, {key: table}, by))
    if key != "default":
        assert varied(space(graph, {key: table}, by)) == nodes


@pytest.mark.parametrize("key", ["body.0", "body_0"])
def test_a_seed_names_a_node_or_its_layer(key):
    class Deeper(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))

        def forward(self, x):
            return self.body(x)

    made = graph_of(Deeper(), torch.randn(4, 6))
    assert varied(space(made, {key: INTEGER, "default": LEAVE})) == {"body_0"}


def test_a_key_before_the_default(graph):
    made = space(graph, {"fc1": {"name": [None]}, "default": INTEGER})
    assert "fc1" not in varied(made)
    config = made.config_of(made.choices.nth(0))
    assert config["fc1"] == {"config": {"name": None}}
    assert config["fc2"]["config"]["name"] == "integer"


def test_two_calls_of_a_layer_are_one_choice(graph):
    made = space(graph, {"linear": INTEGER}, "type")
    assert made.choices.size == 8**3
    config = made.config_of(made.choices.nth(5))
    assert config["shared"] == config["shared_1"]


def test_a_range_is_a_choice_of_numbers(graph):
    wide = INTEGER | {"weight_width": {"min": 2, "max": 8, "step": 2}}
    made = space(graph, {"fc1": wide})
    found = {made.choices.nth(i)["fc1/config/weight_width"] for i in range(made.choices.size)}
    assert found == {2, 4, 6, 8}


def test_rounding_and_overflow_are_choices(graph):
    options = {"weight_rounding": ["even", "up"], "overflow": ["saturate", "symmetric", "wrap"]}
    fixed = {key: value[:1] for key, value in INTEGER.items()}
    made = space(graph, {"fc1": fixed | options})
    assert made.choices.size == 6
    configs = [made.config_of(made.choices.nth(i))["fc1"]["config"] for i in range(6)]
    found = {(config["weight_rounding"], config["overflow"]) for config in configs}
    assert len(found) == 6
    with pytest.raises(ValueError, match="weight_rounding must be 'even', 'up' or 'floor'"):
        space(graph, {"fc1": fixed | {"weight_rounding": ["even", "down"]}})
    with pytest.raises(ValueError, match="weight_floor = true contradicts weight_rounding"):
        space(graph, {"fc1": fixed | {"weight_rounding": ["up"], "weight_floor": [True, False]}})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (4, "a list of choices, \\[4\\]"),
        ("integer", "a list of choices"),
        ([], "empty list"),
        ([4, 8, 4], "offers a value twice"),
        ({"min": 2}, "a list of choices"),
        ({"min": 8, "max": 2}, "swap min and max"),
        ({"min": "a", "max": 2}, "min must be a number, not 'a'"),
        ({"min": 2, "max": 8, "step": 0}, "step must be positive"),
        ({"min": 2, "max": 8, "step": True}, "step must be a number"),
        ({"min": 0, "max": 8, "log": True}, "must start above 0"),
        ({"min": 1, "max": 8, "log": "yes"}, "log must be true or false"),
        ({"min": 1, "max": 8, "step": 0.5}, "step must be an integer"),
        ({"min": float("nan"), "max": 8}, "min must be a number, not nan"),
        ({"min": 1.0, "max": float("inf")}, "max must be a number, not inf"),
    ],
)
def test_a_leaf_that_offers_no_choice_is_refused_by_its_key(value, said):
    with pytest.raises(ValueError, match=f"^seed.key.*{said}"):
        choice_of(value, "seed.key")


def test_true_and_one_are_two_values():
    assert choice_of([1, True], "k").count == 2


# --- keys that exist for one format only


def test_a_key_exists_only_where_its_format_has_it(graph):
    table = INTEGER | {"name": ["integer", "log", None]}
    for operand in ("data_in", "weight", "bias"):
        table[f"{operand}_exponent_bias"] = [4]
    table["weight_exponent_bias"] = [3, 7]
    made = space(graph, {"fc1": table})
    assert made.choices.size == 2**3 + 2**3 * 2 + 1
    for i in range(made.choices.size):
        chosen = made.choices.nth(i)
        name = chosen["fc1/config/name"]
        assert ("fc1/config/weight_frac_width" in chosen) == (name == "integer")
        assert ("fc1/config/weight_exponent_bias" in chosen) == (name == "log")
        made.build(made.config_of(chosen))


def test_a_table_for_one_format_goes_before_the_keys_for_all(graph):
    table = INTEGER | {"name": ["integer", None]}
    table["integer"] = {"weight_width": [2, 3, 5]}
    made = space(graph, {"fc1": table})
    widths = {made.choices.nth(i).get("fc1/config/weight_width") for i in range(made.choices.size)}
    assert widths == {2, 3, 5, None}


# --- what is refused

NO = "is not a key of integer; did you mean"


def test_a_node_that_cannot_be_changed_is_warned_of(graph, caplog):
    with caplog.at_level(logging.WARNING, "chop"):
        space(graph, {"fc1": INTEGER, "x": INTEGER})
    assert "the seed for name 'x' matches no node that can be changed (there are" in caplog.text


@pytest.mark.parametrize(
    ("by", "right", "other"), [("name", "fc1", "linear"), ("type", "linear", "fc1")]
)
def test_seeds_of_the_other_kind_are_ignored_with_a_warning(graph, caplog, by, right, other):
    """As in a file of the labs, which has seeds for ops and for names."""
    with caplog.at_level(logging.WARNING, "chop"):
        both = space(graph, {right: INTEGER, other: INTEGER | {"weight_width": [3]}}, by)
    kind = "a node" if by == "type" else "an op"
    assert f"seed.{other} is ignored: {other!r} is {kind}, and by is {by!r}" in caplog.text
    assert both.choices.parameters == space(graph, {right: INTEGER}, by).choices.parameters
    with pytest.raises(ValueError, match="search space is empty"):
        space(graph, {other: INTEGER}, by)


def test_keys_and_options_for_others_are_ignored_with_a_warning(graph, caplog):
    with caplog.at_level(logging.WARNING, "chop"):
        both = space(graph, {"fc1": INTEGER | {"weight_levels": [1, 2]}})
    assert "for integer has no 'weight_levels', which other formats have" in caplog.text
    assert both.choices.parameters == space(graph, {"fc1": INTEGER}).choices.parameters
    seed = {"weight": {"sparsity": [0.1, 0.5]}}
    both = pass_space(graph, "prune", None, {**seed, "num_samples": [8, 16]}, "here.seed")
    assert "here.seed.num_samples is an option of" in caplog.text
    assert both.parameters == pass_space(graph, "prune", None, seed, "here.seed").parameters


@pytest.mark.parametrize(
    ("seed", "by", "said"),
    [
        ({"linaer": INTEGER}, "type", "did you mean 'linear'"),
        ({"fc1": INTEGER, "fc22": INTEGER}, "name", "node in seed 'fc22'; did you mean 'fc2'?"),
        (
            {"fc1": INTEGER | {"name": ["intger"]}},
            "name",
            r"in seed\.fc1\.config\.name 'intger'; did you mean 'integer'",
        ),
        (
            {"fc1": INTEGER | {"weight_wdith": [2]}},
            "name",
            rf"^seed\.fc1\.config\.weight_wdith {NO}",
        ),
        (
            {"linear": INTEGER | {"integer": {"bias_withd": [2]}}},
            "type",
            rf"^seed\.linear\.config\.integer\.bias_withd {NO}",
        ),
        ({"fc1": INTEGER | {"colour": [2]}}, "name", r"config\.colour is not a key of integer$"),
        ({"fc1": {k: v for k, v in INTEGER.items() if "weight" not in k}}, "name", "weight"),
        ({"fc1": INTEGER | {"weight_width": 4}}, "name", "weight_width must be a list of choices"),
        ({"fc1": {"weight_width": [2, 4]}}, "name", "needs name"),
        (
            {"fc1": INTEGER | {"weight_width": [0]}},
            "name",
            "integer: weight_width must be an integer",
        ),
        ({"fc1": INTEGER | {"name": {"min": 1, "max": 2}}}, "name", "list of names, not a range"),
        ({"fc1": INTEGER}, "colour", "by must be one of type, name, regex_name"),
        ({"fc(": INTEGER}, "regex_name", "not a regular expression"),
        ({"default": LEAVE}, "name", "search space is empty"),
        ({"fc9": INTEGER}, "regex_name", "search space is empty"),
        ({"fc1": INTEGER | {"weight_width": [4, 100]}}, "name", "weight_width = 100: pass"),
        ({"linear": INTEGER | {"weight_width": [4, "four"]}}, "type", "'four'"),
        ({"linear": INTEGER | {"weight_width": {"min": 2, "max": 99}}}, "type", "width = 66: pass"),
        ({"fc1": INTEGER | {"weight_width": {"min": 2, "max": 9, "stp": 2}}}, "name", "'step'"),
        ({"fc1": INTEGER | {"integer": 3}}, "name", "integer must be a table of keys"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused(graph, seed, by, said):
    with pytest.raises((ValueError, KeyError), match=said):
        space(graph, seed, by)


@pytest.mark.parametrize(
    ("run", "seed", "said"),
    [
        ("quantize", {"fc1": INTEGER | {"weight_wdith": [2]}}, "fc1.weight_wdith is not a key"),
        ("prune", {"weight": {"sparsity": [0.1, 1.5]}}, "weight.sparsity = 1.5: pass 'prune': "),
        (
            "prune",
            {"weight": {"sparsty": [0.1]}},
            "weight.sparsty = 0.1: .*did you mean 'sparsity'",
        ),
        ("redefine", {"fc1": {"name": ["both"], "widht": [8]}}, ".*did you mean 'width'"),
        ("redefine", {"fc1": {"name": ["both", "bth"], "width": [8]}}, ".*did you mean 'both'"),
        ("redefine", {"fc1": {"name": ["both"], "width": [8, 0]}}, ".*width is 0"),
        (
            "redefine",
            {"fc1": {"name": ["both", "input_only"], "width": [8]}},
            ".*omit the width",
        ),
    ],
)
def test_tables_that_a_pass_never_takes_are_refused_by_their_key(graph, run, seed, said):
    with pytest.raises(ValueError, match=f"^here.seed.{said}"):
        pass_space(graph, run, "name", seed, "here.seed")


def test_choices_that_fit_only_each_other_are_taken(graph):
    """fp8 has four bits of exponent and three of fraction, or five and two."""
    widths = {"exponent_width": [4, 5], "frac_width": [3, 2]}
    table = {f"{who}_{k}": v for who in ("data_in", "weight", "bias") for k, v in widths.items()}
    made = space(graph, {"fc1": {"name": ["fp8"], **table}})
    assert made.choices.size == 2**6
    with pytest.raises(ValueError, match=r"^seed\.fc1\.config\.weight_exponent_width = 6: "):
        space(graph, {"fc1": {"name": ["fp8"], **table, "weight_exponent_width": [4, 6]}})


def test_a_fraction_of_fp8_may_follow_from_the_exponent(graph):
    table = {f"{who}_frac_width": [None] for who in ("data_in", "weight", "bias")}
    table |= {f"{who}_exponent_width": [4, 5] for who in ("data_in", "weight", "bias")}
    made = space(graph, {"fc1": {"name": ["fp8"], **table}})
    for number in range(made.choices.size):
        layer = made.build(made.config_of(made.choices.nth(number))).model.fc1
        fmt = layer.formats["weight"]
        assert fmt.exponent_width + fmt.frac_width == 7


def test_a_key_of_setup_that_is_misspelt_is_refused_with_the_near_one():
    table = {"name": "graph/prune", "setup": {"trasform": "a"}, "seed": {"a": [1, 2]}}
    with pytest.raises(ValueError, match=r"no key 'trasform'; did you mean 'transform'\?"):
        space_of(table, SimpleNamespace())


def test_tables_of_nodes_are_not_kept_without_end(graph, monkeypatch):
    monkeypatch.setattr(pass_spaces, "MAX_TABLES", 5)
    made = space(graph, {"fc1": INTEGER | {"weight_width": {"min": 2, "max": 40}}})
    designs = [made.choices.nth(i) for i in range(30)]
    configs = [made.config_of(chosen) for chosen in designs]
    assert made.config_of(designs[0])["fc1"] is not configs[0]["fc1"], "it was forgotten"
    assert [made.config_of(chosen) for chosen in designs] == configs
    assert made.config_of(designs[-1])["fc1"] is made.config_of(designs[-1])["fc1"]


# --- counting


lists = st.lists(st.integers(0, 20), min_size=1, max_size=4, unique=True)
ranges = st.builds(
    lambda low, length, step: Range(low, low + length, step),
    *(st.integers(0, 5), st.integers(0, 5), st.integers(1, 3)),
)
values = st.one_of(lists.map(lambda v: OneOf(tuple(v))), ranges)


@st.composite
def some_choices(draw):
    found = []
    for i in range(draw(st.integers(1, 3))):
        head = OneOf(tuple(range(draw(st.integers(1, 3)))))
        found.append(Parameter(f"{i}", head))
        for j in range(draw(st.integers(0, 2))):
            when = draw(st.lists(st.sampled_from(head.values), unique=True, min_size=1))
            found.append(Parameter(f"{i}/{j}", draw(values), f"{i}", tuple(when)))
    return Choices(found)


@given(some_choices())
def test_every_design_has_one_place_and_every_place_one_design(choices):
    if choices.size > 3000:
        return
    designs = [choices.nth(i) for i in range(choices.size)]
    assert len({repr(d) for d in designs}) == choices.size
    for chosen in designs:
        assert choices.decoded(choices.encoded(chosen)) == chosen
        assert list(chosen) == [p.key for p in choices.parameters if p.exists(chosen)]


@given(some_choices(), st.integers(0, 10))
def test_brute_force_visits_each_place_once(choices, seed):
    if choices.size > 500:
        return
    strategy = strategy_named("brute")(SamplerContext(choices, ("maximize",), 10**6, seed))
    asked = [strategy.ask(n) for n in range(choices.size + 1)]
    assert asked.pop() is None
    assert len({repr(chosen) for chosen in asked}) == choices.size


@pytest.mark.sampled(2)
@pytest.mark.parametrize("nodes", [34, 1200, 6000])
def test_a_space_of_any_size_can_be_searched_and_talked_of(nodes):
    """10^30 designs, more than a float can count, more digits than Python writes."""
    from chop.actions.search.results.display import summary

    choices = Choices([Parameter(f"{i}/config/w", OneOf(tuple(range(8)))) for i in range(nodes)])
    strategy = strategy_named("random")(SamplerContext(choices, ("maximize",), 10, 1))
    asked = [strategy.ask(number) for number in range(12)]
    assert len({repr(chosen) for chosen in asked}) == 12
    varied = [key for key in asked[0] if len({chosen[key] for chosen in asked}) > 1]
    assert len(varied) > 0.9 * nodes
    said = summary(SimpleNamespace(choices=choices), settings_of(tables()), 1)
    assert f"about 10^{int(nodes * math.log10(8))} designs" in said
    assert len(json.dumps(_written_size(choices.size))) < 400


def test_lists_of_lists_can_be_told_apart():
    blocks = ([[1, 2], [3]], [[4]], [[1, 2], [3]])
    assert len({frozen({"name": "block_fp", "block": block}) for block in blocks}) == 2


def test_brute_force_refuses_a_continuum():
    choices = Choices([Parameter("a", Range(0.0, 1.0))])
    with pytest.raises(ValueError, match="give the range a step"):
        strategy_named("brute")(SamplerContext(choices, ("maximize",), 10, 0))


@pytest.mark.parametrize("low", [0.0, 0.1, -3.3])
def test_a_range_of_fractions_with_a_step_ends_where_it_says(low):
    stepped = Range(low, low + 0.7, 0.1)
    assert stepped.count == 8
    assert stepped.nth(7) <= low + 0.7


def test_flat_and_nested_are_the_same():
    nested = {"a": {"b": {"c": 1}, "d": [2]}, "e": None}
    assert flatten_dict(nested) == {"a/b/c": 1, "a/d": [2], "e": None}
    assert unflatten_dict(flatten_dict(nested)) == nested


# --- a candidate is its design


RICH = {
    "name": ["integer", "log", "minifloat_ieee", None],
    **{f"{o}_width": [5, 8] for o in ("data_in", "weight", "bias")},
    **{f"{o}_frac_width": [2, 4] for o in ("data_in", "weight", "bias")},
    **{f"{o}_exponent_bias": [4] for o in ("data_in", "weight", "bias")},
    **{f"{o}_exponent_width": [3] for o in ("data_in", "weight", "bias")},
}


def facts(graph):
    """All metadata of a graph that are no tensors."""

    def plain(value):
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        return "tensor" if isinstance(value, torch.Tensor) else repr(value)

    return {n.name: (n.op, plain(dict(mase(n).parameters["common"]))) for n in graph.nodes}


def afresh(parent, config):
    graph = parent.clone()
    tables = {n: t for n, t in config.items() if t["config"]["name"] is not None}
    if tables:
        quantize_transform_pass(graph, {"by": "name", **tables})
    return graph


@pytest.mark.parametrize("seed", range(3))
def test_a_candidate_is_bit_for_bit_what_its_design_gives_afresh(seed):
    parent = make_graph()
    made = space(parent, {"default": RICH})
    draw = random.Random(seed)
    x = torch.randn(16, 6)
    before = {k: v.clone() for k, v in parent.model.state_dict().items()}
    strategy = strategy_named("random")(SamplerContext(made.choices, ("maximize",), 100, seed))
    designs = [made.config_of(strategy.ask(n)) for n in range(6)]
    nothing = {name: {"config": {"name": None}} for name in designs[0]}
    for config in draw.choices([*designs, nothing], k=12):
        candidate = made.candidate(config)
        new = afresh(parent, config)
        with torch.no_grad():
            assert torch.equal(candidate.model(x), new.model(x))
        if draw.random() < 0.7:
            assert facts(candidate.make_graph()) == facts(new)
        if draw.random() < 0.5:
            train_a_step(candidate.model, x)
    after = parent.model.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)


def train_a_step(model, x):
    """What a runner that trains does to the network that it is lent."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(x).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()


# --- options that are the same for all designs

WIDTH = {
    "setup": {"by": "name"},
    "seed": {"fc1": {"config": {"name": ["both"], "width": [4, 8, 12]}}},
}


def problem(graph, **table):
    x, y = torch.randn(64, 6), torch.zeros(64, dtype=torch.long)
    batches = list(zip(x.split(16), y.split(16), strict=True))
    data = SimpleNamespace(batch_size=16, train_dataloader=lambda: batches)
    return space_of({"name": "graph/joint", **table}, Parent(graph, None, "cls", data))


def redefined(graph, **options):
    return problem(graph, passes={"redefine": {**WIDTH, **options}})


def chosen(made, width):
    return next(
        made.config_of(made.choices.nth(i))
        for i in range(made.choices.size)
        if width in made.choices.nth(i).values()
    )


def test_inherited_weights_are_an_option_of_the_pass(graph):
    fresh, heir = redefined(graph), redefined(graph, weights="inherit")
    assert fresh.candidate(chosen(fresh, 12)).fresh
    candidate = heir.candidate(chosen(heir, 12))
    assert candidate.fresh == ()
    x = torch.randn(64, 6)
    widened = candidate.model.eval()
    assert widened.fc1.out_features == 12
    assert not torch.equal(widened.norm.running_mean[:8], graph.model.norm.running_mean)
    assert widened(x).shape == graph.model(x).shape


def test_the_statistics_of_inherited_batch_norms_are_those_of_the_training_data(graph):
    made = redefined(graph, weights="inherit")
    model = made.candidate(chosen(made, 4)).model
    seen = torch.cat([model.fc1(batch["x"]) for batch in made._batches()])
    assert torch.allclose(model.norm.running_mean, seen.mean(0), atol=1e-5)


def test_options_of_a_space_of_one_pass(graph):
    made = problem(graph, name="graph/redefine", **WIDTH, options={"weights": "inherit"})
    assert made.fixed == {"redefine": {"weights": "inherit"}}
    assert made.candidate(chosen(made, 12)).fresh == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [({"weights": "stolen"}, "weights"), ({"wieghts": "inherit"}, "option of redefine.*wieghts")],
)
def test_options_that_the_pass_does_not_have_are_refused(graph, options, said):
    with pytest.raises((ValueError, UnknownName), match=said):
        problem(graph, name="graph/redefine", **WIDTH, options=options)
    with pytest.raises((ValueError, UnknownName), match=said):
        redefined(graph, **options)


def test_a_choice_that_only_some_names_take_is_left(graph):
    seed = {"fc1": {"config": {"name": [None, "both"], "width": [8, 16]}}}
    assert pass_space(graph, "redefine", "name", seed, "where").parameters


def test_a_key_may_have_other_choices_in_each_format():
    widths = [("integer", (4, 8)), ("scale_integer", (2, 3, 5))]
    keys = [Parameter("width", OneOf(values), "name", (name,)) for name, values in widths]
    choices = Choices([Parameter("name", OneOf(("integer", "scale_integer"))), *keys])
    designs = [choices.nth(index) for index in range(choices.size)]
    assert [design["width"] for design in designs] == [4, 8, 2, 3, 5]
    assert [choices.decoded(choices.encoded(design)) for design in designs] == designs
