"""What is wrong with an ONNX file, in one sentence."""

from __future__ import annotations

__all__ = ["GIVE_SIZE", "UnreadableModel"]

# what to do about a size that is free: an option of `ch`, and a parameter of read_model
GIVE_SIZE = "give it with --size NAME=N (or sizes={name: size})"


class UnreadableModel(ValueError):
    """An ONNX file that is damaged, too large, or holds something that cannot be translated."""
