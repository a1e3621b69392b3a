"""What the signs of codes cost in a circuit."""

from __future__ import annotations

from chop.hardware.estimate import formula
from chop.hardware.estimate.coefficients import FORMULA as K
from chop.hardware.estimate.cost import Cost
from chop.hardware.estimate.ops import Result, Site, has_formula
from chop.methods.lutnet.ops import ResidualSigns


@has_formula(ResidualSigns)
def residual_signs(site: Site) -> Result:
    """A table of a few bits, or for each threshold a comparison, which is half an adder."""
    op, x, new = site.op, site.x, site.result
    compared = K.adder / 2 * x.bits * len(op.thresholds)
    each = min(K.table * formula.table_luts(x.bits, op.levels), compared)
    return new._replace(ready=new.ready + K.addition / site.period), Cost(lut=x.size * each)
