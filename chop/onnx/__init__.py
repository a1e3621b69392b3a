"""ONNX files: networks for other runtimes and tools."""

from chop.onnx.builder import ModelBuilder
from chop.onnx.files import save_model

__all__ = ["ModelBuilder", "save_model"]
