"""Tools at the import paths that the labs use."""

from chop.tools.logger import get_logger, root_logger, set_logging_verbosity

__all__ = ["get_logger", "root_logger", "set_logging_verbosity"]
