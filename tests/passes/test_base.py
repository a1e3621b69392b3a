"""What a pass is, and how its options are checked."""

import inspect
import logging
import pickle
from collections import ChainMap, UserDict
from types import MappingProxyType
from typing import Literal

import pytest
import torch
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes import PASSES, Pipeline, graph_pass, init_metadata_analysis_pass, run_pass
from chop.passes.base import PassArgsError


@pytest.fixture
def mg():
    return MaseGraph(nn.Sequential(nn.Linear(2, 2)))


@pytest.fixture
def paint():
    """A pass with options of several kinds, gone after the test."""

    @graph_pass("paint", "transform")
    def paint_transform_pass(
        graph: MaseGraph,
        *,
        colour: Literal["red", "blue"],
        layers: int = 1,
        depth: float = 0.5,
        names: list[str] | None = None,
        places: dict[str, dict[str, int]] | None = None,
    ) -> dict[str, object]:
        """Paint it."""
        if places is not None:
            places["mine"] = {}
        return {"colour": colour, "layers": layers, "depth": depth, "names": names}

    yield paint_transform_pass
    del PASSES._items["paint"]


def test_options_are_keywords_with_defaults(mg, paint):
    _, info = paint(mg, {"colour": "red", "depth": 1})
    assert info == {"colour": "red", "layers": 1, "depth": 1.0, "names": None}


def test_a_registered_pass_is_found_by_name(mg, paint):
    assert PASSES["paint"] is paint
    assert run_pass("paint", mg, {"colour": "blue"})[1]["colour"] == "blue"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "pass 'paint' needs the option 'colour'"),
        ({"color": "red"}, "has no option 'color'; did you mean 'colour'?"),
        ({"colour": "green"}, "option 'colour' is 'green', but it should be 'red' or 'blue'"),
        (
            {"colour": "red", "layers": "3"},
            "option 'layers' is '3', but it should be a valid int",
        ),
        ({"colour": "red", "layers": 1.5}, "option 'layers' is 1.5"),
        ({"colour": "red", "names": ["a", 3]}, "option 'names.1' is 3"),
        ({"colour": "red", "places": {"a": {"b": "c"}}}, "option 'places.a.b' is 'c'"),
        ({"colour": torch.zeros(9, 9)}, "option 'colour' is a tensor of shape [9, 9], but"),
        (["colour"], "takes its options as a dict, not list"),
        ("colour", "takes its options as a dict, not str"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(mg, paint, args, message):
    with pytest.raises(PassArgsError) as caught:
        paint(mg, args)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "colour: Literal['red', 'blue']" in str(caught.value) or "(option: " in str(caught.value)


def test_a_pass_cannot_change_its_callers_dict(mg, paint):
    args = {"colour": "red", "places": {"a": {"b": 1}}}
    paint(mg, args)
    assert args == {"colour": "red", "places": {"a": {"b": 1}}}


def test_option_errors_are_type_errors_and_value_errors(mg, paint):
    for kind in (TypeError, ValueError):
        with pytest.raises(kind):
            paint(mg, {"colour": 1})


def test_a_pass_keeps_the_face_of_its_function(paint):
    assert paint.__name__ == "paint_transform_pass"
    assert paint.__doc__ == "Paint it."
    assert list(inspect.signature(paint).parameters)[:2] == ["graph", "colour"]
    assert repr(paint) == "<transform pass 'paint'>"


def test_a_pass_can_be_pickled():
    copied = pickle.loads(pickle.dumps(init_metadata_analysis_pass))
    assert copied is init_metadata_analysis_pass


def test_the_time_of_a_pass_is_logged_at_debug_level(mg, paint, caplog):
    with caplog.at_level(logging.DEBUG, "chop"):
        paint(mg, {"colour": "red"})
    assert any(m.startswith("pass paint took ") and m.endswith(" ms") for m in caplog.messages)


def test_an_open_ended_pass_takes_any_key(mg):
    @graph_pass("open", "analysis")
    def open_analysis_pass(graph, *, by: str, **per_node: dict) -> dict:
        return per_node

    try:
        assert open_analysis_pass(mg, {"by": "name", "fc": {"a": 1}})[1] == {"fc": {"a": 1}}
        assert open_analysis_pass.written_options() == ["by: str", "…"]
    finally:
        del PASSES._items["open"]


def nothing(graph, pass_args=None):
    pass


def only_graph(graph):
    return graph.clone()


def only_info(graph, pass_args):
    return {"seen": pass_args}


def pair(graph, pass_args=None):
    pass_args.pop("default")
    return graph, {"nodes": len(graph.nodes)}


def test_plain_functions_are_passes_whatever_they_return(mg):
    assert run_pass(nothing, mg) == (mg, {})
    cloned, info = run_pass(only_graph, mg, {"ignored": 1})
    assert cloned is not mg
    assert info == {}
    assert run_pass(only_info, mg, {"a": 1}) == (mg, {"seen": {"a": 1}})


def test_a_plain_function_that_pops_from_its_arguments_does_no_harm(mg):
    args = {"default": 1, "b": 2}
    assert run_pass(pair, mg, args) == (mg, {"nodes": 3})
    assert args == {"default": 1, "b": 2}


def test_a_function_that_returns_something_else_is_refused(mg):
    with pytest.raises(TypeError, match="pass '<lambda>' returned int; a pass returns"):
        run_pass(lambda graph, args: 3, mg)


def test_an_unknown_pass_is_refused_with_the_nearest_one(mg):
    with pytest.raises(KeyError, match="unknown pass 'report_grph'; did you mean 'report_graph'"):
        run_pass("report_grph", mg)


def changes_nested(graph, pass_args=None):
    pass_args["a"]["b"] = 2


def counts_options(graph, pass_args={}):  # noqa: B006  as students write it
    return {"options": len(pass_args)}


def test_a_plain_function_cannot_change_what_its_options_hold(mg):
    args = {"a": {"b": 1}}
    run_pass(changes_nested, mg, args)
    assert args == {"a": {"b": 1}}


def test_a_plain_functions_own_default_stands_for_no_options(mg):
    assert run_pass(counts_options, mg)[1] == {"options": 0}
    assert run_pass(counts_options, mg, {"x": 1})[1] == {"options": 1}


def test_options_may_be_given_as_keywords(mg, paint):
    assert paint(mg, colour="red")[1]["colour"] == "red"
    assert paint(mg, {"colour": "red", "layers": 2}, layers=3)[1]["layers"] == 3
    with pytest.raises(PassArgsError, match="no option 'color'; did you mean 'colour'"):
        paint(mg, color="red")


def test_a_prerequisite_that_nothing_fills_is_the_authors_mistake():
    with pytest.raises(AssertionError, match="needs one of"):
        graph_pass("typo", "analysis", needs=("comon",))(lambda graph: None)


def test_forgotten_unpacking_and_swapped_arguments_are_named(mg, paint):
    with pytest.raises(TypeError, match="not tuple; a pass returns two things: mg, info = …"):
        paint(paint(mg, colour="red"), colour="red")
    with pytest.raises(TypeError, match="run_pass takes the pass first"):
        run_pass(mg, "paint")


def warnings_in(caplog):
    return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]


def test_options_that_another_pass_has_are_ignored_with_a_warning(mg, caplog):
    x = {"input": torch.randn(3, 2)}
    run_pass("init_metadata", mg)
    run_pass("add_common_metadata", mg, {"dummy_in": x})
    run_pass("add_software_metadata", mg, {"dummy_in": x, "add_value": True})
    assert warnings_in(caplog) == [
        f"pass 'add_software_metadata' has no option {key!r}, which 'add_common_metadata' has; "
        f"it is ignored"
        for key in ("dummy_in", "add_value")
    ]
    run_pass("add_hardware_metadata", mg, {"dummy_in": x})
    caplog.clear()
    weight = {"sparsity": 0.5, "scope": "local", "granularity": "elementwise", "method": "l1-norm"}
    given = {"weight": weight, "input_generator": iter(()), "dummy_in": x}
    _, info = run_pass("prune", mg, given)
    assert info["weight"]["total"]["pruned"] == 2
    assert len(warnings_in(caplog)) == 2


def test_options_that_no_pass_has_are_still_refused(mg):
    run_pass("init_metadata", mg)
    with pytest.raises(PassArgsError, match="has no option 'dummyin'"):
        run_pass("add_software_metadata", mg, {"dummyin": {}, "add_value": True})


def test_options_of_other_passes_do_not_stop_a_pipeline(mg, caplog):
    prepare = Pipeline(["init_metadata", "add_common_metadata", "add_software_metadata"])
    x = {"input": torch.randn(3, 2)}
    prepare(mg, {"add_common_metadata": {"dummy_in": x}, "add_software_metadata": {"dummy_in": x}})
    assert len(warnings_in(caplog)) == 1


INTEGER = {
    f"{operand}_{key}": value
    for operand in ("data_in", "weight", "bias")
    for key, value in {"width": 8, "frac_width": 4}.items()
} | {"name": "integer"}


def nested(kind, value):
    """The value with mappings of that kind in place of all dicts."""
    if not isinstance(value, dict):
        return value
    return kind({key: nested(kind, item) for key, item in value.items()})


@pytest.mark.parametrize("kind", [UserDict, MappingProxyType, ChainMap])
def test_options_are_any_mappings(mg, kind, tmp_path):
    x = torch.randn(3, 2)
    mg = MaseGraph(mg.model, cf_args=kind({}))
    run_pass("init_metadata", mg, kind({}))
    run_pass("add_common_metadata", mg, kind({"dummy_in": kind({"input": x})}))
    weight = {"sparsity": {"linear": 0.5}, "by": "type", "scope": "local", "method": "l1-norm"}
    table = nested(kind, {"by": "type", "linear": {"config": INTEGER}})
    quantized, _ = run_pass("quantize", mg.clone(), table)
    assert type(quantized.modules["0"]).__name__ == "LinearInteger"
    quantized.export(tmp_path)
    assert torch.equal(MaseGraph.from_checkpoint(tmp_path).model(x), quantized.model(x))
    _, info = run_pass("prune", mg.clone(), nested(kind, {"weight": weight}))
    assert info["weight"]["total"]["pruned"] == 2
    _, info = Pipeline(["quantize"])(mg.clone(), nested(kind, {"quantize": table}))
    assert info["quantize"]["quantized"] == [node.name for node in mg.nodes][1:2]
    default = nested(kind, {"by": "type", "default": {"config": INTEGER}})
    assert run_pass("quantize", mg.clone(), default)[1] == info["quantize"]


@pytest.mark.parametrize("kind", [dict, UserDict, MappingProxyType])
def test_tables_inside_options_are_any_mappings_of_the_right_values(mg, paint, kind):
    paint(mg, {"colour": "red", "places": kind({"a": kind({"b": 1})})})
    with pytest.raises(PassArgsError, match=r"option 'places.a' is 3, but it should be a valid"):
        paint(mg, {"colour": "red", "places": kind({"a": 3})})
    with pytest.raises(PassArgsError, match=r"option 'places.a.b' is 'x'"):
        paint(mg, {"colour": "red", "places": kind({"a": kind({"b": "x"})})})


def test_a_function_may_change_the_options_that_it_gets_from_any_mapping(mg):
    def own(graph, pass_args):
        pass_args["seen"] = True

    options = UserDict(a=1)
    run_pass(own, mg, options)
    run_pass(own, mg, MappingProxyType({"a": 1}))
    assert options == {"a": 1}


@pytest.mark.slow
def test_a_batch_of_transformers_is_a_dummy_input(mg, package):
    transformers = package("transformers")
    batch = transformers.BatchEncoding({"input": torch.randn(3, 2)})
    run_pass("init_metadata", mg)
    run_pass("add_common_metadata", mg, {"dummy_in": batch})
    assert next(iter(mg.nodes)).meta["mase"].common.results["data_out_0"]["shape"] == [3, 2]
