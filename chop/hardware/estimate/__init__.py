"""The cost of an unrolled circuit before there is one.

formula.py computes it from widths and the digits of weights, for searches; adders.py from the
adders that alkaid finds. coefficients.py contains all that was measured.
"""

from chop.hardware.estimate.cost import CLOCK_PERIOD, Cost, Estimate, Fidelity
from chop.hardware.estimate.estimate import estimate

__all__ = ["CLOCK_PERIOD", "Cost", "Estimate", "Fidelity", "estimate"]
