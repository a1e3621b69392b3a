"""The actions of `ch`: train, test, transform, search, emit, simulate, synth, export, verify.

`from chop.actions import train` imports the function, without importing torch.
"""

from chop.actions.emit import emit
from chop.actions.export import export
from chop.actions.search.search import search
from chop.actions.simulate import simulate
from chop.actions.synth import synth
from chop.actions.test import test, validate
from chop.actions.train import train
from chop.actions.transform import transform
from chop.actions.verify import verify

__all__ = [
    "emit",
    "export",
    "search",
    "simulate",
    "synth",
    "test",
    "train",
    "transform",
    "validate",
    "verify",
]
