"""What the tensors of a layer must be like, which is checked when a saved graph is read.

A layer tells it in a method `tensor_rules`. Most layers of torch need none, as torch checks their
tensors in every call; norms notice a wrong shape in the backward pass only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

Kind = Literal["real", "whole", "number", "bool"]
KINDS: Mapping[str, Callable[[Tensor], bool]] = {
    "real": Tensor.is_floating_point,
    "number": lambda t: not t.is_complex() and t.dtype is not torch.bool,
    "whole": lambda t: KINDS["number"](t) and not t.is_floating_point(),
    "bool": lambda t: t.dtype is torch.bool,
}
WORDS = {
    "real": "floating-point",
    "number": "real or integer",
    "whole": "integer",
    "bool": "true/false",
}


NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
OF_NORMS = ("weight", "bias", "running_mean", "running_var")
COUNTER, MOST_BATCHES = "num_batches_tracked", 2**53


class TensorRule(NamedTuple):
    """The shape of a tensor, None for a size that is free, what it holds, and from where to where.

    With bounds, NaN is wrong, unless it stands for `unknown` numbers.
    """

    shape: tuple[Any, ...]
    kind: Kind = "real"
    least: float | None = None
    most: float | None = None
    unknown: bool = False

    def why_not(self, tensor: Tensor | None) -> str | None:
        """Return what a tensor is instead, as the end of a sentence; None if it is right."""
        wanted = f"{_sizes(self.shape)} of {WORDS[self.kind]} numbers"
        if tensor is None:
            return f"is missing; it must be {wanted}"
        if len(tensor.shape) != len(self.shape) or not all(map(_same, self.shape, tensor.shape)):
            return f"has the shape {_sizes(tensor.shape)}; it must be {wanted}"
        if not KINDS[self.kind](tensor):
            return f"is of the type {str(tensor.dtype).removeprefix('torch.')}; it must be {wanted}"
        if self.most is None or self.least is None or not tensor.numel() or tensor.is_meta:
            return None
        low, high = (number.item() for number in torch.aminmax(tensor))
        unknown = self.unknown and bool(tensor.isnan().all())
        if unknown or (self.least <= low and high <= self.most):
            return None
        ends = (f"{number:.6g}" for number in (low, high, self.least, self.most))
        return "has numbers from {} to {}; they must be from {} to {}".format(*ends)


def check_tensors(name: str, layer: nn.Module) -> None:
    """Raise an error that names a tensor of a layer that is not as its class needs it."""
    # of the class, as a file can set attributes of a layer
    rules: Callable[[Any], Mapping[str, TensorRule]] = getattr(
        type(layer), "tensor_rules", lambda _: {}
    )
    wanted = {**rules(layer)}
    if isinstance(layer, NORMS):
        norm = dict.fromkeys(OF_NORMS, TensorRule((layer.num_features,)))
        norm[COUNTER] = TensorRule((), "whole", 0, MOST_BATCHES)
        wanted |= {key: rule for key, rule in norm.items() if getattr(layer, key, None) is not None}
    for key, rule in wanted.items():
        reason = rule.why_not(getattr(layer, key, None))
        if reason is not None:
            raise ValueError(f"{key!r} of layer {name!r} ({type(layer).__name__}) {reason}")


def _same(wanted: Any, size: int) -> bool:
    return wanted is None or (type(wanted) is int and wanted == size)


def _sizes(shape: Any) -> str:
    return f"[{', '.join('any' if n is None else repr(n)[:20] for n in shape)}]"
