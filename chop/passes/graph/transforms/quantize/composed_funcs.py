"""Functions of several products, with the operands of the inner ones rounded too."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.numerics import NumberFormat
from chop.passes.graph.transforms.quantize.multihead import attention_function


@dataclass(frozen=True)
class Composed:
    """The rounding form of a function: `call` takes the format of inner operands first.

    `operands` are those of its arguments where the order in the table of ops does not tell them.
    """

    call: Callable[..., Any]
    operands: Mapping[str, str] | None = None


def attention(
    inner: NumberFormat,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return torch's scaled_dot_product_attention, with its probabilities rounded to `inner`.

    They are an operand of the second product, as the values are.
    """
    if enable_gqa:  # each key and value serves a group of queries
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    if is_causal:
        if attn_mask is not None:
            raise ValueError("attention takes attn_mask or is_causal, not both; leave out one")
        attn_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        scores = _masked(scores, attn_mask)
    probabilities = _softmax(scores)
    probabilities = F.dropout(probabilities, dropout_p) if dropout_p else probabilities
    weighted: Tensor = inner(probabilities) @ value
    return weighted


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask


def _softmax(scores: Tensor) -> Tensor:
    """Return the probabilities of each row, and zeros for a row that is masked as a whole."""
    masked = (scores == -math.inf).all(-1, keepdim=True)
    return torch.softmax(scores, -1).masked_fill(masked, 0.0)


_ATTENTION = (F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)
_MULTIHEAD = dict.fromkeys(("query", "key", "value"), "data_in")
_MULTIHEAD |= {f"{name}_proj_weight": "weight" for name in ("in", "q", "k", "v", "out")}
_MULTIHEAD |= dict.fromkeys(("in_proj_bias", "bias_k", "bias_v", "out_proj_bias"), "bias")
COMPOSED: dict[Any, Composed] = {
    **dict.fromkeys(_ATTENTION, Composed(attention)),
    F.multi_head_attention_forward: Composed(attention_function, _MULTIHEAD),
}


def composed_form(target: Callable[..., Any]) -> Composed | None:
    """Return the form of a function that rounds inside, or None for one with a single product."""
    return COMPOSED.get(target)
