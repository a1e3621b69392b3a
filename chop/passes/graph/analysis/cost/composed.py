"""Costs of composed layers: recurrence, attention with weights, transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chop.ir.ops import module_op
from chop.passes.graph.analysis.cost.call import (
    NOTHING,
    Call,
    Count,
    Product,
    Shape,
    count,
    numbered,
    plain,
    rule,
    size,
)

# operations per hidden element and step besides the products: summing the gates, their
# activations, the new state; forward and backward
RECURRENT = {"rnn": (2, 3), "lstm": (4 + 18, 26), "gru": (3 + 13, 20)}
HIDDEN = "data_in_1"  # the hidden state, which has this name if it is given
GATES = {"rnn": 1, "lstm": 4, "gru": 3}


@rule("rnn", "lstm", "gru", "rnn_cell", "lstm_cell", "gru_cell")
def recurrent(call: Call) -> Count:
    """Each weight matrix is used once for each step of each sequence."""
    kind = call.op.removesuffix("_cell")
    data = call.required("data_in_0")
    steps = size(data[:-1])
    total = NOTHING
    for name, shape in call.inputs.items():
        if len(shape) != 2 or "weight_" not in name:
            continue
        # inputs of deeper layers are rounded as the first one's is, and hidden states always
        left = HIDDEN if "weight_hh" in name else "data_in_0"
        total += Count((Product(steps * size(shape), left, name, shape[1]),))
        if "weight_hh" in name:
            hidden = shape[0] // GATES[kind]
            forward, backward = RECURRENT[kind]
            total += plain(steps * hidden * forward, steps * hidden * backward)
    biases = sum(size(shape) for name, shape in call.inputs.items() if "bias_" in name)
    return total + plain(steps * biases)


@rule("transposed_linear")
def transposed_linear(call: Call) -> Count:
    """As linear; each of the rows of the weight is for one input."""
    inputs, outputs = call.required("weight")
    macs = size(call.out) * inputs
    added = 0 if call.shape("bias") is None else size(call.out)
    del outputs
    return Count((Product(macs, "data_in_0", f"{call.prefix}weight", inputs),), added, added)


@rule("attention")
def multihead_attention(call: Call) -> Count:
    """Three projections, attention in each head, and the output projection."""
    if call.module is None:
        return _functional_attention(call)
    module: Any = call.module
    query, key, value = (call.data * 3)[:3] if len(call.data) < 3 else call.data[:3]
    width = module.embed_dim
    rows, pairs = size(query[:-1]), size(key[:-1])
    batch = 1 if len(query) == 2 else query[0] if module.batch_first else query[1]
    extra = (module.bias_k is not None) + bool(module.add_zero_attn)
    joint = module.in_proj_weight is not None
    names = ["in_proj_weight"] * 3 if joint else [f"{n}_proj_weight" for n in "qkv"]
    places = [f"data_in_{min(i, len(call.data) - 1)}" for i in range(3)]
    projected = [(rows, query[-1]), (pairs, key[-1]), (pairs, value[-1])]
    products = [
        Product(n * depth * width, place, call.prefix + name, depth, (i, 3) if joint else (0, 1))
        for i, ((n, depth), place, name) in enumerate(zip(projected, places, names, strict=True))
    ]
    output = f"{call.prefix}out_proj.weight"
    products.append(Product(rows * width * width, places[0], output, width))
    biases = (rows + 2 * pairs) * width if module.in_proj_bias is not None else 0
    biases += rows * width if module.out_proj.bias is not None else 0
    inner = _heads(batch, rows // batch, pairs // batch + extra, width, module.num_heads)
    masked = inner.products[0].macs * module.num_heads // width if len(call.data) > 3 else 0
    return Count(tuple(products)) + plain(biases) + inner + plain(masked, 0)


def _heads(batch: int, queries: int, keys: int, width: int, heads: int) -> Count:
    """What scaled_dot_product_attention costs inside."""
    q, k = ((batch, heads, length, width // heads) for length in (queries, keys))
    inner = count(Call("scaled_dot_product_attention", numbered([q, k, k]), [q])) or NOTHING
    scores, values = inner.products  # both operands are inside, and rounded as inputs are
    products = replace(scores, right="data_in_0"), replace(values, left="data_in_0")
    return replace(inner, products=products)


def _functional_attention(call: Call) -> Count:
    """Cost of multi_head_attention_forward: sequence first, widths from its arguments."""
    query, key, value = call.data[:3]
    width, heads = call.arguments["embed_dim_to_check"], call.arguments["num_heads"]
    batch = query[1] if len(query) == 3 else 1
    rows, pairs = size(query[:-1]), size(key[:-1])
    joint = "in_proj_weight" in call.inputs
    names = ["in_proj_weight"] * 3 if joint else [f"{n}_proj_weight" for n in "qkv"]
    projected = [(rows, query[-1]), (pairs, key[-1]), (pairs, value[-1])]
    products = [
        Product(n * depth * width, f"data_in_{i}", name, depth, (i, 3) if joint else (0, 1))
        for i, ((n, depth), name) in enumerate(zip(projected, names, strict=True))
    ]
    products.append(Product(rows * width * width, "data_in_0", "out_proj_weight", width))
    extra = ("bias_k" in call.inputs) + bool(call.arguments.get("add_zero_attn"))
    inner = _heads(batch, rows // batch, pairs // batch + extra, width, heads)
    biases = (rows + 2 * pairs) * width if "in_proj_bias" in call.inputs else 0
    biases += rows * width if "out_proj_bias" in call.inputs else 0
    masked = inner.products[0].macs * heads // width if len(call.data) > 3 else 0
    return Count(tuple(products)) + plain(biases) + inner + plain(masked, 0)


def inside(call: Call, part: str, shape: Shape, result: Shape | None = None) -> Count:
    """Cost of a submodule on one tensor; zero if the module does not have it."""
    module = getattr(call.module, part, None)
    if module is None:
        return NOTHING
    cls: Any = type(module)
    spec = module_op(cls)
    assert spec is not None, f"{type(module).__name__} is not in the table of ops"
    return count(call.inside(part, spec.name, [shape], result or shape)) or NOTHING


def _attend(call: Call, part: str, query: Shape, key: Shape) -> Count:
    return multihead_attention(call.inside(part, "attention", [query, key, key], query))


def _feed_forward(call: Call, x: Shape) -> Count:
    module: Any = call.module
    wide = (*x[:-1], module.linear1.out_features)
    name = getattr(module.activation, "__name__", type(module.activation).__name__.lower())
    activation = count(Call(name, numbered([wide]), [wide]))
    assert activation is not None, f"the activation {name!r} has no cost rule"
    return inside(call, "linear1", x, wide) + activation + inside(call, "linear2", wide, x)


@rule("transformer_encoder_layer")
def encoder_layer(call: Call) -> Count:
    """Self-attention and two linear layers, each with a norm and a residual sum."""
    x = call.required("data_in_0")
    total = _attend(call, "self_attn", x, x) + _feed_forward(call, x)
    return total + inside(call, "norm1", x) + inside(call, "norm2", x) + plain(2 * size(x), 0)


@rule("transformer_decoder_layer")
def decoder_layer(call: Call) -> Count:
    """As the encoder's, plus attention to the encoder's output."""
    x, memory = call.required("data_in_0"), call.required("data_in_1")
    total = _attend(call, "self_attn", x, x) + _attend(call, "multihead_attn", x, memory)
    total += _feed_forward(call, x) + plain(3 * size(x), 0)
    return total + inside(call, "norm1", x) + inside(call, "norm2", x) + inside(call, "norm3", x)


@rule("transformer_encoder", "transformer_decoder")
def stack(call: Call) -> Count:
    """All layers and the norm after them."""
    module: Any = call.module
    shapes = call.data[: 1 if call.op == "transformer_encoder" else 2]
    total = inside(call, "norm", shapes[0])
    for i in range(len(module.layers)):
        total += count(call.inside(f"layers.{i}", f"{call.op}_layer", shapes, shapes[0])) or NOTHING
    return total


@rule("transformer")
def transformer(call: Call) -> Count:
    source, target = call.data[:2]
    encoder = stack(call.inside("encoder", "transformer_encoder", [source], source))
    return encoder + stack(call.inside("decoder", "transformer_decoder", [target, source], target))


@rule("adaptive_log_softmax")
def adaptive_log_softmax(call: Call) -> Count:
    """The head for every row; clusters of rare classes, which depend on the data, are left out."""
    module: Any = call.module
    x = call.required("data_in_0")
    result = (size(x[:-1]), module.head_size)
    return inside(call, "head", x, result) + plain(5 * size(result))
