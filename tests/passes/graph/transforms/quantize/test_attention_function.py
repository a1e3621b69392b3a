"""torch's multi_head_attention_forward in a graph: rounded, counted and warned of."""

import functools
import logging
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir import MaseGraph
from chop.passes import Pipeline, run_pass
from chop.passes.graph import prune_transform_pass, quantize_transform_pass
from chop.passes.graph.analysis.cost import cost_of
from chop.passes.graph.analysis.cost.ledger import ledger_of
from chop.passes.graph.transforms.quantize.quantized_funcs import quantized_func_map
from chop.passes.module import quantize_module_transform_pass
from chop.testing.audit import MacCounter

INTEGER = {"name": "integer"} | {
    f"{operand}_{key}": number
    for operand, width in (("data_in", 8), ("weight", 4), ("bias", 6))
    for key, number in (("width", width), ("frac_width", width // 2))
}
EXACT = {"name": "float"} | {f"{operand}_width": 32 for operand in ("data_in", "weight", "bias")}


class Functional(nn.Module):
    """Calls attention as a function with the weights of a layer."""

    def __init__(self, layer, **options):
        super().__init__()
        self.layer, self.options = layer, options
        self.last = nn.Linear(layer.embed_dim, 2)

    def attend(self, q, k, v, attend=F.multi_head_attention_forward, **masks):
        m = self.layer
        separate = m.in_proj_weight is None
        weights = {f"{n}_proj_weight": getattr(m, f"{n}_proj_weight") for n in "qkv"}
        return attend(
            q, k, v, m.embed_dim, m.num_heads, m.in_proj_weight, m.in_proj_bias, m.bias_k,
            m.bias_v, m.add_zero_attn, m.dropout, m.out_proj.weight, m.out_proj.bias,
            training=False, use_separate_proj_weight=separate, **(weights if separate else {}),
            **self.options, **masks,
        )  # fmt: skip

    def forward(self, x):
        return self.last(self.attend(x, x, x)[0])


def graph_of(model, x):
    about = {"dummy_in": {"x": x}}
    return Pipeline(["init_metadata", ("add_common_metadata", about)])(MaseGraph(model))[0]


def settled(layer):
    """Return a layer without zeros, in eval mode."""
    torch.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer.eval()


def inputs(width=8, batched=True, keys=5):
    shapes = [(4, 3, 8), (keys, 3, width), (keys, 3, width)]
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    return made if batched else [x[:, 0] for x in made]


LAYERS = {
    "plain": {},
    "no bias": {"bias": False},
    "separate": {"kdim": 6, "vdim": 6},
    "added keys": {"add_bias_kv": True, "add_zero_attn": True},
}
PADDING = torch.tensor([[False] * 5, [False] * 4 + [True], [False] * 3 + [True] * 2])
MASK = torch.ones(4, 5).triu(2).bool()
CALLS = {
    "with weights": {},
    "without": {"need_weights": False},
    "of each head": {"average_attn_weights": False},
    "masked": {"key_padding_mask": PADDING, "attn_mask": MASK},
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("made", LAYERS)
def test_it_computes_what_the_quantized_layer_does(made, call, batched):
    layer = settled(nn.MultiheadAttention(8, 2, **LAYERS[made]))
    model = Functional(layer)
    options = dict(CALLS[call])
    if not batched and "key_padding_mask" in options:
        options["key_padding_mask"] = PADDING[1]
    given = inputs(LAYERS[made].get("kdim", 8), batched)
    for config in (EXACT, INTEGER):
        rounded = quantized_func_map[f"attention_{config['name']}"]
        found = model.attend(*given, functools.partial(rounded, config=config), **options)
        expected = model.attend(*given, **options)
        if config is INTEGER:
            table = {"by": "type", "attention": {"config": config}}
            quantized = quantize_module_transform_pass(Functional(layer), table)[0]
            expected = quantized.layer(*given, **options)
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.allclose(one, other, atol=0 if config is INTEGER else 1e-5)


def test_keys_and_values_that_are_given_replace_the_projected():
    model = Functional(settled(nn.MultiheadAttention(8, 2)))
    static = {name: torch.randn(6, 5, 4) for name in ("static_k", "static_v")}
    expected = model.attend(*inputs(), **static)[0]
    exact = functools.partial(quantized_func_map["attention_float"], config=EXACT)
    found, _ = model.attend(*inputs(), exact, **static)
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"embed_dim_to_check": 6}, "queries have 8 features, not 6"),
        ({"is_causal": True}, "no attn_mask is given"),
        (
            {"attn_mask": torch.ones(4, 5, dtype=torch.int)},
            "boolean or of numbers",
        ),
    ],
)
def test_calls_that_torch_refuses_are_refused(arguments, said):
    m = settled(nn.MultiheadAttention(8, 2))
    q, k, v = inputs()
    usual = {"embed_dim_to_check": 8, "training": False}
    weights = {"in_proj_weight": m.in_proj_weight, "in_proj_bias": None, "bias_k": None}
    weights |= {"bias_v": None, "out_proj_weight": m.out_proj.weight, "out_proj_bias": None}
    others = {"num_heads": 2, "add_zero_attn": False, "dropout_p": 0.0, "config": INTEGER}
    with pytest.raises((ValueError, RuntimeError, TypeError), match=said):
        quantized_func_map["attention_integer"](
            q, k, v, **{**usual, **weights, **others, **arguments}
        )


@pytest.fixture(scope="module")
def model():
    return Functional(settled(nn.MultiheadAttention(8, 2)), need_weights=False).eval()


@pytest.fixture(scope="module")
def graph(model):
    return graph_of(model, X)


X = torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("by", "key"),
    [
        ("type", "attention"),
        ("name", "multi_head_attention_forward"),
        ("regex_name", "multi_head.*"),
    ],
)
def test_it_is_chosen_saved_and_loaded(graph, model, by, key, tmp_path):
    new = graph.clone()
    _, info = quantize_transform_pass(new, {"by": by, key: {"config": INTEGER}})
    assert info == {"quantized": ["multi_head_attention_forward"]}
    table = {"by": "type", "attention": {"config": INTEGER}}
    layer = quantize_module_transform_pass(Functional(model.layer), table)[0].layer
    expected = model.last(layer(X, X, X, need_weights=False)[0])
    assert torch.allclose(new.model(X), expected, atol=1e-6)
    new.export(tmp_path / "g")
    loaded = MaseGraph.from_checkpoint(tmp_path / "g")
    assert torch.equal(loaded.model(X), new.model(X))


def test_its_result_takes_the_format_of_results(graph):
    new = graph.clone()
    config = INTEGER | {"data_out_width": 3, "data_out_frac_width": 1}
    quantize_transform_pass(new, {"by": "type", "attention": {"config": config}})
    node = next(n for n in new.nodes if n.name == "multi_head_attention_forward")
    result = node.meta["mase"].common.results["data_out_0"]
    assert (result["type"], result["precision"]) == ("integer", [3, 1])
    before = []
    new.modules["last"].register_forward_hook(lambda _, args, out: before.append(args[0]))
    new.model(X)
    assert torch.equal(before[0] * 2, (before[0] * 2).round())


def test_its_operations_and_bits_are_those_of_the_layer(graph, model):
    class Whole(nn.Module):
        def __init__(self, layer, last):
            super().__init__()
            self.layer, self.last = layer, last

        def forward(self, x):
            return self.last(self.layer(x, x, x, need_weights=False)[0])

    whole = graph_of(Whole(model.layer, model.last).eval(), X)
    new = graph.clone()
    for each in (new, whole):
        float_cost = cost_of(each)["total"]
        quantize_transform_pass(each, {"by": "type", "default": {"config": INTEGER}})
        total, numbers = cost_of(each)["total"], ledger_of(each.model).read()
        assert (total["macs"], total["flops"]) == (float_cost["macs"], float_cost["flops"])
        assert numbers.bit_ops * 5 == total["bit_ops"]
        assert numbers.parameter_bits == total["weight_bits"]
    ours, theirs = (cost_of(each)["total"] for each in (new, whole))
    for key in ("parameters", "macs", "flops", "bit_ops", "weight_bits"):
        assert ours[key] == theirs[key], key
    averages = [run_pass("calculate_avg_bits", each)[1]["w_avg_bit"] for each in (new, whole)]
    assert averages == [4, 4]
    assert {bits for bits, _ in ledger_of(new.model).read().tensors} == {4, 6}


@pytest.mark.slow
@pytest.mark.parametrize("made", LAYERS)
def test_products_are_counted_as_torch_runs_them(made):
    layer = settled(nn.MultiheadAttention(8, 2, **(LAYERS[made] if made != "separate" else {})))
    if made == "separate":
        for name, part in zip("qkv", layer.in_proj_weight.chunk(3), strict=True):
            setattr(layer, f"{name}_proj_weight", nn.Parameter(part.detach()))
        layer.in_proj_weight = None
    model = Functional(layer, need_weights=False).eval()
    with MacCounter() as audit, torch.no_grad():
        model(X)
    assert cost_of(graph_of(model, X))["total"]["macs"] == audit.macs


def test_what_cannot_be_pruned_is_warned_of_with_its_share(graph, caplog):
    with caplog.at_level(logging.WARNING, "chop"):
        quantize_transform_pass(graph.clone(), {"by": "type", "default": {"config": INTEGER}})
        assert ["which no ONNX file and no circuit holds" in said for said in caplog.messages] == [
            True
        ]
        prune_transform_pass(graph.clone(), {"weight": {"sparsity": 0.5}})
    rows = cost_of(graph)["nodes"]
    operations = rows["multi_head_attention_forward"]["flops"] / cost_of(graph)["total"]["flops"]
    weights = (3 * 64 + 64) / (4 * 64 + 32 + 18)
    names = "layer_in_proj_weight (a parameter), layer_out_proj_weight (a parameter)"
    share = f"{100 * weights:.3g} % of the weights and {100 * operations:.3g} % of the operations"
    assert caplog.messages[-1] == f"{names} cannot be pruned and stay as they are: {share}"
    assert math.isclose(weights, 0.837, abs_tol=1e-3)
