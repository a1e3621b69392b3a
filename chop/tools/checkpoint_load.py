"""Loading weights, at the path that the labs import from."""

from chop.checkpoints import load_model as load_model
