"""Attention with weights: every operand of its six products is rounded."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor, nn

from chop.passes.graph.transforms.quantize.multihead import (
    HeadSettings,
    HeadWeights,
    attend,
    check_causal,
)
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
        check_causal(attn_mask, is_causal)
        batched = query.dim() == 3
        # one tensor for all three, as in self-attention, stays one, which is rounded once
        given = {id(x): x for x in (query, key, value)}
        rounded = {k: self.q("data_in", self._samples_first(x, batched)) for k, x in given.items()}
        if not batched and key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        dropout = self.dropout if self.training else 0.0
        settings = HeadSettings(
            self.num_heads, dropout, self.add_zero_attn, need_weights, average_attn_weights
        )
        inputs = [rounded[id(x)] for x in (query, key, value)]
        rounding = functools.partial(self.q, "data_in")
        held = self._weights()
        out, shares = attend(inputs, held, settings, rounding, key_padding_mask, attn_mask)
        out = self.q("data_out", self._as_given(out, batched))
        return out, shares if batched or shares is None else shares.squeeze(0)

    def _weights(self) -> HeadWeights:
        """Return the weights and biases in their formats."""
        if self.in_proj_weight is not None:
            weights = self._rounded("in_proj_weight").chunk(3)
        else:
            weights = [self._rounded(f"{name}_proj_weight") for name in "qkv"]
        bias = self._rounded("in_proj_bias")
        out = self._rounded("out_proj.weight"), self._rounded("out_proj.bias")
        learned = self._rounded("bias_k"), self._rounded("bias_v")
        return HeadWeights(weights, (None,) * 3 if bias is None else bias.chunk(3), *out, *learned)

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


LAYERS = base.layers_in(globals())
__getattr__ = base.variants(*LAYERS)
