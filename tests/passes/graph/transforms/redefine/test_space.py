"""What can be chosen freely: never a contradiction, and nothing left out."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chop.passes.graph import redefine_transform_pass, verify_metadata_analysis_pass
from chop.passes.graph.transforms.redefine import repeatable_blocks, width_groups

DRAWN = settings(
    max_examples=settings.default.max_examples // 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
GROUPS = {
    "jsc": [["seq_blocks_2"], ["seq_blocks_4"]],
    "resnet": [
        ["conv1", "layer1_0_conv2", "layer1_1_conv2"],
        ["layer1_0_conv1"],
        ["layer1_1_conv1"],
    ],
    "plain": [["a"], ["b"], ["up"]],
    "concat": [["up"]],
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups_are_the_layers_of_one_width(parents, name):
    assert width_groups(parents(name).graph)[: len(GROUPS[name])] == GROUPS[name]


def test_groups_of_one_kind(parents):
    groups = width_groups(parents("vgg").graph, kinds=("linear",))
    assert groups == [["classifier_0"], ["classifier_2"]]


def test_blocks(parents):
    blocks = repeatable_blocks(parents("resnet").graph)
    assert blocks == ["layer1", "layer1.0", "layer1.1", "layer2.1", "layer3.1", "layer4.1"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["jsc", "vgg", "resnet", "concat", "plain"])
@DRAWN
@given(data=st.data())
def test_any_choice_of_widths_and_depths_is_a_network(parents, name, data):
    parent = parents(name)
    blocks = [b for b in repeatable_blocks(parent.graph) if b != "layer1"]
    depths = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(blocks, st.integers(0, 3))))
    members = [data.draw(st.sampled_from(group)) for group in width_groups(parent.graph)]
    gone = tuple(f"{block}.".replace(".", "_") for block, count in depths.items() if count == 0)
    widths = {m: data.draw(st.integers(1, 9)) for m in members if not m.startswith(gone)}
    config = {block: {"config": {"repeat": count}} for block, count in depths.items()}
    config |= {node: {"config": {"name": "both", "width": w}} for node, w in widths.items()}
    mg, info = redefine_transform_pass(parent.graph.clone(), config)
    verify_metadata_analysis_pass(mg, strict=True)
    assert mg.model(parent.x).shape == parent.y.shape
    assert all(info["widths"][node]["width"] == width for node, width in widths.items())


@pytest.mark.slow
@DRAWN
@given(data=st.data())
def test_a_deeper_and_wider_heir_equals_its_parent(parents, data):
    parent = parents("resnet")
    blocks = ["layer1.0", "layer1.1", "layer2.1", "layer4.1"]
    depths = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(blocks, st.integers(1, 3))))
    config = {block: {"config": {"repeat": count}} for block, count in depths.items()}
    for group in width_groups(parent.graph):
        factor = data.draw(st.sampled_from([1, 1.4, 2]))
        config[group[0]] = {"config": {"name": "both", "channel_multiplier": factor}}
    mg, info = redefine_transform_pass(parent.graph.clone(), {**config, "weights": "inherit"})
    torch.testing.assert_close(mg.model(parent.x), parent.y, rtol=1e-9, atol=1e-9)
    assert info["fresh"] == []
