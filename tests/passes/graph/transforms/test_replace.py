"""Modules of the user in the place of others."""

import pytest
import torch
from torch import nn

from chop.passes import replace_transform_pass, verify_metadata_analysis_pass


def net(row):
    return row(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))


def classes(graph):
    return [type(layer).__name__ for layer in graph.modules["layers"].children()]


@pytest.mark.parametrize("given", [nn.GELU, "GELU", lambda old: nn.GELU()])
def test_a_type_is_replaced_by_a_class_its_name_or_a_function(ready, row, given):
    graph = ready(net(row))
    _, info = replace_transform_pass(graph, by="type", modules={"relu": given})
    assert info == {"replaced": ["layers_1", "layers_3"]}
    assert classes(graph) == ["Linear", "GELU", "Linear", "GELU", "Linear"]
    assert verify_metadata_analysis_pass(graph)[1] == {}
    assert list(graph.nodes)[2].meta["mase"]["common"]["mase_op"] == "gelu"


def test_a_function_is_given_the_old_module(ready, row):
    x, model = torch.randn(2, 4), net(row)
    graph = ready(model, x)

    def two_in_a_row(old):
        return nn.Sequential(old, nn.Identity())

    replace_transform_pass(graph, by="name", modules={"layers_2": two_in_a_row})
    assert torch.equal(graph.model(x), model(x))
    assert classes(graph)[2] == "Sequential"
    assert verify_metadata_analysis_pass(graph)[1] == {}


def test_a_regular_expression_chooses_by_name(ready, row):
    graph = ready(net(row))
    replace_transform_pass(graph, by="regex_name", modules={r"layers_[13]": "Tanh"})
    assert classes(graph) == ["Linear", "Tanh", "Linear", "Tanh", "Linear"]


def test_modes_stay_and_the_original_model_too(ready, row):
    model = net(row).eval()
    graph = ready(model)
    replace_transform_pass(graph, by="type", modules={"relu": nn.GELU})
    assert not any(module.training for module in graph.model.modules())
    assert isinstance(model.layers[1], nn.ReLU)


def test_the_trial_run_leaves_no_trace(ready, row):
    norm = nn.BatchNorm1d(6)
    graph = ready(net(row))
    before = torch.get_rng_state()
    replace_transform_pass(graph, by="name", modules={"layers_1": lambda old: norm})
    assert norm.num_batches_tracked == 0
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("by", "modules", "message"),
    [
        ("name", {"layers_0": lambda old: nn.Linear(4, 5)}, r"returns \['float32\[2, 5\]'\], but"),
        ("name", {"layers_0": lambda old: nn.Linear(9, 6)}, r"fails on inputs of shape \[\[2, 4"),
        ("name", {"layers_0": lambda old: 3}, "must return a module, not int"),
        ("name", {"layers_0": lambda old: old.nothing}, "could not be built"),
        ("name", {"layers_0": nn.Linear}, "could not be built: .*in_features"),
        ("name", {"layers_0": nn.ReLU()}, "needs a class or a function old -> new"),
        ("name", {"layers_9": nn.ReLU}, "unknown node 'layers_9'"),
        ("name", {"x": nn.ReLU}, "node 'x' does not call a module"),
        ("type", {"rleu": nn.ReLU}, "unknown op 'rleu'; did you mean"),
        ("type", {"relu": "GELLU"}, "'GELLU'; did you mean 'GELU'"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_changes(ready, row, by, modules, message):
    graph = ready(net(row))
    with pytest.raises((TypeError, KeyError), match=message):
        replace_transform_pass(graph, by=by, modules=modules)
    assert classes(graph) == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]


def test_one_module_cannot_be_replaced_for_one_of_its_calls(ready, row):
    same = nn.ReLU()
    graph = ready(row(nn.Linear(4, 4), same, nn.Linear(4, 4), same))
    with pytest.raises(TypeError, match="'layers_1', 'layers_3' call the same module"):
        replace_transform_pass(graph, by="name", modules={"layers_1": nn.GELU})
    replace_transform_pass(graph, by="regex_name", modules={"layers_[13]": nn.GELU})
    calls = [n for n in graph.nodes if n.meta["mase"]["common"]["mase_op"] == "gelu"]
    assert len(calls) == 2


class ReadsWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x) + self.fc.weight.sum()


def test_a_module_whose_weights_are_read_elsewhere_is_refused(ready):
    with pytest.raises(TypeError, match="node 'fc': weights of its module are read elsewhere"):
        replace_transform_pass(ready(ReadsWeights()), by="type", modules={"linear": "Identity"})
