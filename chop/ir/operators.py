"""The classes of torch's operators, which have no public names."""

from __future__ import annotations

from typing import Any

import torch

Overload: Any = type(torch.ops.aten.add.Tensor)  # one overload of an operator
Overloads: Any = type(torch.ops.aten.add)  # an operator, with all of its overloads


def is_higher_order(target: Any) -> bool:
    """Return whether an operator takes functions, as torch's control flow does."""
    return getattr(target, "namespace", None) == "higher_order"
