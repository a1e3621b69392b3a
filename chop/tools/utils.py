"""Helpers under the names that scripts and notebooks use."""

from chop.dotted import deepgetattr, deepsetattr

__all__ = ["deepgetattr", "deepsetattr"]
