"""The float file of a network computes what the network computes, for any batch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

onnx = pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from chop.dataset import MaseDatasetInfo  # noqa: E402
from chop.models import MODELS, get_model, get_model_info  # noqa: E402
from chop.passes.graph.interface.export_onnx import ExportError, onnx_model  # noqa: E402

FEATURES = MaseDatasetInfo(name="rows", num_features=16, num_classes=5)
IMAGES = MaseDatasetInfo(name="pictures", image_size=(3, 32, 32), num_classes=4)
QUICK = {"jsc-tiny", "jsc-toy", "jsc-table", "toy_convnet", "toy_custom_fn", "mobilenetv3_small"}
QUICK |= {"vit_tiny_patch4_32"}
NAMES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name, spec in MODELS.items()
    if spec.build.__module__.startswith(("chop.models.", "chop.methods."))
]


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_statistics(model):
    """Give batch norms other statistics than those they start with."""
    for layer in model.modules():
        if getattr(layer, "running_mean", None) is not None:
            layer.running_mean.normal_(std=0.1)
            layer.running_var.uniform_(0.8, 1.2)
    return model


@pytest.mark.parametrize("name", NAMES)
def test_every_built_in_model_is_exported(name, traced, assert_same_as_eager):
    rows = get_model_info(name).physical_data_point_classification
    model = with_statistics(get_model(name, dataset_info=FEATURES if rows else IMAGES))
    shape = [16] if rows else [3, 32, 32]

    def inputs(size):
        return {"x": drawn(size, *shape)}

    file = onnx_model(traced(model, inputs(2)))
    assert_same_as_eager(file, model, inputs)
    kinds = file.graph.input[0].type.tensor_type.shape.dim
    assert kinds[0].dim_param == "batch"
    assert file.graph.output[0].name == "output"


class Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, **options)
        self.register_buffer("mask", torch.ones(5, 5, dtype=torch.bool).triu(1))

    def forward(self, x):
        return self.attention(x, x, x, attn_mask=self.mask)


class Padded(nn.Module):
    """An encoder of tokens, some of which are padding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu")
        layer.norm_first = True
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(16), enable_nested_tensor=False)

    def forward(self, ids):
        return self.encoder(self.embedding(ids), src_key_padding_mask=ids == 0).mean(1)


class WholeTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.Transformer(16, 4, 1, 1, 32, batch_first=True)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(5))

    def forward(self, x, y):
        return self.transformer(x, y, tgt_mask=self.mask)


class Causal(nn.Module):
    """Attention by hand and by torch's function, with sizes that are computed."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 16), nn.Embedding(8, 16)
        self.qkv, self.norm, self.head = nn.Linear(16, 48), nn.LayerNorm(16), nn.Linear(16, 20)

    def forward(self, ids):
        n, length = ids.shape
        x = self.tokens(ids) + self.places(torch.arange(length, device=ids.device))
        q, k, v = self.qkv(self.norm(x)).split(16, dim=2)
        q, k, v = (part.view(n, length, 4, 4).transpose(1, 2) for part in (q, k, v))
        late = torch.tril(torch.ones(length, length)).view(1, 1, length, length) == 0
        shares = ((q @ k.transpose(-2, -1)) / 2).masked_fill(late, float("-inf")).softmax(-1)
        y = (shares @ v).transpose(1, 2).contiguous().view(n, length, 16)
        other = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return {"logits": self.head(x + y), "other": other}


class Recurrent(nn.Module):
    def __init__(self, cls, both):
        super().__init__()
        self.layer = cls(8, 6, 2, batch_first=True, bidirectional=both)
        self.head = nn.Linear(12 if both else 6, 3)

    def forward(self, x):
        y, last = self.layer(x)
        return self.head(y[:, -1]), last


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru, self.rnn = nn.LSTMCell(8, 6), nn.GRUCell(8, 6), nn.RNNCell(8, 6)

    def forward(self, x):
        h, c = self.lstm(x)
        h, c = self.lstm(x, (h, c))
        return h, c, self.gru(x, h), self.rnn(x, h)


class States(nn.Module):
    """States that are made for the batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(8, 6, batch_first=True)

    def forward(self, x):
        first = torch.zeros(1, x.size(0), 6), x.new_ones(1, x.shape[0], 6)
        return self.layer(x, first)


def tokens(size):
    ids = torch.randint(1, 20, (size, 6), generator=torch.Generator().manual_seed(size))
    ids[:, 4:] = 0
    return {"ids": ids}


def sequences(width):
    return lambda size: {"x": drawn(size, 5, width, seed=size)}


BLOCKS = {
    "attention": (lambda: Attention(batch_first=True), sequences(16)),
    "encoder": (Padded, tokens),
    "transformer": (WholeTransformer, lambda n: {"x": drawn(n, 7, 16), "y": drawn(n, 5, 16)}),
    "causal": (Causal, tokens),
    **{
        f"{cls.__name__}{' both' if both else ''}": (
            lambda cls=cls, both=both: Recurrent(cls, both),
            sequences(8),
        )
        for cls in (nn.LSTM, nn.GRU, nn.RNN)
        for both in (False, True)
    },
    "cells": (Cells, lambda n: {"x": drawn(n, 8)}),
    "states": (States, sequences(8)),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_transformers_and_recurrent_layers_are_exported(name, traced, assert_same_as_eager):
    build, inputs = BLOCKS[name]
    model = build()
    file = onnx_model(traced(model, inputs(2)))
    assert_same_as_eager(file, model, inputs)


def test_results_by_name_keep_their_names(traced):
    file = onnx_model(traced(Causal(), tokens(2)))
    assert [value.name for value in file.graph.output] == ["logits", "other"]
    assert [value.name for value in file.graph.input] == ["ids"]


def test_values_are_named_like_nodes_and_constants_like_the_state_dict(traced):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    file = onnx_model(traced(model, {"input": drawn(2, 4)}))
    assert {c.name for c in file.graph.initializer} == model.state_dict().keys()
    assert [node.output[0] for node in file.graph.node] == ["_0", "_1", "_2", "output"]


def test_a_size_that_is_not_the_batch_is_not_called_so(traced):
    class Joined(nn.Module):
        def forward(self, x):
            return x.view(-1, 2)

    file = onnx_model(traced(Joined(), {"x": drawn(2, 4)}))
    first = file.graph.output[0].type.tensor_type.shape.dim[0]
    assert not first.dim_param
    assert not first.dim_value


class Odd(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x).real + torch.linalg.det(x @ x.mT)[:, None, None]


def test_ops_without_a_function_are_refused_all_at_once(traced):
    graph = traced(Odd(), {"x": drawn(2, 3, 3)})
    with pytest.raises(
        ExportError, match=r"these ops cannot be exported to ONNX: .*fft.*; .*det \("
    ) as e:
        onnx_model(graph)
    assert "\n" not in str(e.value)


def test_weights_with_nan_are_refused_by_name(traced):
    model = nn.Sequential(nn.Linear(4, 3))
    graph = traced(model, {"input": drawn(2, 4)})
    with torch.no_grad():
        graph.model.get_submodule("0").weight[0, 0] = float("nan")
    with pytest.raises(ExportError, match=r"0\.weight has NaN; train or load it again"):
        onnx_model(graph)


def test_a_batch_norm_without_statistics_is_refused(traced):
    model = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False))
    with pytest.raises(ExportError, match="statistics of each batch; track running statistics"):
        onnx_model(traced(model, {"input": drawn(2, 4)}))


def test_the_graph_stays_as_it_was(traced):
    model = get_model("jsc-toy", dataset_info=FEATURES).train()
    graph = traced(model, {"x": drawn(2, 16)})
    graph.model.train()
    before = {key: value.clone() for key, value in graph.model.state_dict().items()}
    code = graph.model.code
    onnx_model(graph)
    assert graph.model.training
    assert graph.model.code == code
    assert all(torch.equal(value, before[k]) for k, value in graph.model.state_dict().items())


class Writes(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x):
        y = x * 2
        if self.how == "item":
            y[:, 0] = 1.0
        elif self.how == "view":
            y[:, 0].add_(1.0)
        elif self.how == "buffer":
            y = y + self.count.add_(1.0)
        else:
            y.add_(1.0).relu_()
        return y


def test_what_is_written_in_place_is_read_afterwards(traced, assert_same_as_eager):
    model = Writes("whole")

    def inputs(size):
        return {"x": drawn(size, 4)}

    assert_same_as_eager(onnx_model(traced(model, inputs(2))), model, inputs)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("item", "these ops cannot be exported to ONNX: "),
        ("view", "writes to the memory of 'mul', which is read later; compute a new tensor"),
        ("buffer", "changes the tensor 'count' of the model, on which the next call depends"),
    ],
)
def test_writes_that_a_file_cannot_have_are_refused(how, text, traced):
    options = {"front_end": "fx"} if how != "item" else {"dummy_in": {"x": drawn(2, 4)}}
    graph = traced(Writes(how), {"x": drawn(2, 4)}, **options)
    with pytest.raises(ExportError, match=text):
        onnx_model(graph)


class Masked(nn.Module):
    def forward(self, x, keep):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=keep)


def test_a_row_of_attention_in_which_nothing_is_kept_gives_zeros(traced, run):
    x, keep = drawn(2, 2, 3, 4), torch.ones(2, 1, 3, 3, dtype=torch.bool)
    keep[0, 0, 1] = False
    file = onnx_model(traced(Masked(), {"x": x, "keep": keep}))
    (found,) = run(file, {"x": x, "keep": keep})
    assert found[0, :, 1].eq(0).all()
    torch.testing.assert_close(found, Masked()(x, keep), rtol=0, atol=1e-6)


class Drops(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5)


def test_a_dropout_that_is_never_off_is_refused(traced):
    graph = traced(Drops(), {"x": drawn(2, 4)})
    with pytest.raises(ExportError, match="drops numbers in eval mode as well"):
        onnx_model(graph)
