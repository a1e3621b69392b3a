"""`validate`, where the labs import it from; it is the twin of `test`."""

from chop.actions.test import validate

__all__ = ["validate"]
