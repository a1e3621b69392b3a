"""Each family of ops computes in a file what torch computes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from chop.ir.ops import OPS, ops_with
from chop.passes.graph.interface.export_onnx import onnx_model
from chop.passes.graph.interface.export_onnx.registry import WRITERS, writer_of


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


FUNCTIONS = {
    "activations": lambda x: [
        *(F.relu(x), F.relu6(x), F.leaky_relu(x, 0.2), F.elu(x), F.selu(x), F.celu(x), F.gelu(x)),
        *(F.silu(x), F.mish(x), torch.sigmoid(x), F.logsigmoid(x), F.hardsigmoid(x), F.hardtanh(x)),
        *(F.hardswish(x), F.hardshrink(x), F.softshrink(x), F.tanhshrink(x), F.softsign(x)),
        *(F.softplus(x, 2.0, 3.0), F.threshold(x, 0.1, 2.0), F.glu(x, 1), F.softmax(x, -1)),
        *(F.log_softmax(x, 1), F.softmin(x, 1), F.gelu(x, approximate="tanh"), torch.tanh(x)),
    ],
    "one number": lambda x: [
        *(torch.exp(x), torch.log(x.abs() + 1), torch.rsqrt(x.abs() + 1), x.square(), torch.erf(x)),
        *((x * x).log1p(), x.floor(), x.ceil(), x.round(), x.trunc(), x.sign(), x.sin(), x.cos()),
        *(-x, x.abs(), torch.exp2(x), torch.frac(x), torch.expm1(x), (x * x + 1).sqrt()),
        *(x.clamp(-0.5, 0.5), x.clamp(min=0), torch.clamp_max(x, 0.3), torch.nan_to_num(x)),
    ],
    "two numbers": lambda x: [
        *(x + 1, 1 - x, x * 2.5, 3 / (x.abs() + 1), x // 0.3, x % 0.7, torch.fmod(x, 0.7)),
        *(x**3, x**2, 2**x, torch.maximum(x, -x), torch.lerp(x, x * 2, 0.3), torch.rsub(x, 2)),
        *(torch.addcmul(x, x, x, value=0.5), torch.add(x, x, alpha=3), (x > 0) + (x < 1)),
        *((x > 0).long() // 2, (x * 5).long() // 2, (x * 5).long() % 3, (x * 5).long() / 2),
    ],
    "comparisons": lambda x: [
        *(x > 0, x <= 0.1, (x > 0) & (x < 1), ~(x > 0), torch.where(x > 0, x, 0.0), x != 0),
        *((x > 0).float() * x, x.masked_fill(x > 0, -1.0), torch.isnan(x), (x > 0).sum(1)),
        *((x > 0).any(1), (x > 0.5).all(1), torch.isfinite(x), (x > 0) == (x < 1)),
    ],
    "reductions": lambda x: [
        *(x.sum(1), x.mean((1, 2)), x.amax(1, keepdim=True), x.max(1), x.min(1)[0], x.argmax(1)),
        *(x.var(1), x.std((1, 2), keepdim=True), x.norm(dim=1), x.logsumexp(1), x.prod(1)),
        *(x.cumsum(1), x.topk(2, 1), x.sort(1), x.mean(), F.normalize(x, dim=1), x.max()),
        *(x.sum(), torch.var(x, dim=1, unbiased=False), x.argmin(-1, keepdim=True)),
    ],
    "shapes": lambda x: [
        *(x.flatten(1), x.view(x.size(0), -1), x.view(-1, 4), x.reshape(x.shape[0], 2, -1)),
        *(x.permute(0, 2, 1), x.transpose(1, 2), x.unsqueeze(1), x.unsqueeze(-1).squeeze(-1)),
        *(torch.cat([x, x], 1), torch.stack([x, x], 1), x.chunk(2, 1)[1], x.split([1, 5], 1)[1]),
        *(x.repeat(1, 2, 1), x.unsqueeze(1).expand(-1, 3, -1, -1), x.movedim(1, 2), x.tril()),
        *(x.view(x.size(0) * 2, -1), x.view(x.size(0) // 1, x.shape[1], 4), F.pad(x, (1, 2))),
    ],
    "parts": lambda x: [
        *(x[:, 0], x[:, :2], x[..., 1], x[:, None, 1:], x[:, -1, :], x[:, ::2], x[:, 1:-1]),
        *(x.flip(1), x.roll(1, 1), x.narrow(1, 1, 2), x.select(1, 2), x.repeat_interleave(2, 1)),
        *(x.index_select(1, torch.tensor([0, 2])), x[:, torch.tensor([1, 3])], x.unbind(1)[2]),
        x[torch.arange(x.size(0))[:, None], torch.tensor([0, 2, 4])],
        x[:, torch.tensor([[1], [3]]), torch.tensor([0, 2])],
        x[torch.arange(x.size(0)), 1:, torch.zeros(1, dtype=torch.long)],
        *(torch.zeros_like(x) + x, x.new_full((x.size(0), 2), 3.0), torch.arange(x.size(0))),
    ],
    "products": lambda x: [
        *(torch.einsum("bij,bkj->bik", x, x), x @ x.transpose(1, 2), torch.matmul(x, x[0].mT)),
        torch.bmm(x, x.transpose(1, 2)),
    ],
}


@pytest.mark.parametrize("family", FUNCTIONS)
def test_functions_are_exported(family, traced, assert_same_as_eager):
    def inputs(size):
        return {"x": torch.randn(size, 6, 4, generator=torch.Generator().manual_seed(size))}

    model = Calls(FUNCTIONS[family])
    assert_same_as_eager(onnx_model(traced(model, inputs(2))), model, inputs)


LAYERS = [
    nn.Conv2d(4, 6, 3, padding="same", dilation=2),
    nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"),
    nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"),
    nn.Conv2d(4, 8, 3, groups=2, bias=False),
    nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2),
    nn.GroupNorm(2, 4),
    nn.InstanceNorm2d(4, affine=True),
    nn.LocalResponseNorm(3),
    nn.RMSNorm(11),
    nn.LayerNorm([9, 11]),
    nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    nn.AvgPool2d(3, 2, 1),
    nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    nn.AdaptiveAvgPool2d((4, 3)),
    nn.AdaptiveMaxPool2d((1, 1)),
    nn.LPPool2d(2, 3),
    nn.ReflectionPad2d(2),
    nn.ConstantPad2d((1, 2, 0, 3), 0.5),
    nn.Upsample(scale_factor=2),
    nn.Upsample(size=(5, 7)),
    nn.Upsample(scale_factor=2, mode="bilinear"),
    nn.Upsample(size=(12, 13), mode="bilinear", align_corners=True),
    nn.Upsample(scale_factor=2, mode="bicubic"),
    nn.PixelShuffle(2),
    nn.ChannelShuffle(2),
    nn.PReLU(4),
    nn.Unflatten(1, (2, 2)),
    nn.Softmax2d(),
    nn.Linear(11, 3),
    nn.Bilinear(11, 11, 3),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: str(layer)[:40])
def test_layers_are_exported(layer, traced, assert_same_as_eager):
    def inputs(size):
        return {"x": torch.randn(size, 4, 9, 11, generator=torch.Generator().manual_seed(size))}

    twice = isinstance(layer, nn.Bilinear)
    model = Calls(lambda x: layer(x, x) if twice else layer(x))
    model.layer = layer
    assert_same_as_eager(onnx_model(traced(model, inputs(2))), model, inputs)


def test_every_activation_and_layer_with_weights_is_exported():
    assert {*WRITERS} <= {*OPS}
    known = {op for op in OPS if writer_of(op)}
    # the cells and functions of attention are covered by the layers
    assert {*ops_with("activation"), *ops_with("weighted_sum"), *ops_with("pool")} <= known
    assert {op for op in ops_with("inner_products") if OPS[op].modules} <= known
