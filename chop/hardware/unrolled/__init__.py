"""Circuits that compute a whole network with every clock, by alkaid's adder graphs."""

from chop.hardware.unrolled.circuit import unrolled_circuit
from chop.hardware.unrolled.layers import Layer, layers_of
from chop.hardware.unrolled.logic import LayerLogic, layer_logic

__all__ = ["Layer", "LayerLogic", "layer_logic", "layers_of", "unrolled_circuit"]
