"""Number formats, one file each."""

from chop.numerics.base import (
    FORMATS,
    NumberFormat,
    check_keys,
    config_keys,
    from_config,
    from_dtype,
    from_precision,
)
from chop.numerics.kept import at_rest

__all__ = [
    "FORMATS",
    "NumberFormat",
    "at_rest",
    "check_keys",
    "config_keys",
    "from_config",
    "from_dtype",
    "from_precision",
]
