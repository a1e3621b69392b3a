"""Attention and recurrent layers keep their promises in every number format."""

import copy
import itertools
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils._pytree import tree_leaves, tree_map

from chop.ir import MaseGraph
from chop.numerics import FORMATS, from_config
from chop.passes.graph.transforms.pruning.masks import attach_mask, detach_mask, renewed
from chop.passes.graph.transforms.pruning.weights import weight_names
from chop.passes.graph.transforms.quantize.quantize import quantized_layer

from .test_layers_by_format import EXAMPLES, config_of, own_state

# arguments and the shape of the input
CASES = {
    nn.MultiheadAttention: ({"embed_dim": 4, "num_heads": 2, "batch_first": True}, (2, 3, 4)),
    nn.RNN: ({"input_size": 3, "hidden_size": 4, "batch_first": True}, (2, 3, 3)),
    nn.LSTM: ({"input_size": 3, "hidden_size": 4, "num_layers": 2}, (3, 2, 3)),
    nn.GRU: ({"input_size": 3, "hidden_size": 4, "bidirectional": True}, (3, 2, 3)),
    nn.RNNCell: ({"input_size": 3, "hidden_size": 4, "nonlinearity": "relu"}, (2, 3)),
    nn.LSTMCell: ({"input_size": 3, "hidden_size": 4}, (2, 3)),
    nn.GRUCell: ({"input_size": 3, "hidden_size": 4, "bias": False}, (2, 3)),
}
FLOAT = config_of("float", [32])
STEPS = {
    nn.RNN: torch.rnn_tanh_cell,
    nn.RNNCell: torch.rnn_relu_cell,
    **dict.fromkeys((nn.LSTM, nn.LSTMCell), torch.lstm_cell),
    **dict.fromkeys((nn.GRU, nn.GRUCell), torch.gru_cell),
}


def made(cls, **changes):
    """A layer in double precision, in which no sum is rounded differently by chance."""
    torch.manual_seed(1)
    layer = cls(**CASES[cls][0], **changes).double().eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def input_of(cls):
    torch.manual_seed(2)
    x = torch.randn(CASES[cls][1], dtype=torch.float64)
    return (x,) * 3 if cls is nn.MultiheadAttention else (x,)


class Rounded:
    """The operands of a layer as a config has them."""

    def __init__(self, layer, config):
        self.layer, self.config = layer, config

    def data(self, x):
        return from_config(self.config, "data_in").for_operand("data_in")(x)

    def __getattr__(self, name):
        owner, _, last = name.replace("__", ".").rpartition(".")
        tensor = getattr(self.layer.get_submodule(owner), last, None)
        operand = "bias" if "bias" in last else "weight"
        fmt = from_config(self.config, operand).for_operand(operand)
        return None if tensor is None else fmt(tensor)


def attention(layer, r, x, _key, _value):
    q, k, v = (
        r.data(F.linear(r.data(x), w, b).unflatten(-1, (2, 2)).transpose(1, 2))
        for w, b in zip(r.in_proj_weight.chunk(3), r.in_proj_bias.chunk(3), strict=True)
    )
    shares = (torch.einsum("nhqd,nhkd->nhqk", q, k) / math.sqrt(2)).softmax(-1)
    joined = torch.einsum("nhqk,nhkd->nqhd", r.data(shares), v).flatten(2)
    return F.linear(r.data(joined), r.out_proj__weight, r.out_proj__bias), shares.mean(1)


def one_step(cls, r, x, state, end=""):
    names = [f"{name}{end}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    hidden = r.data(state[0])
    given = (hidden, state[1]) if "LSTM" in cls.__name__ else hidden
    result = STEPS[cls](x, given, *(getattr(r, name) for name in names))
    return result if isinstance(result, tuple) else (result,)


def recurrent(layer, r, x):
    cls = type(layer)
    count = 2 if cls is nn.LSTM else 1
    sequences = x if layer.batch_first else x.transpose(0, 1)
    ends = []
    for depth in range(layer.num_layers):
        steps = r.data(sequences).unbind(1)
        columns = []
        for end in ("", "_reverse")[: 1 + layer.bidirectional]:
            state, outputs = (torch.zeros(2, 4, dtype=x.dtype),) * count, []
            for step in steps[::-1] if end else steps:
                state = one_step(cls, r, step, state, f"_l{depth}{end}")
                outputs.append(state[0])
            columns.append(torch.stack(outputs[::-1] if end else outputs, 1))
            ends.append(state)
        sequences = torch.cat(columns, -1)
    last = tuple(torch.stack(states) for states in zip(*ends, strict=True))
    out = sequences if layer.batch_first else sequences.transpose(0, 1)
    return out, last if cls is nn.LSTM else last[0]


def cell(layer, r, x):
    zeros = torch.zeros(2, 4, dtype=x.dtype)
    state = one_step(type(layer), r, r.data(x), (zeros, zeros))
    return state if isinstance(layer, nn.LSTMCell) else state[0]


def expected(layer, config, inputs):
    """What the layer computes, written in other words than in the quantized one."""
    kind = attention if isinstance(layer, nn.MultiheadAttention) else recurrent
    kind = cell if isinstance(layer, nn.RNNCellBase) else kind
    return kind(layer, Rounded(layer, config), *inputs)


def assert_close(one, other, atol=1e-9):
    for a, b in zip(tree_leaves(one), tree_leaves(other), strict=True):
        assert a is b is None or torch.allclose(a, b, atol=atol, rtol=0, equal_nan=True)


def equal(one, other):
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


PAIRS = list(zip(itertools.cycle(CASES), EXAMPLES, strict=False))  # each layer in two formats


@pytest.mark.parametrize(
    ("cls", "name"), PAIRS, ids=lambda value: getattr(value, "__name__", value)
)
class TestLayerInFormat:
    def test_it_computes_with_rounded_operands_at_every_step(self, cls, name):
        layer, inputs = made(cls), input_of(cls)
        for precision in EXAMPLES[name]:
            config = config_of(name, precision)
            new = quantized_layer(layer, config)
            assert type(new).__name__ == cls.__name__ + FORMATS[name].suffix
            assert_close(new(*inputs), expected(layer, config, inputs))
            with torch.no_grad():
                assert_close(new(*inputs), expected(layer, config, inputs))

    @pytest.mark.sampled(4)
    def test_bypassed_it_is_the_float_layer_bit_for_bit(self, cls, name):
        layer, inputs = made(cls), input_of(cls)
        new = quantized_layer(layer, {**config_of(name, EXAMPLES[name][0]), "bypass": True})
        assert equal(new(*inputs), layer(*inputs))

    @pytest.mark.sampled(4)
    def test_gradients_reach_every_parameter_and_the_input(self, cls, name):
        layer, inputs = made(cls).train(), tree_map(lambda x: x.requires_grad_(), input_of(cls))
        new = quantized_layer(layer, config_of(name, EXAMPLES[name][0]))
        sum(t.sin().sum() for t in tree_leaves(new(*inputs))).backward()
        for tensor in (inputs[0], *layer.parameters()):
            assert tensor.grad.isfinite().all()

    @pytest.mark.sampled(4)
    def test_it_is_reconfigured_copied_and_pickled(self, cls, name):
        layer, inputs = made(cls), input_of(cls)
        first, second = (config_of(name, precision) for precision in EXAMPLES[name])
        new = quantized_layer(layer, first)
        with torch.no_grad():
            for config in (second, FLOAT, {**first, "bypass": True}, first):
                new.configure(config)
                assert equal(new(*inputs), quantized_layer(layer, config)(*inputs))
            for twin in (copy.deepcopy(new), pickle.loads(pickle.dumps(new))):
                assert type(twin) is type(new)
                assert equal(twin(*inputs), new(*inputs))
                assert not {*map(id, twin.parameters())} & {*map(id, new.parameters())}
        assert own_state(new).keys() == layer.state_dict().keys()

    @pytest.mark.sampled(4)
    def test_masks_apply_before_rounding_and_it_all_comes_back_from_a_file(
        self, cls, name, tmp_path
    ):
        layer, inputs = renewed(made(cls)), input_of(cls)
        config = config_of(name, EXAMPLES[name][0])
        mask_all(layer)
        new = quantized_layer(layer, config)
        assert_close(new(*inputs), expected(zeroed(layer), config, inputs))
        graph = fx.Graph()
        graph.output(graph.call_module("layer", (graph.placeholder("x"),) * len(inputs)))
        MaseGraph(fx.GraphModule(nn.ModuleDict({"layer": new}), graph)).export(tmp_path / "g")
        after = MaseGraph.from_checkpoint(tmp_path / "g").modules["layer"]
        assert type(after).__name__ == type(new).__name__
        assert equal(after(*inputs), new(*inputs))


def mask_all(layer):
    """Mask every weight of a layer at random."""
    torch.manual_seed(3)
    for name in weight_names(layer):
        part, _, last = name.rpartition(".")
        holder = layer.get_submodule(part)
        attach_mask(holder, last, torch.rand(holder._parameters[last].shape) > 0.5)


def zeroed(layer):
    """A copy of a masked layer with zeros instead of masks."""
    twin = renewed(layer)
    for name in weight_names(twin):
        part, _, last = name.rpartition(".")
        detach_mask(twin.get_submodule(part), last)
    return twin


@pytest.mark.slow
@pytest.mark.parametrize("cls", CASES, ids=lambda cls: cls.__name__)
def test_a_layer_keeps_every_promise_in_every_format(cls, tmp_path):
    promises = [name for name in vars(TestLayerInFormat) if name.startswith("test_")]
    for promise, name in itertools.product(promises, EXAMPLES):
        files = [tmp_path / name] if "from_a_file" in promise else []
        getattr(TestLayerInFormat(), promise)(cls, name, *files)


@pytest.mark.parametrize("cls", CASES, ids=lambda cls: cls.__name__)
def test_a_pruned_float_layer_computes_with_zeros_and_is_copied(cls):
    layer, inputs = renewed(made(cls)), input_of(cls)
    mask_all(layer)
    plain = zeroed(layer)
    assert not equal(plain(*inputs), made(cls)(*inputs))
    for twin in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert_close(twin(*inputs), plain(*inputs))
        with torch.no_grad():
            assert_close(twin(*inputs), plain(*inputs))


OPTIONS = [
    {},
    {"batch_first": True, "bias": False},
    {"num_layers": 3, "bidirectional": True, "dropout": 0.5},
    {"num_layers": 2, "proj_size": 2},
]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("cls", [nn.RNN, nn.LSTM, nn.GRU])
def test_in_wide_formats_a_recurrent_layer_is_torchs(cls, options):
    if "proj_size" in options and cls is not nn.LSTM:
        options = {"num_layers": 2, "nonlinearity": "relu"} if cls is nn.RNN else {"num_layers": 2}
    torch.manual_seed(1)
    layer = cls(3, 4, **options).eval()
    new = quantized_layer(layer, FLOAT)
    rows = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    widths = (options.get("proj_size", 4), 4)[: 1 + (cls is nn.LSTM)]

    def state(batch):
        state = tuple(torch.randn(rows, *batch, width) for width in widths)
        return state if cls is nn.LSTM else state[0]

    packed = pack_sequence([torch.randn(n, 3) for n in (2, 5, 3, 1)], enforce_sorted=False)
    x = torch.randn(4, 4, 3)
    for given in ((x,), (x, state([4])), (x[0],), (x[0], state([])), (packed, state([4]))):
        assert_close(new(*given), layer(*given), atol=1e-6)
    assert_close(new(packed), layer(packed), atol=1e-6)
    assert_close(new(x, hx=None), layer(x, hx=None), atol=1e-6)


@pytest.mark.parametrize("cls", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
def test_in_wide_formats_a_cell_is_torchs(cls):
    layer = cls(3, 4)
    new, x = quantized_layer(layer, FLOAT), torch.randn(5, 3)
    state = torch.randn(5, 4)
    given = (state, 2 * state) if cls is nn.LSTMCell else state
    for inputs in ((x,), (x, given), (x[0],), (x[0], tree_map(lambda h: h[0], given))):
        assert_close(new(*inputs), layer(*inputs), atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True, "bias": False},
        {"kdim": 6, "vdim": 5},
        {"add_bias_kv": True, "add_zero_attn": True},
    ],
    ids=str,
)
def test_in_wide_formats_attention_is_torchs_with_every_mask(options):
    torch.manual_seed(1)
    layer = nn.MultiheadAttention(8, 2, **options)
    new = quantized_layer(layer, FLOAT)
    widths = (8, options.get("kdim", 8), options.get("vdim", 8))
    inputs = [torch.randn(n, 4, width) for n, width in zip((3, 5, 5), widths, strict=True)]
    if options.get("batch_first"):
        inputs = [x.transpose(0, 1) for x in inputs]
    hidden = torch.rand(3, 5) > 0.7
    hidden[0] = True  # a query that sees nothing
    paddings, masks = (None, torch.rand(4, 5) > 0.6), (None, hidden, torch.randn(8, 3, 5))
    for padding, mask, need in itertools.product(paddings, masks, (True, False)):
        if padding is not None and mask is not None and mask.is_floating_point():
            # torch wants both masks of one kind
            padding = torch.zeros(4, 5).masked_fill(padding, -math.inf)
        given = {"key_padding_mask": padding, "attn_mask": mask, "need_weights": need}
        for average in (True, False):
            result = new(*inputs, **given, average_attn_weights=average)
            assert_close(result, layer(*inputs, **given, average_attn_weights=average), 1e-6)
    single = [x[0] if options.get("batch_first") else x[:, 0] for x in inputs]
    assert_close(new(*single), layer(*single), 1e-6)


def test_wrong_inputs_are_refused_in_one_sentence():
    lstm, mix = quantized_layer(nn.LSTM(3, 4), FLOAT), nn.MultiheadAttention(4, 2)
    with pytest.raises(ValueError, match="2 or 3 dimensions, not 4"):
        lstm(torch.randn(1, 1, 1, 3))
    with pytest.raises(RuntimeError, match="input_size"):
        lstm(torch.randn(2, 2, 5))
    with pytest.raises(RuntimeError, match="Expected hidden"):
        lstm(torch.randn(2, 2, 3), (torch.zeros(1, 3, 4), torch.zeros(1, 3, 4)))
    with pytest.raises(ValueError, match="1 or 2 dimensions, not 3"):
        quantized_layer(nn.GRUCell(3, 4), FLOAT)(torch.randn(1, 1, 3))
    x = torch.randn(3, 1, 4)
    with pytest.raises(RuntimeError, match="no attn_mask is given; give it"):
        quantized_layer(mix, FLOAT)(x, x, x, is_causal=True)
    with pytest.raises(TypeError, match=r"boolean or of numbers, not torch\.int64"):
        quantized_layer(mix, FLOAT)(x, x, x, attn_mask=torch.zeros(3, 3, dtype=torch.int64))
