"""gptq, adaround and correct_bias: quantised layers come nearer to the float network."""

import itertools
import logging

import pytest
import torch
from torch import nn

import chop.numerics
from chop.ir import MaseGraph
from chop.ir.ops import TransposedLinear
from chop.passes import PASSES, PassArgsError, Pipeline
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized, layer_for, variant

REPAIRS = ("gptq", "adaround", "correct_bias")
ROUNDINGS = {"gptq": {}, "adaround": {"iterations": 40, "batch_size": 128}}
NO_PROFILE = {f"{o}_{k}": None for o in ("data_in", "weight") for k in ("mean", "median", "max")}


def both(**keys):
    """The same keys for inputs and weights."""
    return {f"{operand}_{k}": v for operand in ("data_in", "weight") for k, v in keys.items()}


INPUTS = {"data_in_width": 8, "data_in_frac_width": 4}
INTEGER = {"name": "integer", **INPUTS, "weight_width": 4, "weight_frac_width": 4}
INTEGER |= {"bias_width": 16, "bias_frac_width": 10}
AFFINE = {"name": "affine", "data_in_width": 8, "data_in_scale": 0.05, "weight_width": 4}
EQUAL_STEPS = {
    "integer": INTEGER,
    "integer floor": INTEGER | {"weight_rounding": "floor"},
    "integer up wrap": INTEGER | {"weight_rounding": "up", "weight_overflow": "wrap"},
    "integer symmetric": INTEGER | {"weight_overflow": "symmetric"},
    "affine": AFFINE,
    "affine axis": AFFINE | {"weight_axis": 0, "weight_symmetric": True},
    "affine zero point": AFFINE | {"weight_axis": 0, "weight_zero_point": "calibrated"},
    "affine power of two": AFFINE | {"weight_axis": 0, "weight_power_of_two": True},
}
OTHER_STEPS = {
    "block_fp": {"name": "block_fp", **both(width=4, exponent_width=8, block_size=[4])}
    | {"data_in_exponent_bias": None, "weight_exponent_bias": None},
    "block_log": {"name": "block_log", **both(width=4, exponent_bias_width=8, block_size=[4])},
    "block_minifloat": {"name": "block_minifloat"}
    | both(width=5, exponent_width=2, exponent_bias_width=8, block_size=[4]),
    "mxint": {"name": "mxint", **both(width=4, block_size=[4])},
    "mxint ocp": {"name": "mxint", **both(width=4, block_size=[4], ocp=True)},
    "mxfp": {"name": "mxfp", **both(exponent_width=2, frac_width=1, block_size=[4])},
    "scale_integer": {"name": "scale_integer", **both(width=4)},
    "scale_integer symmetric": {"name": "scale_integer", **both(width=4, symmetric=True)},
    "minifloat_ieee": {"name": "minifloat_ieee"} | both(width=6, exponent_width=4, exponent_bias=7),
    "minifloat_denorm": {"name": "minifloat_denorm"}
    | both(width=6, exponent_width=4, exponent_bias=7),
    "log": {"name": "log", **both(width=5, exponent_bias=12)},
    "fp8": {"name": "fp8", **both(exponent_width=5, frac_width=2)},
    "ternary": {"name": "ternary", **both(width=2, scaling_factor=True), **NO_PROFILE},
    "binary": {"name": "binary", **both(width=1, stochastic=False, bipolar=True, scaled=True)},
}
FORMATS = EQUAL_STEPS | OTHER_STEPS


def prepared(model, x):
    steps = ["init_metadata", ("add_common_metadata", {"dummy_in": {"input": x[:2]}})]
    return Pipeline([*steps, "add_software_metadata"])(MaseGraph(model))[0]


def quantized(model, x, config):
    """The graph of a model with all its layers quantised."""
    if isinstance(next(model.children()), TransposedLinear):
        cls = variant(layer_for(TransposedLinear), chop.numerics.FORMATS[config["name"]])
        return prepared(nn.Sequential(cls.from_float(model[0], config)).eval(), x)
    mg = prepared(model.eval(), x)
    chosen = {n.name: {"config": config} for n in mg.nodes if has_weight(mg, n)}
    return PASSES["quantize"](mg, {"by": "name", **chosen})[0]


def has_weight(mg, node):
    return node.op == "call_module" and getattr(mg.modules[node.target], "weight", None) is not None


def layers_of(mg):
    return [m for m in mg.model.modules() if isinstance(m, Quantized)]


def batches(x, size=32):
    return [{"input": batch} for batch in x.split(size)]


def correlated(*shape, seed=1):
    """Seeded numbers that are like their neighbours along the last dimension, as inputs are."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator)
    return (x + 2 * x.roll(1, -1) + 0.5).relu()


def error(mg, model, x):
    with torch.no_grad():
        return (mg.model(x) - model(x)).square().mean().item()


@pytest.fixture
def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 6)), correlated(128, 16)


def repaired(name, mg, x, **options):
    given = ROUNDINGS.get(name, {}) | options
    return PASSES[name](mg, {"input_generator": batches(x), "num_samples": len(x)} | given)


class TestRounding:
    @pytest.mark.parametrize(
        ("name", "fmt"),
        [("gptq", fmt) for fmt in FORMATS] + [("adaround", fmt) for fmt in EQUAL_STEPS],
    )
    @pytest.mark.sampled(8)
    def test_results_come_nearer_to_the_float_ones(self, name, fmt, linear):
        model, x = linear
        mg = quantized(model, x, FORMATS[fmt])
        before = error(mg, model, x)
        mg, info = repaired(name, mg, x)
        assert error(mg, model, x) < before
        assert info["errors"]["_0"]["after"] < info["errors"]["_0"]["before"]

    @pytest.mark.parametrize(
        ("name", "fmt"),
        [("gptq", fmt) for fmt in FORMATS] + [("adaround", fmt) for fmt in EQUAL_STEPS],
    )
    @pytest.mark.sampled(8)
    def test_rounding_again_changes_nothing(self, name, fmt, linear):
        model, x = linear
        mg = repaired(name, quantized(model, x, FORMATS[fmt]), x)[0]
        (layer,) = layers_of(mg)
        rounded = layer.q("weight", layer.weight)
        same = rounded == layer.weight
        if fmt in ("mxint", "scale_integer"):  # where even a rounded weight is rounded again
            largest = layer.weight.abs() == layer.weight.abs().amax(-1, keepdim=True)
            assert bool((same | largest | (fmt == "mxint")).all())
            assert same.float().mean() > 0.7
        else:
            assert bool(same.all())
        with torch.no_grad():
            assert torch.equal(layer.get_quantized_weight(), rounded)

    @pytest.mark.parametrize("name", ROUNDINGS)
    @pytest.mark.parametrize(
        ("layer", "shape"),
        [
            (nn.Linear(8, 4, bias=False), (64, 3, 8)),
            (TransposedLinear(4, 8), (64, 8)),
            (nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (32, 4, 9)),
            (nn.Conv2d(4, 6, (3, 2), padding="same", dilation=(2, 1)), (16, 4, 6, 7)),
            (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular", groups=4), (16, 4, 6, 6)),
            (nn.Conv3d(2, 4, 2, padding=(1, 0, 1)), (8, 2, 4, 4, 4)),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
    )
    @pytest.mark.filterwarnings("ignore:Using padding='same'")
    @pytest.mark.sampled(6)
    def test_every_kind_of_layer(self, name, layer, shape):
        torch.manual_seed(3)
        for parameter in layer.parameters():
            parameter.data.normal_(0, 0.2)
        model, x = nn.Sequential(layer), correlated(*shape)
        mg = quantized(model, x, INTEGER)
        before = error(mg, model, x)
        mg, _ = repaired(name, mg, x)
        assert error(mg, model, x) < before
        assert torch.equal(layers_of(mg)[0].get_quantized_weight(), layers_of(mg)[0].weight)

    def test_gptq_is_plain_rounding_for_inputs_without_correlation(self):
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(8, 5)), torch.eye(8).repeat(4, 1) * 3
        mg = quantized(model, x, INTEGER)
        mg, info = repaired("gptq", mg, x)
        weight = model[0].weight.detach()
        assert torch.equal(layers_of(mg)[0].weight, layers_of(mg)[0].q("weight", weight))
        assert info["errors"]["_0"]["after"] == info["errors"]["_0"]["before"]

    @pytest.mark.parametrize("activation", [nn.Identity(), nn.ReLU()])
    @pytest.mark.parametrize("seed", [pytest.param(n, marks=pytest.mark.slow) for n in range(5)])
    def test_adaround_is_near_the_best_of_all_roundings(self, activation, seed):
        torch.manual_seed(seed)
        model, x = nn.Sequential(nn.Linear(8, 1), activation), correlated(256, 8)
        model[0].weight.data /= 2
        mg = quantized(model, x, INTEGER)
        (layer,) = layers_of(mg)
        weight, step = model[0].weight.detach(), 2.0**-4
        below = (weight / step).floor()
        rounded, bias = layer.q("data_in", x), layer.q("bias", model[0].bias.detach())
        wanted = model(x).detach()
        tried = torch.tensor([*itertools.product((0.0, 1.0), repeat=8)]).add(below) * step
        errors = (activation(rounded @ tried.T + bias) - wanted).square().mean(0)
        plain = error(mg, model, x)
        mg, _ = repaired("adaround", mg, x, iterations=1000)
        assert error(mg, model, x) <= errors.min() + 0.05 * (plain - errors.min())

    def test_adaround_aims_at_the_result_of_the_activation_function(self):
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(12, 4), nn.ReLU()), correlated(256, 12)
        model[0].bias.data.fill_(-100.0)  # all sums are negative, where any rounding will do
        _, info = repaired("adaround", quantized(model, x, INTEGER), x, iterations=2)
        assert info["errors"]["_0"] == {"before": 0.0, "after": 0.0}

    @pytest.mark.parametrize("name", ROUNDINGS)
    def test_pruned_weights_stay_zero(self, name, linear):
        model, x = linear
        mg = PASSES["prune"](prepared(model.eval(), x), weight={"sparsity": 0.5})[0]
        mg = PASSES["quantize"](mg, {"by": "type", "linear": {"config": INTEGER}})[0]
        (layer,) = layers_of(mg)
        mask = layer.get_buffer("weight_mask")
        before = (mg.model(x) - pruned_linear(model, mask)(x)).square().mean().item()
        mg, _ = repaired(name, mg, x)
        (layer,) = layers_of(mg)
        assert torch.equal(layer.get_buffer("weight_mask"), mask)
        assert not layer.get_quantized_weight()[~mask].any()
        after = (mg.model(x) - pruned_linear(model, mask)(x)).square().mean().item()
        assert after < before

    @pytest.mark.parametrize(
        "options",
        [
            {"block_size": 1},
            {"block_size": 3, "act_order": False},
            {"block_size": 1000, "damping": 1.0},
            {"asymmetric": False},
        ],
    )
    def test_options_of_gptq(self, options, linear):
        model, x = linear
        mg = quantized(model, x, INTEGER)
        before = error(mg, model, x)
        assert error(repaired("gptq", mg, x, **options)[0], model, x) < before

    def test_the_blocks_of_gptq_do_not_change_the_result(self, linear):
        model, x = linear
        weights = [
            layers_of(repaired("gptq", quantized(model, x, INTEGER), x, block_size=size)[0])[0]
            for size in (1, 5, 128)
        ]
        assert torch.equal(weights[0].weight, weights[1].weight)
        assert torch.equal(weights[0].weight, weights[2].weight)


def pruned_linear(model, mask):
    """The pruned float layer as a function."""
    layer = model[0]
    return lambda x: x @ torch.where(mask, layer.weight, 0.0).T + layer.bias


class TestCorrectBias:
    @pytest.mark.parametrize("config", [INTEGER, AFFINE, AFFINE | {"weight_axis": 0}])
    @pytest.mark.parametrize(
        ("layer", "shape"),
        [
            (nn.Linear(8, 4, bias=False), (64, 3, 8)),
            (TransposedLinear(4, 8), (64, 8)),
            (nn.Conv2d(3, 4, 3, bias=False), (16, 3, 6, 6)),
            (nn.ConvTranspose1d(4, 6, 3, groups=2), (16, 4, 6)),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
    )
    @pytest.mark.sampled(4)
    def test_the_mean_results_become_those_of_the_float_layer(self, layer, shape, config):
        model, x = nn.Sequential(layer), correlated(*shape)
        if isinstance(layer, nn.ConvTranspose1d) and "weight_axis" in config:
            config = config | {"weight_axis": 1}
        if isinstance(layer, TransposedLinear) and "weight_axis" in config:
            config = config | {"weight_axis": 1}
        mg, info = repaired("correct_bias", quantized(model, x, config), x)
        dim = -1 if isinstance(layer, nn.Linear | TransposedLinear) else 1
        with torch.no_grad():
            gap = (mg.model(x) - model(x)).movedim(dim, 0).flatten(1).mean(1)
        assert gap.abs().max() < 2e-3  # half a step of the bias
        assert info["corrections"]["_0"] > 2.0**-10
        (repaired_layer,) = layers_of(mg)
        assert torch.equal(repaired_layer.q("bias", repaired_layer.bias), repaired_layer.bias)
        assert PASSES["verify_metadata"](mg)[1] == {}

    def test_the_float_model_has_no_bias_afterwards(self):
        model, x = nn.Sequential(nn.Linear(8, 4, bias=False)), correlated(16, 8)
        repaired("correct_bias", quantized(model, x, INTEGER), x)
        assert model[0].bias is None


class Net(nn.Module):
    """Two branches, an in-place activation, and a layer that is called twice."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.relu, self.again = nn.ReLU(inplace=True), nn.Linear(6, 6)
        self.head = nn.Linear(6, 5)

    def forward(self, input):
        x = self.relu(self.first(input))
        x = (self.second(x) + x).mean((2, 3))
        return self.head(self.again(torch.relu(self.again(x))))


@pytest.fixture
def net():
    torch.manual_seed(2)
    return Net().eval(), correlated(48, 3, 6, 6)


@pytest.mark.parametrize("name", REPAIRS)
class TestEveryRepair:
    def test_a_network_comes_nearer_to_the_float_one(self, name, net):
        model, x = net
        mg = quantized(model, x, INTEGER | {"weight_frac_width": 3})
        before = error(mg, model, x)
        mg, info = repaired(name, mg, x)
        assert error(mg, model, x) < before
        changed = info["corrected" if name == "correct_bias" else "repaired"]
        assert changed == ["first", "second", "again", "head"]
        assert PASSES["verify_metadata"](mg)[1] == {}

    def test_nothing_else_changes(self, name, net):
        model, x = net
        weights = {key: value.clone() for key, value in model.state_dict().items()}
        mg = quantized(model, x, INTEGER)
        other = mg.clone()
        kept = {key: value.clone() for key, value in other.model.state_dict().items()}
        mg.model.train()
        random_state = torch.get_rng_state()
        repaired(name, mg, x)
        assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
        assert all(torch.equal(v, kept[key]) for key, v in other.model.state_dict().items())
        assert all(module.training for module in mg.model.modules())
        assert torch.equal(torch.get_rng_state(), random_state)
        assert all(p.requires_grad for p in mg.model.parameters())

    @pytest.mark.sampled(1)
    def test_the_same_seed_gives_the_same_weights(self, name, net):
        model, x = net
        first, second = (
            repaired(name, quantized(model, x, INTEGER), x)[0].model.state_dict() for _ in range(2)
        )
        assert all(torch.equal(value, second[key]) for key, value in first.items())

    @pytest.mark.sampled(1)
    def test_a_saved_graph_computes_the_same(self, name, net, tmp_path):
        model, x = net
        mg, _ = repaired(name, quantized(model, x, AFFINE | {"weight_axis": 0}), x)
        mg.export(tmp_path / "graph")
        loaded = MaseGraph.from_checkpoint(tmp_path / "graph")
        with torch.no_grad():
            assert torch.equal(loaded.model(x), mg.model(x))

    @pytest.mark.sampled(1)
    def test_only_the_chosen_layers_change(self, name, net):
        model, x = net
        mg = quantized(model, x, INTEGER)
        before = {key: value.clone() for key, value in mg.model.state_dict().items()}
        mg, _ = repaired(name, mg, x, by="regex_name", nodes=["sec.*", "head"])
        changed = {
            key.partition(".")[0]
            for key, value in mg.model.state_dict().items()
            if key not in before or not torch.equal(value, before[key])
        }
        assert changed == {"second", "head"}

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"input_generator": None}, "needs an input_generator to run the network on data"),
            ({"input_generator": 3}, "not int"),
            ({"input_generator": []}, "yields no batches"),
            ({"input_generator": [{"input": torch.full((2, 3, 6, 6), torch.nan)}]}, "yields NaN"),
            ({"input_generator": [{"x": torch.ones(2, 3, 6, 6)}]}, "unknown input 'x'"),
            ({"input_generator": [{"input": torch.ones(2, 7, 6, 6)}]}, "node 'first'"),
            ({"nodes": ["hed"]}, "did you mean 'head'"),
            ({"nodes": ["relu"]}, "node 'relu' is not a quantised linear layer"),
            ({"by": "type", "nodes": ["relu"]}, "run the pass 'quantize' before it"),
            ({"num_samples": 0}, "greater than or equal to 1"),
        ],
    )
    @pytest.mark.sampled(10)
    def test_what_it_cannot_do_is_refused_and_nothing_changes(self, name, net, options, sentence):
        model, x = net
        mg = quantized(model, x, INTEGER)
        before = {key: value.clone() for key, value in mg.model.state_dict().items()}
        given = {"input_generator": batches(x), "num_samples": 2} | options
        with pytest.raises((PassArgsError, KeyError), match=sentence):
            PASSES[name](mg, given)
        after = mg.model.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(value, after[key]) for key, value in before.items())

    def test_a_quantised_layer_of_another_kind_is_named(self, name):
        x = torch.randn(2, 3)
        config = {k: v for k, v in INTEGER.items() if k == "name" or k.startswith("data_in")}
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        options = {"by": "type", "linear": {"config": INTEGER}, "relu": {"config": config}}
        mg, _ = PASSES["quantize"](prepared(model, x), options)
        text = f"node '_1' is relu, not a linear layer or convolution; {name} repairs only these"
        with pytest.raises(PassArgsError, match=text):
            repaired(name, mg, x, nodes=["_1"])

    def test_a_float_graph_is_refused(self, name, net):
        model, x = net
        with pytest.raises(PassArgsError, match="run the pass 'quantize' before it"):
            repaired(name, prepared(model, x), x)

    @pytest.mark.sampled(1)
    def test_fewer_samples_than_requested_are_enough(self, name, net, caplog):
        model, x = net
        mg = quantized(model, x, INTEGER)
        with caplog.at_level(logging.WARNING):
            repaired(name, mg, x, num_samples=100)
        assert "The data ended after 48 of the 100 requested samples" in caplog.messages


class TestRefused:
    def test_adaround_needs_equal_steps(self, linear):
        model, x = linear
        mg = quantized(model, x, OTHER_STEPS["mxint"])
        with pytest.raises(PassArgsError, match="has weights in mxint, where steps are not equal"):
            repaired("adaround", mg, x)

    @pytest.mark.parametrize("name", ROUNDINGS)
    def test_transposed_convolutions(self, name):
        model, x = nn.Sequential(nn.ConvTranspose1d(4, 6, 3)), correlated(8, 4, 6)
        with pytest.raises(PassArgsError, match="node '_0' is a transposed convolution"):
            repaired(name, quantized(model, x, INTEGER), x, nodes=["_0"])

    def test_gptq_needs_a_format_that_is_not_random(self, linear):
        model, x = linear
        config = OTHER_STEPS["binary"] | {"weight_stochastic": True}
        with pytest.raises(PassArgsError, match="rounds at random"):
            repaired("gptq", quantized(model, x, config), x)

    @pytest.mark.parametrize("name", REPAIRS)
    def test_bypassed_layers(self, name, linear):
        model, x = linear
        with pytest.raises(PassArgsError, match="is bypassed and computes in float"):
            repaired(name, quantized(model, x, INTEGER | {"bypass": True}), x)

    def test_layers_that_cannot_be_repaired_are_skipped_beside_others(self, net, caplog):
        model, x = net
        mg = quantized(model, x, INTEGER)
        config = {"config": OTHER_STEPS["mxint"]}
        mg = PASSES["quantize"](mg, {"by": "name", "head": config})[0]
        with caplog.at_level(logging.WARNING):
            _, info = repaired("adaround", mg, x)
        assert list(info["skipped"]) == ["head"]
        assert "has weights in mxint" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("name", REPAIRS)
def test_little_memory_gives_the_same_result(name, net, monkeypatch):
    from chop.passes.graph.transforms.repair import layer_inputs

    model, x = net
    whole = repaired(name, quantized(model, x, INTEGER), x)[0].model.state_dict()
    monkeypatch.setattr(layer_inputs, "KEPT_BYTES", 0)
    scarce = repaired(name, quantized(model, x, INTEGER), x)[0].model.state_dict()
    assert all(torch.equal(value, scarce[key]) for key, value in whole.items())


@pytest.mark.parametrize("name", REPAIRS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.sampled(2)
def test_other_dtypes(name, dtype, linear):
    model, x = linear[0].to(dtype), linear[1].to(dtype)
    mg = quantized(model, x, INTEGER)
    before = error(mg, model, x)
    mg, _ = repaired(name, mg, x)
    assert error(mg, model, x) <= before
    assert {p.dtype for p in mg.model.parameters()} == {dtype}


@pytest.mark.slow
@pytest.mark.parametrize("name", REPAIRS)
def test_an_exported_network(name, net):
    model, x = net
    mg = MaseGraph(model, front_end="export", dummy_in={"input": x[:2]})
    steps = ["init_metadata", ("add_common_metadata", {"dummy_in": {"input": x[:2]}})]
    mg = Pipeline(steps)(mg)[0]
    config = {"config": INTEGER}
    mg = PASSES["quantize"](mg, {"by": "type", "linear": config, "conv2d": config})[0]
    before = error(mg, model, x)
    mg, _ = repaired(name, mg, x)
    assert error(mg, model, x) < before


@pytest.mark.slow
@pytest.mark.parametrize("name", REPAIRS)
def test_layers_of_transformers_with_transposed_weights(name, package):
    conv1d = package("transformers").pytorch_utils.Conv1D
    torch.manual_seed(0)
    model, x = nn.Sequential(conv1d(12, 8), nn.GELU(), conv1d(4, 12)), correlated(64, 5, 8)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.2)
    mg = quantized(model, x, INTEGER)
    before = error(mg, model, x)
    mg, _ = repaired(name, mg, x)
    assert error(mg, model, x) < before
