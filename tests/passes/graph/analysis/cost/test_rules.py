"""Each rule gives the number that one finds by hand, and that a count of what runs finds."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from chop.ir.ops import OPS
from chop.passes import run_pass
from chop.passes.graph.analysis.cost import RULES, Call, cost_of, count, rule, rule_of
from chop.passes.graph.analysis.cost.ledger import ledger_of
from chop.testing.audit import MacCounter

# the table names these for what it does not know, or has no function for them
NOT_COUNTED = {
    "grouped_query_attention",
    "patched_custom_layers",
    "user_defined_function",
    "user_defined_method",
    "user_defined_module",
}


def test_every_op_of_the_table_has_a_rule():
    torchs = {name for name, op in OPS.items() if _is_torchs(op)}
    assert {name for name in torchs if rule_of(name) is None} == NOT_COUNTED
    assert {op for op, fn in RULES.items() if fn.__module__.startswith("chop.")} <= set(OPS)


def _is_torchs(op):
    """Other tests add ops of their own."""
    homes = [getattr(thing, "__module__", None) for thing in (*op.modules, *op.functions)]
    libraries = ("torch", "_operator", "math", "builtins", "chop.ir")
    return all(home is None or home.startswith(libraries) for home in homes)


def total(make, model, x):
    return cost_of(make.graph(model.eval(), x))["total"]


def audited(model, x):
    return counted(model, x).macs


def counted(model, x):
    with torch.no_grad(), MacCounter() as counter:
        model(x)
    assert not counter.uncounted
    return counter


# layer, shape of the input -> parameters, MACs, FLOPs, FLOPs backward; all by hand
BY_HAND = {
    "linear": (
        lambda: nn.Linear(5, 3),
        (2, 5),
        # 2 rows of 15 products, 6 sums with the bias
        (18, 30, 2 * 30 + 6, 4 * 30 + 6),
    ),
    "linear over a sequence, no bias": (
        lambda: nn.Linear(5, 3, bias=False),
        (2, 4, 5),
        (15, 120, 240, 480),
    ),
    "an MLP": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
        (3, 4),
        # 3·(32+16) products; biases 3·8 and 3·2; relu 3·8
        (40 + 18, 144, 288 + 24 + 6 + 24, 576 + 24 + 6 + 24),
    ),
    "strided convolution": (
        lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1),
        (1, 3, 8, 8),
        # 4·4·4 results of 27 products each
        (112, 64 * 27, 2 * 64 * 27 + 64, 4 * 64 * 27 + 64),
    ),
    "grouped convolution": (
        lambda: nn.Conv2d(4, 8, 3, groups=2, bias=False),
        (2, 4, 5, 5),
        # 2·8·3·3 results of 2·9 products
        (144, 144 * 18, 2 * 144 * 18, 4 * 144 * 18),
    ),
    "depthwise convolution": (
        lambda: nn.Conv2d(6, 6, 3, groups=6, padding=1, bias=False),
        (1, 6, 4, 4),
        (54, 96 * 9, 2 * 96 * 9, 4 * 96 * 9),
    ),
    "dilated convolution": (
        lambda: nn.Conv1d(2, 3, 3, dilation=2),
        (1, 2, 10),
        # 10 - 2·2 = 6 places, 3 channels, 6 products
        (21, 18 * 6, 2 * 18 * 6 + 18, 4 * 18 * 6 + 18),
    ),
    "convolution in three dimensions": (
        lambda: nn.Conv3d(1, 2, 2, bias=False),
        (1, 1, 3, 3, 3),
        (16, 2 * 8 * 8, 2 * 2 * 8 * 8, 4 * 2 * 8 * 8),
    ),
    "transposed convolution": (
        lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1),
        (1, 2, 4, 4),
        # each of 32 inputs times 3·9 weights; 3·8·8 results with a bias
        (57, 32 * 27, 2 * 32 * 27 + 192, 4 * 32 * 27 + 192),
    ),
    "grouped transposed convolution": (
        lambda: nn.ConvTranspose1d(4, 4, 3, groups=2, bias=False),
        (1, 4, 5),
        (24, 20 * 6, 2 * 20 * 6, 4 * 20 * 6),
    ),
    "batch norm": (lambda: nn.BatchNorm2d(3), (2, 3, 4, 4), (6, 0, 4 * 96, 4 * 96)),
    "batch norm without weights": (
        lambda: nn.BatchNorm1d(5, affine=False),
        (4, 5),
        (0, 0, 2 * 20, 2 * 20),
    ),
    "layer norm": (lambda: nn.LayerNorm(6), (2, 6), (12, 0, 5 * 12, 5 * 12)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (1, 4, 3), (8, 0, 5 * 12, 5 * 12)),
    "max pooling": (lambda: nn.MaxPool2d(2), (1, 2, 4, 4), (0, 0, 8 * 4, 8)),
    "average pooling": (lambda: nn.AvgPool1d(3, stride=1), (1, 1, 5), (0, 0, 9, 9)),
    "adaptive pooling": (lambda: nn.AdaptiveAvgPool2d(1), (2, 3, 4, 4), (0, 0, 96, 96)),
    "adaptive pooling that overlaps": (
        lambda: nn.AdaptiveAvgPool1d(3),
        (1, 1, 5),
        # windows 0..2, 1..4, 3..5
        (0, 0, 2 + 3 + 2, 2 + 3 + 2),
    ),
    "softmax": (lambda: nn.Softmax(-1), (2, 5), (0, 0, 50, 40)),
    "embedding": (lambda: nn.Embedding(7, 4), None, (28, 0, 0, 0)),
    "LSTM": (
        lambda: nn.LSTM(3, 2, batch_first=True),
        (1, 4, 3),
        # 4 steps: (3+2)·8 products, 16 biases, 22 operations for each of 2 states
        (56, 160, 320 + 4 * 16 + 4 * 2 * 22, 640 + 4 * 16 + 4 * 2 * 26),
    ),
    "GRU cell": (
        lambda: nn.GRUCell(3, 2),
        (5, 3),
        (42, 150, 300 + 5 * 12 + 5 * 2 * 16, 600 + 5 * 12 + 5 * 2 * 20),
    ),
    "RNN in both directions": (
        lambda: nn.RNN(3, 2, bidirectional=True, bias=False),
        (4, 1, 3),
        (20, 80, 160 + 2 * 4 * 2 * 2, 320 + 2 * 4 * 2 * 3),
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_it_is_what_one_finds_by_hand(name, make):
    layer, shape, expected = BY_HAND[name]
    x = torch.randn(shape) if shape else torch.tensor([[1, 2, 3]])
    model = make.whole(layer()).eval()
    found = total(make, model, x)
    keys = ("parameters", "macs", "flops", "backward_flops")
    assert tuple(found[key] for key in keys) == expected
    ran = counted(model, x)
    assert (found["macs"], found["flops"]) == (ran.macs, ran.flops)


def test_a_block_of_attention_by_hand(make):
    def block(_, x):
        return F.scaled_dot_product_attention(x, x, x)

    x = torch.randn(2, 3, 5, 4)  # samples, heads, places, width
    found = total(make, make.doing(block), x)
    scores = 2 * 3 * 5 * 5
    assert found["macs"] == scores * 4 + scores * 4
    assert found["flops"] == 2 * found["macs"] + scores * (1 + 5)  # scale, softmax
    assert found["macs"] == audited(make.doing(block), x)


def test_a_functional_linear_and_a_product_by_hand(make):
    def two(self, x):
        return F.linear(x, self.weight, self.bias) @ self.other

    parameters = {"weight": (6, 5), "bias": (6,), "other": (6, 2)}
    model = make.doing(two, **{name: torch.randn(shape) for name, shape in parameters.items()})
    found = total(make, model, torch.randn(3, 5))
    assert found["parameters"] == 30 + 6 + 12
    assert found["macs"] == 3 * 30 + 3 * 12
    assert found["flops"] == 2 * found["macs"] + 3 * 6


def test_attention_with_weights_by_hand(make):
    model = make.itself(nn.MultiheadAttention(8, 2, batch_first=True)).eval()
    x = torch.randn(2, 5, 8)
    found = total(make, model, x)
    scores = 2 * 2 * 5 * 5
    assert found["macs"] == 4 * (10 * 64) + 2 * scores * 4
    assert found["parameters"] == 4 * (64 + 8)
    assert found["flops"] == 2 * found["macs"] + 4 * 10 * 8 + 6 * scores
    assert found["macs"] == audited(model, x)


def test_a_transformer_encoder_layer_by_hand(make):
    model = make.whole(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
    x = torch.randn(2, 5, 8)
    found = total(make, model, x)
    attention = 4 * (10 * 64) + 2 * (2 * 2 * 5 * 5) * 4
    assert found["macs"] == attention + 10 * (8 * 16 + 16 * 8)
    softmax, biases = 6 * 100, 4 * 80 + 10 * (16 + 8)
    norms, sums, relu = 2 * 5 * 80, 2 * 80, 160
    assert found["flops"] == 2 * found["macs"] + softmax + biases + norms + sums + relu
    assert found["macs"] == audited(model, x)


class Pair(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x, x[:, :3])


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    "model",
    [
        nn.MultiheadAttention(8, 4, add_bias_kv=True, add_zero_attn=True),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False),
        nn.LSTM(8, 5, 2, bidirectional=True, proj_size=3),
        nn.GRU(8, 3, 2),
        Pair(nn.TransformerDecoderLayer(8, 2, 16, activation="gelu", batch_first=True)),
        Pair(nn.Transformer(8, 2, 1, 2, 16, batch_first=True)),
    ],
    ids=lambda model: type(getattr(model, "layer", model)).__name__,
)
def test_layers_made_of_layers_agree_with_what_runs(model, make):
    x = torch.randn(4, 4, 8)
    wrap = make.itself if isinstance(model, nn.MultiheadAttention) else make.whole
    model = model if isinstance(model, Pair) else wrap(model)
    assert total(make, model.eval(), x)["macs"] == audited(model, x) > 0


@pytest.mark.parametrize(
    ("equation", "others"),
    [
        ("bij,bkj->bik", [(4, 5, 3)]),
        ("...i,ij", [(3, 7)]),
        ("bij,jk,kl->bil", [(3, 5), (5, 2)]),
        ("bij,j->bi", [(3,)]),
        ("bij,bij->b", [(4, 6, 3)]),
    ],
)
def test_einsum_agrees_with_what_runs(equation, others, make, monkeypatch):
    monkeypatch.setattr(torch.backends.opt_einsum, "enabled", False)
    tensors = {f"t{i}": torch.randn(shape) for i, shape in enumerate(others)}

    def product(self, x):
        return torch.einsum(equation, x, *(getattr(self, name) for name in tensors))

    model, x = make.doing(product, **tensors), torch.randn(4, 6, 3)
    assert total(make, model, x)["macs"] == audited(model, x) > 0


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: torch.addmm(self.a, x, self.b),
        lambda self, x: torch.tensordot(x, self.b, 1),
        lambda self, x: torch.mv(x, self.b[:, 0]),
        lambda self, x: torch.inner(x, self.b.t()),
        lambda self, x: x.unsqueeze(0).expand(2, 4, 3).bmm(self.b.expand(2, 3, 5)),
        lambda self, x: torch.baddbmm(self.a, x[None], self.b[None]),
        lambda self, x: torch.addbmm(self.a, x.expand(2, 4, 3), self.b.expand(2, 3, 5)),
        lambda self, x: torch.addmv(self.a[:, 0], x, self.b[:, 0]),
        lambda self, x: F.linear(x, torch._weight_norm(self.b.t(), self.a[:1].t(), 0)),
        lambda self, x: F.conv1d(x[None], self.w, stride=2, padding=1),
        lambda self, x: F.conv_transpose1d(x[None], self.w, stride=2, groups=2),
    ],
    ids=[
        *("addmm", "tensordot", "mv", "inner", "bmm", "baddbmm", "addbmm", "addmv", "weight_norm"),
        *("conv1d", "transposed"),
    ],
)
def test_functions_agree_with_what_runs(function, make):
    shapes = {"a": (4, 5), "b": (3, 5), "w": (4, 4, 3)}
    model = make.doing(function, **{name: torch.randn(shape) for name, shape in shapes.items()})
    x = torch.randn(4, 3)
    found, ran = total(make, model, x), counted(model, x)
    assert found["macs"] == ran.macs > 0
    assert found["flops"] == ran.flops


@pytest.mark.parametrize(
    "function",
    [
        lambda _, x: x.cumsum(1),
        lambda _, x: x.long() & 3 | (x > 0).long() ^ 1,
        lambda _, x: ~(x > 0) & torch.logical_not(x),
        lambda _, x: torch.logical_and(x, x).logical_or(x),
        lambda _, x: torch.floor_divide(x, 2),
        lambda _, x: x.clone().as_strided_((3, 4), (1, 3)),
    ],
    ids=["cumsum", "bits", "not", "logical", "floor_divide", "as_strided"],
)
def test_masks_and_positions_cost_what_runs(function, make):
    model, x = make.doing(function), torch.randn(4, 3)
    assert total(make, model, x)["flops"] == counted(model, x).flops


QUANTIZED = {
    "addmm": lambda self, x: torch.addmm(self.a, x, self.b),
    "einsum": lambda self, x: torch.einsum("ij,jk->ik", [x, self.b]),
    "attention": lambda self, x: F.scaled_dot_product_attention(x, x, x),
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_bit_operations_of_functions_have_the_widths_of_their_formats(name, make):
    parameters = {"a": torch.randn(5), "b": torch.randn(3, 5)}
    graph = make.graph(make.doing(QUANTIZED[name], **parameters), torch.randn(4, 3))
    config = {"name": "integer"}
    for operand, width in (("data_in", 8), ("weight", 4), ("bias", 16)):
        config |= {f"{operand}_width": width, f"{operand}_frac_width": 2}
    run_pass("quantize", graph, {"by": "type", "default": {"config": config}})
    found = cost_of(graph)["total"]
    right = 8 if name == "attention" else 4
    assert found["bit_ops_multiply"] == found["macs"] * 8 * right > 0
    assert found["bit_ops"] == ledger_of(graph.model).read().bit_ops * 4  # samples


# layers and the functions behind them; the input is a batch of two pictures
TWINS = {
    "max_pool": (nn.MaxPool2d(3, 2), lambda _, x: F.max_pool2d(x, kernel_size=3, stride=2)),
    "avg_pool": (nn.AvgPool2d((2, 1)), lambda _, x: F.avg_pool2d(x, (2, 1))),
    "adaptive": (nn.AdaptiveAvgPool2d((3, 1)), lambda _, x: F.adaptive_avg_pool2d(x, (3, 1))),
    "lp_pool": (nn.LPPool2d(2, 2), lambda _, x: F.lp_pool2d(x, 2, 2)),
    "gelu": (nn.GELU(), lambda _, x: F.gelu(x)),
    "softmax": (nn.Softmax(1), lambda _, x: x.softmax(1)),
    "glu": (nn.GLU(1), lambda _, x: F.glu(x, 1)),
    "resize": (
        nn.Upsample(scale_factor=2, mode="bilinear"),
        lambda _, x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    ),
    "layer_norm": (
        nn.LayerNorm(8, elementwise_affine=False),
        lambda _, x: F.layer_norm(x, (8,)),
    ),
    "group_norm": (nn.GroupNorm(2, 4, affine=False), lambda _, x: F.group_norm(x, 2)),
    "instance_norm": (nn.InstanceNorm2d(4), lambda _, x: F.instance_norm(x)),
}


# pass minus execution: torch takes sign, absolute value, positive part and root of each of 128
# means, and multiplies them by the sign and by the size of the window (6 each), where the rule
# counts two operations for each of the 512 elements in them
RUN_OTHERWISE = {"lp_pool": 2 * 512 - (512 + 512 + 6 * 128)}


@pytest.mark.parametrize("name", TWINS)
def test_a_layer_and_its_function_cost_the_same(name, make):
    layer, function = TWINS[name]
    x = torch.randn(2, 4, 8, 8)
    as_layer, as_function = (total(make, m, x) for m in (make.whole(layer), make.doing(function)))
    assert as_layer == as_function | {"peak_node": as_layer["peak_node"]}
    assert as_layer["flops"] > 0
    ran = counted(make.doing(function), x)
    assert as_layer["flops"] - ran.flops == RUN_OTHERWISE.get(name, 0)


ONE_BY_ONE = [
    *(nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(), nn.PReLU(), nn.ELU(), nn.SELU(), nn.CELU(2.0)),
    *(nn.GELU(), nn.SiLU(), nn.Mish(), nn.Sigmoid(), nn.LogSigmoid(), nn.Hardsigmoid(), nn.Tanh()),
    *(nn.Hardtanh(), nn.Hardswish(), nn.Hardshrink(), nn.Softshrink(), nn.Tanhshrink()),
    *(nn.Softsign(), nn.Softplus(), nn.Threshold(0.1, 0.0), nn.GLU(1), nn.Softmax(1)),
    *(nn.Softmin(1), nn.LogSoftmax(1), nn.AvgPool2d(3, 2, 1), nn.MaxPool2d(3, 2, 1)),
    *(nn.AdaptiveAvgPool2d((3, 5)), nn.AdaptiveMaxPool2d(3), nn.BatchNorm2d(4)),
    *(nn.LayerNorm([8, 8]), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)),
    *(nn.Upsample(scale_factor=2, mode=mode) for mode in ("nearest", "bilinear", "bicubic")),
    *(nn.Dropout(), nn.Identity(), nn.Flatten(), nn.ZeroPad2d(1), nn.PixelShuffle(2)),
]


@pytest.mark.sampled(14)
@pytest.mark.parametrize("layer", ONE_BY_ONE, ids=lambda layer: str(layer).partition("(")[0])
def test_operations_beside_products_are_those_that_run(layer, make):
    model, x = make.whole(layer).eval(), torch.randn(2, 4, 8, 8)
    assert total(make, model, x)["flops"] == counted(model, x).flops


@pytest.mark.parametrize(
    "function",
    [
        lambda _, x: (x + 1) * x - x / 2,
        lambda _, x: x.sum(1) + x.mean(1) + x.amax(1),
        lambda _, x: x.clamp(0, 1).rsqrt().exp(),
        lambda _, x: torch.maximum(x, -x).abs().sqrt(),
        lambda _, x: x.std(1) + x.var(1),
        lambda _, x: F.mse_loss(x, x.flip(0)),
        lambda _, x: torch.cat([x, x], 1).permute(0, 2, 1)[:, 1:].contiguous(),
        lambda _, x: F.softmax(x, -1) * F.log_softmax(x, -1),
        lambda _, x: F.grid_sample(x[None], x[None, :, :, :2], align_corners=False),
        lambda _, x: F.grid_sample(x[None], x[None, :, :, :2], "nearest", align_corners=False),
        lambda _, x: torch.ops.aten.upsample_linear1d(x, [9], False),
        lambda _, x: torch._C._nn.upsample_bilinear2d(x[None], [9, 7], False),
    ],
)
def test_functions_beside_products_are_those_that_run(function, make):
    model, x = make.doing(function), torch.randn(2, 3, 5)
    assert total(make, model, x)["flops"] == counted(model, x).flops


def test_resizing_by_a_kernel_is_a_weighted_sum(make):
    def resize(_, x):
        return torch._C._nn.upsample_bilinear2d(x, [6, 6], False)

    # each result: four products and three sums
    assert total(make, make.doing(resize), torch.randn(1, 2, 3, 3))["flops"] == 72 * 7


def test_a_root_mean_square_is_taken_once_a_row(make):
    model, x = make.whole(nn.RMSNorm(8)).eval(), torch.randn(4, 8)
    # the rule counts what grows with the elements; a sum, a root and a quotient run once a row
    assert counted(model, x).flops - total(make, model, x)["flops"] == 3 * 4


@given(
    rank=st.integers(1, 2),
    groups=st.integers(1, 2),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 1),
    dilation=st.integers(1, 2),
    transposed=st.booleans(),
)
def test_any_convolution_agrees_with_what_runs(
    rank, groups, kernel, stride, padding, dilation, transposed
):
    cls = getattr(nn, f"Conv{'Transpose' if transposed else ''}{rank}d")
    layer = cls(2, 4, kernel, stride, padding, groups=groups, dilation=dilation)
    x = torch.randn(1, 2, *[7] * rank)
    given_shapes = {"data_in_0": tuple(x.shape), "weight": tuple(layer.weight.shape)}
    op = cls.__name__.lower()
    with torch.no_grad(), MacCounter() as counter:
        result = layer(x)
    found = count(Call(op, given_shapes, [tuple(result.shape)], layer))
    assert found is not None
    assert found.macs == counter.macs


@pytest.mark.parametrize("biased", [False, True])
def test_attention_as_a_function_has_the_biases_that_it_is_given(biased, make):
    names = {"w": (24, 8), "b": (24,), "out": (8, 8), "c": (8,)}

    def attend(self, x):
        b, c = (self.b, self.c) if biased else (None, None)
        return F.multi_head_attention_forward(
            x, x, x, 8, 2, self.w, b, None, None, False, 0.0, self.out, c
        )[0]

    model = make.doing(attend, **{name: torch.randn(shape) for name, shape in names.items()})
    x = torch.randn(5, 3, 8)
    found = total(make, model, x)
    assert found["macs"] == audited(model, x)
    scores = 3 * 2 * 5 * 5
    assert found["flops"] == 2 * found["macs"] + 6 * scores + (4 * 15 * 8 if biased else 0)


def test_grouped_queries_share_their_keys(make):
    def attend(_, x):
        keys = x[:, :2]
        return F.scaled_dot_product_attention(x, keys, keys, enable_gqa=True)

    x = torch.randn(2, 4, 5, 8)
    assert total(make, make.doing(attend), x)["macs"] == 2 * (2 * 4 * 5 * 5) * 8
    assert audited(make.doing(attend), x) == 2 * (2 * 4 * 5 * 5) * 8


def test_sizes_and_shapes_cost_nothing(make):
    def reshape(_, x):
        n = x.size(0) * 2 + 1 - 1
        return x.reshape(n, -1).t().contiguous()[0]

    assert total(make, make.doing(reshape), torch.randn(2, 6))["flops"] == 0


def test_a_rule_of_your_own_counts(monkeypatch):
    monkeypatch.setattr(RULES, "_items", dict(RULES))
    rule("my_op")(lambda call: rule_of("relu")(call))
    found = count(Call("my_op", {"data_in_0": (2, 3)}, [(2, 3)]))
    assert found is not None
    assert found.flops == 6


def test_the_counter_names_operations_that_it_does_not_know():
    with torch.no_grad(), MacCounter() as counter:
        torch.lgamma(torch.ones(3))
    assert counter.uncounted == {"lgamma"}
    assert counter.flops == 0


def test_the_counter_names_what_it_cannot_count():
    with torch.no_grad(), MacCounter() as counter:
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*(torch.randn(1, 1, 4, 8),) * 3)
    assert counter.uncounted == {"_scaled_dot_product_flash_attention_for_cpu"}


def test_the_counter_leaves_torch_as_it_was():
    before = torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled()
    with pytest.raises(RuntimeError), MacCounter():
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert (torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled()) == before
