"""Attention, and the layers of torch that contain it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.ops.activations import safe_softmax
from chop.passes.graph.interface.export_onnx.registry import writes


def as_added(call: OpCall, mask: Any, *, keep: bool) -> str:
    """Return a mask as numbers to add; `keep`: True in it keeps a score, as in sdpa."""
    facts, name = call.facts_of(mask), call.value(mask)
    dtype = call.out.dtype
    if facts.dtype != torch.bool:
        return call.cast(name, facts.dtype, dtype)
    zero, least = call.constant(0.0, dtype), call.constant(-math.inf, dtype)
    return call.add("Where", name, *((zero, least) if keep else (least, zero)))


def attended(
    call: OpCall, q: str, k: str, v: str, scale: float, added: tuple[str, ...], *, safe: bool
) -> tuple[str, str]:
    """Return softmax(q k' · scale + added) v, and the softmax.

    `safe`: a row in which nothing is kept gives zeros, as in torch's own function.
    """
    dtype = call.out.dtype
    turned = call.add("Transpose", k, perm=[0, 1, 3, 2])
    product = call.add("MatMul", call.add("Mul", q, call.constant(scale, dtype)), turned)
    for term in added:
        product = call.add("Add", product, term)
    is_masked = safe and bool(added)
    shares = safe_softmax(call, product, -1) if is_masked else call.add("Softmax", product, axis=-1)
    return call.add("MatMul", shares, v), shares


def causal(call: OpCall, rows: int | None, columns: int | None) -> str:
    """Return a mask that keeps what is not later."""
    if rows is None or columns is None:
        raise call.refusal("is causal over a length that depends on the batch; give a fixed one")
    late = torch.ones(rows, columns, dtype=torch.bool).triu(1)
    mask = torch.zeros(rows, columns, dtype=call.out.dtype).masked_fill(late, -math.inf)
    return call.constant(mask)


@writes("scaled_dot_product_attention")
def scaled_dot_product_attention(call: OpCall) -> Any:
    places = (("query", 0), ("key", 1), ("value", 2))
    q, k, v = (call.x(place, name) for name, place in places)
    mask, dropout = call.arg(3, "attn_mask", default=None), call.arg(4, "dropout_p", default=0.0)
    if call.plain(dropout, "dropout_p"):
        raise call.refusal("drops numbers in eval mode as well; give it dropout_p=0")
    facts = [call.given_facts(place, name) for name, place in places]
    if call.kwargs.get("enable_gqa") and facts[0].shape[1] != facts[1].shape[1]:
        raise call.refusal("shares keys between heads; repeat them first")
    width, rank = facts[0].shape[-1], len(facts[0].shape)
    assert width is not None
    scale = call.plain(call.kwargs.get("scale"), "scale")
    added: tuple[str, ...] = () if mask is None else (as_added(call, mask, keep=True),)
    if call.plain(call.arg(5, "is_causal", default=False), "is_causal"):
        added += (causal(call, facts[0].shape[-2], facts[1].shape[-2]),)
    if rank < 4:
        axes = call.ints(*range(4 - rank))
        q, k, v = (call.add("Unsqueeze", name, axes) for name in (q, k, v))
    factor = 1 / math.sqrt(width) if scale is None else scale
    result, _ = attended(call, q, k, v, factor, added, safe=mask is not None)
    result = call.add("Squeeze", result, call.ints(*range(4 - rank))) if rank < 4 else result
    return (result,) if isinstance(call.facts, tuple) else result


@dataclass(frozen=True)
class SampleSequence:
    """A sequence inside a layer: its value, samples first, its length, and what it reads."""

    name: str
    length: int | None


class Inside:
    """Parameters of the layers inside one that the graph keeps whole."""

    def __init__(self, call: OpCall, layer: Any, prefix: str = "") -> None:
        self.call, self.layer, self.prefix = call, layer, prefix

    def of(self, name: str) -> Inside:
        return Inside(self.call, getattr(self.layer, name), f"{self.prefix}{name}.")

    def parameter(self, name: str) -> str | None:
        if getattr(self.layer, name, None) is None:
            return None
        return self.call.parameter(f"{self.prefix}{name}", name)

    def linear(self, x: str) -> str:
        """Return a linear layer inside; the weight is stored transposed."""
        weight: Tensor = self.layer.weight
        return self.projected(x, weight, self.layer.bias, "weight", "bias")

    def projected(self, x: str, weight: Tensor, bias: Any, name: str, bias_name: str) -> str:
        call, target = self.call, f"{self.call.node.target}.{self.prefix}"
        turned = call.writer.stored(weight.detach().T, f"{target}{name}_transposed")
        product = call.add("MatMul", x, turned)
        if bias is None:
            return product
        stored = call.writer.stored(bias.detach(), f"{target}{bias_name}")
        return call.add("Add", product, stored)

    def normed(self, x: str) -> str:
        """Return a layer norm inside."""
        if type(self.layer).__name__ != "LayerNorm":
            raise self.call.refusal(f"has a {type(self.layer).__name__} inside; use LayerNorm")
        weight, bias = self.parameter("weight"), self.parameter("bias")
        shape = self.layer.normalized_shape
        gain = weight or self.call.constant(torch.ones(shape))
        names = [x, gain, *([bias] if bias else [])]
        eps = self.layer.eps
        return self.call.add("LayerNormalization", *names, axis=-len(shape), epsilon=eps)


def split_heads(call: OpCall, x: str, heads: int, width: int) -> str:
    """[N, L, E] to [N, heads, L, width]."""
    split = call.add("Reshape", x, call.ints(0, 0, heads, width))
    return call.add("Transpose", split, perm=[0, 2, 1, 3])


def multihead(
    inside: Inside,
    q: SampleSequence,
    k: SampleSequence,
    v: SampleSequence,
    added: tuple[str, ...],
    *,
    safe: bool = True,
) -> tuple[str, str]:
    """Return attention with samples first: the result, and the shares of each head."""
    call, layer = inside.call, inside.layer
    if layer.bias_k is not None or layer.add_zero_attn:
        raise call.refusal("has bias_k or add_zero_attn; build it without them")
    if layer.in_proj_weight is not None:
        weights = layer.in_proj_weight.detach().chunk(3)
    else:
        weights = [getattr(layer, f"{n}_proj_weight").detach() for n in "qkv"]
    biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.detach().chunk(3)
    heads, width = layer.num_heads, layer.head_dim
    qkv = [
        split_heads(call, inside.projected(x.name, w, b, f"{n}_weight", f"{n}_bias"), heads, width)
        for x, w, b, n in zip((q, k, v), weights, biases, "qkv", strict=True)
    ]
    result, shares = attended(call, qkv[0], qkv[1], qkv[2], 1 / math.sqrt(width), added, safe=safe)
    joined = call.add("Transpose", result, perm=[0, 2, 1, 3])
    joined = call.add("Reshape", joined, call.ints(0, 0, heads * width))
    return inside.of("out_proj").linear(joined), shares


def padding_scores(call: OpCall, mask: Any) -> str:
    """[N, S] of keys that are padding, as numbers to add to [N, heads, L, S]."""
    return call.add("Unsqueeze", as_added(call, mask, keep=False), call.ints(1, 2))


def mask_scores(call: OpCall, mask: Any, heads: int) -> str:
    """[L, S] or [N · heads, L, S], as numbers to add to [N, heads, L, S]."""
    name, shape = as_added(call, mask, keep=False), call.facts_of(mask).shape
    if len(shape) == 2:
        return name
    rows, columns = shape[1:]
    return call.add("Reshape", name, call.ints(-1, heads, rows or 0, columns or 0))


def scores_of(call: OpCall, padding: Any, mask: Any, heads: int) -> tuple[str, ...]:
    """Return what masks add to the scores."""
    added = () if padding is None else (padding_scores(call, padding),)
    return added if mask is None else (*added, mask_scores(call, mask, heads))


def samples_first(call: OpCall, value: Any, first: bool) -> SampleSequence:
    """Return a sequence with samples in the first dimension."""
    facts = call.facts_of(value)
    if len(facts.shape) != 3:
        raise call.refusal("takes one sample without a batch; give it a batch")
    name = call.value(value)
    if not first:
        name = call.add("Transpose", name, perm=[1, 0, 2])
    return SampleSequence(name, facts.shape[1 if first else 0])


def as_given(call: OpCall, x: str, first: bool) -> str:
    return x if first else call.add("Transpose", x, perm=[1, 0, 2])


@writes("attention")
def attention(call: OpCall) -> Any:
    if call.module is None:
        raise call.refusal("is called as a function; use nn.MultiheadAttention")
    layer: Any = call.module
    call.rounding.check_whole(call)
    names = (("query", 0), ("key", 1), ("value", 2))
    q, k, v = (samples_first(call, call.arg(i, n), layer.batch_first) for n, i in names)
    padding, mask = (
        call.arg(3, "key_padding_mask", default=None),
        call.arg(5, "attn_mask", default=None),
    )
    added = scores_of(call, padding, mask, layer.num_heads)
    weights = call.plain(call.arg(4, "need_weights", default=True), "need_weights")
    result, shares = multihead(Inside(call, layer), q, k, v, added, safe=not weights)
    result = as_given(call, result, layer.batch_first)
    if not weights:
        return result, None
    if call.arg(6, "average_attn_weights", default=True):
        shares = call.add("ReduceMean", shares, call.ints(1), keepdims=0)
    return result, shares


def activated(call: OpCall, layer: Any, x: str) -> str:
    """Return the activation inside a transformer layer."""
    function = layer.activation
    name = getattr(function, "__name__", type(function).__name__).lower()
    if name == "relu":
        return call.add("Relu", x)
    if name == "gelu":
        return call.add("Gelu", x, approximate=getattr(function, "approximate", "none"))
    raise call.refusal(f"has the activation {name!r} inside; use relu or gelu")


def feed_forward(inside: Inside, x: str) -> str:
    hidden = activated(inside.call, inside.layer, inside.of("linear1").linear(x))
    return inside.of("linear2").linear(hidden)


def _residual(inside: Inside, norm: str, x: str, branch: Any) -> str:
    """Return x plus a branch, normalised before the branch or after the sum."""
    call = inside.call
    if inside.layer.norm_first:
        return call.add("Add", x, branch(inside.of(norm).normed(x)))
    return inside.of(norm).normed(call.add("Add", x, branch(x)))


def encoder_layer(inside: Inside, x: SampleSequence, added: tuple[str, ...]) -> SampleSequence:
    def attends(name: str) -> str:
        stream = SampleSequence(name, x.length)
        return multihead(inside.of("self_attn"), stream, stream, stream, added)[0]

    y = _residual(inside, "norm1", x.name, attends)
    y = _residual(inside, "norm2", y, lambda name: feed_forward(inside, name))
    return SampleSequence(y, x.length)


def decoder_layer(
    inside: Inside,
    x: SampleSequence,
    memory: SampleSequence,
    own: tuple[str, ...],
    others: tuple[str, ...],
) -> SampleSequence:
    def attends(name: str) -> str:
        stream = SampleSequence(name, x.length)
        return multihead(inside.of("self_attn"), stream, stream, stream, own)[0]

    def reads(name: str) -> str:
        stream = SampleSequence(name, x.length)
        return multihead(inside.of("multihead_attn"), stream, memory, memory, others)[0]

    y = _residual(inside, "norm1", x.name, attends)
    y = _residual(inside, "norm2", y, reads)
    return SampleSequence(
        _residual(inside, "norm3", y, lambda name: feed_forward(inside, name)), x.length
    )


def _stacked(inside: Inside) -> list[Inside]:
    layers = inside.of("layers")
    return [layers.of(str(i)) for i in range(len(layers.layer))]


def encoder(inside: Inside, x: SampleSequence, added: tuple[str, ...]) -> SampleSequence:
    for layer in _stacked(inside):
        x = encoder_layer(layer, x, added)
    norm = inside.layer.norm
    return x if norm is None else SampleSequence(inside.of("norm").normed(x.name), x.length)


def decoder(
    inside: Inside, x: SampleSequence, memory: SampleSequence, own: Any, others: Any
) -> SampleSequence:
    for layer in _stacked(inside):
        x = decoder_layer(layer, x, memory, own, others)
    norm = inside.layer.norm
    return x if norm is None else SampleSequence(inside.of("norm").normed(x.name), x.length)


def _heads(layer: Any) -> int:
    return int(layer.self_attn.num_heads)


@writes("transformer_encoder_layer", "transformer_encoder")
def transformer_encoder(call: OpCall) -> str:
    layer: Any = call.module
    whole = call.op == "transformer_encoder"
    first = (layer.layers[0] if whole else layer).self_attn.batch_first
    mask = call.arg(1, "mask", "src_mask", default=None)
    padding = call.arg(2, "src_key_padding_mask", default=None)
    if mask is None and call.arg(3, "is_causal", default=None):
        raise call.refusal("is causal without a mask; give it the mask")
    heads = _heads(layer.layers[0] if whole else layer)
    x = samples_first(call, call.arg(0, "src"), first)
    added = scores_of(call, padding, mask, heads)
    result = (encoder if whole else encoder_layer)(Inside(call, layer), x, added)
    return as_given(call, result.name, first)


@writes("transformer_decoder_layer", "transformer_decoder")
def transformer_decoder(call: OpCall) -> str:
    layer: Any = call.module
    whole = call.op == "transformer_decoder"
    one = layer.layers[0] if whole else layer
    first, heads = one.self_attn.batch_first, _heads(one)
    x, memory = (samples_first(call, call.arg(i, n), first) for i, n in ((0, "tgt"), (1, "memory")))
    masks = {
        name: call.arg(place, name, default=None)
        for place, name in ((2, "tgt_mask"), (3, "memory_mask"), (4, "tgt_key_padding_mask"),
                            (5, "memory_key_padding_mask"))
    }  # fmt: skip
    own = scores_of(call, masks["tgt_key_padding_mask"], masks["tgt_mask"], heads)
    others = scores_of(call, masks["memory_key_padding_mask"], masks["memory_mask"], heads)
    result = (decoder if whole else decoder_layer)(Inside(call, layer), x, memory, own, others)
    return as_given(call, result.name, first)


@writes("transformer")
def transformer(call: OpCall) -> str:
    layer: Any = call.module
    first, heads = layer.batch_first, layer.nhead
    source, target = (
        samples_first(call, call.arg(i, n), first) for i, n in ((0, "src"), (1, "tgt"))
    )
    names = ("src_mask", "tgt_mask", "memory_mask", "src_key_padding_mask",
             "tgt_key_padding_mask", "memory_key_padding_mask")  # fmt: skip
    masks = {n: call.arg(2 + i, n, default=None) for i, n in enumerate(names)}
    inside = Inside(call, layer)
    read = scores_of(call, masks["src_key_padding_mask"], masks["src_mask"], heads)
    memory = encoder(inside.of("encoder"), source, read)
    own = scores_of(call, masks["tgt_key_padding_mask"], masks["tgt_mask"], heads)
    others = scores_of(call, masks["memory_key_padding_mask"], masks["memory_mask"], heads)
    result = decoder(inside.of("decoder"), target, memory, own, others)
    return as_given(call, result.name, first)
