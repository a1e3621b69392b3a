"""Which tensors may be computed on in place."""

from __future__ import annotations

import torch
from torch import Tensor


def plain(x: Tensor) -> bool:
    """Whether `x` is just numbers in memory, and nobody looks over our shoulder."""
    return (
        not torch.compiler.is_compiling()
        and type(x) in (Tensor, torch.nn.Parameter)
        and x.layout == torch.strided
        and not x.is_neg()  # the imaginary part of a conjugate, whose numbers lie there negated
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._get_tracing_state() is None
    )


def own(x: Tensor) -> Tensor | None:
    """For `out=`: the temporary `x` itself, or None where vmap, tracing or autograd object."""
    tracked = torch.is_grad_enabled() and x.requires_grad
    return x if plain(x) and not tracked else None
