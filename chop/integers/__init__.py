"""Networks in integers: one definition of what each quantised op computes."""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.integers.codes import Codes, TooWide, Word
    from chop.integers.graph import IntegerGraph, IntegerNode
    from chop.integers.mixed import MixedWord
    from chop.integers.op import IntegerOp
    from chop.integers.ops.add import AddCodes
    from chop.integers.ops.argmax import ArgMaxCodes
    from chop.integers.ops.avg_pool import AvgPoolCodes
    from chop.integers.ops.channel_affine import ChannelAffine
    from chop.integers.ops.clamp import ClampCodes
    from chop.integers.ops.concat import ConcatCodes
    from chop.integers.ops.constant import ConstantCodes
    from chop.integers.ops.conv import ConvCodes
    from chop.integers.ops.leaky_relu import LeakyReluCodes
    from chop.integers.ops.linear import LinearCodes
    from chop.integers.ops.lookup import Lookup
    from chop.integers.ops.max_pool import MaxPoolCodes
    from chop.integers.ops.multiply import MultiplyCodes
    from chop.integers.ops.neuron_tables import NeuronTables
    from chop.integers.ops.pad import PadCodes
    from chop.integers.ops.permute import PermuteCodes
    from chop.integers.ops.pick import PickCodes
    from chop.integers.ops.refine import Refine
    from chop.integers.ops.relu import ReluCodes
    from chop.integers.ops.requantize import QuantizeInput, Requantize
    from chop.integers.ops.reshape import ReshapeCodes
    from chop.integers.ops.subtract import SubtractCodes
    from chop.integers.scale import Scale

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
    "QuantizeInput",
    "Refine",
    "ReluCodes",
    "Requantize",
    "ReshapeCodes",
    "Scale",
    "SubtractCodes",
    "TooWide",
    "Word",
]

__getattr__ = lazy.importer(__name__, __file__)
