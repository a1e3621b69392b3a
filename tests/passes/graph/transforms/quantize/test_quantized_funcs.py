"""Quantized functions: the op on rounded operands, and nothing else rounded."""

import copy
import operator
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from chop.ir.ops import OPS
from chop.numerics import FORMATS
from chop.numerics.integer import Integer
from chop.passes.graph.transforms.quantize import quantized_func_map, quantized_funcs
from chop.passes.graph.transforms.quantize.quantized_funcs import (
    QuantizedFunction,
    add_integer,
    matmul_integer,
    quantized_function,
    relu_integer,
)

CONFIG = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
CONFIG |= {"weight_width": 6, "weight_frac_width": 3, "bias_width": 5, "bias_frac_width": 2}
Q, W, B = Integer(8, 4), Integer(6, 3), Integer(5, 2)
UNSIGNED = Integer(8, 4, signed=False)


def integer(target, op):
    return quantized_function(target, OPS[op], FORMATS["integer"])


@pytest.fixture
def x():
    return torch.randn(3, 4)


@pytest.fixture
def y():
    return torch.randn(3, 4)


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_arithmetic_rounds_both_operands(op, x, y):
    target = getattr(torch, op)
    assert torch.equal(integer(target, op)(x, y, config=CONFIG), target(Q(x), Q(y)))
    spelt = integer(getattr(operator, op), op)
    assert torch.equal(spelt(x, y, config=CONFIG), target(Q(x), Q(y)))
    method = integer(getattr(torch.Tensor, op), op)
    assert torch.equal(method(x, y, config=CONFIG), target(Q(x), Q(y)))


@pytest.mark.parametrize(
    ("op", "target"), [("matmul", torch.matmul), ("mm", torch.mm), ("matmul", operator.matmul)]
)
def test_products_round_their_second_operand_as_a_weight(op, target, x, y):
    assert torch.equal(integer(target, op)(x, y.t(), config=CONFIG), target(Q(x), W(y.t())))


def test_bmm_too():
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    expected = torch.bmm(Q(a), W(b))
    assert torch.equal(quantized_func_map["bmm_integer"](a, b, config=CONFIG), expected)
    assert torch.equal(quantized_func_map["bmm_integer"](a, mat2=b, config=CONFIG), expected)


def test_keywords_mean_what_they_say_in_any_order(x, y):
    product = matmul_integer(other=y.t(), input=x, config=CONFIG)
    assert torch.equal(product, Q(x) @ W(y.t()))
    assert torch.equal(matmul_integer(x, other=y.t(), config=CONFIG), product)
    total = add_integer(x, y, alpha=2.03, config=CONFIG)  # alpha is no operand
    assert torch.equal(total, torch.add(Q(x), Q(y), alpha=2.03))
    linear = quantized_func_map["linear_integer"]
    weight, bias = torch.randn(5, 4), torch.randn(5)
    expected = F.linear(Q(x), W(weight), B(bias))
    assert torch.equal(linear(x, weight, bias, config=CONFIG), expected)
    assert torch.equal(linear(bias=bias, weight=weight, input=x, config=CONFIG), expected)
    assert torch.equal(linear(x, weight, config=CONFIG), F.linear(Q(x), W(weight)))


def test_numbers_are_operands_too_whole_ones_are_exact(x):
    mul = integer(operator.mul, "mul")
    assert torch.equal(mul(x, 2, config=CONFIG), Q(x) * 2)
    assert torch.equal(mul(2, x, config=CONFIG), Q(x) * 2)
    assert torch.equal(mul(x, 0.3, config=CONFIG), Q(x) * 0.3125)
    assert torch.equal(mul(x, torch.tensor(0.3), config=CONFIG), Q(x) * 0.3125)
    assert torch.equal(mul(x, True, config=CONFIG), Q(x))


def test_operands_broadcast_as_in_torch(x):
    row = torch.randn(4)
    assert torch.equal(add_integer(x, row, config=CONFIG), Q(x) + Q(row))


def test_integers_and_complex_numbers_stay_as_they_are(x):
    ids = torch.arange(4)
    assert torch.equal(add_integer(ids, ids, config=CONFIG), ids + ids)
    assert torch.equal(add_integer(ids, x, config=CONFIG), ids + Q(x))
    wave = torch.tensor([0.3 + 0.3j])
    assert torch.equal(add_integer(wave, wave, config=CONFIG), wave + wave)


def test_relu_spares_the_sign(x):
    big = 4 * x.abs()
    assert torch.equal(relu_integer(big, config=CONFIG), UNSIGNED(big).relu())
    assert torch.equal(integer(F.relu, "relu")(x, config=CONFIG), UNSIGNED(x).relu())


@pytest.mark.parametrize(
    ("op", "target", "fmt"),
    [
        ("relu", torch.relu_, UNSIGNED),
        ("relu", torch.Tensor.relu_, UNSIGNED),
        ("relu", lambda x: F.relu(x, inplace=True), UNSIGNED),
        ("sigmoid", torch.sigmoid_, Q),
        ("silu", lambda x: F.silu(x, True), Q),
    ],
)
def test_in_place_functions_change_what_they_are_given(op, target, fmt, x):
    function = integer(target, op)
    expected = target(fmt(x))
    result = function(x, config=CONFIG)
    assert result is x
    assert torch.equal(x, expected)


def test_in_place_operators_do_too(x, y):
    before, name = x.clone(), x
    name = integer(operator.iadd, "add")(x, y, config=CONFIG)
    assert name is x
    assert torch.equal(x, Q(before) + Q(y))
    tensor = before.clone()
    integer(torch.Tensor.mul_, "mul")(tensor, 2, config={**CONFIG, **OUT})
    assert torch.equal(tensor, Integer(4, 1)(Q(before) * 2))
    product = integer(operator.imatmul, "matmul")(before, y.t(), config=CONFIG)
    assert product.shape == (3, 3)


OUT = {"data_out_width": 4, "data_out_frac_width": 1}


def test_results_are_rounded_where_the_config_says_so(x, y):
    result = add_integer(x, y, config={**CONFIG, **OUT})
    assert torch.equal(result, Integer(4, 1)(Q(x) + Q(y)))


def test_bypassed_it_is_the_float_function(x, y):
    assert torch.equal(add_integer(x, y, config={**CONFIG, "bypass": True}), x + y)


def attend(q, k, v, mask=0.0, scale=None):
    """Attention with its four operands rounded."""
    scores = Q(q) @ Q(k).mT * (scale or q.shape[-1] ** -0.5) + mask
    return Q(scores.softmax(-1)) @ Q(v)


def test_attention_rounds_the_operands_of_both_products_but_no_mask():
    q, k, v = torch.randn(3, 2, 4, 8).unbind()
    mask = torch.randn(4, 4)
    attention = quantized_func_map["scaled_dot_product_attention_integer"]
    for result in (
        attention(q, k, v, mask, scale=0.3, config=CONFIG),
        attention(q, k, attn_mask=mask, value=v, scale=0.3, config=CONFIG),
    ):
        assert torch.equal(result, attend(q, k, v, mask, 0.3))
    causal = attention(q, k, v, is_causal=True, config=CONFIG)
    assert torch.equal(causal, attend(q, k, v, torch.full((4, 4), -torch.inf).triu(1)))


EXACT = {"name": "integer"} | {
    f"{operand}_{key}": bits
    for operand in ("data_in", "weight", "bias")
    for key, bits in (("width", 60), ("frac_width", 40))
}
HIDDEN = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.2},
        {"attn_mask": HIDDEN},
        {"attn_mask": torch.linspace(-1, 1, 9).view(3, 3)},
        {"enable_gqa": True},
    ],
    ids=lambda options: next(iter(options), "plain"),
)
def test_attention_in_a_fine_format_is_torchs(options):
    heads = 1 if "enable_gqa" in options else 2
    q, k, v = (torch.randn(2, n, 3, 4, dtype=torch.float64) for n in (2, heads, heads))
    attention = quantized_func_map["scaled_dot_product_attention_integer"]
    if options.get("attn_mask", HIDDEN).dtype != torch.bool:
        options = {"attn_mask": options["attn_mask"].double()}
    expected = F.scaled_dot_product_attention(q, k, v, **options)
    assert torch.allclose(attention(q, k, v, **options, config=EXACT), expected, atol=1e-9)


def test_attention_drops_probabilities_as_torch_does():
    q, k, v = torch.randn(3, 2, 64, 8).unbind()
    attention = quantized_func_map["scaled_dot_product_attention_integer"]
    assert torch.equal(attention(q, k, v, None, 1.0, config=CONFIG), torch.zeros_like(v))
    some = attention(q, k, v, dropout_p=0.5, config=CONFIG)
    assert not torch.equal(some, attention(q, k, v, config=CONFIG))


def test_a_mask_and_a_causal_mask_exclude_each_other():
    q = torch.randn(2, 3, 4)
    attention = quantized_func_map["scaled_dot_product_attention_integer"]
    with pytest.raises(ValueError, match="attn_mask or is_causal, not both"):
        attention(q, q, q, torch.ones(3, 3), 0.0, True, config=CONFIG)


def test_a_product_of_matrices_and_a_sum_is_a_linear_layer_with_its_inputs_first():
    x, w, b = torch.randn(5, 3), torch.randn(3, 4), torch.randn(4)
    expected = torch.addmm(B(b), Q(x), W(w))
    assert torch.equal(integer(torch.addmm, "addmm")(b, x, w, config=CONFIG), expected)
    assert torch.allclose(expected, integer(F.linear, "linear")(x, w.T, b, config=CONFIG))
    by_name = integer(torch.addmm, "addmm")(mat2=w, input=b, mat1=x, beta=2, config=CONFIG)
    assert torch.equal(by_name, torch.addmm(B(b), Q(x), W(w), beta=2))


@pytest.mark.parametrize("op", ["baddbmm", "addbmm"])
def test_so_are_products_of_many_matrices(op):
    bias, x, w = torch.randn(2, 2), torch.randn(5, 2, 3), torch.randn(5, 3, 2)
    target = getattr(torch, op)
    assert torch.equal(integer(target, op)(bias, x, w, config=CONFIG), target(B(bias), Q(x), W(w)))


def named(value):
    """The id of a case: a function by its name, as its text has its address."""
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize("target", [torch.einsum, torch.ops.aten.einsum.default], ids=named)
def test_operands_of_an_equation_are_rounded_alone_and_in_a_list(target):
    x, w, v = torch.randn(2, 3), torch.randn(3, 4), torch.randn(4)
    equation = "ij,jk,k->ik"
    expected = torch.einsum(equation, Q(x), W(w), W(v))
    function = integer(target, "einsum")
    assert torch.equal(function(equation, [x, w, v], config=CONFIG), expected)
    if target is torch.einsum:
        assert torch.equal(function(equation, x, w, v, config=CONFIG), expected)


@pytest.mark.parametrize(
    ("target", "shapes"),
    [
        (torch.inner, [(2, 3), (4, 3)]),
        (torch.tensordot, [(2, 3, 4), (3, 4)]),
        (torch.mv, [(2, 3), (3,)]),
        (torch.dot, [(3,), (3,)]),
        (torch.ops.aten.mm.default, [(2, 3), (3, 2)]),
    ],
    ids=named,
)
def test_other_products_round_their_second_operand_as_a_weight(target, shapes):
    x, y = map(torch.randn, shapes)
    name = getattr(target, "overloadpacket", target).__name__
    assert torch.equal(integer(target, name)(x, y, config=CONFIG), target(Q(x), W(y)))


def test_norms_round_input_and_affine_parameters_but_no_statistics():
    x, w, b = torch.randn(3, 4), torch.rand(4), torch.rand(4)
    mean, var = torch.rand(4), torch.rand(4) + 0.5
    norm = integer(F.batch_norm, "batch_norm")
    expected = F.batch_norm(Q(x), mean, var, W(w), B(b))
    assert torch.equal(norm(x, mean, var, w, b, config=CONFIG), expected)
    swapped = norm(running_mean=mean, running_var=var, input=x, weight=w, bias=b, config=CONFIG)
    assert torch.equal(swapped, expected)
    layer_norm = integer(F.layer_norm, "layer_norm")
    expected = F.layer_norm(Q(x), (4,), W(w), B(b), 1e-3)
    assert torch.equal(layer_norm(x, (4,), w, b, 1e-3, config=CONFIG), expected)
    rms_norm = integer(F.rms_norm, "rms_norm")
    expected = F.rms_norm(Q(x), (4,), W(w), 1e-3)
    assert torch.equal(rms_norm(x, (4,), w, 1e-3, config=CONFIG), expected)


def test_an_embedding_rounds_its_table():
    ids, table = torch.tensor([1, 2]), torch.randn(4, 3)
    function = integer(F.embedding, "embedding")
    assert torch.equal(function(ids, table, config=CONFIG), W(table)[ids])


@pytest.mark.parametrize("fmt", ["log", "minifloat_ieee", "block_fp", "mxint", "binary", "ternary"])
def test_gradients_pass_straight_through(fmt, x, y):
    precisions = {
        "log": {"width": 5, "exponent_bias": 7},
        "minifloat_ieee": {"width": 8, "exponent_width": 4, "exponent_bias": 7},
        "block_fp": {"width": 8, "exponent_width": 8, "exponent_bias": None, "block_size": [4]},
        "mxint": {"width": 8, "block_size": [4]},
        "binary": {"width": 1, "stochastic": False, "bipolar": True},
        "ternary": dict.fromkeys(("mean", "median", "max")) | {"width": 2, "scaling_factor": True},
    }
    config = {f"{o}_{k}": v for o in ("data_in", "weight") for k, v in precisions[fmt].items()}
    config["name"] = fmt
    x.requires_grad_()
    y.requires_grad_()
    product = quantized_func_map[f"matmul_{fmt}"]
    formats = product.formats(config)
    product(x, y.t(), config=config).sum().backward()
    with torch.no_grad():
        assert torch.equal(y.grad, formats["data_in"](x).sum(0).expand(3, 4))
        assert torch.allclose(x.grad, formats["weight"](y.t()).sum(1).expand(3, 4))


def test_every_function_is_found_by_its_name_and_knows_its_op():
    names = list(quantized_func_map)
    assert len(names) == len(quantized_func_map) == len(set(names))
    for name in names:
        function = quantized_func_map[name]
        assert isinstance(function, QuantizedFunction)
        assert name.startswith(function.spec.name)
        assert function.__name__ == f"{function.spec.name}_{function.format_name}"
    with pytest.raises(KeyError):
        quantized_func_map["add_interger"]
    with pytest.raises(ImportError):
        from chop.passes.graph.transforms.quantize.quantized_funcs import add_interger  # noqa: F401


def test_a_function_is_one_object_however_it_is_copied():
    for op in ("add", "relu", "matmul", "softmax", "linear", "layer_norm"):
        for target in OPS[op].functions:
            function = integer(target, op)
            assert copy.deepcopy(function) is function
            if target is not getattr(torch.Tensor, target.__name__, None):
                assert pickle.loads(pickle.dumps(function)) is function


class ByHand(nn.Module):
    """As somebody writes it who knows our functions, in-place ones among them."""

    def forward(self, x):
        y = add_integer(x, x * 2, config=CONFIG)
        return relu_integer(y, config=CONFIG)


def test_a_model_that_calls_them_is_traced_with_them_whole(x):
    traced = fx.symbolic_trace(ByHand())
    targets = [n.target for n in traced.graph.nodes if n.op == "call_function"]
    assert targets == [operator.mul, add_integer, relu_integer]
    assert torch.equal(traced(x), ByHand()(x))


@pytest.mark.parametrize(
    "target",
    [torch.add, operator.add, operator.iadd, torch.Tensor.add, torch.Tensor.add_],
    ids=lambda target: getattr(target, "__qualname__", str(target)),
)
def test_a_pickled_graph_calls_just_the_function_that_it_called(target, x, y):
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    graph.output(graph.call_function(integer(target, "add"), (a, b), {"config": CONFIG}))
    model = fx.GraphModule(nn.Module(), graph)
    again = pickle.loads(pickle.dumps(model))
    assert [n.target for n in again.graph.nodes if n.op == "call_function"] == [
        integer(target, "add")
    ]
    assert torch.equal(again(x.clone(), y), Q(x) + Q(y))


def test_a_config_is_checked_when_it_is_used(x):
    with pytest.raises(ValueError, match="missing \\['data_in_frac_width'\\]"):
        add_integer(x, x, config={"name": "integer", "data_in_width": 8})
    with pytest.raises(TypeError, match="config"):
        add_integer(x, x)


def test_formats_of_many_configs_are_not_kept_without_end(x, monkeypatch):
    monkeypatch.setattr(quantized_funcs, "MAX_CACHED", 5)
    relu = QuantizedFunction(F.relu, OPS["relu"], FORMATS["integer"])
    first = relu.formats(CONFIG)
    for width in range(2, 30):
        assert relu.formats(CONFIG | {"data_in_width": width})["data_in"].width == width
        assert relu.formats(CONFIG) is first  # what is in use stays
    assert len(relu._known) == 5
