"""Several passes in a row."""

import pytest
import torch
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes import Pipeline, init_metadata_analysis_pass
from chop.passes.base import PassArgsError

X = {"x": torch.ones(2, 4)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(x)


@pytest.fixture
def mg():
    return MaseGraph(Net())


def count_nodes(graph, pass_args=None):
    return graph, {"count": len(graph.nodes)}


def broken(graph, pass_args=None):
    raise RuntimeError("it broke")


def test_steps_run_in_order_and_their_infos_come_back_by_name(mg):
    pipeline = Pipeline([init_metadata_analysis_pass, "add_common_metadata", count_nodes])
    graph, infos = pipeline(mg, {"add_common_metadata": {"dummy_in": X}})
    assert graph is mg
    assert infos == {"init_metadata": {}, "add_common_metadata": {}, "count_nodes": {"count": 3}}
    assert mg.meta["mase"].common.results.tensor("data_out_0").shape == [2, 3]


def test_options_of_the_call_win_over_those_of_the_step(mg):
    pipeline = Pipeline(["init_metadata", ("add_common_metadata", {"dummy_in": X})])
    pipeline(mg, {"add_common_metadata_analysis_pass": {"add_value": False}})
    assert "value" not in mg.meta["mase"].common.results["data_out_0"]
    pipeline(mg)
    assert "value" in mg.meta["mase"].common.results["data_out_0"]


def test_a_repeated_pass_is_listed_with_a_number(mg):
    pipeline = Pipeline([count_nodes, count_nodes, count_nodes])
    assert list(pipeline(mg)[1]) == ["count_nodes", "count_nodes_1", "count_nodes_2"]


def test_every_step_is_timed(mg):
    pipeline = Pipeline([count_nodes, "init_metadata"])
    pipeline(mg)
    assert pipeline.timing.keys() == {"count_nodes", "init_metadata"}
    assert all(seconds >= 0 for seconds in pipeline.timing.values())


def test_wrong_options_are_refused_before_the_first_step_runs(mg):
    ran = []
    pipeline = Pipeline([lambda graph, args: ran.append(1), ("report_graph", {"styel": "24"})])
    with pytest.raises(PassArgsError, match="no option 'styel'; did you mean 'style'"):
        pipeline(mg)
    assert ran == []


def test_an_unknown_step_is_refused_when_the_pipeline_is_made():
    with pytest.raises(KeyError, match="did you mean 'init_metadata'"):
        Pipeline(["init_metdata"])


def test_options_for_a_step_that_is_not_there_are_refused(mg):
    with pytest.raises(KeyError, match="unknown step of the pipeline 'count_node'"):
        Pipeline([count_nodes])(mg, {"count_node": {}})


def test_a_failing_step_is_named_with_those_done_before(mg):
    with pytest.raises(RuntimeError, match="it broke") as caught:
        Pipeline([count_nodes, broken])(mg)
    assert caught.value.__notes__ == [
        "in step 'broken' of Pipeline(count_nodes -> broken); done before it: count_nodes"
    ]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("init_metadata", r"Pipeline\(\['init_metadata'\]\)"),
        ([("init_metadata", {}, 3)], "a step must be a pass, or \\(pass, options\\)"),
    ],
)
def test_steps_of_the_wrong_shape_are_refused(steps, message):
    with pytest.raises(TypeError, match=message):
        Pipeline(steps)
