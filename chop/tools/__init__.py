"""Tools at the import paths that the labs use."""

from __future__ import annotations

import importlib
from typing import Any

# name -> file; imported on first use, as some of them import torch
HOMES = {
    "InputGenerator": "get_input",
    "deepgetattr": "utils",
    "deepsetattr": "utils",
    "get_cf_args": "get_input",
    "get_dummy_input": "get_input",
    "get_logger": "logger",
    "get_tokenized_dataset": "huggingface",
    "get_trainer": "huggingface",
    "load_config": "config_load",
    "load_model": "checkpoint_load",
    "parse_accelerator": "utils",
    "post_parse_load_config": "config_load",
    "root_logger": "logger",
    "save_config": "config_load",
    "set_logging_verbosity": "logger",
}
__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
