"""Layers of tables and adapters come back from disk as they were, and go on from there."""

import json

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.ir.graph.meta_file import GraphFileError
from chop.passes import (
    fuse_lora_weights_transform_pass,
    insert_lora_adapter_transform_pass,
    load_mase_graph_interface_pass,
    logicnets_fusion_transform_pass,
    prune_transform_pass,
    quantize_transform_pass,
    save_mase_graph_interface_pass,
    verify_metadata_analysis_pass,
)

LOGIC = {"name": "logicnets", "fan_in": 3, "data_in_width": 2, "data_in_frac_width": 1}
LOGIC |= {"data_out_width": 4, "data_out_frac_width": 2, "weight_width": "NA"}
TABLES = {"name": "lutnet", "data_in_k": 2, "data_in_levels": 2}
PLAIN = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
PLAIN |= {"weight_width": 8, "weight_frac_width": 4}


def quantized(graph, config):
    quantize_transform_pass(graph, by="type", linear={"config": config}, conv2d={"config": config})


def logicnets(graph):
    quantized(graph, LOGIC)


def fused_logicnets(graph):
    logicnets(graph)
    assert logicnets_fusion_transform_pass(graph, {})[1]["fused"]


def lutnet(graph):
    quantized(graph, TABLES)


def binary_scaling(graph):
    operands = ("data_in", "weight")
    binary = {f"{o}_{k}": v for o in operands for k, v in {"width": 1, "stochastic": 0}.items()}
    quantized(graph, {"name": "binary_scaling", "data_in_bipolar": 1, "weight_bipolar": 1} | binary)


def pruned_binary_scaling(graph):
    pruned(graph)
    binary_scaling(graph)


def pruned(graph):
    weight = {"sparsity": 0.5, "method": "l1-norm", "scope": "local"}
    prune_transform_pass(graph, weight=weight)


def pruned_logicnets(graph):
    pruned(graph)
    fused_logicnets(graph)


def pruned_lutnet(graph):
    pruned(graph)
    lutnet(graph)


def lora(graph):
    insert_lora_adapter_transform_pass(graph, rank=2, alpha=4.0, dropout=0.1)
    for name, p in graph.model.named_parameters():
        if "lora_b" in name:
            nn.init.normal_(p)


def quantized_lora(graph):
    quantize_transform_pass(graph, by="type", linear={"config": PLAIN})
    lora(graph)


KINDS = [logicnets, fused_logicnets, pruned_logicnets, lutnet, pruned_lutnet, lora, quantized_lora]
KINDS += [binary_scaling, pruned_binary_scaling]


@pytest.fixture
def x():
    return torch.randn(4, 2, 6, 6)


@pytest.fixture
def graph(ready, row, x):
    layers = [nn.Conv2d(2, 4, 3, padding=1, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
    layers += [nn.Linear(36, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)]
    return ready(row(*layers).eval(), x)


def trained(model, x):
    """Some steps of training; the result in eval mode after them."""
    torch.manual_seed(1)
    model.train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).pow(2).sum().backward()
        optimizer.step()
    return model.eval()(x)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("change", KINDS)
def test_a_saved_graph_computes_trains_and_is_described_alike(graph, change, x, tmp_path):
    change(graph)
    expected = graph.model(x)
    save_mase_graph_interface_pass(graph, tmp_path / "graph")
    loaded = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert torch.equal(loaded.model(x), expected)
    kinds = [[type(m) for m in g.model.modules()][1:] for g in (loaded, graph)]
    assert kinds[0] == kinds[1]
    state, before = loaded.model.state_dict(), graph.model.state_dict()
    assert state.keys() == before.keys()
    assert all(torch.equal(state[key], before[key]) for key in state)
    trainable = [[p.requires_grad for p in g.model.parameters()] for g in (graph, loaded)]
    assert trainable[0] == trainable[1]
    assert verify_metadata_analysis_pass(loaded)[1] == {}
    after = trained(graph.model, x)
    assert torch.equal(trained(loaded.model, x), after)
    save_mase_graph_interface_pass(loaded, tmp_path / "graph")  # and once more, trained
    again, _ = load_mase_graph_interface_pass(loaded.clone(), tmp_path / "graph")
    assert torch.equal(again.model(x), after)
    assert not torch.equal(after, expected)


@pytest.mark.parametrize("change", [logicnets, fused_logicnets])
def test_tables_are_made_anew_and_not_saved(graph, change, x, tmp_path):
    change(graph)
    graph.model(x)
    layer = graph.modules["layers.0"]
    assert layer.tables.numel() > 0
    graph.export(tmp_path / "graph")
    text = (tmp_path / "graph" / "graph.json").read_text()
    assert "tables" not in text
    loaded = MaseGraph.from_checkpoint(tmp_path / "graph").modules["layers.0"]
    assert loaded.tables.numel() == 0
    assert loaded.is_fused == layer.is_fused
    loaded.calculate_truth_tables()
    assert torch.equal(loaded.tables, layer.tables)


def test_modes_of_looking_up_come_back(graph, x, tmp_path):
    lutnet(graph)
    graph.modules["layers.4"].is_lut_inference = False
    graph.export(tmp_path / "graph")
    loaded = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert not loaded.modules["layers.4"].is_lut_inference
    assert loaded.modules["layers.0"].is_lut_inference
    assert loaded.modules["layers.0"].formats == graph.modules["layers.0"].formats


def test_loaded_layers_can_be_fused(graph, x, tmp_path):
    logicnets(graph)
    graph.export(tmp_path / "logic")
    logicnets_fusion_transform_pass(graph, {})
    loaded = MaseGraph.from_checkpoint(tmp_path / "logic")
    logicnets_fusion_transform_pass(loaded, {})
    assert torch.equal(loaded.model(x), graph.model(x))


def test_loaded_adapters_can_be_fused(graph, x, tmp_path):
    lora(graph)
    graph.export(tmp_path / "lora")
    loaded = MaseGraph.from_checkpoint(tmp_path / "lora")
    for each in (graph, loaded):
        fuse_lora_weights_transform_pass(each)
    assert type(loaded.modules["layers.4"]) is nn.Linear
    assert loaded.modules["layers.4"].weight.requires_grad
    assert torch.equal(loaded.model(x), graph.model(x))


@pytest.mark.parametrize(
    ("change", "spoilt", "message"),
    [
        (logicnets, {"odd": 1}, "unknown key of logicnets 'odd'"),
        (logicnets, {"data_in_width": None}, "logicnets needs data_in_width"),
        (logicnets, {"data_in_width": 30}, r"its table would have 2\^90 entries"),
        (binary_scaling, {"odd": 1}, "unknown key of binary_scaling 'odd'"),
        (binary_scaling, {"weight_bipolar": 3}, "bipolar must be true or false"),
        (lutnet, {"odd": 1}, "unknown key of lutnet 'odd'"),
        (lutnet, {"data_in_k": 8}, r"the shape \[144, 4\]; it must be \[144, 256\]"),
    ],
)
def test_a_spoilt_config_is_refused(graph, change, spoilt, message, tmp_path):
    change(graph)
    graph.export(tmp_path / "graph")
    file = tmp_path / "graph" / "graph.json"
    content = json.loads(file.read_text())
    row = next(row for row in content["modules"] if row["name"] == "layers.0")
    row["attributes"]["config"] |= spoilt
    file.write_text(json.dumps(content))
    with pytest.raises(GraphFileError, match=f"is damaged: .*{message}"):
        MaseGraph.from_checkpoint(tmp_path / "graph")
