"""Every quantized layer keeps its promises in every number format."""

import copy
import itertools
import pickle
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.utils import parametrizations, parametrize, prune

from chop.ir import MaseGraph
from chop.ir.ops import TransposedLinear
from chop.numerics import FORMATS, from_config
from chop.passes.graph.transforms.quantize.quantized_funcs import quantized_func_map
from chop.passes.graph.transforms.quantize.quantized_modules import LAYERS as ALL_LAYERS
from chop.passes.graph.transforms.quantize.quantized_modules import (
    Quantized,
    quantized_module_map,
    variant,
)
from chop.registry import UnknownName

# those with several weights keep the promises of test_several_weights_by_format.py
SEVERAL = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)
LAYERS = {cls: layer for cls, layer in ALL_LAYERS.items() if not issubclass(cls, SEVERAL)}

# two precisions of each format; a format without a line here fails the first test
EXAMPLES = {
    "float": ([32], [16]),
    "integer": ([8, 4], [4, 1]),
    "mixed_integer": ([8, 4], [4, 1]),
    "affine": ([8], [4]),
    "scale_integer": ([8], [4]),
    "minifloat_ieee": ([8, 4, 7], [6, 3, None]),
    "minifloat_denorm": ([8, 4, 7], [6, 3, None]),
    "log": ([5, 7], [4, 5]),
    "fp8": ([4, 3], [5, 2]),
    "block_fp": ([8, 8, None, [4]], [5, 8, None, [2, 2]]),
    "block_minifloat": ([8, 4, 8, [4]], [6, 3, 8, [2, -1]]),
    "block_log": ([5, 8, [4]], [4, 8, [2]]),
    "mxint": ([8, [4]], [4, [2]]),
    "mxfp": ([4, 3, [4]], [2, 1, [2]]),
    "binary": ([1, False, True], [1, False, False]),
    "binary_residual": ([1, False, True], [2, False, True]),
    "ternary": ([2, True, None, None, None], [2, False, 0.5, None, None]),
}

# what a format needs besides its precision to round the input of a layer
GIVEN = {"affine": {"scale": 0.0625}}

SEQUENCE, SIGNAL, IMAGE, VOLUME = (3, 4), (2, 4, 6), (2, 4, 5, 5), (2, 4, 3, 3, 3)

CHANNELS = {"in_channels": 4, "out_channels": 2}


def convolution(function):
    return lambda m, x, w, b: function(x, w, b, m.stride, m.padding, m.dilation, m.groups)


def transposed(function):
    names = ("stride", "padding", "output_padding", "groups", "dilation")
    return lambda m, x, w, b: function(x, w, b, *(getattr(m, name) for name in names))


def batch_norm(m, x, w, b):
    mean, var = m.running_mean.clone(), m.running_var.clone()
    return F.batch_norm(x, mean, var, w, b, m.training, m.momentum, m.eps)


def instance_norm(m, x, w, b):
    return F.instance_norm(x, None, None, w, b, True, m.momentum, m.eps)


def activation(function, *names, **extra):
    def compute(m, x, w, b):
        return function(x, **{name: getattr(m, name) for name in names}, **extra)

    return compute


class Case(NamedTuple):
    """How a layer is made, the shape of its input, and what it computes with its operands."""

    arguments: dict
    shape: tuple | None
    compute: Callable


def simple(function, **arguments):
    """An activation of a short sequence; its function takes what the layer is made with."""
    return Case(arguments, SEQUENCE, activation(function, *arguments))


CASES = {
    nn.Linear: Case(
        {"in_features": 4, "out_features": 3}, SEQUENCE, lambda m, x, w, b: F.linear(x, w, b)
    ),
    TransposedLinear: Case({"nf": 3, "nx": 4}, SEQUENCE, lambda m, x, w, b: F.linear(x, w.T, b)),
    nn.Conv1d: Case(
        {**CHANNELS, "kernel_size": 3, "stride": 2, "padding": 1, "groups": 2},
        SIGNAL,
        convolution(F.conv1d),
    ),
    nn.Conv2d: Case(
        {**CHANNELS, "kernel_size": 3, "padding": 2, "dilation": 2}, IMAGE, convolution(F.conv2d)
    ),
    nn.Conv3d: Case({**CHANNELS, "kernel_size": 2}, VOLUME, convolution(F.conv3d)),
    nn.ConvTranspose1d: Case(
        {**CHANNELS, "kernel_size": 3, "stride": 2, "output_padding": 1},
        SIGNAL,
        transposed(F.conv_transpose1d),
    ),
    nn.ConvTranspose2d: Case(
        {**CHANNELS, "kernel_size": 3, "groups": 2}, IMAGE, transposed(F.conv_transpose2d)
    ),
    nn.ConvTranspose3d: Case(
        {**CHANNELS, "kernel_size": 2}, VOLUME, transposed(F.conv_transpose3d)
    ),
    nn.ReLU: simple(F.relu),
    nn.ReLU6: simple(F.relu6),
    nn.RReLU: Case({}, SEQUENCE, activation(F.rrelu, "lower", "upper", "training")),
    nn.LeakyReLU: simple(F.leaky_relu, negative_slope=0.3),
    nn.PReLU: Case({"num_parameters": 4}, SEQUENCE, lambda m, x, w, b: F.prelu(x, m.weight)),
    nn.ELU: simple(F.elu, alpha=0.5),
    nn.SELU: simple(F.selu),
    nn.CELU: simple(F.celu, alpha=0.5),
    nn.GELU: simple(F.gelu, approximate="tanh"),
    nn.SiLU: simple(F.silu),
    nn.Mish: simple(F.mish),
    nn.Sigmoid: simple(torch.sigmoid),
    nn.LogSigmoid: simple(F.logsigmoid),
    nn.Hardsigmoid: simple(F.hardsigmoid),
    nn.Tanh: simple(torch.tanh),
    nn.Hardtanh: simple(F.hardtanh, min_val=-0.5, max_val=0.7),
    nn.Hardswish: simple(F.hardswish),
    nn.Hardshrink: simple(F.hardshrink, lambd=0.2),
    nn.Softshrink: simple(F.softshrink, lambd=0.2),
    nn.Tanhshrink: simple(F.tanhshrink),
    nn.Softsign: simple(F.softsign),
    nn.Softplus: Case({"beta": 2}, SEQUENCE, activation(F.softplus, "beta", "threshold")),
    nn.Threshold: simple(F.threshold, threshold=0.1, value=20),
    nn.GLU: simple(F.glu, dim=1),
    nn.Softmax: simple(F.softmax, dim=1),
    nn.Softmax2d: Case({}, IMAGE, activation(F.softmax, dim=-3)),
    nn.AvgPool2d: Case(
        {"kernel_size": 3, "stride": 2, "padding": 1},
        IMAGE,
        activation(F.avg_pool2d, "kernel_size", "stride", "padding"),
    ),
    nn.AdaptiveAvgPool2d: Case(
        {"output_size": 2}, IMAGE, activation(F.adaptive_avg_pool2d, "output_size")
    ),
    nn.Softmin: simple(F.softmin, dim=1),
    nn.LogSoftmax: simple(F.log_softmax, dim=1),
    nn.BatchNorm1d: Case({"num_features": 4}, SEQUENCE, batch_norm),
    nn.BatchNorm2d: Case({"num_features": 4, "momentum": 0.3}, IMAGE, batch_norm),
    nn.BatchNorm3d: Case({"num_features": 4, "eps": 1e-3}, VOLUME, batch_norm),
    nn.InstanceNorm1d: Case({"num_features": 4, "affine": True}, SIGNAL, instance_norm),
    nn.InstanceNorm2d: Case({"num_features": 4, "affine": True}, IMAGE, instance_norm),
    nn.InstanceNorm3d: Case({"num_features": 4, "affine": True}, VOLUME, instance_norm),
    nn.LayerNorm: Case(
        {"normalized_shape": 4},
        SEQUENCE,
        lambda m, x, w, b: F.layer_norm(x, m.normalized_shape, w, b, m.eps),
    ),
    nn.GroupNorm: Case(
        {"num_groups": 2, "num_channels": 4},
        IMAGE,
        lambda m, x, w, b: F.group_norm(x, m.num_groups, w, b, m.eps),
    ),
    nn.RMSNorm: Case(
        {"normalized_shape": 4},
        SEQUENCE,
        lambda m, x, w, b: F.rms_norm(x, m.normalized_shape, w, m.eps),
    ),
    nn.Embedding: Case(
        {"num_embeddings": 7, "embedding_dim": 4, "padding_idx": 0},
        None,
        lambda m, x, w, b: F.embedding(x, w, m.padding_idx),
    ),
    nn.EmbeddingBag: Case(
        {"num_embeddings": 7, "embedding_dim": 4, "mode": "sum"},
        None,
        lambda m, x, w, b: F.embedding_bag(x, w, mode=m.mode),
    ),
}
WITH_STATISTICS = [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d]


def config_of(name, precision, *operands):
    keys = FORMATS[name].precision_keys()
    operands = operands or ("data_in", "weight", "bias")
    pairs = {f"{o}_{k}": v for o in operands for k, v in zip(keys, precision, strict=True)}
    return {"name": name, **pairs, **GIVEN.get(name, {})}


def own_state(layer):
    """The state without scales and bits of formats, which the float layer does not have."""
    tensors = layer.format_tensors() if isinstance(layer, Quantized) else {}
    return {key: t for key, t in layer.state_dict().items() if key not in tensors}


def made(cls):
    """A float layer in eval mode whose parameters are no special numbers."""
    torch.manual_seed(1)
    layer = cls(**CASES[cls].arguments)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    for name, buffer in layer.named_buffers():
        if name.startswith("running"):
            buffer.uniform_(0.5, 1.5)
    return layer.eval()


def input_of(cls):
    torch.manual_seed(2)
    shape = CASES[cls].shape
    return torch.randint(7, (3, 2)) if shape is None else torch.randn(shape)


def operands_of(layer, x, config):
    """Input, weight and bias as the config has them; None for what there is not."""
    relu = isinstance(layer, nn.ReLU)
    weighted = "weight" in LAYERS[layer_class(layer)].operands

    def rounded(operand, tensor):
        if tensor is None or not tensor.is_floating_point():
            return tensor
        fmt = from_config(config, operand)
        return fmt.for_operand(operand, non_negative=relu and operand == "data_in")(tensor)

    weight = getattr(layer, "weight", None) if weighted else None
    bias = getattr(layer, "bias", None) if weighted else None
    return rounded("data_in", x), rounded("weight", weight), rounded("bias", bias)


def layer_class(layer):
    return next(cls for cls in type(layer).__mro__ if cls in LAYERS)


def quantized(cls, config, layer=None):
    return variant(LAYERS[cls], FORMATS[config["name"]]).from_float(layer or made(cls), config)


def test_every_layer_and_every_format_has_an_example():
    assert CASES.keys() == LAYERS.keys()
    assert EXAMPLES.keys() == {fmt.name for fmt in FORMATS.values()}


def test_every_name_of_the_module_map_is_a_class_that_can_be_imported():
    for key, cls in quantized_module_map.items():
        module = __import__(cls.__module__, fromlist=[cls.__name__])
        assert getattr(module, cls.__name__) is cls, key
        assert cls.float_class in ALL_LAYERS
    assert len(quantized_module_map) == len(list(quantized_module_map))


def chosen_pairs():
    """Return each layer with two formats, taken in turn, so that each format meets layers alike."""
    turn = itertools.cycle(EXAMPLES)
    return [(cls, name) for cls in LAYERS for name in itertools.islice(turn, 2)]


PAIRS = chosen_pairs()


def test_the_chosen_pairs_have_each_layer_in_two_formats_and_each_format_in_three_layers():
    assert len(PAIRS) == len(set(PAIRS))
    assert set(Counter(cls for cls, _ in PAIRS).values()) == {2}
    layers_of = Counter(name for _, name in PAIRS)
    assert layers_of.keys() == EXAMPLES.keys()
    assert min(layers_of.values()) >= 3


@pytest.mark.parametrize(
    ("cls", "name"), PAIRS, ids=lambda value: getattr(value, "__name__", value)
)
class TestLayerInFormat:
    def test_it_is_constructed_by_hand_like_the_float_layer(self, cls, name):
        quantized_class = variant(LAYERS[cls], FORMATS[name])
        config = config_of(name, EXAMPLES[name][0])
        nameless = {key: value for key, value in config.items() if key != "name"}
        torch.manual_seed(4)
        layer = cls(**CASES[cls].arguments)
        for given in (config, nameless):
            torch.manual_seed(4)
            new = quantized_class(**CASES[cls].arguments, config=given)
            assert type(new) is quantized_class
            assert new.config == config
            assert repr(new) == repr(layer).replace(cls.__name__, quantized_class.__name__, 1)
            assert own_state(new).keys() == layer.state_dict().keys()
            for key, tensor in layer.state_dict().items():
                assert torch.equal(new.state_dict()[key], tensor)

    @pytest.mark.sampled(49)
    def test_from_float_keeps_all_that_the_layer_had(self, cls, name):
        layer = made(cls)
        for parameter in layer.parameters():
            parameter.requires_grad_(False)
        seen = []
        layer.register_forward_hook(lambda module, args, result: seen.append(module))
        new = quantized(cls, config_of(name, EXAMPLES[name][0]), layer)
        assert isinstance(new, Quantized)
        assert isinstance(new, cls)
        assert type(new).__name__ == cls.__name__ + FORMATS[name].suffix
        assert repr(new) == repr(layer).replace(cls.__name__, type(new).__name__, 1)
        assert dict(new.named_parameters()).keys() == dict(layer.named_parameters()).keys()
        for key, tensor in (*layer.named_parameters(), *layer.named_buffers()):
            assert getattr(new, key) is tensor
        for key, value in vars(layer).items():
            if key == "_buffers":  # compared above; an affine layer adds its scales
                assert value.keys() <= new._buffers.keys()
            else:
                assert vars(new)[key] == value
        assert not new.training
        new(input_of(cls))
        assert seen == [new]

    def test_it_computes_the_float_op_on_quantized_operands(self, cls, name):
        compute = CASES[cls].compute
        for precision in EXAMPLES[name]:
            config = config_of(name, precision)
            layer, x = made(cls), input_of(cls)
            expected = compute(layer, *operands_of(layer, x, config))
            new = quantized(cls, config, layer)
            assert torch.equal(new(x), expected)
            with torch.no_grad():
                assert torch.equal(new(x), expected)
                assert torch.equal(new(x), expected)

    def test_bypassed_it_is_the_float_layer_bit_for_bit(self, cls, name):
        layer, x = made(cls), input_of(cls)
        new = quantized(cls, {**config_of(name, EXAMPLES[name][0]), "bypass": True}, layer)
        assert new.bypass
        assert torch.equal(new(x), layer(x))

    def test_gradients_pass_straight_through(self, cls, name):
        compute = CASES[cls].compute
        config = config_of(name, EXAMPLES[name][0])
        layer, x = made(cls).train(), input_of(cls)
        if x.is_floating_point():
            x.requires_grad_()
        leaves = [
            t.detach().requires_grad_() if t is not None and t.is_floating_point() else t
            for t in operands_of(layer, x, config)
        ]
        torch.manual_seed(3)
        result = compute(layer, *leaves)
        torch.manual_seed(3)
        again = quantized(cls, config, layer)(x)
        assert torch.equal(again, result)
        slope = torch.randn_like(result)
        result.backward(slope)
        layer.zero_grad()
        again.backward(slope)
        weighted = "weight" in LAYERS[cls].operands
        parameters = [layer.weight, getattr(layer, "bias", None)] if weighted else [None, None]
        for leaf, tensor in zip(leaves, (x, *parameters), strict=True):
            if leaf is None or not leaf.is_floating_point():
                continue
            assert tensor.grad.isfinite().all()
            assert torch.equal(tensor.grad, leaf.grad)

    @pytest.mark.sampled(49)
    def test_reconfigured_in_place_it_is_as_if_made_so(self, cls, name):
        layer, x = made(cls), input_of(cls)
        first, second = (config_of(name, precision) for precision in EXAMPLES[name])
        other = config_of("integer" if name == "log" else "log", EXAMPLES["log"][0][:2])
        new = quantized(cls, first, layer)
        with torch.no_grad():
            for config in (first, second, other, {**first, "bypass": True}, first):
                assert new.configure(config) is new
                fresh = quantized(cls, config, layer)
                assert type(new) is type(fresh)
                assert torch.equal(new(x), fresh(x))
                assert new.formats == fresh.formats

    @pytest.mark.sampled(49)
    def test_its_state_is_that_of_the_float_layer(self, cls, name):
        layer, x = made(cls), input_of(cls)
        config = config_of(name, EXAMPLES[name][0])
        new = quantized(cls, config, layer)
        state = new.state_dict()
        assert own_state(new).keys() == layer.state_dict().keys()
        blank = quantized(cls, config, cls(**CASES[cls].arguments).eval())
        blank.load_state_dict(state)
        assert torch.equal(blank(x), new(x))
        plain = cls(**CASES[cls].arguments).eval()
        plain.load_state_dict(own_state(new))
        assert torch.equal(plain(x), layer(x))

    @pytest.mark.sampled(49)
    def test_it_is_copied_and_pickled(self, cls, name):
        x = input_of(cls)
        new = quantized(cls, config_of(name, EXAMPLES[name][0]))
        with torch.no_grad():
            expected = new(x)
        for twin in (copy.deepcopy(new), pickle.loads(pickle.dumps(new))):
            assert type(twin) is type(new)
            assert twin.config == new.config
            assert twin.formats == new.formats
            assert torch.equal(twin(x), expected)
            for key, parameter in twin.named_parameters():
                assert parameter is not getattr(new, key)

    @pytest.mark.sampled(49)
    def test_it_runs_in_half_precision(self, cls, name):
        compute = CASES[cls].compute
        config = config_of(name, EXAMPLES[name][0])
        for dtype in (torch.float16, torch.bfloat16):
            layer, x = made(cls).to(dtype), input_of(cls)
            x = x.to(dtype) if x.is_floating_point() else x
            expected = compute(layer, *operands_of(layer, x, config))
            result = quantized(cls, config, layer)(x)
            assert result.dtype == dtype
            assert torch.equal(result, expected)


@pytest.mark.slow
@pytest.mark.parametrize("cls", LAYERS, ids=lambda cls: cls.__name__)
def test_a_layer_keeps_every_promise_in_every_format(cls):
    promises = [name for name in vars(TestLayerInFormat) if name.startswith("test_")]
    for promise, name in itertools.product(promises, EXAMPLES):
        getattr(TestLayerInFormat(), promise)(cls, name)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("cls", WITH_STATISTICS, ids=lambda cls: cls.__name__)
def test_training_updates_the_running_statistics_that_layer_and_original_share(cls, name):
    config, x = config_of(name, EXAMPLES[name][0]), input_of(cls)
    layer = made(cls).train()
    mean, var, count = (t.clone() for t in layer.buffers())
    new = quantized(cls, config, layer)
    new(x)
    F.batch_norm(operands_of(layer, x, config)[0], mean, var, None, None, True, layer.momentum)
    assert torch.equal(layer.running_mean, mean)
    assert torch.equal(layer.running_var, var)
    assert layer.num_batches_tracked == count + 1
    assert new.running_mean is layer.running_mean


INTEGER = config_of("integer", [8, 4])


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_result_is_rounded_where_the_config_says_so(name):
    layer, x = made(nn.Linear), input_of(nn.Linear)
    precision = EXAMPLES[name][0]
    config = config_of(name, precision, "data_in", "weight", "bias", "data_out")
    fmt = from_config(config, "data_out").for_operand("data_out")
    expected = fmt(F.linear(*operands_of(layer, x, config)))
    assert torch.equal(quantized(nn.Linear, config, layer)(x), expected)


def test_a_bias_without_keys_takes_those_of_the_weight():
    layer, x = made(nn.Conv2d), input_of(nn.Conv2d)
    config = {key: value for key, value in INTEGER.items() if not key.startswith("bias")}
    assert torch.equal(
        quantized(nn.Conv2d, config, layer)(x), quantized(nn.Conv2d, INTEGER, layer)(x)
    )


def test_a_bias_that_comes_later_is_rounded_too():
    layer = nn.Linear(4, 3, bias=False)
    new = quantized(nn.Linear, INTEGER, layer)
    new.bias = nn.Parameter(torch.full((3,), 0.3))
    assert new(torch.zeros(1, 4)).tolist() == [[0.3125] * 3]


def test_layers_without_affine_parameters_need_no_keys_for_them():
    config = {key: value for key, value in INTEGER.items() if key.startswith(("name", "data_in"))}
    for layer in (
        nn.BatchNorm1d(4, affine=False),
        nn.LayerNorm(4, elementwise_affine=False),
        nn.RMSNorm(4, elementwise_affine=False),
        nn.GroupNorm(2, 4, affine=False),
        nn.LayerNorm(4, bias=False).requires_grad_(False),
    ):
        given = INTEGER if layer.state_dict().keys() & {"weight"} else config
        new = quantized(type(layer), given, layer.eval())
        x = torch.randn(3, 4)
        assert torch.allclose(new(x), layer(new.x_quantizer(x)))


def test_arguments_are_called_as_in_torch():
    x = input_of(nn.Linear)
    assert torch.equal(quantized(nn.Linear, INTEGER)(input=x), quantized(nn.Linear, INTEGER)(x))
    assert torch.equal(quantized(nn.RMSNorm, INTEGER)(x=x), quantized(nn.RMSNorm, INTEGER)(x))
    up = quantized(nn.ConvTranspose1d, INTEGER)
    longer = up(input=input_of(nn.ConvTranspose1d), output_size=[13])
    assert longer.shape[-1] == 13
    bag = quantized(nn.EmbeddingBag, INTEGER)
    ids = torch.tensor([1, 2, 3])
    expected = F.embedding_bag(ids, bag.get_quantized_weight(), torch.tensor([0, 2]), mode="sum")
    assert torch.equal(bag(ids, offsets=torch.tensor([0, 2])), expected)


@pytest.mark.parametrize(
    "cls", [nn.ReLU, nn.ReLU6, nn.ELU, nn.SiLU, nn.Hardtanh, nn.LeakyReLU, nn.Threshold]
)
def test_an_in_place_activation_changes_its_input_as_torch_does(cls):
    arguments = (0.1, 20.0) if cls is nn.Threshold else ()
    layer = cls(*arguments, inplace=True)
    x = torch.randn(5)
    expected = cls(*arguments)(quantized(cls, INTEGER, layer).x_quantizer(x))
    result = quantized(cls, INTEGER, layer)(x)
    assert result is x
    assert torch.equal(x, expected)


def test_an_in_place_activation_can_be_trained():
    x = torch.randn(4, 4, requires_grad=True)
    net = nn.Sequential(nn.Linear(4, 4), quantized(nn.ReLU, INTEGER, nn.ReLU(inplace=True)))
    y = net(x)
    y.sum().backward()
    h = net[0](x).detach()
    assert torch.equal(net[0].bias.grad, (net[1].x_quantizer(h) > 0).float().sum(0))


def test_the_original_still_works_and_shares_its_parameters():
    layer, x = made(nn.Linear), input_of(nn.Linear)
    before = layer(x)
    new = quantized(nn.Linear, INTEGER, layer)
    assert torch.equal(layer(x), before)
    with torch.no_grad():
        layer.weight.zero_()
    assert (new.get_quantized_weight() == 0).all()


@pytest.mark.slow
def test_device_dtype_and_mode_are_the_originals():
    layer = nn.Conv2d(3, 4, 3, device="meta", dtype=torch.float64).train()
    new = quantized(nn.Conv2d, INTEGER, layer)
    assert new.training
    result = new(torch.empty(1, 3, 5, 5, device="meta", dtype=torch.float64))
    assert (result.device.type, result.dtype) == ("meta", torch.float64)


def test_what_the_labs_ask_of_a_layer():
    layer, x = made(nn.Linear), input_of(nn.Linear)
    new = quantized(nn.Linear, INTEGER, layer)
    fmt = from_config(INTEGER, "weight")
    assert torch.equal(new.w_quantizer(layer.weight), fmt(layer.weight))
    assert torch.equal(new.b_quantizer(layer.bias), fmt(layer.bias))
    assert torch.equal(new.x_quantizer(x), fmt(x))
    assert torch.equal(new.get_quantized_weight(), fmt(layer.weight))
    weight, inputs = new.get_quantized_weights_with_inputs(x)
    assert torch.equal(weight, fmt(layer.weight))
    assert torch.equal(inputs, fmt(x))
    assert new.pruning_masks is None
    assert not new.bypass
    assert str(type(new)) == (
        "<class 'chop.passes.graph.transforms.quantize.quantized_modules.linear.LinearInteger'>"
    )


def test_both_import_paths_lead_to_one_class():
    from chop.nn.quantized.modules import Conv2dLog, LinearInteger
    from chop.nn.quantized.modules.linear import LinearInteger as same
    from chop.passes.graph.transforms.quantize.quantized_modules import LinearInteger as third
    from chop.passes.graph.transforms.quantize.quantized_modules.conv2d import Conv2dLog as fourth

    assert LinearInteger is same is third
    assert Conv2dLog is fourth
    with pytest.raises(ImportError):
        from chop.nn.quantized.modules.linear import LinearInterger  # noqa: F401


def test_an_alias_of_a_format_gives_the_same_class():
    new = quantized(nn.Linear, {**INTEGER, "name": "fixed"})
    assert type(new).__name__ == "LinearInteger"
    assert type(quantized(nn.Linear, INTEGER).configure(new.config)) is type(new)


@pytest.mark.parametrize("cls", [nn.Linear, nn.ConvTranspose2d, nn.LayerNorm])
def test_a_parametrized_tensor_is_rounded_after_its_parametrization(cls):
    class Half(nn.Module):
        def forward(self, w):
            return w / 2

    layer, x = made(cls), input_of(cls)
    parametrize.register_parametrization(layer, "weight", Half())
    original = layer.parametrizations.weight.original
    new = quantized(cls, INTEGER, layer)
    assert new.parametrizations.weight.original is original
    expected = CASES[cls].compute(layer, *operands_of(layer, x, INTEGER))
    assert torch.equal(new(x), expected)
    log = config_of("log", [5, 7])
    expected = CASES[cls].compute(layer, *operands_of(layer, x, log))
    assert torch.equal(new.configure(log)(x), expected)
    with torch.no_grad():
        assert torch.equal(new(x), expected)
        original.mul_(3)
        assert torch.equal(new(x), CASES[cls].compute(layer, *operands_of(layer, x, log)))
    parametrize.remove_parametrizations(new, "weight")
    assert type(new).__name__ == cls.__name__ + "Log"


@pytest.mark.parametrize("cls", [nn.Conv2d, nn.ConvTranspose2d])
def test_weights_that_a_hook_makes_are_rounded(cls):
    layer, x = made(cls), input_of(cls)
    prune.l1_unstructured(layer, "weight", 0.5)
    new = quantized(cls, INTEGER, layer)
    assert (new.weight == 0).float().mean() == 0.5
    assert torch.equal(new(x), CASES[cls].compute(layer, *operands_of(layer, x, INTEGER)))


def test_weight_norm_is_rounded_after_it():
    layer, x = parametrizations.weight_norm(made(nn.Linear)), input_of(nn.Linear)
    new = quantized(nn.Linear, INTEGER, layer)
    assert torch.equal(new(x), F.linear(*operands_of(layer, x, INTEGER)))


def test_a_layer_with_a_forward_of_its_own_is_refused():
    class Scaled(nn.Linear):
        def forward(self, input):
            return 2 * super().forward(input)

    with pytest.raises(TypeError, match="Scaled has a custom forward"):
        quantized(nn.Linear, INTEGER, Scaled(4, 3))


def test_stochastic_formats_draw_anew_even_in_eval_mode():
    config = config_of("binary", [1, True, True])
    new, x = quantized(nn.Linear, config, nn.Linear(64, 8).eval()), torch.zeros(1, 64)
    with torch.no_grad():
        results = []
        for seed in (5, 5, 6):
            torch.manual_seed(seed)
            results.append(new(x))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize("cls", [nn.Linear, nn.Conv1d, nn.LayerNorm])
def test_an_ensemble_of_parameters_runs_under_vmap(cls):
    new, x = quantized(cls, INTEGER), input_of(cls)
    parameters = {k: torch.stack([v, 2 * v]) for k, v in new.named_parameters()}

    def run(values):
        return torch.func.functional_call(new, values, (x,))

    with torch.no_grad():
        both = torch.vmap(run)(parameters)
        for i in range(2):
            single = run({key: value[i] for key, value in parameters.items()})
            assert torch.allclose(both[i], single)  # batched kernels sum in another order


@pytest.mark.parametrize("grad", [False, True])
def test_an_embedding_with_a_largest_norm_shrinks_its_own_rows(grad):
    ids = torch.tensor([1, 2])
    layer = nn.Embedding(4, 8, max_norm=1.0)
    with torch.no_grad():
        layer.weight.fill_(3.0)
    new = quantized(nn.Embedding, INTEGER, layer.eval())
    with torch.set_grad_enabled(grad):
        result = new(ids)
    norms = layer.weight.detach().norm(dim=1)
    assert torch.allclose(norms, torch.tensor([72.0**0.5, 1, 1, 72.0**0.5]))
    assert torch.equal(result, new.get_quantized_weight()[ids])


def test_a_config_that_does_not_fit_is_refused_in_one_sentence():
    with pytest.raises(UnknownName, match="did you mean 'weight_width'"):
        quantized(nn.Linear, {**INTEGER, "wieght_width": 8})
    with pytest.raises(UnknownName, match="unknown key of an integer config 'data_in_blok_size'"):
        quantized(nn.Linear, {**INTEGER, "data_in_blok_size": [16]})
    with pytest.raises(ValueError, match="missing \\['data_in_frac_width'\\]"):
        quantized(nn.Linear, {"name": "integer", "data_in_width": 8})
    new = quantized(nn.Linear, INTEGER)
    before = new.config, new.formats, type(new)
    with pytest.raises(ValueError, match="width must be an integer"):
        new.configure(config_of("log", [99, 7]))
    assert (new.config, new.formats, type(new)) == before


def test_keys_that_another_format_has_are_ignored_with_one_warning(caplog):
    config = config_of("binary", [1, False, True])
    surplus = {"data_in_frac_width": 4, "bias_exponent_bias": 3}
    for _ in range(2):
        new = quantized(nn.Linear, {**config, **surplus})
    assert new.formats == quantized(nn.Linear, config).formats
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert said.startswith("a binary config has no 'data_in_frac_width', 'bias_exponent_bias'")
    with pytest.raises(UnknownName, match="did you mean 'data_in_bipolar'"):
        quantized(nn.Linear, {**config, **surplus, "data_in_bipolr": True})


@pytest.mark.parametrize("name", EXAMPLES)
def test_activations_that_work_in_place_learn_in_every_format(name):
    for precision in EXAMPLES[name]:
        config = config_of(name, precision)
        linear = quantized(nn.Linear, config, nn.Linear(8, 8))
        relu = quantized(nn.ReLU, config, nn.ReLU(inplace=True))
        x = torch.randn(4, 8, requires_grad=True)
        relu(linear(x)).sum().backward()
        assert x.grad is not None
        assert linear.weight.grad is not None


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_layer_and_function_comes_back_from_a_file(name, tmp_path):
    config = config_of(name, EXAMPLES[name][0])
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x_{i}") for i in range(len(LAYERS))]
    layers = nn.ModuleDict({f"layer_{i}": quantized(cls, config) for i, cls in enumerate(LAYERS)})
    results = [graph.call_module(key, (x,)) for key, x in zip(layers, inputs, strict=True)]
    functions = [quantized_func_map[f"{op}_{name}"] for op in ("add", "matmul", "relu", "softmax")]
    results += [graph.call_function(fn, (inputs[0], 1), {"config": config}) for fn in functions]
    graph.output(results[: len(LAYERS)])
    before = MaseGraph(fx.GraphModule(layers, graph))
    before.export(tmp_path / "g")
    after = MaseGraph.from_checkpoint(tmp_path / "g")
    assert str(after.fx_graph) == str(before.fx_graph)
    given = [input_of(cls) for cls in LAYERS]
    for key, cls, x in zip(layers, LAYERS, given, strict=True):
        one, two = before.modules[key], after.modules[key]
        assert type(one) is type(two)
        assert one.formats == two.formats
        assert torch.equal(one(x), two(x)), cls
