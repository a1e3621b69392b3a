"""What is wrong with an ONNX file, in one sentence."""

from __future__ import annotations

__all__ = ["UnreadableModel"]


class UnreadableModel(ValueError):
    """An ONNX file that is damaged, too large, or holds something that cannot be translated."""
