"""Any choice of widths gives a network that runs; a wider one that inherits is its parent."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from chop.passes.graph import (
    cost_analysis_pass,
    redefine_transform_pass,
    verify_metadata_analysis_pass,
)

NETS = ["jsc", "vgg", "resnet", "concat", "plain"]
DRAWN = settings(
    max_examples=settings.default.max_examples // 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
FREE = {
    "jsc": ["seq_blocks_2", "seq_blocks_4"],
    "vgg": [f"feature_layers_{i}" for i in (0, 3, 7, 10, 14, 17)]
    + ["classifier_0", "classifier_2"],
    # one of each stage: what it is added to follows
    "resnet": [
        *("conv1", "layer1_0_conv1", "layer1_1_conv1", "layer2_0_conv1", "layer2_0_conv2"),
        *("layer3_0_downsample_0", "layer3_1_conv1", "layer4_1_conv2", "layer4_0_conv1"),
    ],
    "concat": ["up"],
    "plain": ["a", "b", "up"],
}


def redefined(parent, config, **options):
    mg = parent.graph.clone()
    mg, info = redefine_transform_pass(mg, {**config, **options})
    verify_metadata_analysis_pass(mg, strict=True)
    out = mg.model(parent.x)
    assert out.shape == parent.y.shape
    assert torch.isfinite(out).all()
    return mg, info, out


def check_sizes(mg, info, config):
    """Layers have the widths that were asked for, and cost counts the parameters that are there."""
    for name, table in config.items():
        asked, original = table["config"], info["widths"][name]["original"]
        wanted = asked.get("width") or max(1, round(original * asked["channel_multiplier"]))
        assert info["widths"][name]["width"] == wanted
    counted = cost_analysis_pass(mg)[1]["total"]["parameters"]
    assert counted == sum(p.numel() for p in mg.model.parameters())


def tables(choices):
    return {name: {"config": {"name": "both", **choice}} for name, choice in choices.items()}


def choices(name, multipliers, widths):
    choice = st.one_of(
        st.sampled_from(multipliers).map(lambda m: {"channel_multiplier": m}),
        widths.map(lambda w: {"width": w}),
    )
    return st.fixed_dictionaries({}, optional=dict.fromkeys(FREE[name], choice)).map(tables)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NETS)
@DRAWN
@given(data=st.data())
def test_any_choice_runs(parents, name, data):
    parent = parents(name)
    config = data.draw(choices(name, [0.25, 0.5, 1, 1.5, 2, 3], st.integers(1, 40)))
    for weights in ("fresh", "inherit"):
        mg, info, _ = redefined(parent, config, weights=weights)
        check_sizes(mg, info, config)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NETS)
@DRAWN
@given(data=st.data(), seed=st.integers(0, 3))
def test_a_wider_heir_equals_its_parent(parents, name, data, seed):
    parent = parents(name)
    config = data.draw(choices(name, [1, 1.5, 2, 3, 4.3], st.integers(64, 70)))
    state = {key: value.clone() for key, value in parent.model.state_dict().items()}
    _, info, out = redefined(parent, config, weights="inherit", seed=seed)
    torch.testing.assert_close(out, parent.y, rtol=1e-9, atol=1e-9)
    assert info["fresh"] == []
    for key, value in parent.model.state_dict().items():
        assert torch.equal(value, state[key])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("factor", [2, 3])
def test_all_layers_by_type_at_once(parents, name, factor):
    parent = parents(name)
    wider = {"config": {"name": "both", "channel_multiplier": factor}}
    _, info, out = redefined(parent, {"default": wider}, weights="inherit")
    torch.testing.assert_close(out, parent.y, rtol=1e-9, atol=1e-9)
    last = [n for n, row in info["widths"].items() if n in info["kept"]]
    assert last, "the last layer keeps its width, and the info says so"
    changed = [row for n, row in info["widths"].items() if n not in info["kept"]]
    assert all(row["width"] == factor * row["original"] for row in changed)


def test_copies_of_a_channel_learn_different_things(parents):
    wider = tables({"seq_blocks_2": {"channel_multiplier": 2}})
    mg, _, _ = redefined(parents("jsc"), wider, weights="inherit")
    mg.model(parents("jsc").x).square().sum().backward()
    grad = mg.modules["seq_blocks.2"].weight.grad
    assert torch.equal(mg.modules["seq_blocks.2"].weight[0], mg.modules["seq_blocks.2"].weight[1])
    alive = grad[0].abs().sum() + grad[1].abs().sum() > 0
    assert not alive or not torch.allclose(grad[0], grad[1])


def test_the_least_important_channels_go(make_graph):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.diag(torch.tensor([3.0, -1, 0.5, 2])))
    mg = make_graph(model, torch.randn(2, 4))
    mg, _ = redefine_transform_pass(mg, {"_0": {"width": 2}, "weights": "inherit"})
    assert torch.equal(mg.modules["0"].weight, model[0].weight[[0, 3]])
    assert torch.equal(mg.modules["2"].weight, model[2].weight[:, [0, 3]])
