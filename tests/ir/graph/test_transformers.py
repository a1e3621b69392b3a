"""Torch's transformers are traced into: their parts are nodes, and they compute what eager does."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir import MaseGraph, MaseTracer
from chop.ir.graph.tracer import TraceError

ENCODER = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "batch_first": True}
PADDING = torch.tensor([[False, False, False, True], [False] * 4])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(4)


class Calls(nn.Module):
    """Calls a layer with masks that it makes in forward."""

    def __init__(self, layer, **masks):
        super().__init__()
        self.layer, self.masks = layer, masks

    def forward(self, x):
        return self.layer(x, **self.masks)


class Beside(nn.Module):
    """Calls a layer of two sequences."""

    def __init__(self, layer, **masks):
        super().__init__()
        self.layer, self.masks = layer, masks

    def forward(self, x):
        return self.layer(x, x.flip(1), **self.masks)


class Wider(nn.TransformerEncoderLayer):
    """A user's layer with a feed-forward part of its own."""

    def _ff_block(self, x):
        return 2 * super()._ff_block(x)


def encoder(**options):
    layer = nn.TransformerEncoderLayer(**ENCODER, **options)
    return nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8), enable_nested_tensor=False)


def decoder(**options):
    layer = nn.TransformerDecoderLayer(**ENCODER, **options)
    return nn.TransformerDecoder(layer, 2)


MODELS = {
    "encoder layer": lambda: Calls(nn.TransformerEncoderLayer(**ENCODER)),
    "norm first, gelu": lambda: Calls(
        nn.TransformerEncoderLayer(**ENCODER, norm_first=True, activation="gelu")
    ),
    "a function, without biases": lambda: Calls(
        nn.TransformerEncoderLayer(**ENCODER, activation=F.silu, bias=False)
    ),
    "a module as activation": lambda: Calls(
        nn.TransformerEncoderLayer(**ENCODER, activation=nn.Tanh()),
        src_mask=torch.rand(4, 4) > 0.7,
    ),
    "encoder with masks": lambda: Calls(encoder(), mask=CAUSAL, is_causal=True),
    "encoder with padding": lambda: Calls(encoder(), src_key_padding_mask=PADDING),
    "encoder as the model": encoder,
    "decoder": lambda: Beside(decoder(), tgt_mask=CAUSAL, tgt_is_causal=True),
    "decoder layer": lambda: Beside(
        nn.TransformerDecoderLayer(**ENCODER, norm_first=True),
        memory_key_padding_mask=PADDING,
        memory_mask=torch.zeros(4, 4).bool(),
    ),
    "transformer": lambda: Beside(
        nn.Transformer(8, 2, 1, 1, 16, batch_first=True), src_mask=CAUSAL, src_is_causal=True
    ),
}


SLOW = {"encoder with padding"}  # torch loads its compiler for nested tensors


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in MODELS]
)
def test_a_graph_computes_what_eager_does_in_both_modes(name):
    torch.manual_seed(0)
    model, x = MODELS[name](), torch.randn(2, 4, 8)
    before = type(model)
    graph = MaseGraph(model).model
    assert type(model) is before
    for training in (True, False):
        model.train(training), graph.train(training)
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                torch.manual_seed(1)  # of dropout
                expected = model(x)
                torch.manual_seed(1)
                assert torch.allclose(graph(x), expected, atol=1e-6)


def test_parts_are_nodes_with_their_dotted_names():
    graph = MaseGraph(nn.Sequential(encoder()))
    targets = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    for part in ("self_attn", "norm1", "linear1", "dropout", "linear2", "norm2"):
        assert f"0.layers.1.{part}" in targets
    assert "0.norm" in targets
    assert [n.name for n in graph.nodes if n.target == "0.layers.0.linear1"] == [
        "_0_layers_0_linear1"
    ]


def test_masks_that_are_inputs_are_given_at_each_run():
    torch.manual_seed(0)
    model, x = encoder().eval(), torch.randn(2, 4, 8)
    graph = MaseGraph(model).model
    assert torch.allclose(graph(x), model(x), atol=1e-6)
    assert torch.allclose(graph(x, CAUSAL), model(x, CAUSAL), atol=1e-6)


def test_a_class_in_custom_ops_stays_whole_and_attention_and_recurrence_always_do():
    whole = {"modules": {nn.TransformerEncoderLayer: {}}}
    graph = MaseGraph(nn.Sequential(encoder()), custom_ops=whole)
    targets = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    assert targets == ["0.layers.0", "0.layers.1", "0.norm"]
    tracer = MaseTracer()
    for layer in (nn.MultiheadAttention(4, 2), nn.LSTM(2, 2), nn.GRUCell(2, 2)):
        assert tracer.is_leaf_module(layer, "a")
    assert not tracer.is_leaf_module(nn.TransformerDecoderLayer(4, 2), "a")


def test_a_subclass_with_a_part_of_its_own_is_traced_with_that():
    model, x = Wider(**ENCODER).eval(), torch.randn(2, 4, 8)
    assert torch.allclose(MaseGraph(model).model(x), model(x), atol=1e-6)


def test_a_subclass_with_a_forward_is_traced_by_it():
    class Mine(nn.TransformerEncoderLayer):
        def forward(self, src):
            return self.linear2(self.linear1(src))

    graph = MaseGraph(Mine(**ENCODER))
    assert [str(n.target) for n in graph.nodes] == ["src", "linear1", "linear2", "output"]


def test_a_causal_hint_without_a_mask_is_refused_as_torch_does():
    with pytest.raises(TraceError, match="is_causal describes a mask, but no mask is given"):
        MaseGraph(Calls(encoder(), is_causal=True))


@pytest.mark.slow
def test_conv1d_of_transformers_is_one_layer_quantized_pruned_counted_and_saved(package, tmp_path):
    from chop.passes import run_pass
    from chop.passes.graph.analysis.cost import cost_of
    from chop.passes.module import quantize_module_transform_pass as run_module_pass

    conv1d = package("transformers.pytorch_utils").Conv1D
    model = nn.Sequential(conv1d(6, 4), nn.ReLU(), conv1d(3, 6)).eval()
    x = torch.randn(2, 5, 4)
    graph = MaseGraph(model)
    run_pass("init_metadata", graph)
    run_pass("add_common_metadata", graph, {"dummy_in": {"input": x}})
    assert [str(node.target) for node in graph.nodes if node.op == "call_module"] == ["0", "1", "2"]
    assert torch.equal(graph.model(x), model(x))
    linear = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    equal = MaseGraph(linear)
    run_pass("init_metadata", equal)
    run_pass("add_common_metadata", equal, {"dummy_in": {"input": x}})
    assert cost_of(graph)["total"] == cost_of(equal)["total"]
    with torch.no_grad():
        for i in (0, 2):
            linear[i].weight.copy_(model[i].weight.T)
            linear[i].bias.copy_(model[i].bias)
    widths = {f"{o}_{k}": w for o in ("data_in", "weight", "bias") for k, w in INTEGER.items()}
    table = {"config": {"name": "integer", **widths}}
    for by, key in (("type", "transposed_linear"), ("name", "_0"), ("regex_name", "_[02]")):
        done = run_pass("quantize", graph.clone(), {"by": by, key: table})[1]["quantized"]
        assert done == (["_0"] if by == "name" else ["_0", "_2"])
    plain = nn.Sequential(conv1d(6, 4))
    done = run_module_pass(plain, {"by": "type", "transposed_linear": table})[1]["quantized"]
    assert done == ["0"]
    prune = {"weight": {"sparsity": 0.5, "method": "l1-norm", "granularity": "channel"}}
    results = []
    for each, op in ((graph, "transposed_linear"), (equal, "linear")):
        run_pass("prune", each, prune)
        assert cost_of(each, sparse=True)["total"]["macs"] == 2 * 5 * (4 * 3 + 6 * 1)
        each.export(tmp_path / f"pruned {op}")
        assert torch.equal(
            MaseGraph.from_checkpoint(tmp_path / f"pruned {op}").model(x), each.model(x)
        )
        run_pass("quantize", each, {"by": "type", op: table})
        each.export(tmp_path / op)
        results.append(MaseGraph.from_checkpoint(tmp_path / op).model(x))
    assert torch.allclose(*results, atol=1e-6)
    assert results[0].ne(model(x)).any()


INTEGER = {"width": 8, "frac_width": 5}
