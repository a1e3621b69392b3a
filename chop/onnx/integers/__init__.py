"""The format `integer`: an integer graph as an ONNX model with integer kernels only."""

from chop.onnx.integers.model import integer_model

__all__ = ["integer_model"]
