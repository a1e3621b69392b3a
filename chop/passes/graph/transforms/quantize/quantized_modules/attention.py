"""Attention with weights: every operand of its six products is rounded."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.passes.graph.transforms.quantize.quantized_modules import base
from chop.passes.graph.transforms.quantize.quantized_modules.several_weights import SeveralWeights


class QuantMultiheadAttention(SeveralWeights, nn.MultiheadAttention):
    """Projections, scores and weighted values with rounded operands.

    Queries, keys, values and the probabilities take the format of `data_in`, before and after the
    projections; the softmax itself is computed in float.
    """

    def _parameter(self, name: str) -> Any:
        inner, _, last = name.rpartition(".")
        return getattr(self.get_submodule(inner), last)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if not self.formats:
            masks = key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            return nn.MultiheadAttention.forward(self, query, key, value, *masks)
        if is_causal and attn_mask is None:
            raise RuntimeError("is_causal describes attn_mask, but no attn_mask is given; give it")
        batched = query.dim() == 3
        # one tensor for all three, as in self-attention, stays one, which is rounded once
        given = {id(x): self._samples_first(x, batched) for x in (query, key, value)}
        samples = [given[id(x)] for x in (query, key, value)]
        if not batched and key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        q, k, v = self._projected(*samples)
        mask = self._mask(key_padding_mask, attn_mask, len(q), k.shape[-2], q.dtype)
        scores = self.q("data_in", q) @ self.q("data_in", k).transpose(-2, -1)
        scores = scores / math.sqrt(q.shape[-1])
        scores = scores if mask is None else scores + mask
        # without weights torch gives rows of which everything is masked 0 instead of NaN
        softmax: Any = torch.softmax if need_weights else torch._safe_softmax
        shares: Tensor = F.dropout(softmax(scores, -1), self.dropout, self.training)
        joined = (self.q("data_in", shares) @ self.q("data_in", v)).transpose(1, 2).flatten(2)
        bias = self._rounded("out_proj.bias")
        out = F.linear(self.q("data_in", joined), self._rounded("out_proj.weight"), bias)
        out = self.q("data_out", self._as_given(out, batched))
        if not need_weights:
            return out, None
        shares = shares.mean(1) if average_attn_weights else shares
        return out, shares if batched else shares.squeeze(0)

    def _rounded(self, name: str) -> Any:
        return None if self._parameter(name) is None else self.q_parameter(name)

    def _samples_first(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _as_given(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x.squeeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _projected(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values by sample and head."""
        if self.in_proj_weight is not None:
            weights = self._rounded("in_proj_weight").chunk(3)
        else:
            weights = [self._rounded(f"{name}_proj_weight") for name in "qkv"]
        bias = self._rounded("in_proj_bias")
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        rounded = {id(x): self.q("data_in", x) for x in inputs}
        q, k, v = (
            F.linear(rounded[id(x)], weight, bias)
            for x, weight, bias in zip(inputs, weights, biases, strict=True)
        )
        if self.bias_k is not None:
            k, v = (
                torch.cat([x, self._rounded(name).expand(len(x), 1, -1)], 1)
                for x, name in ((k, "bias_k"), (v, "bias_v"))
            )
        by_head = (self.num_heads, self.head_dim)
        q, k, v = (torch.unflatten(x, -1, by_head).transpose(1, 2) for x in (q, k, v))
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        return q, k, v

    def _mask(
        self,
        padding: Tensor | None,
        attention: Tensor | None,
        samples: int,
        keys: int,
        dtype: torch.dtype,
    ) -> Tensor | None:
        """Return both masks as one tensor that is added to the scores, None without any."""
        masks = []
        if attention is not None:
            shape = (samples, self.num_heads) if attention.dim() == 3 else (1, 1)
            masks.append(_additive(attention, dtype).reshape(*shape, *attention.shape[-2:]))
        if padding is not None:
            masks.append(_additive(padding, dtype)[:, None, None])
        # keys that were appended, of bias_k and of zeros, are seen by every query
        masks = [F.pad(mask, (0, keys - mask.shape[-1])) for mask in masks]
        return None if not masks else masks[0] if len(masks) == 1 else masks[0] + masks[1]


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask of numbers; in a boolean one, True means: not seen."""
    if mask.is_floating_point():
        return mask.to(dtype)
    if mask.dtype != torch.bool:
        raise TypeError(f"a mask of attention is boolean or of numbers, not {mask.dtype}; cast it")
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)


LAYERS = base.layers_in(globals())
__getattr__ = base.variants(*LAYERS)
