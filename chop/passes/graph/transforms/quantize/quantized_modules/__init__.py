"""One generic quantized layer per op; the class of each format is created on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chop.ir.ops import OPS, OpSpec, is_named_in_table, module_op
from chop.numerics import FORMATS
from chop.passes.graph.transforms.quantize.quantized_modules import (
    activation,
    attention,
    base,
    conv,
    embedding,
    linear,
    norm,
    recurrent,
)
from chop.passes.graph.transforms.quantize.quantized_modules.base import Quantized, variant
from chop.passes.graph.transforms.quantize.variants import LAYER_VARIANTS
from chop.registry import ByClass

__all__ = ["LAYERS", "Quantized", "has_layer", "layer_for", "quantized_module_map", "variant"]

_HOMES: tuple[Any, ...] = (linear, conv, activation, norm, embedding, attention, recurrent)
_ALL: list[type[Quantized]] = [layer for home in _HOMES for layer in home.LAYERS]


class QuantizedLayers(ByClass[type[Quantized]]):
    """Quantized layers by torch's class, also of activations that are defined later."""

    def _registered(self, key: Any) -> type | None:
        op = module_op(key) if isinstance(key, type) else None
        for layer in activation.layers_of(op) if op is not None else ():
            self._items.setdefault(layer.float_class, layer)
        return super()._registered(key)


LAYERS = QuantizedLayers("quantized layer")
for _layer in _ALL:
    LAYERS.register(_layer.float_class)(_layer)


def layer_for(cls: Any) -> type[Quantized] | None:
    """Return the quantized layer, of no format yet, that stands in for layers of a class."""
    known = LAYERS.get(cls)
    if known is None and is_named_in_table(cls):
        spec = module_op(cls)
        known = LAYERS.get(spec.modules[0]) if spec is not None else None
    return known


def has_layer(op: OpSpec) -> bool:
    """Return whether layers of an op have a quantized form."""
    return any(cls in LAYERS for cls in op.modules)


class _ModuleMap(Mapping[str, type[Quantized]]):
    """`<op>_<format>` -> class, for every op that has a layer and every registered format."""

    def __getitem__(self, key: str) -> type[Quantized]:
        if key in LAYER_VARIANTS:
            return LAYER_VARIANTS[key]  # type: ignore[no-any-return]
        for op in OPS.values():
            fmt = key.removeprefix(f"{op.name}_")
            for cls in op.modules if fmt != key and fmt in FORMATS else ():
                if cls in LAYERS:
                    return variant(LAYERS[cls], FORMATS[fmt])
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        ops = [op for op in OPS.values() if has_layer(op)]
        yield from (f"{op.name}_{fmt}" for op in ops for fmt in FORMATS)
        yield from LAYER_VARIANTS

    def __len__(self) -> int:
        return sum(1 for _ in self)


quantized_module_map = _ModuleMap()
__getattr__ = base.variants(*_ALL)  # `from …quantized_modules import LinearInteger` works as well
