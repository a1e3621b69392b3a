"""Flags in messages: the library names its parameters, and `ch` shows the flags that set them.

A message puts a parameter in backquotes, alone or with a value: `batch_size`, `load_type='pl'`.
"""

from __future__ import annotations

import re

from chop.actions.config import OPTIONS

PARAMETER = re.compile(r"`(\w+)(?:=([^`]*))?`")
# parameters of functions with another name than their option
OPTION_OF = {
    "checkpoint": "load_name",
    "devices": "num_devices",
    "load_from_cache_file": "disable_dataset_cache",
    "optimizer": "training_optimizer",
    "path": "data_path",
    "precision": "trainer_precision",
    "save_path": "project_dir",
}


def with_flags(message: str) -> str:
    """Return `message` with its parameters written as the flags of `ch`.

    >>> with_flags("lower `learning_rate`, or use `precision='32'`")
    'lower --learning-rate, or use --trainer-precision 32'
    """
    return PARAMETER.sub(_flag, message)


def _flag(parameter: re.Match[str]) -> str:
    name, value = parameter.groups()
    option = OPTIONS.get(OPTION_OF.get(name, name))
    if option is None or not option.flags:
        return parameter[0]
    takes_value = value is not None and not option.is_switch
    return option.flags[0] + (" " + value.strip("'\"") if takes_value else "")
