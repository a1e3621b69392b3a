"""Groups of passes under the names of the tutorials."""

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.passes import quantize_transform_pass, run_pass
from chop.passes.base import PassArgsError
from chop.pipelines import AutoPipeline, CompressionPipeline
from chop.registry import UnknownName

WIDTHS = {f"{o}_{k}": 4 for o in ("data_in", "weight", "bias") for k in ("width", "frac_width")}
QUANTIZE = {"by": "type", "linear": {"config": {"name": "integer", **WIDTHS}}}
WEIGHT = {"sparsity": 0.5, "method": "l1-norm", "scope": "local", "granularity": "elementwise"}
X = {"input": torch.randn(2, 4)}


@pytest.fixture
def graph():
    return MaseGraph(nn.Sequential(nn.Linear(4, 4)))


@pytest.fixture
def described(graph):
    run_pass("init_metadata", graph)
    run_pass("add_common_metadata", graph, {"dummy_in": X})
    return graph


COMPRESS = {"quantize_transform_pass": QUANTIZE, "prune_transform_pass": {"weight": WEIGHT}}


def test_compression_quantizes_and_prunes(described):
    graph, (infos,) = CompressionPipeline()(described, pass_args=COMPRESS)
    assert type(graph.modules["0"]).__name__ == "LinearInteger"
    assert infos["prune_transform_pass"]["weight"]["total"]["pruned"] == 8
    assert list(infos) == ["quantize_transform_pass", "prune_transform_pass"]


def test_compression_adds_the_metadata_of_a_bare_graph(graph):
    given = {"add_common_metadata_analysis_pass": {"dummy_in": X}, **COMPRESS}
    _, (infos,) = CompressionPipeline()(graph, given)
    assert len(infos) == 4


def test_a_step_is_skipped_without_options_or_if_asked(described):
    graph, (infos,) = CompressionPipeline()(described, {"quantize": QUANTIZE})
    assert list(infos) == ["quantize_transform_pass"]
    skip = [quantize_transform_pass]
    _, (infos,) = CompressionPipeline()(graph, COMPRESS, skip_passes=skip)
    assert list(infos) == ["prune_transform_pass"]


def test_wrong_options_of_any_pass_are_refused_before_the_first_one_runs(described):
    wrong = {"prune_transform_pass": {"weight": {"sparsty": 0.5}}}
    with pytest.raises(PassArgsError, match="did you mean 'sparsity'"):
        CompressionPipeline()(described, {**COMPRESS, **wrong})
    assert type(described.modules["0"]) is nn.Linear
    with pytest.raises(UnknownName, match="did you mean 'prune_transform_pass'"):
        CompressionPipeline()(described, {"prune_transfrm_pass": {}})


def test_options_may_be_the_info_of_an_earlier_pass(described):
    seen = {}

    def look(graph, pass_args):
        seen.update(pass_args)
        return graph

    groups = [[quantize_transform_pass], [look]]
    options = {
        "quantize_transform_pass": QUANTIZE,
        "look": {"info": "self/quantize_transform_pass"},
    }
    _, outputs = AutoPipeline(groups)(described, options)
    assert seen["info"] == {"quantized": ["_0"]} == outputs[0]["quantize_transform_pass"]
    assert options["look"] == {"info": "self/quantize_transform_pass"}
    with pytest.raises(UnknownName, match="unknown earlier pass 'prune_transform_pass'"):
        AutoPipeline([[look]])(described, {"look": {"info": "self/prune_transform_pass"}})


def test_no_groups_change_nothing(graph):
    assert AutoPipeline()(graph) == (graph, [])
