"""The same quantisation for models that were never traced."""

import copy
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.numerics.integer import Integer
from chop.passes.graph.transforms.pruning.masks import attach_mask
from chop.passes.module import (
    PASSES,
    calculate_avg_bits_module_analysis_pass,
    quantize_module_transform_pass,
)

Q = Integer(8, 4)


def integer(width=8, frac_width=4):
    config = {"name": "integer"}
    for operand in ("data_in", "weight", "bias"):
        config |= {f"{operand}_width": width, f"{operand}_frac_width": frac_width}
    return {"config": config}


class Untraceable(nn.Module):
    """Which layer runs depends on the data."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.positive, self.negative = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        h = self.body(x)
        return self.positive(h) if h.sum() > 0 else self.negative(h)


def types(model):
    return {name: type(m).__name__ for name, m in model.named_modules() if "." in name or name}


@pytest.fixture
def model():
    return Untraceable().eval()


def test_a_model_that_fx_cannot_trace_is_quantized(model):
    x = torch.ones(1, 4)
    w = [(layer.weight, layer.bias) for layer in (model.body[0], model.positive, model.negative)]
    result, info = quantize_module_transform_pass(model, {"by": "type", "linear": integer()})
    assert result is model
    assert info == {"quantized": ["body.0", "positive", "negative"]}
    h = F.linear(Q(x), Q(w[0][0]), Q(w[0][1])).relu()
    last = w[1] if h.sum() > 0 else w[2]
    assert torch.equal(model(x), F.linear(Q(h), Q(last[0]), Q(last[1])))
    assert model.positive.weight is w[1][0]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"by": "type", "relu": integer()}, ["body.1"]),
        ({"by": "name", "positive": integer(), "body.1": integer()}, ["body.1", "positive"]),
        ({"by": "regex_name", r"body\.\d": integer()}, ["body.0", "body.1"]),
        ({"by": "regex_name", "body": integer(), ".*tive": integer()}, ["positive", "negative"]),
        (
            {"by": "type", "default": integer(), "relu": {"config": {"name": "NA"}}},
            ["body.0", "positive", "negative"],
        ),
        ({"by": "type", "default": {"config": {"name": None}}}, []),
        ({"by": "type"}, []),
    ],
)
def test_layers_are_chosen_by_type_by_name_and_by_expression(model, args, expected):
    before = copy.deepcopy(args)
    _, info = quantize_module_transform_pass(model, args)
    assert info["quantized"] == expected
    assert args == before
    for name, kind in types(model).items():
        assert kind.endswith("Integer") == (name in expected)


def test_the_first_expression_that_matches_wins(model):
    args = {"by": "regex_name", "posi.*": integer(4, 2), ".*tive": integer(8, 4)}
    quantize_module_transform_pass(model, args)
    assert model.positive.formats["weight"].precision == [4, 2]
    assert model.negative.formats["weight"].precision == [8, 4]


def test_it_can_run_again_with_another_format(model):
    quantize_module_transform_pass(model, {"by": "type", "linear": integer()})
    log = {"name": "log"}
    for operand in ("data_in", "weight", "bias"):
        log |= {f"{operand}_width": 5, f"{operand}_exponent_bias": 7}
    quantize_module_transform_pass(model, {"by": "type", "linear": {"config": log}})
    assert types(model)["positive"] == "LinearLog"


def test_a_model_that_is_itself_a_layer_is_replaced():
    layer = nn.Linear(4, 2)
    new, info = quantize_module_transform_pass(layer, {"by": "type", "linear": integer()})
    assert type(new).__name__ == "LinearInteger"
    assert new.weight is layer.weight
    assert info == {"quantized": [""]}


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.again = nn.ModuleList([self.first])

    def forward(self, x):
        return self.again[0](self.second(self.first(x)))


def test_a_layer_under_several_names_stays_one_layer():
    model = Shared()
    _, info = quantize_module_transform_pass(model, {"by": "type", "linear": integer()})
    assert model.first is model.second is model.again[0]
    assert info == {"quantized": ["first", "second", "again.0"]}


@pytest.mark.parametrize("other", [{}, {"second": integer(4, 2)}])
def test_two_configs_for_one_layer_are_refused(other):
    model = Shared()
    with pytest.raises(ValueError, match="'first' and 'second' are the same layer"):
        quantize_module_transform_pass(model, {"by": "name", "first": integer(), **other})
    assert type(model.first) is nn.Linear


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ({"by": "type", "liner": integer()}, "unknown op .*'liner'; did you mean 'linear'"),
        ({"by": "type", "max_pool2d": integer()}, "op 'max_pool2d' cannot be quantised"),
        ({"by": "name", "postive": integer()}, "unknown layer 'postive'; did you mean 'positive'"),
        ({"by": "regex_name", "pos(": integer()}, r"'pos\(' is not a regular expression"),
        ({"by": "type", "linear": {"config": {"name": "int"}}}, "unknown number format 'int'"),
        ({"by": "type", "linear": {"config": {"name": "integer"}}}, "layer 'body.0': .*missing"),
        ({"by": "type", "linear": 8}, "'linear' needs a table"),
        ({"by": "size"}, "option 'by' is 'size'"),
    ],
)
def test_a_config_is_refused_before_anything_is_touched(model, args, sentence):
    before = types(model)
    with pytest.raises((TypeError, ValueError), match=sentence):
        quantize_module_transform_pass(model, {**args, "default": integer()})
    assert types(model) == before


def test_an_expression_that_finds_nothing_is_worth_a_warning(model, caplog):
    with caplog.at_level(logging.WARNING, "chop"):
        quantize_module_transform_pass(model, {"by": "regex_name", "head": integer()})
    assert "no layer of the model matches regex_name 'head'" in caplog.text


def test_it_works_on_modules_only():
    with pytest.raises(TypeError, match=r"module pass 'quantize' works on an nn\.Module, not dict"):
        quantize_module_transform_pass({}, {"by": "type"})


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_torchs_transformer_computes_with_the_quantized_layers_in_eval_mode_too():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
    _, info = quantize_module_transform_pass(model, {"by": "type", "linear": integer(4, 1)})
    assert info["quantized"] == [f"layers.{i}.linear{k}" for i in (0, 1) for k in (1, 2)]
    x = torch.randn(2, 3, 8)
    padding = torch.tensor([[False, False, True], [False, False, False]])
    with_gradients = model(x, src_key_padding_mask=padding)
    with torch.no_grad():  # where torch would take the fused path
        without = model(x, src_key_padding_mask=padding)
    assert torch.allclose(with_gradients[~padding], without[~padding], atol=1e-5)


def test_the_parts_of_torchs_attention_are_left_to_it():
    model = nn.MultiheadAttention(8, 2)
    _, info = quantize_module_transform_pass(model, {"by": "type", "linear": integer()})
    assert info == {"quantized": []}
    model, info = quantize_module_transform_pass(model, {"by": "type", "attention": integer()})
    assert info == {"quantized": [""]}
    assert type(model).__name__ == "MultiheadAttentionInteger"


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_attention_and_recurrence_are_chosen_by_type_name_and_expression():
    for by, key in (("type", "attention"), ("name", "0.self_attn"), ("regex_name", r".*self_attn")):
        model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
        x = torch.randn(2, 3, 8)
        before = model(x)
        _, info = quantize_module_transform_pass(model, {"by": by, key: integer(4, 1)})
        assert info["quantized"] == ["0.self_attn"]
        with torch.no_grad():  # where torch would take the fused path
            after = model(x)
        assert not torch.allclose(after, before)
        assert torch.allclose(after, model(x), atol=1e-6)


def test_modules_with_weights_that_stay_in_float_are_named_with_their_share(caplog):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(10))

    model = nn.Sequential(nn.Linear(4, 4), nn.Bilinear(2, 2, 5), Scaled())  # 20, 25 and 10
    with caplog.at_level(logging.WARNING, "chop"):
        quantize_module_transform_pass(model, {"by": "type", "linear": integer()})
    assert caplog.messages == [
        "1 (Bilinear), 2 (Scaled) cannot be quantised and stay in float: 63.6 % of the weights"
    ]
    caplog.clear()
    quantize_module_transform_pass(nn.Sequential(nn.LSTM(2, 2)), {"by": "type", "lstm": integer()})
    assert not caplog.messages


class TestAverageBits:
    def test_quantized_layers_count_with_their_weights(self, model):
        args = {"by": "name", "body.0": integer(4, 2), "positive": integer(8, 4)}
        quantize_module_transform_pass(model, args)
        result, info = calculate_avg_bits_module_analysis_pass(model, {"count": "weights"})
        assert result is model
        assert info["layers"] == {"body.0": 4, "positive": 8, "negative": 32}
        assert info["average_bitwidth"] == (4 * 16 + 8 * 8 + 32 * 8) / 32
        only = calculate_avg_bits_module_analysis_pass(model, {"quantized_only": True})[1]
        assert only["average_bitwidth"] == (4 * 16 + 8 * 8) / 24

    def test_all_parameters_and_buffers_count_and_masks_do_not(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Bilinear(2, 2, 3))
        quantize_module_transform_pass(model, {"by": "type", "linear": integer(4, 2)})
        attach_mask(model[0], "weight", torch.ones(4, 4))
        info = calculate_avg_bits_module_analysis_pass(model)[1]
        rest = 4 * 4 * 32 + 64 + (12 + 3) * 32  # the norm, its count of batches, and the last layer
        assert info["layers"] == {"0": 4}
        assert info["average_bitwidth"] == (20 * 4 + rest) / (20 + 17 + 15)

    def test_layers_with_several_weights_are_listed_once(self):
        model = nn.ModuleDict({"lstm": nn.LSTM(2, 3), "mix": nn.MultiheadAttention(4, 2)})
        quantize_module_transform_pass(model, {"by": "name", "lstm": integer(4, 2)})
        info = calculate_avg_bits_module_analysis_pass(model, count="weights")[1]
        assert info["layers"] == {"lstm": 4, "mix": 32}
        lstm, mix = 12 * (2 + 3), 4 * 16
        assert info["average_bitwidth"] == (lstm * 4 + mix * 32) / (lstm + mix)

    def test_bypassed_layers_count_as_float(self, model):
        bypassed = {"config": {**integer(4, 2)["config"], "bypass": True}}
        quantize_module_transform_pass(model, {"by": "type", "linear": bypassed})
        assert calculate_avg_bits_module_analysis_pass(model)[1]["average_bitwidth"] == 32

    def test_other_dtypes_count_with_their_bits(self):
        model = nn.Conv2d(2, 3, 3).half()
        assert calculate_avg_bits_module_analysis_pass(model)[1]["average_bitwidth"] == 16

    def test_a_shared_layer_counts_once(self):
        model = Shared()
        quantize_module_transform_pass(model, {"by": "type", "linear": integer(4, 2)})
        info = calculate_avg_bits_module_analysis_pass(model)[1]
        assert info["layers"] == {"first": 4}

    def test_a_model_without_such_layers_counts_as_float_and_says_so(self, caplog):
        with caplog.at_level(logging.WARNING, "chop"):
            info = calculate_avg_bits_module_analysis_pass(nn.ReLU())[1]
        assert info["average_bitwidth"] == 32
        assert "set average_bitwidth to 32" in caplog.text


def test_the_passes_are_registered_by_their_short_names():
    assert PASSES["quantize"] is quantize_module_transform_pass
    assert PASSES["calculate_avg_bits"] is calculate_avg_bits_module_analysis_pass
