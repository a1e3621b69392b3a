"""What `ch` does: train, test, transform, search; one file each.

`from chop.actions import train` gives the function; none of these files imports torch before it
is called.
"""

from chop.actions.search.search import search
from chop.actions.test import test, validate
from chop.actions.train import train
from chop.actions.transform import transform

__all__ = ["search", "test", "train", "transform", "validate"]
