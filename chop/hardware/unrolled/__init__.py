"""Circuits that compute a whole network with every clock, by alkaid's adder graphs."""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.hardware.unrolled.circuit import unrolled_circuit
    from chop.hardware.unrolled.layers import Layer, layers_of
    from chop.hardware.unrolled.logic import LayerLogic, layer_logic

__all__ = ["Layer", "LayerLogic", "layer_logic", "layers_of", "unrolled_circuit"]

__getattr__ = lazy.importer(__name__, __file__)
