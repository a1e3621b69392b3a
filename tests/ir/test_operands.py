"""Which argument of a call is which operand."""

import math
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.ir import MaseGraph
from chop.ir.graph.mase_metadata import TensorMeta
from chop.ir.operands import described, flatten
from chop.numerics import from_dtype
from chop.passes import Pipeline

ANNOTATE = Pipeline(["init_metadata", "add_common_metadata"])


class Calls(nn.Module):
    """A model that is one function of its input, besides its layers."""

    def __init__(self, fn, **layers):
        super().__init__()
        self.fn = fn
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.fn(self, x)


def common(fn, x=None, at=-2, layers=None, **options):
    """`common` of one node of a model: by default of the last before the output."""
    x = torch.zeros(2, 3, 4) if x is None else x
    graph = MaseGraph(Calls(fn, **(layers or {})), **options)
    ANNOTATE(graph, {"add_common_metadata": {"dummy_in": {"x": x}, "add_value": False}})
    return list(graph.nodes)[at].meta["mase"]["common"]


def args(fn, x=None, **options):
    """`common.args` with tensors as their shapes."""
    entries = common(fn, x, **options)["args"]
    return {name: e["shape"] if isinstance(e, TensorMeta) else e for name, e in entries.items()}


def fp32(*shape):
    return {"shape": list(shape), "torch_dtype": torch.float32, "type": "float", "precision": [32]}


def parameter(*shape):
    return {"type": "float", "precision": [32], "shape": list(shape), "from": None}


X = [2, 3, 4]  # the shape of the input below
VIEWED = {"shape_0": 2, "shape_1": -1}


class TestTheVerifiedExamples:
    """SPEC-2 §5.1; a method also lists its own tensor, as data_in_0."""

    image = torch.zeros(2, 3, 8, 8)

    def test_conv2d(self):
        layers = {"conv": nn.Conv2d(3, 4, 3, padding=1)}
        found = common(lambda m, x: m.conv(x), self.image, layers=layers)
        assert found == {
            "mase_type": "module_related_func",
            "mase_op": "conv2d",
            "args": {
                "data_in_0": fp32(2, 3, 8, 8),
                "weight": parameter(4, 3, 3, 3),
                "bias": parameter(4),
            },
            "results": {"data_out_0": fp32(2, 4, 8, 8)},
        }
        assert list(found) == ["mase_type", "mase_op", "args", "results"]
        assert list(found["args"]["weight"]) == ["type", "precision", "shape", "from"]

    def test_batch_norm(self):
        found = common(lambda m, x: m.bn(x), self.image, layers={"bn": nn.BatchNorm2d(3)})
        assert (found["mase_type"], found["mase_op"]) == ("module", "batch_norm2d")
        assert found["args"] == {
            "data_in_0": fp32(2, 3, 8, 8),
            "weight": parameter(3),
            "bias": parameter(3),
        }

    def test_relu_function(self):
        found = common(lambda m, x: F.relu(x), self.image)
        assert found == {
            "mase_type": "module_related_func",
            "mase_op": "relu",
            "results": {"data_out_0": fp32(2, 3, 8, 8)},
            "args": {"data_in_0": fp32(2, 3, 8, 8), "inplace": False},
        }
        assert list(found) == ["mase_type", "mase_op", "results", "args"]

    def test_relu_module(self):
        found = common(lambda m, x: m.relu(x), self.image, layers={"relu": nn.ReLU()})
        assert found["args"] == {"data_in_0": fp32(2, 3, 8, 8)}

    @pytest.mark.parametrize(
        ("fn", "mase_type", "mase_op", "others"),
        [
            (lambda m, x: x + F.relu(x), "builtin_func", "add", {"data_in_1": fp32(2, 3, 4)}),
            (lambda m, x: x * 2, "builtin_func", "mul", {"other": 2}),
            (lambda m, x: x.size(0), "implicit_func", "size", {"dim": 0}),
            (lambda m, x: x.view(x.size(0), -1), "implicit_func", "view", VIEWED),
            (lambda m, x: torch.flatten(x, 1), "implicit_func", "flatten", {"start_dim": 1}),
        ],
    )
    def test_a_function_or_method_of_one_tensor(self, fn, mase_type, mase_op, others):
        entry = common(fn)
        assert (entry["mase_type"], entry["mase_op"]) == (mase_type, mase_op)
        assert entry["args"] == {"data_in_0": fp32(2, 3, 4), **others}

    def test_a_size_is_a_number(self):
        results = common(lambda m, x: x.size(0))["results"]
        assert results == {"data_out_0": {"type": int, "shape": [1], "value": 2}}

    def test_placeholder_and_output(self):
        begin, end = common(lambda m, x: x * 2, at=0), common(lambda m, x: x * 2, at=-1)
        assert begin["args"] == end["args"] == {}
        assert begin["results"] == end["results"] == {"data_out_0": fp32(2, 3, 4)}


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        # shapes of any length, written as numbers or as one sequence
        (lambda m, x: x.view(1, 2, 1, 3, 4), {
            "shape_0": 1, "shape_1": 2, "shape_2": 1, "shape_3": 3, "shape_4": 4,
        }),
        (lambda m, x: x.view((2, 12)), {"shape": (2, 12)}),
        (lambda m, x: x.view([2, 12]), {"shape": [2, 12]}),
        (lambda m, x: x.reshape(-1), {"shape_0": -1}),
        (lambda m, x: torch.reshape(x, (2, -1)), {"shape": (2, -1)}),
        (lambda m, x: x.expand(-1, -1, 4), {"shape_0": -1, "shape_1": -1, "shape_2": 4}),
        (lambda m, x: x.permute(0, 2, 1), {"dims_0": 0, "dims_1": 2, "dims_2": 1}),
        (lambda m, x: torch.permute(x, (0, 2, 1)), {"dims": (0, 2, 1)}),
        (lambda m, x: x.transpose(1, 2), {"dim_0": 1, "dim_1": 2}),
        (lambda m, x: torch.transpose(x, dim0=1, dim1=2), {"dim_0": 1, "dim_1": 2}),
        (lambda m, x: x.repeat(2, 1, 1), {"repeats_0": 2, "repeats_1": 1, "repeats_2": 1}),
        (lambda m, x: x.flip([0, 1]), {"dims": [0, 1]}),
        (lambda m, x: x.new_zeros(2, 3), {"size_0": 2, "size_1": 3}),
        (lambda m, x: x.squeeze(), {}),
        (lambda m, x: x.unsqueeze(dim=0), {"dim": 0}),
        # keywords, and overloads told apart by what they are given
        (lambda m, x: torch.mul(input=x, other=3), {"other": 3}),
        (lambda m, x: torch.add(x, 2, alpha=3), {"other": 2, "alpha": 3}),
        (lambda m, x: torch.div(x, 2, rounding_mode="trunc"), {
            "other": 2, "rounding_mode": "trunc",
        }),
        (lambda m, x: x.to(torch.float16), {"dtype": torch.float16}),
        (lambda m, x: x.to("cpu"), {"device": "cpu"}),
        (lambda m, x: x.type(torch.float16), {"dtype": torch.float16}),
        (lambda m, x: torch.max(x, 1), {"dim": 1}),
        (lambda m, x: x.max(dim=1, keepdim=True), {"dim": 1, "keepdim": True}),
        (lambda m, x: x.split(1, dim=1), {"split_size_or_sections": 1, "dim": 1}),
        (lambda m, x: torch.split(x, [1, 2], 1), {"split_size_or_sections": [1, 2], "dim": 1}),
        (lambda m, x: x.chunk(2, -1), {"chunks": 2, "dim": -1}),
        (lambda m, x: torch.unbind(x, dim=1), {"dim": 1}),
        (lambda m, x: x.mean((1, 2), keepdim=True), {"dim": (1, 2), "keepdim": True}),
        (lambda m, x: x.clamp(0, 1), {"min": 0, "max": 1}),
        (lambda m, x: F.softmax(x, dim=-1), {"dim": -1, "_stacklevel": 3, "dtype": None}),
        (lambda m, x: F.max_pool2d(x, 2, stride=1), {
            "kernel_size": 2, "stride": 1, "padding": 0, "dilation": 1, "ceil_mode": False,
            "return_indices": False,
        }),
        # what an index is made of
        (lambda m, x: x[0], {"select": 0}),
        (lambda m, x: x[:, None, 1:], {"select": (slice(None), None, slice(1, None))}),
        (lambda m, x: x[..., : x.size(2) - 1], {"select": (Ellipsis, slice(None, 3))}),
    ],
)  # fmt: skip
def test_a_call_on_one_tensor_lists_it_and_the_other_arguments_by_name(fn, expected):
    assert args(fn) == {"data_in_0": X, **expected}


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda m, x: torch.cat([x, x], 1), {"data_in_0": X, "data_in_1": X, "dim": 1}),
        (lambda m, x: torch.cat((x, x), dim=1), {"data_in_0": X, "data_in_1": X, "dim": 1}),
        (lambda m, x: torch.cat(tensors=[x, x, x]), {f"data_in_{i}": X for i in range(3)}),
        (lambda m, x: torch.stack([x, x]), {"data_in_0": X, "data_in_1": X}),
        (lambda m, x: x + x, {"data_in_0": X, "data_in_1": X}),
        (lambda m, x: 1 - x, {"input": 1, "data_in_0": X}),
        (lambda m, x: torch.max(x, x), {"data_in_0": X, "data_in_1": X}),
        (lambda m, x: torch.bmm(x, x.mT), {"data_in_0": X, "data_in_1": [2, 4, 3]}),
        (lambda m, x: torch.einsum("bij,bkj->bik", x, x), {
            "equation": "bij,bkj->bik", "data_in_0": X, "data_in_1": X,
        }),
        (lambda m, x: torch.einsum("bij,bkj->bik", [x, x]), {
            "equation": "bij,bkj->bik", "data_in_0": X, "data_in_1": X,
        }),
        (lambda m, x: torch.where(x > 0, x, 0.0), {"condition": X, "data_in_0": X, "other": 0.0}),
        (lambda m, x: x.where(x > 0, x), {"data_in_0": X, "condition": X, "data_in_1": X}),
        (lambda m, x: x.masked_fill(x > 0, -1.0), {"data_in_0": X, "mask": X, "value": -1.0}),
        (lambda m, x: torch.index_select(x, 1, torch.tensor([0])), {
            "data_in_0": X, "dim": 1, "index": [1],
        }),
        (lambda m, x: x[x > 0], {"data_in_0": X, "data_in_1": X}),
        (lambda m, x: x[:, torch.tensor([0, 2])], {
            "data_in_0": X, "data_in_1": [2], "select": (slice(None), "data_in_1"),
        }),
        (lambda m, x: x.to(x.half()), {"data_in_0": X, "data_in_1": X}),
        (lambda m, x: x.max(dim=1)[0], {"data_in_0": [2, 4], "data_in_1": [2, 4], "select": 0}),
        (lambda m, x: x.max(dim=1).values, {
            "data_in_0": [2, 4], "data_in_1": [2, 4], "b": "values",
        }),
        (lambda m, x: F.scaled_dot_product_attention(x, x, x, attn_mask=None, is_causal=True), {
            "data_in_0": X, "data_in_1": X, "data_in_2": X, "attn_mask": None, "is_causal": True,
        }),
        # functional layers name their weights
        (lambda m, x: F.linear(x, m.w4, m.b), {"data_in_0": X, "weight": [5, 4], "bias": [5]}),
        (lambda m, x: F.linear(x, weight=m.w4, bias=None), {
            "data_in_0": X, "weight": [5, 4], "bias": None,
        }),
        (lambda m, x: F.conv1d(x, m.w333, m.b3, padding=1), {
            "data_in_0": X, "weight": [3, 3, 3], "bias": [3], "padding": 1,
        }),
        (lambda m, x: F.layer_norm(x, (4,), m.w1, m.w1), {
            "data_in_0": X, "normalized_shape": (4,), "weight": [4], "bias": [4], "eps": 1e-5,
        }),
        (lambda m, x: F.batch_norm(x, m.b3, m.b3, weight=m.b3), {
            "data_in_0": X, "running_mean": [3], "running_var": [3], "weight": [3], "bias": None,
            "training": False, "momentum": 0.1, "eps": 1e-5,
        }),
        (lambda m, x: F.embedding(x.long(), m.w4), {
            "data_in_0": X, "weight": [5, 4], "padding_idx": None, "max_norm": None,
            "norm_type": 2.0, "scale_grad_by_freq": False, "sparse": False,
        }),
    ],
)  # fmt: skip
def test_a_call_on_several_tensors_numbers_its_data_and_names_its_weights(fn, expected):
    shapes = {"w4": (5, 4), "b": 5, "w1": 4, "b3": 3, "w333": (3, 3, 3)}
    layers = {name: nn.Parameter(torch.ones(shape)) for name, shape in shapes.items()}
    assert args(fn, layers=layers) == expected


def test_functional_conv2d_names_its_weight_and_bias():
    layers = {"w": nn.Parameter(torch.zeros(4, 3, 3, 3)), "b": nn.Parameter(torch.zeros(4))}
    found = args(
        lambda m, x: F.conv2d(x, m.w, m.b, stride=2), torch.zeros(1, 3, 8, 8), layers=layers
    )
    assert found == {"data_in_0": [1, 3, 8, 8], "weight": [4, 3, 3, 3], "bias": [4], "stride": 2}


def test_constructors_that_take_traced_sizes_name_their_arguments():
    assert args(lambda m, x: torch.arange(x.size(1), device=x.device)) == {
        "end": 3,
        "device": torch.device("cpu"),
    }
    assert args(lambda m, x: torch.arange(1, x.size(2), 2)) == {"start": 1, "end": 4, "step": 2}
    assert args(lambda m, x: torch.zeros(x.size(0), 3)) == {"size_0": 2, "size_1": 3}
    assert args(lambda m, x: torch.full((x.size(0), 1), 0.5)) == {"size": (2, 1), "fill_value": 0.5}
    assert args(lambda m, x: torch.finfo(x.dtype)) == {"dtype": torch.float32}
    assert args(lambda m, x: torch.tensor(x.size(0))) == {"data": 2}
    assert args(lambda m, x: math.sqrt(x.size(-1))) == {"x": 4}


@pytest.mark.parametrize(
    "call",
    [
        lambda m, x: m.attention(x, x, x, need_weights=False),
        lambda m, x: m.attention(query=x, key=x, value=x, need_weights=False),
    ],
)
def test_attention_lists_query_key_value_and_its_parameters_of_all_levels(call):
    assert args(call, layers={"attention": nn.MultiheadAttention(4, 2)}) == {
        "data_in_0": X,
        "data_in_1": X,
        "data_in_2": X,
        "need_weights": False,
        "in_proj_weight": [12, 4],
        "in_proj_bias": [12],
        "out_proj.weight": [4, 4],
        "out_proj.bias": [4],
    }


def test_a_recurrent_layer_lists_its_state_and_all_that_it_gives():
    layers = {"lstm": nn.LSTM(4, 5)}
    found = common(
        lambda m, x: m.lstm(x, (x.new_zeros(1, 3, 5), x.new_ones(1, 3, 5))), layers=layers
    )
    tensors = {name: meta["shape"] for name, meta in found["args"].items()}
    assert list(tensors)[:3] == ["data_in_0", "data_in_1", "data_in_2"]
    assert tensors["data_in_1"] == [1, 3, 5]
    assert [meta["shape"] for meta in found["results"].values()] == [
        [2, 3, 5],
        [1, 3, 5],
        [1, 3, 5],
    ]


Pair = namedtuple("Pair", "first second")


@dataclass
class Boxed:
    first: Tensor
    second: Tensor
    label: str = "box"


def boxed(x):
    return Boxed(x, x.sum(0))


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda m, x: (x, x.sum(0)), [X, [3, 4]]),
        (lambda m, x: {"a": x, "b": [x.sum(0), (x.sum(),)]}, [X, [3, 4], []]),
        (lambda m, x: Pair(x, x.sum(0)), [X, [3, 4]]),
        (lambda m, x: x.max(dim=1), [[2, 4], [2, 4]]),
        (lambda m, x: torch.split(x, 2, 1), [[2, 2, 4], [2, 1, 4]]),
        (lambda m, x: x.unbind(0), [[3, 4], [3, 4]]),
        (lambda m, x: x.chunk(2, 2), [[2, 3, 2], [2, 3, 2]]),
    ],
)
def test_results_of_any_structure_are_listed_one_by_one(fn, shapes):
    results = common(fn, at=-1)["results"]
    assert [meta["shape"] for meta in results.values()] == shapes
    assert list(results) == [f"data_out_{i}" for i in range(len(shapes))]


def test_dataclasses_are_looked_into():
    options = {"custom_ops": {"functions": {boxed: {}}}}
    results = common(lambda m, x: boxed(x), **options)["results"]
    assert [meta["shape"] for meta in results.values()] == [X, [3, 4], [1]]
    assert results["data_out_2"] == {"type": str, "shape": [1], "value": "box"}
    assert results == common(lambda m, x: Boxed(x, x.sum(0)), at=-1)["results"]
    assert args(lambda m, x: boxed(x).second, **options) == {
        "data_in_0": X,
        "data_in_1": [3, 4],
        "a": {"first": "data_in_0", "second": "data_in_1", "label": "box"},
        "b": "second",
    }


def test_results_that_are_no_tensors_keep_their_class_and_value():
    assert common(lambda m, x: (x, None, 3), at=-1)["results"] == {
        "data_out_0": fp32(2, 3, 4),
        "data_out_1": {"type": type(None), "shape": [1], "value": None},
        "data_out_2": {"type": int, "shape": [1], "value": 3},
    }
    assert common(lambda m, x: x.shape)["results"] == {
        "data_out_0": {"type": torch.Size, "shape": [1], "value": torch.Size([2, 3, 4])}
    }


def plain(x, scale=1, *, shift):
    return x * scale + shift


def starred(first, *rest, scale=1, **named):
    return first * scale


def anything(*args, **kwargs):
    return args[0]


def nested(x, both, config):
    return both[0] + both[1][0]


class Multiply:
    __name__ = "multiply"

    def __call__(self, x, by):
        return x * by


multiply = Multiply()


@pytest.mark.parametrize(
    ("function", "fn", "expected"),
    [
        (plain, lambda m, x: plain(x, 2, shift=3), {"data_in_0": X, "scale": 2, "shift": 3}),
        (plain, lambda m, x: plain(x, shift=x), {"data_in_0": X, "data_in_1": X}),
        (starred, lambda m, x: starred(x, x, 7, scale=2, other=x, n=4), {
            "data_in_0": X, "data_in_1": X, "rest_1": 7, "scale": 2, "data_in_2": X, "n": 4,
        }),
        (anything, lambda m, x: anything(x, 3, key=x, n=1), {
            "data_in_0": X, "arg_1": 3, "data_in_1": X, "n": 1,
        }),
        (nested, lambda m, x: nested(x, (x, [x, 2]), {"k": x, "n": 1}), {
            "data_in_0": X, "data_in_1": X, "data_in_2": X, "both": ("data_in_1", ["data_in_2", 2]),
            "data_in_3": X, "config": {"k": "data_in_3", "n": 1},
        }),
        (multiply, lambda m, x: multiply(x, 2), {"data_in_0": X, "by": 2}),
    ],
)  # fmt: skip
def test_functions_of_the_user_are_bound_by_their_signature(function, fn, expected):
    options = {"custom_ops": {"functions": {function: {}}}}
    assert args(fn, **options) == expected
    assert common(fn, **options)["mase_op"] == "user_defined_function"


def test_every_tensor_gets_a_record_of_its_own_even_if_it_is_used_twice():
    found = common(lambda m, x: x + x)["args"]
    found["data_in_0"]["precision"] = [8, 4]
    assert found["data_in_1"]["precision"] == [32]


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8, torch.bool])
def test_the_format_follows_the_dtype(dtype):
    meta = common(lambda m, x: torch.cat([x, x]), torch.zeros(2, 3).to(dtype))
    fmt = from_dtype(dtype)
    for entry in (meta["args"]["data_in_0"], meta["results"]["data_out_0"]):
        assert (entry["type"], entry["precision"]) == (fmt.name, fmt.precision)
        assert entry["torch_dtype"] == dtype


@pytest.mark.parametrize("shape", [(), (0, 4), (1,)])
def test_scalars_and_empty_batches_are_tensors_too(shape):
    assert args(lambda m, x: torch.relu(x), torch.zeros(shape)) == {"data_in_0": list(shape)}


def test_described_leaves_what_holds_no_tensor_as_it_is():
    for value in (3, None, [1, 2], (1, {"a": slice(1, 2)}), torch.Size([2]), Boxed):
        assert described(value) is value
    assert list(flatten(described([torch.zeros(2), (1, {"a": None})])))[1:] == [1, None]
