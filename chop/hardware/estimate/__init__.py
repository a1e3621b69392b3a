"""The cost of an unrolled circuit before there is one.

formula.py computes it from widths and the digits of weights, for searches; adders.py from the
adders that alkaid finds. coefficients.py contains all that was measured.
"""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.hardware.estimate.by_fidelity import estimate
    from chop.hardware.estimate.cost import CLOCK_PERIOD, Cost, Estimate, Fidelity

__all__ = ["CLOCK_PERIOD", "Cost", "Estimate", "Fidelity", "estimate"]

__getattr__ = lazy.importer(__name__, __file__)
