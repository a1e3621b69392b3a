"""The `chop` logger under the names that scripts and notebooks use."""

from __future__ import annotations

import logging

from chop.system.log import root_logger as root_logger
from chop.system.log import show_logs


def set_logging_verbosity(level: str = "info") -> None:
    """Show messages of `level` and above on stderr."""
    show_logs(level)
    root_logger.info("Set logging level to %s", level)


def get_logger(name: str) -> logging.Logger:
    """Return the logger `chop.<name>`."""
    return root_logger.getChild(name)
