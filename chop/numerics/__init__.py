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

__all__ = [
    "FORMATS",
    "NumberFormat",
    "check_keys",
    "config_keys",
    "from_config",
    "from_dtype",
    "from_precision",
]
