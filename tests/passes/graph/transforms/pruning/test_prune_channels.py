"""prune_channels: shapes really shrink, and what comes out is what the masked network gives."""

import copy
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.dataset import MaseDatasetInfo
from chop.ir.graph.mase_graph import MaseGraph
from chop.models import get_model
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    prune_channels_transform_pass,
    prune_transform_pass,
    quantize_transform_pass,
    verify_metadata_analysis_pass,
)
from chop.passes.graph.transforms.pruning import masks_of

PICTURES = MaseDatasetInfo(name="cifar10", image_size=(3, 32, 32), num_classes=10)
X = torch.randn(2, 3, 8, 8, dtype=torch.double, generator=torch.Generator().manual_seed(0))


def ready(model, x=X):
    mg, _ = init_metadata_analysis_pass(MaseGraph(model.double()))
    name = mg.inputs[0].target
    return add_common_metadata_analysis_pass(mg, {"dummy_in": {name: x}, "add_value": False})[0]


def trained_like(model):
    """Norms that do something, as after training."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    return model.eval()


def silenced(model, removed):
    """The same network, in which the removed channels are 0 from layer to layer."""
    model = copy.deepcopy(model)
    for target, gone in removed.items():
        module = model.get_submodule(target)
        if isinstance(module, nn.ConvTranspose2d):
            rows = module.weight.data.unflatten(0, (module.groups, -1))  # group, in, out, …
            for channel in gone:
                group, place = divmod(channel, rows.shape[2])
                rows[group, :, place] = 0
        elif module.weight is not None:
            module.weight.data[gone] = 0
        if getattr(module, "bias", None) is not None:
            module.bias.data[gone] = 0
    return model


def check(model, x=X, **options):
    """Prune, compare with the silenced network, and return graph and info."""
    model = trained_like(model.double())
    state = {key: value.clone() for key, value in model.state_dict().items()}
    mg = ready(model, x)
    mg, info = prune_channels_transform_pass(mg, options or {"sparsity": 0.5})
    expected = silenced(model, info["removed"])(x)
    torch.testing.assert_close(mg.model(x), expected, rtol=1e-9, atol=1e-9)
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), "the model that was traced has changed"
    verify_metadata_analysis_pass(mg, strict=True)
    return mg, info


def size(model):
    return sum(p.numel() for p in model.parameters())


class Calls(nn.Module):
    """A network written as a function of itself."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.call = forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x):
        return self.call(self, x)


def conv(a, b, k=3, **options):
    return nn.Conv2d(a, b, k, padding=k // 2, **options)


def test_a_chain_shrinks_layer_norm_and_consumer():
    model = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 6))
    mg, info = check(model)
    first, norm, last = (mg.modules[name] for name in "013")
    assert (first.out_channels, norm.num_features, last.in_channels) == (4, 4, 4)
    assert first.weight.shape == (4, 3, 3, 3)
    assert norm.running_var.shape == (4,)
    assert last.weight.shape == (6, 4, 3, 3)
    assert info["channels"]["_0"] == {"requested": 0.5, "reached": 0.5, "pruned": 4, "total": 8}
    assert info["kept"] == {"3": "node 'output' gives them away as results"}


def test_the_weakest_channels_go():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.diag(torch.tensor([3.0, -1, 0.5, 2])))
    _, info = check(model, torch.randn(3, 4, dtype=torch.double))
    assert info["removed"] == {"0": [1, 2]}


def residual(self, x):
    y = F.relu(self.a(x))
    return self.head(self.bn(self.c(F.relu(self.b(y)))) + y)


def concatenation(self, x):
    y = torch.cat([self.a(x), x, F.max_pool2d(self.b(x), 3, 1, 1)], dim=1)
    return self.head(F.relu(y))


def mobile(self, x):
    y = F.relu6(self.a(x))
    y = self.gate(y.mean((2, 3), keepdim=True)).sigmoid() * F.hardswish(self.b(y))
    return self.head(self.prelu(y))


def flattened(self, x):
    y = F.avg_pool2d(F.relu(self.a(x)), 4)
    return self.head(F.relu(self.b(y.view(-1, 32))))


def sized(self, x):
    y = F.relu(self.a(x))
    return self.head(y.view(y.size(0), -1))


def turned(self, x):
    y = F.pad(self.a(x), (1, 1, 1, 1)).permute(0, 2, 3, 1)
    y = F.gelu(self.b(y)).transpose(1, 3)
    return self.head(F.interpolate(y, scale_factor=2))


def twice(self, x):
    y = self.b(F.relu(self.b(self.a(x))))
    return self.head(y)


def upwards(self, x):
    return self.head(F.relu(self.up(torch.tanh(self.a(x)))).flatten(2).sum(-1))


def in_groups(self, x):
    return self.head(F.relu(self.b(F.relu(self.bn(self.a(x))))))


def split_up(self, x):
    one, other = torch.split(F.relu(self.a(x)), 4, 1)
    return self.head(torch.cat([self.b(one), other], 1))


def gated(self, x):
    value, gate = self.a(x).chunk(2, dim=1)
    return self.head(value * gate.sigmoid())


def split_elsewhere(self, x):
    top, bottom = self.a(x).split([3, 5], dim=2)
    return self.head(torch.cat([bottom, top], 2))


def normed_in_groups(self, x):
    return self.head(F.relu(self.norm(self.a(x))))


UP = nn.ConvTranspose2d
FIRST = {"a": conv(3, 8)}
NORMED = {"a": conv(3, 8), "bn": nn.BatchNorm2d(8)}
NETS = {
    "in groups": (in_groups, {**NORMED, "b": conv(8, 12, groups=2)}, conv(12, 2)),
    "upwards in groups": (in_groups, {**NORMED, "b": UP(8, 12, 2, groups=2)}, conv(12, 2)),
    "upwards by channel": (in_groups, {**NORMED, "b": UP(8, 16, 2, groups=8)}, conv(16, 2)),
    "groups of the input": (
        lambda self, x: self.head(F.relu(self.a(x))),
        {"a": conv(3, 12, groups=3)},
        conv(12, 2, groups=2),
    ),
    "split up": (split_up, {**FIRST, "b": conv(4, 6)}, conv(10, 2)),
    "gated": (gated, {"a": conv(3, 16)}, conv(8, 2)),
    "split elsewhere": (split_elsewhere, FIRST, conv(8, 2)),
    "normed in groups": (normed_in_groups, {**FIRST, "norm": nn.GroupNorm(4, 8)}, conv(8, 2)),
    "normed behind": (normed_in_groups, {**FIRST, "norm": nn.LayerNorm([8, 8])}, conv(8, 2)),
    "residual": (residual, {**NORMED, "b": conv(8, 5), "c": conv(5, 8)}, conv(8, 2)),
    "concatenation": (concatenation, {"a": conv(3, 4), "b": conv(3, 6)}, conv(13, 2)),
    "mobile": (
        mobile,
        {"a": conv(3, 6), "b": conv(6, 6, groups=6), "gate": conv(6, 6, 1), "prelu": nn.PReLU(6)},
        conv(6, 2),
    ),
    "flattened": (flattened, {**FIRST, "b": nn.Linear(32, 6)}, nn.Linear(6, 2)),
    "sized": (sized, FIRST, nn.Linear(512, 2)),
    "turned": (turned, {**FIRST, "b": nn.Linear(8, 6)}, conv(6, 2)),
    "twice": (twice, {**FIRST, "b": conv(8, 8)}, conv(8, 2)),
    "upwards": (upwards, {**FIRST, "up": UP(8, 6, 2, stride=2)}, nn.Linear(6, 2)),
}


def net(name):
    forward, layers, head = copy.deepcopy(NETS[name])
    return Calls(forward, **layers, head=head)


@pytest.mark.sampled(21)
@pytest.mark.parametrize("method", ["l1-norm", "l2-norm", "random"])
@pytest.mark.parametrize("scope", ["local", "global"])
@pytest.mark.parametrize("name", NETS)
def test_shapes_shrink_through(name, scope, method):
    model = net(name)
    mg, info = check(model, sparsity=0.5, scope=scope, method=method, seed=3)
    assert size(mg.model) < size(model)
    assert "head" not in info["removed"]
    if scope == "local":
        asked = [row for key, row in info["channels"].items() if key in NETS[name][1]]
        assert all(row["reached"] == pytest.approx(0.5, abs=0.11) for row in asked)


def test_groups_lose_the_same_places():
    mg, info = check(net("in groups"))
    grouped = mg.modules["b"]
    assert (grouped.in_channels, grouped.out_channels, grouped.groups) == (4, 6, 2)
    assert grouped.weight.shape == (6, 2, 3, 3)
    lost = info["removed"]["b"]
    assert [place + 6 for place in lost[:3]] == lost[3:]


def test_a_norm_of_groups_loses_whole_groups():
    mg, info = check(net("normed in groups"))
    assert (mg.modules["norm"].num_groups, mg.modules["norm"].num_channels) == (2, 4)
    lost = info["removed"]["a"]
    assert [a // 2 for a in lost[::2]] == [b // 2 for b in lost[1::2]]


def test_parts_may_differ_and_none_is_empty():
    model = net("split up")
    with torch.no_grad():
        model.a.weight[:4] *= 100
    mg, info = check(model, sparsity={"a": 0.9}, method="l1-norm")
    sizes = next(node.args[1] for node in mg.nodes if "split" in node.name)
    assert sizes == [1, 1]
    assert info["channels"]["a"]["pruned"] == 6


def test_a_batch_norm_as_a_function_shrinks_with_its_tensors():
    def normed(self, x):
        bn = self.bn
        y = F.batch_norm(self.a(x), bn.running_mean, bn.running_var, bn.weight, bn.bias)
        return self.head(F.relu(y))

    model = trained_like(Calls(normed, a=conv(3, 8), bn=nn.BatchNorm2d(8), head=conv(8, 2)))
    mg, info = prune_channels_transform_pass(ready(model), sparsity=0.5)
    gone = info["removed"]["a"]
    assert len(gone) == 4
    expected = silenced(model, {"a": gone, "bn": gone})(X)
    torch.testing.assert_close(mg.model(X), expected, rtol=1e-9, atol=1e-9)
    assert mg.modules["bn"].running_var.shape == (4,)
    assert model.bn.weight.shape == (8,)
    verify_metadata_analysis_pass(mg, strict=True)


@pytest.mark.parametrize("name", ["concatenation", "flattened", "sized", "twice"])
def test_where_arithmetic_is_exact_outputs_are_equal_bit_for_bit(name):
    torch.manual_seed(0)
    model = net(name).double().eval()
    for parameter in model.parameters():
        parameter.data = torch.randint(-3, 4, parameter.shape).double()
    x = torch.randint(-4, 5, X.shape).double()
    mg, info = prune_channels_transform_pass(ready(model, x), sparsity=0.5, method="l2-norm")
    assert info["removed"]
    assert torch.equal(mg.model(x), silenced(model, info["removed"])(x))


def test_tied_channels_go_together():
    _, info = check(net("residual"))
    assert info["removed"]["a"] == info["removed"]["c"] == info["removed"]["bn"]


def test_a_follower_of_a_named_layer_shrinks_with_it():
    _, info = check(net("residual"), sparsity={"a": 0.25})
    assert info["removed"].keys() == {"a", "c", "bn"}
    assert info["channels"]["c"]["requested"] is None
    assert info["channels"]["c"]["reached"] == 0.25


def test_the_code_of_a_view_follows():
    mg, _ = check(net("flattened"), sparsity={"a": 0.5})
    view = next(node for node in mg.nodes if node.target == "view")
    assert view.args[1:] == (-1, 16)
    assert mg.modules["b"].in_features == 16


def test_sparsity_0_removes_nothing_and_1_leaves_one_channel():
    mg, info = check(net("residual"), sparsity=0.0)
    assert info["removed"] == {}
    mg, info = check(net("residual"), sparsity=1.0)
    assert [mg.modules[name].out_channels for name in "abc"] == [1, 1, 1]


def random_net(seed):
    """Blocks in a random order: plain, residual, dense, depthwise, gated, pooled."""
    draw = random.Random(seed)
    layers, steps, width = {}, [], 3

    def layer(module):
        layers[f"m{len(layers)}"] = module
        return f"m{len(layers) - 1}"

    def plain(new):
        nonlocal width
        steps.append(("chain", [layer(conv(width, new)), layer(nn.BatchNorm2d(new))]))
        width = new

    plain(draw.randint(2, 7))
    for _ in range(draw.randint(2, 5)):
        kind = draw.choice(["plain", "residual", "dense", "depthwise", "gate", "pool"])
        if kind == "plain":
            plain(draw.randint(2, 7))
        elif kind == "residual":
            steps.append(("residual", [layer(conv(width, 4)), layer(conv(4, width))]))
        elif kind == "dense":
            new = draw.randint(1, 4)
            steps.append(("dense", [layer(conv(width, new))]))
            width += new
        elif kind == "depthwise":
            times = draw.randint(1, 2)
            names = [layer(conv(width, width * times, groups=width))]
            width *= times
            steps.append(("chain", [*names, layer(nn.BatchNorm2d(width))]))
        elif kind == "gate":
            steps.append(("gate", [layer(conv(width, 3, 1)), layer(conv(3, width, 1))]))
        else:
            steps.append(("chain", [layer(nn.MaxPool2d(3, 1, 1))]))
    end = draw.choice(["mean", "flatten"])
    inner = layer(nn.Linear(width * (64 if end == "flatten" else 1), 6))
    outer = layer(nn.Linear(6, 3))

    def forward(self, x):
        for kind, names in steps:
            first, *others = (self.get_submodule(name) for name in names)
            y = F.relu(first(x.mean((2, 3), keepdim=True) if kind == "gate" else x))
            for other in others:
                y = other(y)
            if kind == "chain":
                x = F.relu(y)
            elif kind == "residual":
                x = x + y
            elif kind == "dense":
                x = torch.cat([x, y], 1)
            else:
                x = x * y.sigmoid()
        x = x.flatten(1) if end == "flatten" else x.mean((2, 3))
        return self.get_submodule(outer)(F.relu(self.get_submodule(inner)(x)))

    torch.manual_seed(seed)
    return Calls(forward, **layers)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(25))
def test_random_networks_give_what_their_masked_selves_give(seed):
    model = random_net(seed)
    scope = "global" if seed % 2 else "local"
    mg, info = check(model, sparsity=0.4, scope=scope)
    assert info["removed"]
    assert size(mg.model) < size(model)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgg7", "resnet18", "mobilenetv2", "mobilenetv3_small"])
def test_the_networks_of_the_registry_shrink(name):
    torch.manual_seed(0)
    model = get_model(name, dataset_info=PICTURES)
    x = torch.randn(2, 3, 32, 32, dtype=torch.double)
    mg, info = check(model, x, sparsity=0.5)
    assert size(mg.model) < 0.4 * size(model)
    assert all(row["reached"] > 0.3 for row in list(info["channels"].values())[:-1])


@pytest.mark.slow
def test_hidden_neurons_of_a_transformer_shrink():
    model = get_model("vit_tiny_patch4_32", dataset_info=PICTURES)
    x = torch.randn(1, 3, 32, 32, dtype=torch.double)
    mg, info = check(model, x, sparsity=0.5)
    assert info["removed"]
    assert mg.model(x).shape == (1, 10)


def test_a_masked_and_quantized_network_shrinks_with_its_masks():
    model = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 6)).eval()
    mg = ready(model)
    wish = {"sparsity": 0.5, "granularity": "channel", "method": "l1-norm"}
    prune_transform_pass(mg, weight={**wish, "sparsity": {"0": 0.5}})
    integer = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
    integer |= {"weight_width": 8, "weight_frac_width": 4}
    quantize_transform_pass(mg, {"by": "type", "conv2d": {"config": integer}})
    with torch.no_grad():
        mg.model(X)
        gone = ~masks_of(mg.modules["0"])["weight"].flatten(1).any(1)
        _, info = prune_channels_transform_pass(mg, sparsity=0.5)
        assert info["removed"]["0"] == gone.nonzero().flatten().tolist()
        assert masks_of(mg.modules["0"])["weight"].all()
        assert type(mg.modules["0"]).__name__ == "Conv2dInteger"
        assert mg.modules["3"].weight.shape == (6, 4, 3, 3)
        assert mg.model(X).shape == (2, 6, 8, 8)


def test_a_smaller_network_trains():
    mg, _ = check(net("residual"))
    mg.model.train()(X).square().mean().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in mg.model.parameters())
    assert mg.clone().model.get_submodule("a").out_channels == 4


def normed(self, x):
    return self.head(self.norm(self.a(x)))


def counted(self, x):
    y = self.a(x)
    return self.head(y / y.shape[1])


class Own(nn.Module):
    """Numbers of a batch norm that something else reads as well."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(6))

    def m(self):
        return self.bias.sum()


REFUSED = {
    "one group": (normed, {"norm": nn.GroupNorm(1, 6)}, "node 'norm' normalises over all of them"),
    "layer norm": (normed, {"norm": nn.LayerNorm([6, 8, 8])}, "node 'norm' normalises over them"),
    "tensors of others": (
        lambda self, x: self.head(F.batch_norm(self.a(x), self.n.bias, self.n.weight) + self.n.m()),
        {"n": Own()},
        "node 'batch_norm' normalises them by 'n_bias', which others read or make",
    ),
    "unpacked parts": (
        lambda self, x: self.head(torch.cat(self.a(x).chunk(2, 1), 1)),
        {},
        "node 'chunk' cuts them into parts that are not taken one by one",
    ),
    "input": (
        lambda self, x: self.head(self.a(x) + x.repeat(1, 2, 1, 1)),
        {},
        "node 'add' combines them with 'repeat'",
    ),
    "softmax": (
        lambda self, x: self.head(self.a(x).softmax(1)),
        {},
        "node 'softmax' \\(softmax\\) has no rule",
    ),
    "count": (counted, {}, "node 'getattr_1' reads how many there are"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_shrink_is_refused_with_both_nodes_named(name):
    forward, layers, message = REFUSED[name]
    model = Calls(forward, a=conv(3, 6), **copy.deepcopy(layers), head=conv(6, 2))
    mg = ready(model)
    with pytest.raises(ValueError, match=f"channels of node 'a' cannot be removed, as {message}"):
        prune_channels_transform_pass(mg, sparsity={"a": 0.5})
    _, info = prune_channels_transform_pass(mg, sparsity=0.5)
    assert info["removed"] == {}
    assert "a" in info["kept"]


def test_the_last_layer_and_a_depthwise_one_are_refused_by_name():
    mg = ready(net("mobile"))
    with pytest.raises(ValueError, match="'head' cannot be removed, as node 'output' gives them"):
        prune_channels_transform_pass(mg, sparsity={"head": 0.5})
    with pytest.raises(ValueError, match="'b' returns the channels that it takes; name the layer"):
        prune_channels_transform_pass(mg, sparsity={"b": 0.5})


@pytest.mark.parametrize("layer", [conv(3, 3, groups=3), nn.ConvTranspose2d(3, 6, 1, groups=3)])
def test_single_channels_of_the_input_stay(layer):
    model = Calls(lambda self, x: self.head(self.a(x)), a=layer, head=conv(layer.out_channels, 2))
    message = "node 'a' convolves in 3 groups of one channel each; leave"
    with pytest.raises(ValueError, match=message):
        prune_channels_transform_pass(ready(model), sparsity={"a": 0.5})


def test_shared_parameters_keep_their_shape():
    model = Calls(lambda self, x: self.head(self.b(self.a(x))), a=conv(3, 3), b=conv(3, 3))
    model.head = conv(3, 2)
    model.b.weight = model.a.weight
    with pytest.raises(ValueError, match="shares a parameter with others"):
        prune_channels_transform_pass(ready(model), sparsity={"a": 0.5})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option 'sparsity'"),
        ({"sparsity": 1.5}, "sparsity is 1.5; give a number from 0 to 1"),
        ({"sparsity": {"a": 0.5, "c": 0.25}}, "nodes 'a' and 'c' give channels that are added"),
        ({"sparsity": 0.5, "method": "l1"}, "unknown method 'l1'"),
        ({"sparsity": {"aa": 0.5}}, "unknown node 'aa'"),
        ({"sparsity": {"a": 0.5}, "scope": "global"}, "Layer-wise budgets only possible"),
    ],
)
def test_bad_options_are_refused_before_anything_changes(options, message):
    mg = ready(net("residual"))
    before = [p.shape for p in mg.model.parameters()]
    with pytest.raises((TypeError, ValueError, KeyError), match=message):
        prune_channels_transform_pass(mg, options)
    assert [p.shape for p in mg.model.parameters()] == before


class FromDict(nn.Module):
    """Reads images and a list of two tables from one dictionary."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.rows = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3), nn.Linear(5, 4)

    def forward(self, batch):
        image = self.second(torch.relu(self.first(batch["image"]))).mean((2, 3))
        return image + self.rows(batch["tables"][1])


@pytest.mark.parametrize("values", [True, False])
def test_inputs_nested_in_a_dictionary_stay_nested(values, tmp_path):
    batch = {"image": torch.randn(2, 3, 8, 8), "tables": [torch.randn(2, 7), torch.randn(2, 5)]}
    graph = MaseGraph(trained_like(FromDict()).eval())
    graph, _ = init_metadata_analysis_pass(graph)
    options = {"dummy_in": {"batch": batch}, "add_value": values}
    graph, _ = add_common_metadata_analysis_pass(graph, options)
    again = MaseGraph.from_checkpoint(graph.export(tmp_path / "graph"))
    for each in (graph, again):
        prune_channels_transform_pass(each, {"sparsity": 0.5})
        assert each.model.first.out_channels == 4
        results = next(iter(each.inputs)).meta["mase"]["common"]["results"]
        assert [meta["shape"] for meta in results.values()] == [[2, 3, 8, 8], [2, 7], [2, 5]]
        assert each.model(batch).shape == (2, 4)
