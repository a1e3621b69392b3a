"""Depth: blocks that are there several times, or not at all."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes import PassArgsError
from chop.passes.graph import (
    cost_analysis_pass,
    redefine_linear_transform_pass,
    redefine_transform_pass,
    verify_metadata_analysis_pass,
)


def depth(mg, **repeats):
    return redefine_transform_pass(mg, {k: {"config": {"repeat": n}} for k, n in repeats.items()})


def named(mg, part):
    return [node.name for node in mg.nodes if part in node.name]


def check(mg, parent, same=False):
    verify_metadata_analysis_pass(mg, strict=True)
    mg.fx_graph.lint()
    out = mg.model(parent.x)
    assert out.shape == parent.y.shape
    if same:
        torch.testing.assert_close(out, parent.y, rtol=1e-9, atol=1e-9)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("weights", ["fresh", "inherit"])
def test_a_residual_block_is_repeated(parents, weights):
    parent = parents("resnet")
    config = {"layer1.1": {"config": {"repeat": 3}}, "weights": weights}
    mg, info = redefine_transform_pass(parent.graph.clone(), config)
    check(mg, parent, same=weights == "inherit")
    convs = [name for name in named(mg, "layer1_1") if "conv1" in name]
    assert convs == ["layer1_1_conv1", "layer1_1_repeat1_conv1", "layer1_1_repeat2_conv1"]
    learnt = ("conv1", "bn1", "conv2", "bn2")
    copies = [f"layer1_1_repeat{i}_{name}" for i in (1, 2) for name in learnt]
    assert info["fresh"] == (copies if weights == "fresh" else [])
    assert info["repeats"] == {"layer1.1": 3}
    assert not any(module.training for module in mg.model.modules())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("key", ["layer1.1", "layer1_1"])
def test_a_block_is_skipped_by_either_name(parents, key):
    parent = parents("resnet")
    mg, _ = depth(parent.graph.clone(), **{key: 0})
    check(mg, parent)
    assert named(mg, "layer1_1") == []
    assert "layer1.1" not in mg.modules
    without = parent.model.layer1[1]
    before = sum(p.numel() for p in parent.model.parameters())
    counted = cost_analysis_pass(mg)[1]["total"]["parameters"]
    assert counted == before - sum(p.numel() for p in without.parameters())


@pytest.mark.slow
def test_skipping_is_what_the_code_without_the_block_computes(parents):
    parent = parents("resnet")
    mg, _ = depth(parent.graph.clone(), **{"layer3.1": 0})
    model = parent.model
    x = model.maxpool(model.relu(model.bn1(model.conv1(parent.x))))
    x = model.layer4(model.layer3[0](model.layer2(model.layer1(x))))
    expected = model.fc(torch.flatten(model.avgpool(x), 1))
    torch.testing.assert_close(mg.model(parent.x), expected)


def test_a_layer_is_a_block_of_its_own_and_copies_have_its_width(parents):
    parent = parents("jsc")
    config = {"seq_blocks_4": {"config": {"name": "both", "channel_multiplier": 2, "repeat": 3}}}
    mg, info = redefine_linear_transform_pass(
        parent.graph.clone(), {**config, "weights": "inherit"}
    )
    check(mg, parent, same=True)
    shapes = [mg.modules[f"seq_blocks.4{i}"].weight.shape for i in ("", "_repeat1", "_repeat2")]
    assert shapes == [(32, 16), (32, 32), (32, 32)]
    assert info["fresh"] == []


@pytest.mark.slow
def test_depth_and_width_change_together_and_again(parents, tmp_path):
    parent = parents("resnet")
    config = {"layer1.1": {"config": {"repeat": 2}}, "weights": "inherit"}
    config["layer1_1_conv1"] = {"config": {"name": "both", "channel_multiplier": 2}}
    config["conv1"] = {"config": {"name": "both", "width": 5}}
    mg, info = redefine_transform_pass(parent.graph.clone(), config)
    check(mg, parent, same=True)
    assert info["widths"]["layer1_1_repeat1_conv1"] == {"original": 3, "width": 6}
    assert info["widths"]["layer1_1_repeat1_conv2"]["width"] == 5
    loaded = MaseGraph.from_checkpoint(mg.export(tmp_path / "mz"))
    again, info = redefine_transform_pass(loaded, config)
    check(again, parent, same=True)
    assert len(named(again, "layer1_1_repeat")) == len(named(mg, "layer1_1_repeat"))
    more, _ = depth(again.clone(), **{"layer1.1": 3})
    assert "layer1.1_repeat2" in more.modules
    check(more, parent)
    less, info = depth(again, **{"layer1.1": 1})
    check(less, parent)
    assert named(less, "repeat") == []
    assert "layer1.1_repeat1" not in less.modules
    assert info["repeats"] == {"layer1.1": 1}
    gone, _ = depth(less, **{"layer1.1": 0})
    with pytest.raises(PassArgsError, match=r"'layer1.1' was skipped before and is gone"):
        depth(gone, **{"layer1.1": 1})
    again, _ = depth(gone, **{"layer1.1": 0})
    check(again, parent)


class Blocks(nn.Module):
    """A block that ends in an addition, one that is a chain, and a strange one."""

    class Added(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.conv = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x):
            return x + self.conv(F.relu(self.norm(x)))

    def __init__(self):
        super().__init__()
        self.stem, self.added = nn.Conv2d(3, 4, 1), self.Added()
        same = nn.Conv2d(4, 4, 3, padding="same", bias=False)
        self.chain = nn.Sequential(same, nn.BatchNorm2d(4), nn.ReLU())
        self.strange = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Tanh())
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        return self.head(self.strange(self.chain(self.added(self.stem(x)))))


@pytest.fixture
def blocks(make_graph):
    torch.manual_seed(0)
    model, x = Blocks().double().eval(), torch.randn(2, 3, 4, 4).double()
    for norm in (model.added.norm, model.chain[1]):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        nn.init.normal_(norm.bias)
    return model, x, make_graph(model, x)


@pytest.mark.parametrize(
    ("name", "preserved"), [("added", True), ("chain", True), ("strange", False)]
)
def test_copies_that_inherit_change_nothing_where_that_can_be(blocks, name, preserved):
    model, x, mg = blocks
    config = {name: {"config": {"repeat": 2}}, "weights": "inherit"}
    mg, info = redefine_transform_pass(mg, config)
    verify_metadata_analysis_pass(mg, strict=True)
    same = torch.allclose(mg.model(x), model(x), rtol=1e-9, atol=1e-9)
    assert same is preserved
    assert info["fresh"] == ([] if preserved else ["strange_repeat1_0"])


def test_a_block_that_ends_in_an_addition_is_skipped_with_it(blocks):
    model, x, mg = blocks
    mg, _ = depth(mg, added=0)
    expected = model.head(model.strange(model.chain(model.stem(x))))
    torch.testing.assert_close(mg.model(x), expected)


def test_blocks_that_change_shapes_are_refused(parents, blocks):
    for name in ("layer2.0", "fc", "layer2.0.conv1"):
        with pytest.raises(PassArgsError, match=f"'{name}' takes .* keeps its shape"):
            depth(parents("resnet").graph.clone(), **{name: 2})
    config = {"chain": {"config": {"name": "both", "width": 3}}}
    with pytest.raises(PassArgsError, match="is a block of several layers, which takes repeat"):
        redefine_transform_pass(blocks[2], config)
    with pytest.raises(PassArgsError, match=r"unknown node 'layer1.2'"):
        depth(parents("resnet").graph.clone(), **{"layer1.2": 2})


def test_a_block_with_several_inputs_is_refused(make_graph, calls):
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, y):
            return self.a(x) * self.b(y)

    net = calls(lambda self, x: self.gate(x, self.first(x)), first=nn.Linear(4, 4), gate=Gate())
    mg = make_graph(net, torch.randn(2, 4))
    with pytest.raises(PassArgsError, match="'gate' has 2 inputs and 2 results"):
        depth(mg, gate=2)


def test_a_block_inside_a_skipped_one_is_refused(parents):
    graph = parents("vgg").graph.clone()
    config = {"feature_layers_3": 0, "feature_layers.3": 0}
    mg, _ = depth(graph.clone(), **config)
    assert "feature_layers.3" not in mg.modules
    resnet = parents("resnet").graph.clone()
    with pytest.raises(PassArgsError, match=r"'layer1.1' is inside one that is skipped"):
        depth(resnet, **{"layer1": 0, "layer1.1": 2})
    assert "layer1.1" in resnet.modules


@pytest.mark.parametrize("inplace", [False, True])
def test_skipping_never_lets_a_node_overwrite_what_others_read(make_graph, calls, inplace):
    def forward(self, x):
        x = self.a(x)
        return self.act(self.b(x)) + x

    layers = {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "act": nn.ReLU(inplace)}
    model, x = calls(forward, **layers), torch.randn(2, 4)
    mg = make_graph(model, x)
    if inplace:
        message = r"'act' works in place .* 'add' reads; set its inpl"
        with pytest.raises(PassArgsError, match=message):
            depth(mg, b=0)
    else:
        mg, _ = depth(mg, b=0)
        y = model.a(x)
        torch.testing.assert_close(mg.model(x), F.relu(y) + y)


def test_blocks_that_were_not_named_are_repeated_where_that_can_be(parents):
    parent = parents("vgg")
    config = {"by": "type", "conv2d": {"config": {"repeat": 2}}, "weights": "inherit"}
    mg, info = redefine_transform_pass(parent.graph.clone(), config)
    check(mg, parent, same=True)
    assert named(mg, "repeat") == [f"feature_layers_{i}_repeat1" for i in (3, 10, 17)]
    assert info["repeats"] == {f"feature_layers.{i}": 2 for i in (3, 10, 17)}
    assert "keeps its shape" in info["kept"]["feature_layers_7"]
