"""Layers that learn their bit widths, and ordinary quantised layers made of them."""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.passes.graph.transforms.learned_bits.freeze_bits import freeze_bits_transform_pass
    from chop.passes.graph.transforms.learned_bits.learn_bits import learn_bits_transform_pass

__all__ = ["freeze_bits_transform_pass", "learn_bits_transform_pass"]

__getattr__ = lazy.importer(__name__, __file__)
