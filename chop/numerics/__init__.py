"""Number formats, one file each."""

from chop.numerics.base import (
    FORMATS,
    NumberFormat,
    check_keys,
    config_keys,
    format_in,
    from_config,
    from_dtype,
    from_precision,
)
from chop.numerics.weight_cache import frozen_weights

__all__ = [
    "FORMATS",
    "NumberFormat",
    "check_keys",
    "config_keys",
    "format_in",
    "from_config",
    "from_dtype",
    "from_precision",
    "frozen_weights",
]
