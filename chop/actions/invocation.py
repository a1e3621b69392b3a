"""How this command is called, so that what it suggests can be pasted."""

from __future__ import annotations

import os
import shlex

from chop.redaction import redacted

CALLED = "MASE_COMMAND"  # set by `./ch` of a clone, which is on nobody's path


def called() -> str:
    """What the user has typed to get here: `ch`, or `./ch` in a clone."""
    return os.environ.get(CALLED) or "ch"


def command(*words: object) -> str:
    """A line of a shell that calls us with these words; passwords in URLs are left out."""
    return shlex.join([called(), *(redacted(str(word)) for word in words)])
