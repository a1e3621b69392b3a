"""Tools at the import paths that the labs use."""

from chop.tools.logger import get_logger, root_logger, set_logging_verbosity
from chop.tools.utils import deepgetattr, deepsetattr

__all__ = ["deepgetattr", "deepsetattr", "get_logger", "root_logger", "set_logging_verbosity"]
