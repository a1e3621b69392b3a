"""Plain forwards of torch's transformers, which the tracer enters.

Torch's own choose between fused kernels by values that a trace does not have. These compute the
same from the same parts: the sublayers of a model, and the methods that a subclass may replace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Forward = Callable[..., Any]
Masks = tuple[Tensor | None, Tensor | None]


def _check_hint(is_causal: Any, mask: Any) -> None:
    """Refuse the hint that a mask is causal where there is no mask; else it changes no value."""
    if is_causal is True and mask is None:
        raise ValueError("is_causal describes a mask, but no mask is given; give the mask")


def _encoder_layer(
    self: Any,
    src: Tensor,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    _check_hint(is_causal, src_mask)
    masks = src_mask, src_key_padding_mask
    x = src
    if self.norm_first:
        x = x + self._sa_block(self.norm1(x), *masks)
        return x + self._ff_block(self.norm2(x))  # type: ignore[no-any-return]
    x = self.norm1(x + self._sa_block(x, *masks))
    return self.norm2(x + self._ff_block(x))  # type: ignore[no-any-return]


def _encoder(
    self: Any,
    src: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    _check_hint(is_causal, mask)
    masks = {"src_mask": mask, "src_key_padding_mask": src_key_padding_mask}
    for layer in self.layers:
        src = layer(src, **masks)
    return src if self.norm is None else self.norm(src)


def _with_memory(compute: Forward) -> Forward:
    """Return the forward of a decoder or one of its layers.

    `compute` gets the masks of the target and those of the memory, each with that of padding.
    """

    def forward(
        self: Any,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Any:
        _check_hint(tgt_is_causal, tgt_mask)
        _check_hint(memory_is_causal, memory_mask)
        own, other = (tgt_mask, tgt_key_padding_mask), (memory_mask, memory_key_padding_mask)
        return compute(self, tgt, memory, own, other)

    return forward


def _decoder_layer(self: Any, x: Tensor, memory: Tensor, own: Masks, other: Masks) -> Tensor:
    if self.norm_first:
        x = x + self._sa_block(self.norm1(x), *own)
        x = x + self._mha_block(self.norm2(x), memory, *other)
        return x + self._ff_block(self.norm3(x))  # type: ignore[no-any-return]
    x = self.norm1(x + self._sa_block(x, *own))
    x = self.norm2(x + self._mha_block(x, memory, *other))
    return self.norm3(x + self._ff_block(x))  # type: ignore[no-any-return]


def _decoder(self: Any, x: Tensor, memory: Tensor, own: Masks, other: Masks) -> Tensor:
    masks = {"tgt_mask": own[0], "tgt_key_padding_mask": own[1]}
    masks |= {"memory_mask": other[0], "memory_key_padding_mask": other[1]}
    for layer in self.layers:
        x = layer(x, memory, **masks)
    return x if self.norm is None else self.norm(x)


def _transformer(
    self: Any,
    src: Tensor,
    tgt: Tensor,
    src_mask: Tensor | None = None,
    tgt_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    tgt_key_padding_mask: Tensor | None = None,
    memory_key_padding_mask: Tensor | None = None,
    src_is_causal: bool | None = None,
    tgt_is_causal: bool | None = None,
    memory_is_causal: bool = False,
) -> Tensor:
    memory = self.encoder(
        src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
    )
    return self.decoder(  # type: ignore[no-any-return]
        tgt,
        memory,
        tgt_mask=tgt_mask,
        memory_mask=memory_mask,
        tgt_key_padding_mask=tgt_key_padding_mask,
        memory_key_padding_mask=memory_key_padding_mask,
        tgt_is_causal=tgt_is_causal,
        memory_is_causal=memory_is_causal,
    )


# torch's forward -> the one that can be traced
_PLAIN: dict[Forward, Forward] = {
    nn.TransformerEncoderLayer.forward: _encoder_layer,
    nn.TransformerEncoder.forward: _encoder,
    nn.TransformerDecoderLayer.forward: _with_memory(_decoder_layer),
    nn.TransformerDecoder.forward: _with_memory(_decoder),
    nn.Transformer.forward: _transformer,
}


def plain_forward(module: object) -> Forward | None:
    """Return the forward to trace instead of torch's, as a function of the module; None: its own.

    Subclasses that define forward keep theirs.
    """
    return _PLAIN.get(getattr(type(module), "forward", None))  # type: ignore[arg-type]
