"""Which tensors may be overwritten as scratch memory."""

from __future__ import annotations

import torch
from torch import Tensor


def is_plain(x: Tensor) -> bool:
    """Return whether `x` is an ordinary strided tensor that nothing traces or transforms."""
    return (
        not torch.compiler.is_compiling()
        and type(x) in (Tensor, torch.nn.Parameter)
        and x.layout == torch.strided
        and not x.is_neg()  # the imaginary part of a conjugate, stored with the opposite sign
        # torch does not tell otherwise that vmap, or a mode such as that of fake tensors, is active
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch.jit.is_tracing()  # type: ignore[attr-defined]
    )


def scratch(x: Tensor) -> Tensor | None:
    """Return the temporary `x` for `out=`, or None where vmap, tracing or autograd forbid it."""
    tracked = torch.is_grad_enabled() and x.requires_grad
    return x if is_plain(x) and not tracked else None
