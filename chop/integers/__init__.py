"""Networks in integers: one definition of what each quantised op computes."""

from chop.integers.codes import Codes, TooWide, Word
from chop.integers.combining import AddCodes, ConcatCodes, MultiplyCodes, SubtractCodes
from chop.integers.edges import EdgeRounding, EdgeTables, QuantizeFeatures
from chop.integers.graph import IntegerGraph, IntegerNode
from chop.integers.mixed import MixedWord
from chop.integers.moving import (
    ArgMaxCodes,
    AvgPoolCodes,
    MaxPoolCodes,
    PadCodes,
    PermuteCodes,
    PickCodes,
    ReshapeCodes,
)
from chop.integers.ops import IntegerOp
from chop.integers.pointwise import (
    ClampCodes,
    ConstantCodes,
    LeakyReluCodes,
    Lookup,
    Refine,
    ReluCodes,
)
from chop.integers.requantize import QuantizeInput, Requantize
from chop.integers.scale import Scale
from chop.integers.tables import NeuronTables, ResidualSigns
from chop.integers.weighted import ChannelAffine, ConvCodes, LinearCodes

__all__ = [
    "AddCodes",
    "ArgMaxCodes",
    "AvgPoolCodes",
    "ChannelAffine",
    "ClampCodes",
    "Codes",
    "ConcatCodes",
    "ConstantCodes",
    "ConvCodes",
    "EdgeRounding",
    "EdgeTables",
    "IntegerGraph",
    "IntegerNode",
    "IntegerOp",
    "LeakyReluCodes",
    "LinearCodes",
    "Lookup",
    "MaxPoolCodes",
    "MixedWord",
    "MultiplyCodes",
    "NeuronTables",
    "PadCodes",
    "PermuteCodes",
    "PickCodes",
    "QuantizeFeatures",
    "QuantizeInput",
    "Refine",
    "ReluCodes",
    "Requantize",
    "ReshapeCodes",
    "ResidualSigns",
    "Scale",
    "SubtractCodes",
    "TooWide",
    "Word",
]
