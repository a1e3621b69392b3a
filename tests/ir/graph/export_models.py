"""Models that torch.fx cannot trace, with inputs, and helpers of the tests of torch.export."""

from collections import namedtuple
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from chop.ir import MaseGraph

INTEGER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
INTEGER |= {"weight_width": 8, "weight_frac_width": 4, "bias_width": 8, "bias_frac_width": 4}
Pair = namedtuple("Pair", "mean spread")
X = {"x": torch.randn(3, 4)}


@dataclass
class Both:
    features: torch.Tensor
    classes: torch.Tensor
    cache: object = None


class ByShape(nn.Module):
    """Decides by shape and loops over a size."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, features):
        if features.shape[-1] != 4:
            features = F.pad(features, (0, 4 - features.shape[-1]))
        for _ in range(features.dim()):
            features = torch.relu(self.inner(features))
        return self.head(features)


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(1, 2, 3, padding=1), nn.ConvTranspose2d(2, 2, 2, stride=2)
        self.pool, self.head = nn.MaxPool2d(2), nn.Conv2d(4, 3, 1)

    def forward(self, image):
        skip = F.relu(self.down(image))
        y = self.up(self.pool(skip))
        if y.shape[-2:] != skip.shape[-2:]:
            y = F.interpolate(y, size=skip.shape[-2:], mode="bilinear", align_corners=False)
        return self.head(torch.cat((skip, y), 1))


class Loop(nn.Module):
    """A cell in a loop over time."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(3, 5), nn.Linear(5, 2)

    def forward(self, steps):
        state = steps.new_zeros(steps.shape[0], 5)
        for t in range(steps.shape[1]):
            state = self.cell(steps[:, t], state)
        return self.head(state)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
        )
        self.lstm = nn.LSTM(8, 4, batch_first=True)

    def forward(self, x):
        batch, _, width = x.shape
        assert width == 8, f"a width of {width}"
        y, _ = self.attention(x, x, x, need_weights=False)
        y, (state, _) = self.lstm(self.encoder(y), (x.new_zeros(1, batch, 4),) * 2)
        return y, state[-1]


class Dicts(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, batch, *, extra=None, scale=2.0):
        y = self.a(batch["a"]) + self.b(batch["deep"][0])
        if extra is not None:
            y = y + extra
        return {"y": y * scale, "parts": [y, (y.sum(),)], "absent": None}


class Dataclass(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, input, mask):
        if input.shape != mask.shape:
            mask = mask.expand(input.shape)
        features = self.body(input) * mask
        return Both(features, self.head(features))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 6), nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("positions", torch.randn(20, 6), persistent=False)

    def forward(self, ids):
        length = ids.shape[1]
        if length > 20:
            raise ValueError("at most 20")
        y = self.embed(ids) + self.positions[:length]
        return self.head(y), F.linear(y, self.embed.weight)


class Bag(nn.Module):
    """Takes any number of inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, *args, **kwargs):
        total = sum(self.layer(x) for x in args)
        return Pair(total + kwargs["shift"], total if len(args) > 1 else None)


class Trains(nn.Module):
    """Reads `self.training`, and has layers that do."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        if x.shape[0] > 10**6:
            x = x * 0
        return F.dropout(self.drop(self.norm(x)), 0.5, self.training)


def image(batch):
    return {"image": torch.randn(batch, 1, 9, 9)}


def nested(batch):
    inputs = {"a": torch.randn(batch, 3), "deep": [torch.randn(batch, 2)]}
    return {"batch": inputs, "extra": torch.randn(batch, 4)}


def bag(batch):
    return {"args": (torch.randn(batch, 4), torch.randn(batch, 4)), "shift": torch.ones(4)}


OWN = {
    "by shape": (ByShape, lambda batch: {"features": torch.randn(batch, 3)}),
    "u-net": (Unet, image),
    "loop": (Loop, lambda batch: {"steps": torch.randn(batch, 6, 3)}),
    "attention": (Attention, lambda batch: {"x": torch.randn(batch, 5, 8)}),
    "nested inputs": (Dicts, nested),
    "dataclass": (
        Dataclass,
        lambda batch: {"input": torch.randn(batch, 4), "mask": torch.ones(batch, 4)},
    ),
    "tied": (Tied, lambda batch: {"ids": torch.randint(0, 10, (batch, 7))}),
    "any number": (Bag, bag),
    "trains": (Trains, lambda batch: {"x": torch.randn(batch, 4)}),
}


def called(model, inputs):
    positional = inputs.get("args", ())
    return model(*positional, **{key: value for key, value in inputs.items() if key != "args"})


def captured(name, batch=2):
    cls, inputs = OWN[name]
    model = cls().eval()
    return model, MaseGraph(model, front_end="export", dummy_in=inputs(batch)), inputs


def assert_equal(results, expected):
    ours, theirs = tree_leaves(plain(results)), tree_leaves(plain(expected))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def plain(value):
    return dict(vars(value)) if isinstance(value, Both) or hasattr(value, "to_tuple") else value


def layers(graph):
    return [str(node.target) for node in graph.nodes if node.op == "call_module"]


class Options(nn.Module):
    """An argument after one with a default, by keyword only, and a switch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, mask=None, *, scale, switch=True):
        y = self.layer(x) * scale
        if mask is not None and mask.shape[0] > 1:
            y = y + mask
        return y if switch else -y


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act = nn.Linear(4, 4), nn.ReLU(inplace=True)
        self.again = self.first
        self.constant = torch.arange(4.0)

    def forward(self, x):
        y = self.first(x)
        self.act(y)
        if x.shape[0] > 0:
            y[:, 0] = 5.0
        y += torch.tensor([1.0, 2.0, 3.0, 4.0])
        return self.again(y) * self.constant + torch.arange(4, device=x.device)


def same_or_refused(graph, model, *inputs):
    """Check that a graph gives what the model gives, or refuses the inputs."""
    expected = model(*inputs)
    try:
        result = graph.model(*inputs)
    except (AssertionError, ValueError, RuntimeError):
        return
    assert torch.allclose(result, expected)
