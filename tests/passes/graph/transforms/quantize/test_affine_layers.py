"""Affine layers keep scales and zero points that calibration, training and files set."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from chop.actions.search.space.reconfigure import ReconfigurableGraph
from chop.ir import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.graph.meta_file import GraphFileError
from chop.ir.ops import TransposedLinear
from chop.numerics import frozen_weights
from chop.numerics.affine import Affine
from chop.passes import PassArgsError, Pipeline
from chop.passes.graph.describe.formats import note_scales
from chop.passes.graph.transforms.pruning.shrink import shrunk
from chop.passes.graph.transforms.quantize.quantize import quantized_layer
from chop.passes.graph.transforms.quantize.quantized_funcs import add_affine
from chop.passes.module import quantize_module_transform_pass
from tests.saved_tensors import replace_tensors

INPUT = {"data_in_width": 8, "data_in_scale": 0.03}
CONFIG = {"name": "affine", **INPUT, "weight_width": 8, "weight_axis": 0}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def quantised(layer, **changes):
    return quantized_layer(layer, CONFIG | changes)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.add(self.act(self.norm(self.conv(x))).mean((2, 3)), 0.5))


IMAGES = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(5))


def graph_of(*steps):
    dummy = ("add_common_metadata", {"dummy_in": {"x": IMAGES}})
    return Pipeline(["init_metadata", dummy, *steps])(MaseGraph(Net().eval()))[0]


def quantise(**changes):
    return ("quantize", {"by": "type", "default": {"config": CONFIG | changes}})


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("weight_scale", lambda t: t * 0, "has numbers from 0 to 0; they must be from 1.17549e-38"),
        ("weight_scale", lambda t: t * -1, "they must be from 1.17549e-38 to 3.40282e"),
        ("weight_scale", lambda t: t.int(), "is of the type int32; it must be .*floating-point"),
        ("data_in_zero_point", lambda t: t + 1000, "they must be from -128 to 127"),
        ("data_in_zero_point", lambda t: t + 0.5, "is of the type float32; .* of integer numbers"),
    ],
)
def test_scales_and_zero_points_that_none_can_have_are_refused(name, change, sentence, tmp_path):
    graph_of(quantise()).export(tmp_path / "g")
    tensors = load_file(tmp_path / "g" / "state_dict.safetensors")
    tensors[f"head.{name}"] = change(tensors[f"head.{name}"])
    replace_tensors(tmp_path / "g", tensors)
    with pytest.raises(GraphFileError, match=f"'{name}' of layer 'head' .*{sentence}"):
        MaseGraph.from_checkpoint(tmp_path / "g")


class TestScalesOfWeights:
    @pytest.mark.parametrize("axis", [None, 0, 1])
    def test_a_weight_is_scaled_to_its_extremes_and_nothing_is_clipped(self, axis):
        layer = nn.Linear(6, 5)
        given = {} if axis is None else {"weight_axis": axis, "bias_width": 8}
        config = {"name": "affine", **INPUT, "weight_width": 8} | given
        new = quantized_layer(layer, config)
        rounded, scale = new.get_quantized_weight(), new.weight_scale
        assert scale.shape == (() if axis is None else (layer.weight.shape[axis],))
        steps = scale if axis is None else scale.unsqueeze(1 - axis)
        assert ((rounded - layer.weight).abs() <= steps / 2 + 1e-7).all()
        codes = rounded / steps
        others = [d for d in range(2) if d != axis]
        assert ((codes.amax(others) >= 126.5) | (codes.amin(others) <= -127.5)).all()

    def test_symmetric_codes_and_unsigned_ones(self):
        layer = nn.Linear(6, 1)
        symmetric = quantised(layer, weight_symmetric=True)
        assert symmetric.weight_scale.item() == pytest.approx(layer.weight.abs().max().item() / 127)
        unsigned = quantised(layer, weight_signed=False, weight_zero_point="calibrated")
        low, high = layer.weight.min().item(), layer.weight.max().item()
        assert unsigned.weight_scale.item() == pytest.approx((high - low) / 255)
        assert unsigned.weight_zero_point.item() == round(-low / unsigned.weight_scale.item())
        error = (unsigned.get_quantized_weight() - layer.weight).abs().max()
        assert error <= unsigned.weight_scale.item()

    def test_powers_of_two_are_never_below_the_extremes(self):
        layer = nn.Conv2d(3, 8, 3)
        exact, power = quantised(layer), quantised(layer, weight_power_of_two=True)
        assert (power.weight_scale >= exact.weight_scale).all()
        assert (power.weight_scale < 2 * exact.weight_scale).all()
        assert (power.weight_scale.log2() % 1 == 0).all()

    def test_a_weight_of_zeros_has_a_scale(self):
        layer = nn.Linear(3, 2)
        nn.init.zeros_(layer.weight)
        new = quantised(layer)
        assert new.weight_scale.tolist() == [1.0, 1.0]
        assert torch.allclose(new(torch.ones(1, 3)), layer.bias, atol=0.02)

    def test_numbers_in_the_config_count(self):
        new = quantised(nn.Linear(3, 2), weight_scale=[0.5, 0.25], weight_zero_point=[0, 1])
        assert new.weight_scale.tolist() == [0.5, 0.25]
        assert new.weight_zero_point.tolist() == [0, 1]

    def test_each_weight_of_a_recurrent_layer_has_its_own_scale(self):
        layer = nn.LSTM(3, 4)
        with torch.no_grad():
            layer.weight_hh_l0.mul_(10)
        new = quantised(layer)
        assert new.weight_hh_l0_scale.mean() > 5 * new.weight_ih_l0_scale.mean()
        x = torch.rand(5, 2, 3)
        assert torch.allclose(new(x)[0], layer(x)[0], atol=0.05)
        attention = quantised(nn.MultiheadAttention(4, 2), weight_axis=None)
        assert {"in_proj_weight_scale", "out_proj_weight_scale"} <= attention.state_dict().keys()

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"weight_axis": 2}, "weight_axis is 2, but weight has 2 dimensions; give an axis"),
            ({"weight_scale": [0.1] * 3}, "weight_scale has 3 numbers for 5 channels along axis 0"),
            ({"weight_zero_point": [1]}, "weight_zero_point has 1 numbers for 5 channels"),
            ({"weight_axis": 1}, "the bias cannot take the product of both scales.*bias_width"),
            (
                {"data_in_axis": 1, "data_in_scale": [0.1] * 6},
                "the bias cannot take the product of both scales.*bias_width",
            ),
        ],
    )
    def test_what_does_not_fit_is_refused_and_nothing_changes(self, changes, text):
        layer = nn.Linear(6, 5)
        new = quantised(layer)
        before = copy.deepcopy(new.state_dict())
        with pytest.raises(ValueError, match=text):
            quantised(layer, **changes)
        with pytest.raises(ValueError, match=text):
            new.configure(CONFIG | changes)
        assert new.config == CONFIG
        assert new.state_dict().keys() == before.keys()
        assert all(torch.equal(new.state_dict()[key], before[key]) for key in before)

    def test_a_weight_with_nan_is_refused(self):
        layer = nn.Linear(3, 2)
        with torch.no_grad():
            layer.weight[0, 0] = torch.nan
        with pytest.raises(ValueError, match="weight has NaN or infinite values"):
            quantised(layer)


class TestBias:
    @pytest.mark.parametrize(
        ("layer", "axis", "shape"),
        [
            (nn.Linear(6, 4), 0, (3, 6)),
            (nn.Linear(6, 4), None, (3, 6)),
            (TransposedLinear(4, 6), 1, (3, 6)),
            (nn.Conv1d(6, 4, 3, groups=2), 0, (3, 6, 5)),
            (nn.ConvTranspose2d(6, 4, 3, groups=2), 1, (3, 6, 5, 5)),
        ],
        ids=str,
    )
    def test_it_has_codes_of_32_bits_in_steps_of_both_scales(self, layer, axis, shape):
        nn.init.normal_(layer.bias)
        new = quantised(layer, weight_axis=axis)
        scale = new.data_in_scale * new.weight_scale
        if isinstance(layer, nn.ConvTranspose2d):
            scale = scale.repeat(2)  # both groups have the same two scales
        wanted = (layer.bias / scale).round() * scale
        assert torch.equal(new.q_parameter("bias"), wanted)
        assert torch.equal(new.scale_of("bias")[0].expand(4), scale.expand(4))
        assert new.current_formats()["bias"].width == 32
        assert "bias_scale" not in new.state_dict()
        assert new(torch.randn(shape)).isfinite().all()

    @pytest.mark.parametrize("grad", [False, True])
    def test_a_layer_without_one_needs_none(self, grad):
        new, x = quantised(nn.Linear(6, 4, bias=False)), torch.randn(3, 6)
        with torch.set_grad_enabled(grad):
            assert torch.allclose(new(x), F.linear(new.q("data_in", x), new.get_quantized_weight()))
        assert new.scale_of("bias") is None
        new.bias = nn.Parameter(torch.randn(4))  # as folding a norm adds one
        assert torch.equal(new.scale_of("bias")[0], new.data_in_scale * new.weight_scale)

    def test_its_own_keys_count(self):
        new = quantised(nn.Linear(6, 4), bias_width=16)
        largest = new.bias.abs().max().item()
        assert new.bias_scale.item() == pytest.approx(largest / 2**15, rel=1e-4)
        assert quantised(nn.Linear(6, 4), bias_scale=0.5).bias_scale.item() == 0.5

    def test_a_norm_scales_it_by_its_own_values(self):
        layer = nn.LayerNorm(5)
        nn.init.normal_(layer.bias)
        new = quantised(layer, weight_axis=None)
        assert (new.q_parameter("bias") - layer.bias).abs().max() <= new.bias_scale / 2 + 1e-7


class TestTheTensorsCount:
    def test_a_changed_scale_changes_the_result_even_of_kept_weights(self):
        new, x = quantised(nn.Linear(6, 4)).eval(), torch.randn(3, 6)
        with torch.no_grad():
            assert torch.equal(new(x), new(x))
            first = new(x)
            new.weight_scale.mul_(16)
            steps = new.get_quantized_weight() / new.weight_scale.unsqueeze(1)
            assert torch.allclose(steps, steps.round(), atol=1e-4)
            assert not torch.equal(new(x), first)
            new.weight_scale.data.div_(16)
            assert torch.equal(new(x), first)
            with frozen_weights(new):
                assert torch.equal(new(x), first)
                assert torch.equal(new(x), first)

    def test_bypassing_and_back_keeps_what_was_trained(self):
        layer = nn.Linear(6, 4)
        new, x = quantised(layer), torch.randn(3, 6)
        new.weight_scale.mul_(3)
        before = new(x)
        new.bypass = True
        assert torch.equal(new(x), layer(x))
        new.bypass = False
        assert torch.equal(new(x), before)

    def test_a_layer_that_starts_bypassed_gets_its_scales_later(self):
        new = quantised(nn.Linear(6, 4), bypass=True)
        new.bypass = False
        assert torch.equal(new.weight_scale, quantised(new).weight_scale)

    def test_another_config_starts_from_its_numbers(self):
        new = quantised(nn.Linear(6, 4))
        scale = new.weight_scale.clone()
        new.configure(CONFIG | {"weight_width": 4})
        assert torch.allclose(new.weight_scale / scale, torch.tensor(17.0), rtol=0.1)
        integer = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
        new.configure({**integer, "weight_width": 8, "weight_frac_width": 4})
        assert new.state_dict().keys() == {"weight", "bias"}

    def test_without_a_scale_of_the_input_it_refuses_until_a_checkpoint_gives_it(self):
        config = {key: value for key, value in CONFIG.items() if key != "data_in_scale"}
        new, full = quantized_layer(nn.Linear(6, 4), config), quantised(nn.Linear(6, 4))
        text = "data_in of LinearAffine has no scale yet; run calibrate, or give data_in_scale"
        with pytest.raises(ValueError, match=text):
            new(torch.randn(3, 6))
        new.load_state_dict(full.state_dict())
        x = torch.randn(3, 6)
        assert torch.equal(new(x), full(x))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
    def test_scales_stay_in_float32(self, dtype):
        for learn in (False, True):
            new = quantised(nn.Linear(6, 4), learn=learn)
            before = new.weight_scale.detach().clone()
            new.to(dtype)
            assert torch.equal(new.weight_scale, before)
            assert new.weight.dtype == new(torch.randn(2, 6, dtype=dtype)).dtype == dtype

    def test_channels_that_are_cut_lose_their_scales(self):
        layer = quantised(nn.Linear(6, 4))
        cut = shrunk(layer, outs=[0, 2, 3], ins=[1, 2, 4, 5])
        assert torch.equal(cut.weight_scale, layer.weight_scale[[0, 2, 3]])
        x = torch.zeros(2, 6)
        x[:, [1, 2, 4, 5]] = torch.randn(2, 4)
        assert torch.allclose(cut(x[:, [1, 2, 4, 5]]), layer(x)[:, [0, 2, 3]], atol=1e-6)


class TestLearning:
    def test_it_trains_after_it_was_evaluated_in_inference_mode(self):
        new, x = quantised(nn.Linear(6, 4), learn=True), torch.randn(3, 6)
        with torch.inference_mode():
            expected = new(x)
        assert torch.equal(new(x), expected)
        new(x).sum().backward()
        assert new.weight_scale.grad.isfinite().all()

    def test_scales_are_parameters_and_move(self):
        net = nn.Sequential(quantised(nn.Linear(6, 4), learn=True), nn.ReLU(), nn.Linear(4, 2))
        assert {"0.weight_scale", "0.data_in_scale"} <= dict(net.named_parameters()).keys()
        before = {k: p.detach().clone() for k, p in net[0].named_parameters()}
        F.mse_loss(net(torch.randn(8, 6)), torch.randn(8, 2)).backward()
        for key, parameter in net[0].named_parameters():
            assert parameter.grad.isfinite().all()
            assert not torch.equal(before[key] - parameter.grad, before[key]), key

    def test_training_the_scale_lowers_the_error_of_a_bad_one(self):
        layer, x = nn.Linear(16, 8), torch.randn(64, 16)
        config = {"name": "affine", "data_in_width": 4, "data_in_scale": 2.0, "weight_width": 4}
        new = quantized_layer(layer, {**config, "learn": True})
        errors = []
        for _ in range(100):
            errors.append(F.mse_loss(new(x), layer(x).detach()))
            new.zero_grad()
            errors[-1].backward()
            with torch.no_grad():
                for scale in (new.data_in_scale, new.weight_scale):
                    scale -= 0.02 * scale * scale.grad.sign()
        assert errors[-1] < errors[0] / 3

    def test_copies_and_pickles_keep_them(self):
        new, x = quantised(nn.Linear(6, 4), learn=True), torch.randn(3, 6)
        with torch.no_grad():
            new.weight_scale.mul_(5)
        for twin in (copy.deepcopy(new), pickle.loads(pickle.dumps(new))):
            assert isinstance(twin.weight_scale, nn.Parameter)
            assert twin.weight_scale is not new.weight_scale
            assert torch.equal(twin(x), new(x))

    def test_a_search_that_trains_starts_each_design_from_the_same_scales(self):
        graph = graph_of()
        designs = ReconfigurableGraph(graph)
        designs.expect_training()
        tables = [{"head": {"config": CONFIG | {"learn": True, "weight_width": w}}} for w in (8, 4)]
        designs.apply(tables[0])
        with torch.no_grad():
            first = designs.graph.model(IMAGES)
            for parameter in designs.graph.model.parameters():
                parameter.mul_(1.5)
            designs.apply(tables[1])
            designs.apply(tables[0])
            assert torch.equal(designs.graph.model(IMAGES), first)


class TestGraphs:
    def test_metadata_show_the_format_and_its_scale(self):
        graph = graph_of(quantise(learn=True))
        args = {node.name: mase(node).common.args for node in graph.nodes}
        head = graph.model.head
        assert (args["head"]["weight"].type, args["head"]["weight"].precision) == ("affine", [8])
        assert args["head"]["weight"]["scale"] == head.weight_scale.tolist()
        assert args["head"]["data_in_0"]["scale"] == pytest.approx(0.03)
        assert args["head"]["bias"].precision == [32]
        assert args["act"]["data_in_0"]["signed"] is False
        assert args["add"]["data_in_0"].type == "affine"
        assert "weight_scale" not in args["head"]
        assert mase(next(iter(graph.nodes)).next).common.args["weight"].format.axis == 0

    def test_a_drawing_and_hardware_have_few_words_for_many_scales(self, tmp_path):
        graph = graph_of("add_software_metadata", "add_hardware_metadata", quantise())
        drawing = graph.draw(tmp_path / "graph.svg").read_text()
        assert "affine(8, axis 0, 3 scales): weight" in drawing
        assert "affine(8, scale 0.03): data_in_0" in drawing
        assert "affine(8, not signed, scale 0.03): data_in_0" in drawing
        head = next(node for node in graph.nodes if node.name == "head")
        parameters = mase(head).hardware["verilog_param"]
        assert parameters["DATA_IN_0_SCALE"] == pytest.approx(0.03)
        assert "WEIGHT_SCALE" not in parameters

    def test_metadata_follow_training(self):
        graph = graph_of(quantise(learn=True))
        with torch.no_grad():
            graph.model.head.weight_scale.mul_(-3)  # an optimiser may step beyond 0
        note_scales(graph)
        head = next(node for node in graph.nodes if node.name == "head")
        shown = mase(head).common.args["weight"]["scale"]
        assert shown == graph.model.head.weight_scale.abs().tolist()

    def test_a_state_of_another_shape_is_refused_in_one_sentence(self):
        new = quantised(nn.Linear(6, 4), weight_axis=None)
        new._buffers["weight_scale"] = torch.ones(4)  # as a file may have it
        with pytest.raises(ValueError, match="there are 4 scales without an axis"):
            new(torch.randn(2, 6))

    def test_costs_count_scales_once_whether_they_are_trained_or_not(self):
        costs = []
        for learn in (False, True):
            graph = graph_of(
                quantise(learn=learn), "cost", "calculate_avg_bits", "verify_common_metadata"
            )
            costs.append(Pipeline(["cost"])(graph)[1]["cost"]["total"])
        assert costs[0] == costs[1]
        average = Pipeline(["calculate_avg_bits"])(graph)[1]["calculate_avg_bits"]
        conv, head = 4 * 2 * 9, 4 * 3
        bits = (conv + head) * 8 + (4 + 3) * 32
        assert average["w_avg_bit"] == pytest.approx(bits / (conv + head))

    @pytest.mark.parametrize("learn", [False, True])
    def test_files_and_clones_keep_the_scales(self, tmp_path, learn):
        graph = graph_of(quantise(learn=learn))
        with torch.no_grad():
            graph.model.head.weight_scale.mul_(3)
            graph.model.head.data_in_zero_point.add_(2)
        expected = graph.model(IMAGES)
        graph.export(tmp_path / "saved")
        loaded = MaseGraph.from_checkpoint(tmp_path / "saved")
        assert torch.equal(loaded.model(IMAGES), expected)
        assert isinstance(loaded.model.head.weight_scale, nn.Parameter) == learn
        assert torch.equal(graph.clone().model(IMAGES), expected)
        other = graph_of(quantise(learn=learn))
        other.model.load_state_dict(graph.model.state_dict())
        assert torch.equal(other.model(IMAGES), expected)

    def test_numbers_per_channel_in_a_config_come_back_from_a_file(self, tmp_path):
        tables = {"head": {"config": CONFIG | {"weight_scale": [0.25, 0.5, 0.125]}}}
        graph = graph_of(("quantize", {"by": "name", **tables}))
        graph.export(tmp_path / "saved")
        loaded = MaseGraph.from_checkpoint(tmp_path / "saved")
        assert loaded.model.head.weight_scale.tolist() == [0.25, 0.5, 0.125]
        assert torch.equal(loaded.model(IMAGES), graph.model(IMAGES))

    @pytest.mark.parametrize("op", ["linear", "relu", "add"])
    def test_an_input_without_a_scale_is_refused_and_nothing_changes(self, op):
        graph = graph_of()
        expected = graph.model(IMAGES)
        config = {"name": "affine", "data_in_width": 8, "weight_width": 8}
        options = {"by": "type", op: {"config": config}}
        text = "data_in has no scale yet; run calibrate, or give data_in_scale"
        with pytest.raises(PassArgsError, match=text):
            Pipeline([("quantize", options)])(graph)
        assert torch.equal(graph.model(IMAGES), expected)

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"data_in_scale": 0.0}, "data_in_scale must be a positive, finite number"),
            ({"data_in_zero_point": 200}, "data_in_zero_point must be an integer among"),
            ({"weight_axis": 5}, "node '.*': weight_axis is 5, but weight has"),
            (
                {"data_in_axis": 1, "data_in_scale": [0.1] * 3, "bias_width": 8},
                "node 'conv': data_in_scale has 3 numbers for 2 channels along axis 1",
            ),
            (
                {"data_out_width": 8, "data_out_axis": 1, "data_out_scale": [0.1] * 3},
                "node 'conv': data_out_scale has 3 numbers for 4 channels along axis 1",
            ),
            (
                {"data_in_axis": 4, "data_in_scale": [0.1] * 2, "bias_width": 8},
                "node 'conv': data_in_axis is 4, but data_in has 4 dimensions",
            ),
        ],
    )
    def test_bad_numbers_are_refused_and_nothing_changes(self, changes, text):
        graph = graph_of()
        with pytest.raises(PassArgsError, match=text):
            Pipeline([quantise(**changes)])(graph)
        assert type(graph.model.head) is nn.Linear

    @pytest.mark.parametrize("op", ["relu", "add"])
    def test_scales_of_other_channels_are_refused(self, op):
        config = {"name": "affine", "data_in_width": 8, "data_in_axis": 1}
        config |= {"data_in_scale": [0.1] * 3}
        with pytest.raises(PassArgsError, match="data_in_scale has 3 numbers for 4 channels"):
            graph_of(("quantize", {"by": "type", op: {"config": config}}))

    def test_the_node_of_a_wrong_axis_is_named_after_calibration(self):
        batch = iter([{"x": IMAGES}])
        calibrate = ("calibrate", {"input_generator": batch, "num_samples": 4})
        wrong = CONFIG | {"data_in_scale": "calibrated", "weight_axis": 3}
        calibrated = graph_of("add_software_metadata", calibrate)
        with pytest.raises(PassArgsError, match="node 'head': weight_axis is 3, but weight has 2"):
            Pipeline([("quantize", {"by": "type", "linear": {"config": wrong}})])(calibrated)

    @pytest.mark.parametrize("key", ["weight_rounding", "overflow"])
    def test_arithmetic_of_other_formats_is_refused(self, key):
        text = f"an affine config has no '{key}', which only integer has; leave it out"
        with pytest.raises(PassArgsError, match=text):
            graph_of(quantise(**{key: "up"}))

    def test_layers_of_an_untraced_model(self):
        net = Net().eval()
        table = {"config": CONFIG}
        quantize_module_transform_pass(net, {"by": "type", "linear": table, "conv2d": table})
        assert type(net.head).__name__ == "LinearAffine"
        assert torch.allclose(net(IMAGES), Net().eval()(IMAGES), atol=10)

    def test_functions_take_their_scale_from_the_config(self):
        x, y = torch.randn(4), torch.randn(4)
        config = {"name": "affine", "data_in_width": 4, "data_in_scale": 0.5}
        fmt = Affine(4, scale=0.5)
        assert torch.equal(add_affine(x, y, config=config), fmt(x) + fmt(y))
