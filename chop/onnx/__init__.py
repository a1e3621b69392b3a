"""ONNX files: networks for other runtimes and tools.

Its names are imported when they are used, as the command line reads `targets` without numpy.
"""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.onnx.builder import ModelBuilder
    from chop.onnx.files import save_model

__all__ = ["ModelBuilder", "save_model"]

__getattr__ = lazy.importer(__name__, __file__)
