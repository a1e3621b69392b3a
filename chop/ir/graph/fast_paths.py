"""torch's fused encoder, which bypasses the forward of the layers inside it."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def forbid_fast_paths(model: nn.Module, is_replaced: Callable[[nn.Module], bool]) -> None:
    """Disable the fused forms of all encoders in which a layer was replaced."""
    for parent in model.modules():
        if not any(is_replaced(part) for part in parent.modules()):
            continue
        if isinstance(parent, nn.TransformerEncoderLayer):
            parent.activation_relu_or_gelu = 0  # marks its activation as one without a fused form
        elif isinstance(parent, nn.TransformerEncoder):
            parent.use_nested_tensor = False
