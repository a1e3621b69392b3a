"""The pass `deploy`: what it replaces, what it leaves alone and says, and saved graphs."""

import logging
from typing import get_args

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.methods.deploy.layers import DeployedLinear, FP8Linear, Int8Linear
from chop.onnx.targets import ExportFormat
from chop.passes import PassArgsError, Pipeline
from chop.passes.graph import (
    cost_analysis_pass,
    deploy_transform_pass,
    insert_lora_adapter_transform_pass,
    prune_transform_pass,
    quantize_transform_pass,
    to_integer_graph_transform_pass,
    verify_metadata_analysis_pass,
)
from chop.passes.graph.interface.export_onnx.model import onnx_model

FIXED = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
FIXED |= {"weight_width": 8, "weight_frac_width": 6, "bias_width": 8, "bias_frac_width": 6}
FP8 = {"name": "fp8", "data_in_exponent_width": 4, "data_in_frac_width": 3}
FP8 |= {"weight_exponent_width": 4, "weight_frac_width": 3}
AFFINE = {"name": "affine", "data_in_width": 8, "data_in_scale": 0.03, "weight_width": 8}
AFFINE |= {"weight_axis": 0, "weight_zero_point": "calibrated"}
X = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.act = nn.Conv2d(3, 10, 3), nn.ReLU()
        self.first, self.head = nn.Linear(10, 24), nn.Linear(24, 5)

    def forward(self, x):
        return self.head(self.act(self.first(self.act(self.conv(x)).mean((2, 3)))))


def traced(model=None, x=X):
    torch.manual_seed(0)
    graph = MaseGraph((Net() if model is None else model).eval())
    name = next(iter(graph.nodes)).target
    describe = ("add_common_metadata", {"dummy_in": {name: x}})
    more = ["add_software_metadata", "add_hardware_metadata"]
    return Pipeline(["init_metadata", describe, *more])(graph)[0]


def quantized(config=FIXED, ops=("linear",), **by_name):
    graph = traced()
    chosen = {op: {"config": config} for op in ops}
    quantize_transform_pass(graph, {"by": "type", **chosen})
    if by_name:
        named = {name: {"config": change} for name, change in by_name.items()}
        quantize_transform_pass(graph, {"by": "name", **named})
    return graph


@torch.no_grad()
@pytest.mark.parametrize(
    ("config", "target", "kind"),
    [
        (FIXED, "cuda-int8", Int8Linear),
        (AFFINE, "cuda-int8", Int8Linear),
        (FP8, "cuda-fp8", FP8Linear),
    ],
)
def test_a_deployed_graph_computes_the_same_and_can_be_saved(config, target, kind, tmp_path):
    graph = quantized(config)
    want, before = graph.model(X), cost_analysis_pass(graph)[1]["total"]
    graph, info = deploy_transform_pass(graph, {"target": target})
    assert info["deployed"] == ["first", "head"]
    assert [type(graph.modules[name]) for name in ("first", "head")] == [kind, kind]
    got = graph.model(X)
    torch.testing.assert_close(got, want)
    assert verify_metadata_analysis_pass(graph)[1] == {}
    after = cost_analysis_pass(graph)[1]["total"]
    same = ("macs", "flops", "parameters", "bit_ops")
    assert {key: after[key] for key in same} == {key: before[key] for key in same}

    graph.export(tmp_path / "graph")
    again = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert torch.equal(again.model(X), got)
    assert again.modules["first"].weight.dtype.itemsize == 1
    assert again.modules["first"].formats == graph.modules["first"].formats
    assert torch.equal(graph.clone().model(X), got)


def test_weights_take_less_memory():
    _, info = deploy_transform_pass(quantized(), {"target": "cuda-int8"})
    assert info["bytes"]["first"] == {"before": 4 * 264, "after": 240 + 4 * (24 + 24)}


def test_every_layer_that_stays_is_named_with_a_reason(caplog):
    graph = quantized(FIXED, ("linear", "conv2d"), first=FIXED | {"data_in_width": 12})
    before = graph.modules["first"]
    with caplog.at_level(logging.WARNING):
        graph, info = deploy_transform_pass(graph, {"target": "cuda-int8"})
    assert info["deployed"] == ["head"]
    assert graph.modules["first"] is before
    twelve = "its data_in has 12 bits, and the kernel takes 8; quantise it to at most 8 bits"
    assert info["skipped"] == {
        "conv": "it is Conv2d; only linear layers have kernels",
        "first": twelve,
    }
    assert "node 'conv' is not deployed to cuda-int8: it is Conv2d" in caplog.text
    assert "node 'first' is not deployed to cuda-int8: its data_in has 12 bits" in caplog.text
    if not torch.cuda.is_available():
        assert "torch finds no CUDA device: layers deployed to cuda-int8 run by" in caplog.text


def test_layers_of_floats_of_16_bits_are_refused_with_a_reason():
    floats = {"name": "float"} | {f"{name}_width": 16 for name in ("data_in", "weight", "bias")}
    with pytest.raises(PassArgsError, match="node 'first': it is float; quantise it to fp8"):
        deploy_transform_pass(quantized(floats), {"target": "cuda-fp8"})


def test_chosen_nodes_are_deployed_or_refused():
    graph = quantized()
    graph, info = deploy_transform_pass(graph, {"target": "cuda-int8", "nodes": ["head"]})
    assert info["deployed"] == ["head"]
    assert info["skipped"]["first"] == "it is not among the chosen nodes"
    with pytest.raises(PassArgsError, match="node 'conv': it is in float; quantise it first"):
        deploy_transform_pass(graph, {"target": "cuda-int8", "nodes": ["conv"]})
    assert not isinstance(graph.modules["first"], DeployedLinear)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (["missing.*"], r"unknown node matching 'missing\.\*' \(known: x, conv,"),
        (["act"], r"none of the chosen nodes \(act\) has weights; .* such as first"),
    ],
)
def test_chosen_nodes_must_exist_and_have_weights(nodes, message):
    with pytest.raises((ValueError, LookupError), match=message):
        deploy_transform_pass(quantized(), {"target": "cuda-int8", "nodes": nodes})


@pytest.mark.parametrize(
    ("change", "target", "message"),
    [
        (
            None,
            "cuda-int8",
            "no layer can be deployed to cuda-int8: node 'first': it is in float; qu",
        ),
        (FIXED, "cuda-fp8", r"no layer can be deployed to cuda-fp8: .* \(and 2 more\)"),
    ],
)
def test_a_graph_without_such_layers_is_refused(change, target, message):
    graph = traced() if change is None else quantized(change)
    with pytest.raises(PassArgsError, match=message):
        deploy_transform_pass(graph, {"target": target})
    assert verify_metadata_analysis_pass(graph)[1] == {}


def test_a_layer_that_is_called_twice_stays_one_layer():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            return self.fc(torch.relu(self.fc(x)))

    x = torch.randn(2, 8)
    graph = traced(Twice(), x)
    quantize_transform_pass(graph, {"by": "type", "linear": {"config": FIXED}})
    want = graph.model(x)
    graph, info = deploy_transform_pass(graph, {"target": "cuda-int8"})
    assert info["deployed"] == ["fc", "fc_1"]
    assert torch.equal(graph.model(x), want)


def test_adapters_and_functions_have_a_reason():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            return self.second(nn.functional.linear(self.first(x), self.weight))

    graph = traced(Functional(), torch.randn(2, 8))
    quantize_transform_pass(graph, {"by": "name", "second": {"config": FIXED}})
    insert_lora_adapter_transform_pass(graph, {"rank": 2, "nodes": ["first"]})
    _, info = deploy_transform_pass(graph, {"target": "cuda-int8"})
    assert info["deployed"] == ["second"]
    assert info["skipped"]["first"].startswith("it has a LoRA adapter; run fuse_lora_weights")
    assert info["skipped"]["linear"] == "it calls linear as a function; use nn.Linear"


def test_pruned_weights_stay_zero():
    graph = traced()
    weight = {"sparsity": 0.5, "method": "l1-norm", "scope": "local"}
    prune_transform_pass(graph, {"weight": weight, "activation": {"sparsity": 0.0}})
    quantize_transform_pass(graph, {"by": "type", "linear": {"config": FIXED}})
    want = graph.model(X)
    graph, info = deploy_transform_pass(graph, {"target": "cuda-int8"})
    if info["deployed"]:
        assert torch.equal(graph.model(X), want)
        assert int((graph.modules["first"].weight == 0).sum()) >= 120


@torch.no_grad()
def test_results_in_bfloat16_are_recorded():
    graph = quantized()
    want = graph.model(X)
    graph, _ = deploy_transform_pass(graph, {"target": "cuda-int8", "output": "bfloat16"})
    got = graph.model(X)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), want, atol=2e-2, rtol=2e-2)
    act = next(node for node in graph.nodes if node.name == "act_1")
    assert mase(act).common.results.tensor("data_out_0").torch_dtype == torch.bfloat16
    assert verify_metadata_analysis_pass(graph)[1] == {}


def test_a_network_that_does_not_take_bfloat16_stays_as_it_is():
    graph = quantized()
    before = graph.modules["first"]
    options = {"target": "cuda-int8", "output": "bfloat16", "nodes": ["first"]}
    quantize_transform_pass(graph, {"by": "name", "head": {"config": FP8 | {"bypass": True}}})
    with pytest.raises(PassArgsError, match="does not take results in bfloat16: node 'head'"):
        deploy_transform_pass(graph, options)
    assert graph.modules["first"] is before
    assert verify_metadata_analysis_pass(graph)[1] == {}
    assert graph.model(X).dtype == torch.float32


def test_a_deployed_layer_is_not_quantised_or_converted_again():
    graph = quantized(FIXED, ("linear", "conv2d", "relu"))
    graph, _ = deploy_transform_pass(graph, {"target": "cuda-int8"})
    with pytest.raises(PassArgsError, match=r"head.*deployed_linear, which cannot be quantised"):
        quantize_transform_pass(graph, {"by": "name", "head": {"config": FIXED}})
    refused = "'first' is deployed_linear, .* \\(and 1 more\\); use the quantised graph"
    with pytest.raises(PassArgsError, match=refused):
        to_integer_graph_transform_pass(graph, {"silent": True})
    for kind in get_args(ExportFormat):
        with pytest.raises(PassArgsError, match=refused):
            onnx_model(graph, kind)


@pytest.mark.parametrize("options", [{"target": "cuda-fp8"}, {"output": "bfloat16"}])
def test_a_deployed_layer_keeps_its_target_and_its_results(options, caplog):
    graph, _ = deploy_transform_pass(quantized(), {"target": "cuda-int8"})
    graph, info = deploy_transform_pass(graph, {"target": "cuda-int8"})
    assert info["deployed"] == []
    assert info["skipped"].keys() == {"conv"}
    options = {"target": "cuda-int8", **options}
    graph, info = deploy_transform_pass(graph, options)
    assert info["deployed"] == []
    assert "was deployed to cuda-int8 with output = 'float32' already" in info["skipped"]["head"]
    with pytest.raises(PassArgsError, match="node 'head': it was deployed to cuda-int8"):
        deploy_transform_pass(graph, options | {"nodes": ["head"]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "cuda-int4"}, "target.*cuda-int8"),
        ({"target": "cuda-int8", "output": "int8"}, "output.*float32"),
        ({}, "target"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        deploy_transform_pass(quantized(), options)
