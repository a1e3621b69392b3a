"""The arithmetic of attention with weights, with rounded operands, for the layer and the function.

Tensors are by sample, then by position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Three = Sequence[Any]  # of queries, keys and values
Rounding = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class HeadWeights:
    """The weights and biases of attention in their formats; a bias may be None."""

    weights: Three
    biases: Three
    out_weight: Tensor
    out_bias: Tensor | None
    bias_k: Tensor | None = None  # a key and a value for all samples
    bias_v: Tensor | None = None


@dataclass(frozen=True)
class HeadSettings:
    """How attention computes besides its weights; `dropout` is 0 unless it is training."""

    heads: int
    dropout: float = 0.0
    add_zero_attn: bool = False
    need_weights: bool = True
    average: bool = True


def attend(
    inputs: Three,
    held: HeadWeights,
    settings: HeadSettings,
    rounding: Rounding,
    padding: Tensor | None = None,
    mask: Tensor | None = None,
    given: Sequence[Tensor | None] = (None, None),
) -> tuple[Tensor, Tensor | None]:
    """Return the result and the probabilities of rounded `inputs`; these are None unless needed.

    What enters an inner product is rounded by `rounding`; the softmax is computed in float. Keys
    and values that are `given` replace the projected ones.
    """
    q, k, v = _projected(inputs, held, settings, given)
    added = _added_mask(padding, mask, settings.heads, len(q), k.shape[-2], q.dtype)
    scores = rounding(q) @ rounding(k).transpose(-2, -1) / math.sqrt(q.shape[-1])
    scores = scores if added is None else scores + added
    # without weights torch gives rows of which everything is masked 0 instead of NaN
    softmax: Any = torch.softmax if settings.need_weights else torch._safe_softmax
    shares: Tensor = F.dropout(softmax(scores, -1), settings.dropout, settings.dropout > 0)
    joined = (rounding(shares) @ rounding(v)).transpose(1, 2).flatten(2)
    out = F.linear(rounding(joined), held.out_weight, held.out_bias)
    if not settings.need_weights:
        return out, None
    return out, shares.mean(1) if settings.average else shares


def _projected(
    inputs: Three, held: HeadWeights, settings: HeadSettings, given: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values by sample and head."""
    q, k, v = map(F.linear, inputs, held.weights, held.biases)
    if held.bias_k is not None and held.bias_v is not None:
        k, v = (
            torch.cat([x, bias.expand(len(x), 1, -1)], 1)
            for x, bias in ((k, held.bias_k), (v, held.bias_v))
        )
    by_head = (settings.heads, q.shape[-1] // settings.heads)
    q, k, v = (torch.unflatten(x, -1, by_head).transpose(1, 2) for x in (q, k, v))
    k, v = (
        x if other is None else torch.unflatten(other, 0, (len(q), -1))
        for x, other in zip((k, v), given, strict=True)
    )
    if settings.add_zero_attn:
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
    return q, k, v


def _added_mask(
    padding: Tensor | None,
    mask: Tensor | None,
    heads: int,
    samples: int,
    keys: int,
    dtype: torch.dtype,
) -> Tensor | None:
    """Return both masks as one tensor that is added to the scores, None without any."""
    masks = []
    if mask is not None:
        shape = (samples, heads) if mask.dim() == 3 else (1, 1)
        masks.append(_additive(mask, dtype).reshape(*shape, *mask.shape[-2:]))
    if padding is not None:
        masks.append(_additive(padding, dtype)[:, None, None])
    # keys that were appended, of bias_k and of zeros, are seen by every query
    masks = [F.pad(each, (0, keys - each.shape[-1])) for each in masks]
    return None if not masks else masks[0] if len(masks) == 1 else masks[0] + masks[1]


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask of numbers; in a boolean one, True means: not seen."""
    if mask.is_floating_point():
        return mask.to(dtype)
    if mask.dtype != torch.bool:
        raise TypeError(f"a mask of attention is boolean or of numbers, not {mask.dtype}; cast it")
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)


def check_causal(mask: Tensor | None, is_causal: bool) -> None:
    """Refuse a call that says that a mask is causal, but has none."""
    if is_causal and mask is None:
        raise RuntimeError("is_causal describes attn_mask, but no attn_mask is given; give it")


def attention_function(
    inner: Rounding,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return torch's multi_head_attention_forward of rounded operands.

    What enters an inner product is rounded to `inner`.
    """
    check_causal(attn_mask, is_causal)
    if query.shape[-1] != embed_dim_to_check:
        raise ValueError(f"queries have {query.shape[-1]} features, not {embed_dim_to_check}")
    separate = (q_proj_weight, k_proj_weight, v_proj_weight)
    weights: Any = separate if use_separate_proj_weight else in_proj_weight.chunk(3)  # type: ignore[union-attr]
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    held = HeadWeights(weights, biases, out_proj_weight, out_proj_bias, bias_k, bias_v)
    dropout = dropout_p if training else 0.0
    settings = HeadSettings(num_heads, dropout, add_zero_attn, need_weights, average_attn_weights)
    batched = query.dim() == 3
    if not batched and key_padding_mask is not None:
        key_padding_mask = key_padding_mask.unsqueeze(0)
    given = (query, key, value)
    inputs = [x.transpose(0, 1) if batched else x.unsqueeze(0) for x in given]
    masks = key_padding_mask, attn_mask
    out, shares = attend(inputs, held, settings, inner, *masks, (static_k, static_v))
    if batched:
        return out.transpose(0, 1), shares
    return out.squeeze(0), None if shares is None else shares.squeeze(0)
