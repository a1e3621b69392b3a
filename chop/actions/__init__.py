"""The actions of `ch`: train, test, transform, search.

`from chop.actions import train` imports the function, without importing torch.
"""

from chop.actions.search.search import search
from chop.actions.test import test, validate
from chop.actions.train import train
from chop.actions.transform import transform

__all__ = ["search", "test", "train", "transform", "validate"]
