"""Operations of ATen kernels other than their products, by formulas of the kernels.

Shares no code with the rules of the cost pass, which it audits: an elementwise kernel is written
as its formula, which is run once on a number that counts the operations on it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

Kernel = Callable[[Sequence[Any], Any], int]  # arguments and result of a call -> operations


class Number:
    """A number without a value that counts the operations on it."""

    def __init__(self) -> None:
        self.operations = 0

    def did(self, *_: Any) -> Number:
        self.operations += 1
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = did
    __truediv__ = __rtruediv__ = __pow__ = __neg__ = did


Formula = Callable[[Number], Any]


def root(x: Number) -> Number:
    """Count one operation: a root, an elementary function, an absolute value or a rounding."""
    return x.did()


exp = log = tanh = erf = larger = root


def clipped(x: Number) -> Number:
    """Compare with a lower and an upper bound."""
    return larger(larger(x))


def sigmoid(x: Number) -> Number:
    return 1 / (1 + exp(-x))


def times(count: int) -> Formula:
    """Return a formula of `count` unnamed operations."""
    return lambda x: [x.did() for _ in range(count)]


def weighted(count: int) -> Formula:
    """Return a formula that sums `count` products."""
    return lambda x: reduce(operator.add, [x * 1 for _ in range(count)])


# for each element of the result
FORMULAS: Mapping[str, Formula] = {
    **dict.fromkeys(("add", "sub", "rsub", "mul", "div", "pow", "neg"), times(1)),
    **dict.fromkeys(("maximum", "minimum", "clamp_min", "clamp_max", "relu", "threshold"), larger),
    **dict.fromkeys(("gt", "lt", "ge", "le", "eq", "ne"), larger),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"), times(1)),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor", "logical_not"), times(1)),
    **dict.fromkeys(("__and__", "__or__", "__xor__"), times(1)),
    "cumsum": times(1),
    "floor_divide": lambda x: root(x / 1),
    **dict.fromkeys(("abs", "exp", "log", "sqrt", "erf", "tanh", "sin", "cos"), root),
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "sign", "reciprocal"), root),
    "rsqrt": lambda x: 1 / root(x),
    "clamp": clipped,
    "hardtanh": clipped,
    "leaky_relu": lambda x: larger(x) * 1,
    "_prelu_kernel": lambda x: larger(x) * 1,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "glu": lambda x: x * sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / 2)),
    "mish": lambda x: x * tanh(log(1 + exp(x))),
    "softplus": lambda x: log(1 + exp(x)),
    "log_sigmoid_forward": lambda x: x - log(1 + exp(x)),
    "hardsigmoid": lambda x: clipped(x + 3) / 6,
    "hardswish": lambda x: x * clipped(x + 3) / 6,
    "hardshrink": clipped,
    "softshrink": lambda x: clipped(x) - 1,
    "addcmul": lambda x: x + 1 * (x * x),
    "addcdiv": lambda x: x + 1 * (x / x),
    # the maximum, the difference to it, its exponential, and their sum; per-row operations, such as
    # the logarithm of the sum, are not counted
    **dict.fromkeys(("_softmax", "_safe_softmax"), lambda x: (exp(larger(x) - 1) + 1) / 1),
    "_log_softmax": lambda x: exp(larger(x) - 1) + 1 - 1,
    "upsample_linear1d": weighted(2),
    "upsample_bilinear2d": weighted(4),
    "upsample_bicubic2d": weighted(16),
    "upsample_trilinear3d": weighted(8),
}

# for each element of the first argument
TERMS: Mapping[str, Formula] = {
    **dict.fromkeys(("sum", "mean", "prod", "max", "min", "amax", "amin"), times(1)),
    **dict.fromkeys(("argmax", "argmin", "any", "all"), times(1)),
    "linalg_vector_norm": lambda x: x * x + 1,
    **dict.fromkeys(("var", "std"), lambda x: (x + 1 - 1) * x + 1),  # the sum, the squares' sum
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), times(1)),
    "mse_loss": lambda x: (x - 1) * x + 1,
    # the norm of each row, and each weight by it
    **dict.fromkeys(("_weight_norm", "_weight_norm_interface"), lambda x: (x * x + 1) * 1),
}

# kernels that only move or create numbers; torch itself knows which ones return views
_FREE = (
    "empty empty_like zeros zeros_like ones ones_like full full_like fill zero rand randn randint "
    "uniform normal arange scalar_tensor eye new_zeros new_ones new_full new_empty "
    "new_empty_strided empty_strided cat stack clone copy _to_copy lift_fresh contiguous "
    "_unsafe_view repeat index gather embedding where masked_fill scatter constant_pad_nd "
    "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
    "replication_pad3d index_select index_put select_scatter slice_scatter flip roll tril triu "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _reshape_alias _reshape_copy resize "
    "unsafe_split unsafe_chunk as_strided transpose pixel_shuffle im2col native_dropout "
    "_local_scalar_dense"
)
FREE = frozenset(_FREE.split())


def _operations(formula: Formula) -> int:
    number = Number()
    formula(number)
    return number.operations


def _elements(values: Any) -> int:
    """Return the number of elements of the first tensor in `values`."""
    return next((x.numel() for x in tree_leaves(values) if isinstance(x, Tensor)), 0)


def _per_result(formula: Formula) -> Kernel:
    each = _operations(formula)
    return lambda args, result: each * _elements(result)


def _per_term(formula: Formula) -> Kernel:
    each = _operations(formula)
    return lambda args, result: each * _elements(args)


def _bias(args: Sequence[Any], result: Any) -> int:
    return 0 if args[2] is None else _elements(result)


def _grid_sampler(bilinear: int, args: Sequence[Any], result: Any) -> int:
    taps = (bilinear, 0, 16)[args[2]]  # torch numbers the modes: bilinear, nearest, bicubic
    return _operations(weighted(taps)) * _elements(result) if taps else 0


def _elu(args: Sequence[Any], result: Any) -> int:
    """Count a comparison and a·(exp(x) - 1), and a scale before and after where it is not 1."""
    scales = sum(bool(scale != 1) for scale in args[2:4])
    return (_operations(lambda x: 1 * (exp(larger(x)) - 1)) + scales) * _elements(result)


def _norm(first: int, args: Sequence[Any], result: Any, statistics: bool = True) -> int:
    """Count centring, scaling, weight and bias, and one more for statistics of the batch.

    `first` is the position of the weight in the arguments; the bias follows it.
    """
    parameters = sum(x is not None for x in args[first : first + 2])
    return (2 + statistics + parameters) * _elements(result)


def _batch_norm(args: Sequence[Any], result: Any) -> int:
    return _norm(1, args, result, statistics=bool(args[5]))


def _pool(rank: int, args: Sequence[Any], result: Any) -> int:
    """Count the whole window of each result, its padding included."""
    window: list[int] = list(args[1]) * (rank if len(args[1]) == 1 else 1)
    return math.prod(window) * _elements(result)


def _adaptive_pool(rank: int, args: Sequence[Any], result: Any) -> int:
    """Pool one-hot vectors along each dimension to find the windows that hold each element."""
    pooled = next(x for x in tree_leaves(result) if isinstance(x, Tensor))
    reads = math.prod(pooled.shape[:-rank])
    for size_in, size_out in zip(args[0].shape[-rank:], pooled.shape[-rank:], strict=True):
        one_hot = torch.eye(size_in)[:, None]
        reads *= int(torch.count_nonzero(F.adaptive_avg_pool1d(one_hot, size_out)))
    return reads


KERNELS: Mapping[str, Kernel] = {
    **{name: _per_result(formula) for name, formula in FORMULAS.items()},
    **{name: _per_term(formula) for name, formula in TERMS.items()},
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot"), lambda args, result: 0),
    # the term that is added to a product of matrices
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "addmv"), _per_result(times(1))),
    **dict.fromkeys(("convolution", "_convolution"), _bias),
    "grid_sampler_2d": partial(_grid_sampler, 4),
    "grid_sampler_3d": partial(_grid_sampler, 8),
    "elu": _elu,
    "celu": _per_result(lambda x: 1 * (exp(larger(x) / 1) - 1)),
    "native_batch_norm": _batch_norm,
    "native_layer_norm": partial(_norm, 2),
    "native_group_norm": partial(_norm, 1),
    **{f"avg_pool{rank}d": partial(_pool, rank) for rank in (1, 2, 3)},
    **{f"max_pool{rank}d_with_indices": partial(_pool, rank) for rank in (2, 3)},
    **{f"_adaptive_avg_pool{rank}d": partial(_adaptive_pool, rank) for rank in (2, 3)},
    **{f"adaptive_max_pool{rank}d": partial(_adaptive_pool, rank) for rank in (2, 3)},
}


def operations(kernel: Any, args: Sequence[Any], result: Any) -> int | None:
    """Return the operations of an ATen call other than its products, or None if it is unknown."""
    name = kernel.overloadpacket.__name__
    plain = name if name.endswith("__") else name.removesuffix("_")  # the same, in place
    if plain in FREE or kernel.is_view:
        return 0
    count = KERNELS.get(plain)
    return None if count is None else count(args, result)
