"""Number formats, one file each."""

from chop.numerics.base import FORMATS, NumberFormat, from_config, from_dtype, from_precision

__all__ = ["FORMATS", "NumberFormat", "from_config", "from_dtype", "from_precision"]
