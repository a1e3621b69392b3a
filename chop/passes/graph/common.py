"""The sets of ops by MASE type, at the path where older scripts import them from."""

from chop.ir.common import *  # noqa: F403
from chop.ir.common import __all__ as __all__
