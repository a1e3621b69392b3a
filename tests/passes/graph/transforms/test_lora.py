"""Adapters start as nothing, train alone, and fuse into what they did."""

import copy
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from chop.nn.modules import Identity, LoRALinear
from chop.passes import (
    fuse_lora_weights_transform_pass,
    insert_lora_adapter_transform_pass,
    prune_channels_transform_pass,
    prune_transform_pass,
    quantize_transform_pass,
    verify_metadata_analysis_pass,
)
from chop.passes.graph.analysis.cost import cost_of
from chop.passes.module import report_trainable_parameters_analysis_pass
from chop.testing.audit import MacCounter

INTEGER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
INTEGER |= {"weight_width": 8, "weight_frac_width": 4, "bias_width": 8, "bias_frac_width": 4}


def net(row):
    return row(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3, bias=False))


def fitted(graph, steps=20):
    """A few steps that move the adapters."""
    x, y = torch.randn(16, 4), torch.randn(16, 3)
    trained = [p for p in graph.model.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        F.mse_loss(graph.model(x), y).backward()
        optimiser.step()
    return graph


def test_a_new_adapter_changes_nothing(ready, row):
    model, x = net(row), torch.randn(5, 4)
    graph = ready(model, x)
    _, info = insert_lora_adapter_transform_pass(graph, {"rank": 2, "lora_alpha": 4.0})
    assert info == {"inserted": ["layers_0", "layers_2"]}
    assert torch.equal(graph.model(x), model(x))
    assert verify_metadata_analysis_pass(graph)[1] == {}


def test_only_adapters_are_trained(ready, row):
    model = net(row)
    graph = ready(model)
    insert_lora_adapter_transform_pass(graph, rank=2)
    before = copy.deepcopy(graph.model.state_dict())
    fitted(graph)
    changed = {k for k, v in graph.model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {f"layers.{i}.lora_{m}.weight" for i in (0, 2) for m in "ab"}
    assert all(p.requires_grad for p in model.parameters())  # the original model is not frozen
    _, info = report_trainable_parameters_analysis_pass(graph.model)
    assert info["trainable"] == 2 * (4 + 8) + 2 * (8 + 3)
    assert info["parameters"] == info["trainable"] + 4 * 8 + 8 + 8 * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fused_layer_computes_what_the_adapter_did(ready, row, dtype):
    """Products of rank 2 and sums of at most 8 are rounded otherwise: a hundred units at most."""
    x = torch.randn(5, 4, dtype=dtype)
    graph = ready(net(row).to(dtype), x)
    insert_lora_adapter_transform_pass(graph, rank=2, alpha=3.0, dropout=0.5)
    with torch.no_grad():
        for name, p in graph.model.named_parameters():
            if "lora_b" in name:
                p.normal_()
    expected = graph.model.eval()(x)
    _, info = fuse_lora_weights_transform_pass(graph)
    assert info == {"fused": ["layers_0", "layers_2"]}
    assert [type(graph.modules[f"layers.{i}"]) for i in (0, 2)] == [nn.Linear, nn.Linear]
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(graph.model(x), expected, rtol=100 * eps, atol=100 * eps)
    assert verify_metadata_analysis_pass(graph)[1] == {}
    assert all(p.requires_grad for p in graph.model.parameters())
    assert graph.modules["layers.0"].bias is not None
    assert graph.modules["layers.2"].bias is None


def test_layers_that_were_frozen_are_frozen_again_after_fusing(ready, row):
    model = net(row)
    model.layers[0].requires_grad_(False)
    graph = ready(model)
    insert_lora_adapter_transform_pass(graph, rank=1)
    fuse_lora_weights_transform_pass(graph)
    grads = {name: p.requires_grad for name, p in graph.model.named_parameters()}
    assert grads == {"layers.0.weight": False, "layers.0.bias": False, "layers.2.weight": True}


def test_dropout_acts_in_train_mode_only():
    layer = LoRALinear(64, 4, rank=4, alpha=1.0, dropout=0.5)
    nn.init.normal_(layer.lora_b.weight)
    x = torch.randn(3, 64)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    assert torch.equal(layer(x), layer.linear(x) + 0.25 * layer.lora_b(layer.lora_a(x)))


def test_expressions_choose_which_layers_get_an_adapter(ready, row):
    graph = ready(net(row))
    _, info = insert_lora_adapter_transform_pass(graph, rank=2, nodes=["layers_[2-9]"])
    assert info == {"inserted": ["layers_2"]}


def test_a_shared_layer_gets_one_adapter(ready, row):
    same = nn.Linear(4, 4)
    graph = ready(row(same, nn.ReLU(), same))
    inserted = insert_lora_adapter_transform_pass(graph, rank=2)[1]["inserted"]
    assert inserted == ["layers_0", "layers_2"]
    assert sum(isinstance(module, LoRALinear) for module in graph.model.modules()) == 1
    assert verify_metadata_analysis_pass(graph)[1] == {}


def test_the_labs_messages_are_logged(ready, row, caplog):
    logging.getLogger("chop").propagate = True
    graph = ready(net(row))
    with caplog.at_level(logging.INFO, "chop"):
        insert_lora_adapter_transform_pass(graph, rank=2)
        fuse_lora_weights_transform_pass(graph)
    assert "Replaced node: layers_0, target: layers.0 with LoRALinear module." in caplog.text
    assert "Fusing LoRALinear weights for layers.0." in caplog.text


def test_a_quantized_layer_stays_quantized_beside_its_adapter_and_cannot_be_fused(ready, row):
    x = torch.randn(5, 4)
    graph = ready(net(row), x)
    quantize_transform_pass(graph, by="type", linear={"config": INTEGER})
    expected = graph.model(x)
    insert_lora_adapter_transform_pass(graph, rank=2)
    assert torch.equal(graph.model(x), expected)
    fitted(graph)
    with pytest.raises(ValueError, match=r"node 'layers_0': its base is a LinearInteger.*fuse bef"):
        fuse_lora_weights_transform_pass(graph)
    assert isinstance(graph.modules["layers.0"], LoRALinear)


def test_a_pruned_layer_cannot_be_fused_behind_its_mask(ready, row):
    graph = ready(net(row), torch.randn(5, 4))
    prune_transform_pass(graph, weight={"sparsity": 0.5})
    insert_lora_adapter_transform_pass(graph, rank=2)
    with pytest.raises(ValueError, match="make masks permanent first"):
        fuse_lora_weights_transform_pass(graph)


class Half(nn.Module):
    def forward(self, weight):
        return weight / 2


def test_a_parametrized_base_is_frozen_in_the_graph_alone_and_cannot_be_fused(ready, row):
    model = net(row)
    parametrize.register_parametrization(model.layers[0], "weight", Half())
    graph = ready(model)
    insert_lora_adapter_transform_pass(graph, rank=2)
    base = graph.modules["layers.0"].linear
    assert not any(p.requires_grad for p in base.parameters())
    assert all(p.requires_grad for p in model.parameters())
    with pytest.raises(ValueError, match="make masks permanent first"):
        fuse_lora_weights_transform_pass(graph)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "option 'rank' is 0, but it should be greater"),
        ({}, "needs the option 'rank'"),
        ({"rank": 1.5}, "option 'rank' is 1.5"),
        ({"rank": 2, "dropout": 1.0}, "option 'dropout' is 1.0, but it should be less than 1"),
        ({"rank": 2, "alpha": 1.0, "lora_alpha": 2.0}, "alpha = 1.0 and lora_alpha = 2.0 contra"),
        ({"rank": 2, "nodes": ["("]}, "not a regular expression"),
    ],
)
def test_bad_options_are_refused(ready, row, options, message):
    graph = ready(net(row))
    with pytest.raises((ValueError, TypeError), match=message):
        insert_lora_adapter_transform_pass(graph, options)
    assert isinstance(graph.modules["layers.0"], nn.Linear)


def test_copies_and_state_dicts_know_the_adapters(ready, row):
    x = torch.randn(5, 4)
    graph = ready(net(row), x)
    insert_lora_adapter_transform_pass(graph, rank=2)
    fitted(graph)
    copied = graph.clone()
    assert torch.equal(copied.model(x), graph.model(x))
    copied.model.load_state_dict(graph.model.state_dict())


class TestReport:
    def test_the_table_and_the_total_are_logged(self, row, caplog):
        logging.getLogger("chop").propagate = True
        with caplog.at_level(logging.INFO, "chop"):
            report_trainable_parameters_analysis_pass(net(row))
        assert "| Submodule   |   Trainable Parameters |" in caplog.text
        assert "Total Trainable Parameters: 64" in caplog.text

    def test_nested_and_shared_parameters_count_once(self, row):
        same = nn.Linear(4, 4)
        _, info = report_trainable_parameters_analysis_pass(row(same, same))
        assert info["trainable"] == 20
        assert info["submodules"] == {"layers": 20, "layers.0": 20}

    def test_depth_is_how_many_names_deep(self, row):
        _, info = report_trainable_parameters_analysis_pass(net(row), {"depth": 1})
        assert list(info["submodules"]) == ["layers"]
        with pytest.raises(ValueError, match="option 'depth' is 0"):
            report_trainable_parameters_analysis_pass(net(row), {"depth": 0})


def test_our_identity_takes_anything_and_gives_the_first():
    layer = Identity(3, out_features=4)
    assert layer(1, 2, mask=3) == 1


def test_base_and_adapter_are_counted_until_they_are_one(ready, row):
    x = torch.randn(5, 4)
    graph = ready(net(row), x)
    insert_lora_adapter_transform_pass(graph, rank=2)
    cost = cost_of(graph)
    first = cost["nodes"]["layers_0"]
    assert not cost["unknown"]
    assert first["macs"] == 5 * (4 * 8 + 4 * 2 + 2 * 8)
    assert first["parameters"] == 4 * 8 + 8 + 4 * 2 + 2 * 8
    assert first["flops"] == 2 * first["macs"] + 5 * (8 + 8 + 8)  # bias, scale, sum
    with torch.no_grad(), MacCounter() as counter:
        graph.model(x)
    assert (cost["total"]["macs"], cost["total"]["flops"]) == (counter.macs, counter.flops)
    fuse_lora_weights_transform_pass(graph)
    assert cost_of(graph)["nodes"]["layers_0"]["macs"] == 5 * 4 * 8


def test_a_quantized_base_counts_its_own_bits(ready, row):
    graph = ready(net(row), torch.randn(5, 4))
    quantize_transform_pass(graph, by="type", linear={"config": INTEGER})
    insert_lora_adapter_transform_pass(graph, rank=2)
    first = cost_of(graph)["nodes"]["layers_0"]
    assert first["weight_bits"] == 8 * (4 * 8 + 8) + 32 * (4 * 2 + 2 * 8)
    base, adapter = 5 * 4 * 8, 5 * (4 * 2 + 2 * 8)
    assert first["bit_ops_multiply"] == base * 8 * 8 + adapter * 32 * 32


def test_a_masked_base_counts_what_is_left(ready, row):
    graph = ready(net(row), torch.randn(5, 4))
    prune_transform_pass(graph, weight={"sparsity": 0.75})
    insert_lora_adapter_transform_pass(graph, rank=2)
    torch.nn.init.ones_(graph.modules["layers.0"].lora_b.weight)
    first = cost_of(graph, sparse=True)["nodes"]["layers_0"]
    assert first["macs"] == 5 * (4 * 8 // 4 + 4 * 2 + 2 * 8)


ADAPTED = r"pass '{}': node 'layers_0' has a LoRA adapter.*{} before insert_lora_adapter, or fuse_"


@pytest.mark.parametrize(
    "weight",
    [
        {"sparsity": 0.5},
        {"sparsity": {"linear": 0.5}, "by": "type"},
        {"sparsity": {"layers_0": 0.5}},
        {"sparsity": {"layers.0": 0.5}},
        {"sparsity": {"default": 0.5}},
        {"sparsity": {"layers_.*": 0.5}, "by": "regex_name"},
    ],
)
def test_pruning_does_not_pass_over_a_layer_with_an_adapter(ready, row, weight):
    graph = ready(net(row))
    insert_lora_adapter_transform_pass(graph, rank=2)
    with pytest.raises(ValueError, match=ADAPTED.format("prune", "prune")):
        prune_transform_pass(graph, weight=weight)
    with pytest.raises(ValueError, match=ADAPTED.format("prune_channels", "prune_channels")):
        prune_channels_transform_pass(graph, weight)


@pytest.mark.parametrize(
    "options",
    [
        {"by": "type", "default": {"config": INTEGER}},
        {"by": "type", "linear": {"config": INTEGER}},
        {"by": "name", "layers_0": {"config": INTEGER}},
        {"by": "regex_name", "layers_.*": {"config": INTEGER}},
    ],
)
def test_quantizing_does_not_pass_over_a_layer_with_an_adapter(ready, row, options):
    graph = ready(net(row))
    insert_lora_adapter_transform_pass(graph, rank=2)
    with pytest.raises(ValueError, match=ADAPTED.format("quantize", "quantize")):
        quantize_transform_pass(graph, options)


def test_a_layer_with_an_adapter_may_be_left_out(ready, row):
    graph = ready(net(row), torch.randn(5, 4))
    insert_lora_adapter_transform_pass(graph, rank=2, nodes=["layers_0"])
    prune_transform_pass(graph, weight={"sparsity": {"layers_2": 0.5}})
    options = {"linear": {"config": {"name": None}}, "default": {"config": INTEGER}}
    assert quantize_transform_pass(graph, by="type", **options)[1] == {"quantized": ["layers_1"]}
