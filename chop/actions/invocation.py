"""Commands that messages suggest, as the user can paste them."""

from __future__ import annotations

import os
import shlex

from chop.system.redaction import redacted

CALLED = "MASE_COMMAND"  # set by `./ch` of a clone, which is not on the PATH


def called() -> str:
    """Return the command that the user typed: `ch`, or `./ch` in a clone."""
    return os.environ.get(CALLED) or "ch"


def command(*arguments: object) -> str:
    """Return a shell command that calls `ch` with these arguments, without passwords in URLs."""
    return shlex.join([called(), *(redacted(str(argument)) for argument in arguments)])
