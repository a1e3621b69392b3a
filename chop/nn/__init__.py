"""Layers and quantizers at the import paths of newer scripts."""

from chop import extensions

extensions.register(__name__, transformed=True)
