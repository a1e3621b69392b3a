"""The `chop` logger: silent until it is switched on, then `LEVEL    message` on stderr.

Passwords in messages, and in errors logged with them, are hidden.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Callable, Iterator

from chop.system.redaction import redacted_text

LEVELS = ("debug", "info", "warning", "error", "critical")
HANDLER = "chop-stderr"
COLOURS = {"DEBUG": "36", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "31;47"}

# characters that a terminal executes, reorders, or cannot show
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

root_logger = logging.getLogger("chop")


def printable(text: str) -> str:
    """Return `text` with its control characters as escapes: names in files may have any."""
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class _Formatter(logging.Formatter):
    def __init__(self, rewrite: Callable[[str], str]) -> None:
        super().__init__()
        self.rewrite = rewrite

    def format(self, record: logging.LogRecord) -> str:
        text = self.rewrite(super().format(record))
        level, message = f"{record.levelname:8}", printable(redacted_text(text))
        if not sys.stderr.isatty():
            return f"{level} {message}"
        return f"\033[{COLOURS.get(record.levelname, '0')}m{level}\033[0m \033[34m{message}\033[0m"


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the current sys.stderr, which notebooks and tests replace."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def show_logs(level: str = "info", rewrite: Callable[[str], str] = str) -> None:
    """Send messages of `level` and above to stderr, each as `rewrite` words it.

    A second call changes the level and the wording.
    """
    if level not in LEVELS:
        raise ValueError(f"log level must be one of {', '.join(LEVELS)}, not {level!r}")
    handler = next((each for each in root_logger.handlers if each.get_name() == HANDLER), None)
    if handler is None:
        handler = _Stderr()
        handler.set_name(HANDLER)
        root_logger.addHandler(handler)
        root_logger.propagate = False
    handler.setFormatter(_Formatter(rewrite))
    root_logger.setLevel(level.upper())


def show_logs_unless_configured() -> None:
    """Show INFO messages unless this logger has been configured, so that reports are seen.

    A root logger at WARNING does not count, as hosted notebooks come with one.
    """
    undecided = root_logger.level == logging.NOTSET and not root_logger.isEnabledFor(logging.INFO)
    if undecided or not root_logger.hasHandlers():
        show_logs()


@contextlib.contextmanager
def quieter(part: str, level: int = logging.WARNING) -> Iterator[None]:
    """Raise the level of the logger `part` inside, unless it is set to DEBUG."""
    logger = logging.getLogger(part)
    previous = logger.level
    if not logger.isEnabledFor(logging.DEBUG):
        logger.setLevel(max(level, logger.getEffectiveLevel()))
    try:
        yield
    finally:
        logger.setLevel(previous)
