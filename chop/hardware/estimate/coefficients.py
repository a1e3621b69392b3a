"""The measured numbers of the estimates.

LUTs were fitted by `python benchmarks/lut_estimate.py fit` to the layers of 26 networks, with seeds
from 1000: linear layers, convolutions and tables with 2 to 8 bits, emitted for a clock period of 5
ns and synthesised by yosys 0.70 for LUTs with six inputs; two smaller functions share one. It fits
the adders of a matrix and their widths to alkaid's results for 200 random matrices. Numbers
for the layers of one op are its `luts`. The networks that the documentation compares estimates with
have other seeds, or are other designs. Delays, flip-flops and `scaled` follow from alkaid's logic
of a few networks.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ADDERS", "FORMULA", "AdderCoefficients", "FormulaCoefficients"]


class AdderCoefficients(NamedTuple):
    """LUTs for each bit of a kind of logic that alkaid makes, unless something else is said."""

    adder: float = 1.029  # where two numbers are added
    inverted: float = 0.915  # where an adder subtracts a bit, or adds a constant one, to another
    negated: float = 0.574
    relu: float = 0.011
    choice: float = 0.303  # between two values
    constant_choice: float = 0.064  # where one of them is constant, as in a saturation
    product: float = 0.75  # for each pair of bits; of alkaid, as no network had products
    reduced: float = 2.235  # a LUT that reduces bits to one, as in rounding, with what follows it
    small_table: float = 0.859  # a function of up to five inputs in a table of more
    table: float = 0.97  # a function of six inputs, or two of up to five
    table_part: float = 1.159  # a part of a function of more inputs


ADDERS = AdderCoefficients()


class FormulaCoefficients(NamedTuple):
    """What the formula multiplies with; LUTs, unless something else is said."""

    # adders of a matrix: adders · unshared^power · inputs^wide, at most the unshared ones
    adders: float = 0.921
    adders_power: float = 0.884
    adders_wide: float = 0.084
    # bits of an adder, for each bit of the input, bit of a weight, and level of the sum
    width: float = -1.279
    width_data: float = 1.104
    width_weight: float = 0.006
    width_depth: float = 0.581
    scaled: float = 0.45  # of the adders of a batch norm, as most digits of its factors are cut
    # LUTs per bit; the bias costs next to none
    adder: float = 1.035
    rounding: float = 0.828
    saturation: float = 1.055
    relu: float = 0.106
    choice: float = 0.452  # of the larger of two values
    table: float = 0.35  # for each LUT of a full table
    neuron: float = 0.967  # for each LUT of a full table of several inputs, which shares less
    # ns
    addition: float = 1.7  # for each level of a sum
    rounded: float = 1.5
    chosen: float = 1.0
    # flip-flops for each bit of a level of adders, in each stage
    held: float = 1.1


FORMULA = FormulaCoefficients()
