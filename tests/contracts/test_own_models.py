"""Models as people write them: any arguments and results, decisions by shape, any layers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

pytestmark = pytest.mark.slow


class TwoLayers(nn.Module):
    """Two linear layers, as most of the models below have them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def both(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))

    def forward(self, input: Tensor) -> Any:
        return self.both(input)


class Normed(TwoLayers):
    """The weight of its first layer is computed from a direction and lengths."""

    def __init__(self) -> None:
        super().__init__()
        parametrizations.weight_norm(self.first)


class Features(TwoLayers):
    def forward(self, features: Tensor) -> Any:
        return self.both(features)


class Dictionary(TwoLayers):
    def forward(self, batch: dict[str, Tensor]) -> Any:
        return self.both(batch["left"] + batch["right"])


class Nested(TwoLayers):
    def forward(self, pair: tuple[Tensor, list[Tensor]], scale: Tensor) -> Any:
        one, (two, three) = pair
        return self.both(one + two * three) * scale


class KeywordOnly(TwoLayers):
    def forward(self, x: Tensor, *, shift: Tensor, flag: bool = True) -> Any:
        return self.both(x + shift if flag else x)


class Wrapper(nn.Module):
    """Passes all of its arguments to another model."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = KeywordOnly()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


class Several(TwoLayers):
    def forward(self, left: Tensor, right: Tensor, mask: Tensor | None = None) -> Any:
        y = self.both(torch.maximum(left, right))
        return y if mask is None else y.masked_fill(mask, 0.0)


@dataclass
class Scores:
    scores: Tensor
    hidden: Tensor | None = None


class DataClassResult(TwoLayers):
    def forward(self, x: Tensor) -> Any:
        return Scores(self.both(x))


class NamedResult(NamedTuple):
    scores: Tensor
    hidden: Tensor | None


class NoneResult(TwoLayers):
    def forward(self, x: Tensor) -> Any:
        return NamedResult(self.both(x), None)


class DictionaryResult(TwoLayers):
    def forward(self, x: Tensor) -> Any:
        return {"scores": self.both(x), "parts": [x, (x, None)]}


class Tied(nn.Module):
    """A language model with one matrix for words that come in and go out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(20, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Any:
        return self.head(torch.tanh(self.body(self.embedding(tokens))))


class ByShape(TwoLayers):
    """Checks, decides and loops by the shape of its input."""

    def forward(self, x: Tensor) -> Any:
        assert x.shape[-1] == 8
        assert x.dim() == 3
        state = x.new_zeros(x.shape[0], 8)
        for step in range(x.shape[1]):
            state = torch.tanh(state + x[:, step])
        return self.both(state if x.shape[1] > 2 else x[:, 0])


class UNet(nn.Module):
    """Down, up, and a skip that is padded if sizes differ."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, 1)
        self.norm, self.up = nn.BatchNorm2d(16), nn.ConvTranspose2d(16, 8, 2, 2)
        self.leave = nn.Conv2d(16, 2, 1)

    def forward(self, image: Tensor) -> Any:
        skip = F.relu(self.enter(image))
        y = self.up(F.relu(self.norm(self.down(skip))))
        if y.shape[-2:] != skip.shape[-2:]:
            y = F.interpolate(y, size=skip.shape[-2:], mode="bilinear")
        return self.leave(torch.cat([skip, y], 1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        y, _ = self.attend(x, x, x, need_weights=False)
        return self.head(y.mean(1))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.encoder(x)[:, 0])


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.recurrent, self.head = kind(8, 6, batch_first=True), nn.Linear(6, 4)

    def forward(self, sequence: Tensor) -> Any:
        y, _ = self.recurrent(sequence)
        return self.head(y[:, -1])


class Cells(nn.Module):
    """A loop over the steps of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(8, 6), nn.Linear(6, 4)

    def forward(self, sequence: Tensor) -> Any:
        state = sequence.new_zeros(sequence.shape[0], 6)
        for step in sequence.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


class Functional(nn.Module):
    """Matrices instead of layers, rotated queries and keys, and attention as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 24) / 4), nn.Parameter(torch.zeros(24))
        self.scale, self.head = nn.Parameter(torch.ones(8)), nn.Linear(8, 4)
        self.register_buffer("frequency", torch.tensor([1.0, 0.1]))

    def rotated(self, x: Tensor) -> Tensor:
        angle = torch.outer(torch.arange(x.shape[-2]), self.frequency).repeat(1, 2)
        half, other = x.chunk(2, -1)
        return x * angle.cos() + torch.cat([-other, half], -1) * angle.sin()

    def forward(self, x: Tensor) -> Any:
        y = F.rms_norm(x, (8,), self.scale)
        qkv = torch.addmm(self.bias, y.flatten(0, 1), self.weight).view(*x.shape[:2], 3, 2, 4)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True)
        y = torch.einsum("bhld,hd->bl", y, self.scale.view(2, 4)).softmax(-1)
        return self.head(F.layer_norm(y.unsqueeze(-1) * x, (8,)).sum(1))


class WithoutGradient(TwoLayers):
    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            mean = x.mean(0, keepdim=True)
        return self.both(x - mean)


def batch(*shape: int) -> Tensor:
    return torch.randn(shape)


# a model, and its inputs
MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "input": lambda: (TwoLayers(), {"input": batch(4, 8)}),
    "features": lambda: (Features(), {"features": batch(4, 8)}),
    "several": lambda: (Several(), {"left": batch(4, 8), "right": batch(4, 8)}),
    "dictionary": lambda: (
        Dictionary(),
        {"batch": {"left": batch(4, 8), "right": batch(4, 8)}},
    ),
    "nested": lambda: (
        Nested(),
        {"pair": (batch(4, 8), [batch(4, 8), batch(4, 8)]), "scale": batch(4, 1)},
    ),
    "keyword only": lambda: (KeywordOnly(), {"x": batch(4, 8), "shift": batch(4, 8)}),
    "any arguments": lambda: (Wrapper(), {"x": batch(4, 8), "shift": batch(4, 8)}),
    "dataclass": lambda: (DataClassResult(), {"x": batch(4, 8)}),
    "None": lambda: (NoneResult(), {"x": batch(4, 8)}),
    "dictionary of results": lambda: (DictionaryResult(), {"x": batch(4, 8)}),
    "tied": lambda: (Tied(), {"tokens": torch.arange(12).view(2, 6)}),
    "bfloat16": lambda: (TwoLayers().bfloat16(), {"input": batch(4, 8).bfloat16()}),
    "weight norm": lambda: (Normed(), {"input": batch(4, 8)}),
    "by shape": lambda: (ByShape(), {"x": batch(4, 3, 8)}),
    "U-Net": lambda: (UNet(), {"image": batch(2, 3, 9, 9)}),
    "MultiheadAttention": lambda: (Attention(), {"x": batch(2, 5, 8)}),
    "TransformerEncoder": lambda: (Encoder(), {"x": batch(2, 5, 8)}),
    "LSTM": lambda: (Recurrent(nn.LSTM), {"sequence": batch(2, 5, 8)}),
    "GRU": lambda: (Recurrent(nn.GRU), {"sequence": batch(2, 5, 8)}),
    "cells": lambda: (Cells(), {"sequence": batch(2, 5, 8)}),
    "functional": lambda: (Functional(), {"x": batch(2, 5, 8)}),
    "no_grad": lambda: (WithoutGradient(), {"x": batch(4, 8)}),
}


@pytest.mark.parametrize("front_end", ["auto", "export"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_your_own_keeps_the_contract(name, front_end, contract):
    model, inputs = MODELS[name]()
    contract(model, inputs, front_end=front_end).keeps_all()


def test_a_model_output_is_one(package, contract):
    output = package("transformers.modeling_outputs").SequenceClassifierOutput

    class Output(TwoLayers):
        def forward(self, x: Tensor) -> Any:
            return output(logits=self.both(x))

    captured = contract(Output(), {"x": batch(4, 8)})
    captured.keeps_all()
    assert torch.equal(captured.run(captured.graph).logits, captured.run(captured.graph)["logits"])
