"""Count the arithmetic that reaches torch's kernels, call by call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from chop.testing.aten_formulas import operations

aten = torch.ops.aten


class MacCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts multiply-accumulates and all other operations that run inside, by ATen op.

    Products are not computed from shapes: each is run again on ones, where every sum gives the
    number of its terms. `others` counts all other operations; `uncounted` names unknown kernels.

    >>> with MacCounter() as counter:
    ...     _ = torch.relu(torch.ones(2, 3) @ torch.ones(3, 5))
    >>> counter.macs, counter.flops
    (30, 70)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.by_op: Counter[str] = Counter()
        self.others: Counter[str] = Counter()
        self.uncounted: set[str] = set()

    @property
    def macs(self) -> int:
        return self.by_op.total()

    @property
    def flops(self) -> int:
        """Return the operations, where a multiply-accumulate is two, as in the cost pass."""
        return 2 * self.macs + self.others.total()

    def __enter__(self) -> MacCounter:
        self._plain = ExitStack()
        self._plain.enter_context(_without_shortcuts())
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *about: Any) -> None:
        super().__exit__(*about)  # type: ignore[no-untyped-call]
        self._plain.close()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        terms = TERMS.get(func.overloadpacket)
        name = func.overloadpacket.__name__
        if terms is not None:
            self.by_op[name] += round(terms(*args).sum(dtype=torch.float64).item())
        others = operations(func, args, result)
        if others is None:
            self.uncounted.add(name)
        else:
            self.others[name] += others
        return result


@contextmanager
def _without_shortcuts() -> Iterator[None]:
    """Switch off fused kernels, which would hide the products in them."""
    mkldnn: Any = torch.backends.mkldnn
    fast, onednn = torch.backends.mha.get_fastpath_enabled(), mkldnn.enabled
    torch.backends.mha.set_fastpath_enabled(False)
    mkldnn.enabled = False  # mkldnn.flags would set more than this, and warn
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        mkldnn.enabled = onednn
        torch.backends.mha.set_fastpath_enabled(fast)


def _ones(x: Tensor) -> Tensor:
    return torch.ones(x.shape, dtype=torch.float32)


def _convolution(x: Tensor, weight: Tensor, bias: Any, *options: Any) -> Tensor:
    """Count padding as ones; count a transposed convolution before its edge is cut off."""
    stride, padding, dilation, transposed, output_padding, groups = options[:6]
    ones, no_padding, grown = _ones(x), [0] * len(padding), output_padding
    if transposed:
        sides = zip(output_padding, stride, dilation, strict=True)
        grown = [o if o < max(s, d) else 0 for o, s, d in sides]
    else:
        ones = F.pad(ones, [p for side in reversed(padding) for p in (side, side)], value=1.0)
    shape = stride, no_padding, dilation, transposed, grown, groups
    return torch.convolution(ones, _ones(weight), None, *shape)


def _matrices(a: Tensor, b: Tensor, *_: Any) -> Tensor:
    return _ones(a) @ _ones(b)


def _added_matrices(_: Tensor, a: Tensor, b: Tensor, *__: Any) -> Tensor:
    return _ones(a) @ _ones(b)


# the number of products in each element of a result, for the ATen ops that multiply and add
TERMS: Mapping[Any, Callable[..., Tensor]] = {
    **dict.fromkeys((aten.convolution, aten._convolution), _convolution),
    **dict.fromkeys((aten.mm, aten.bmm, aten.mv, aten.dot, aten.vdot), _matrices),
    **dict.fromkeys((aten.addmm, aten.baddbmm, aten.addbmm, aten.addmv), _added_matrices),
}
