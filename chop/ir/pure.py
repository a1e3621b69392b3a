"""The functions and methods that a graph loaded from a file may call.

These are the pure rows of `chop.ir.ops`, and those listed here, which have no row. All of them take
and return tensors and plain values: none opens a file, starts a process, calls an argument, or
looks up an attribute by a name in its arguments.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.ir.ops import PURE_SPELLINGS, TABLE

Function = Callable[..., Any]

# namespaces of functions, by their names in files
_TORCH: tuple[Any, ...] = (torch, F, torch.special, torch.linalg, torch.fft, torch._C._nn)
SPACES: dict[str, Any] = {space.__name__: space for space in _TORCH} | {"torch.Tensor": Tensor}
SPACES |= {space.__name__: space for space in (operator, math, builtins)}

TENSOR_SPACES = [space for name, space in SPACES.items() if name != "builtins"]

# Python builtins on numbers and sizes; positional only, as `key` would be a function
PYTHON: frozenset[Function] = frozenset(
    {abs, bool, divmod, float, int, len, max, min, pow, range, round, sum}
)
MATH: frozenset[Function] = frozenset(
    fn for name, fn in vars(math).items() if callable(fn) and not name.startswith("_")
)
# functions and methods of torch and operator without a row in the table of ops
_SPELLINGS = """
    contains iconcat inv is_ is_not truth
    block_diag cartesian_prod combinations complex conj_physical copysign corrcoef cov
    cumulative_trapezoid deg2rad diagflat diagonal_scatter as_strided_scatter dist dsplit
    fake_quantize_per_channel_affine fake_quantize_per_tensor_affine fill_diagonal_ frexp gcd ger
    gradient grid_sampler heaviside histogram index_reduce is_conj is_neg is_same_size is_signed
    isneginf isposinf isreal istft lcm ldexp logaddexp2 matrix_exp matrix_power msort mvlgamma
    nanquantile narrow_copy nextafter norm_except_dim nuclear_norm pdist poisson polar put rad2deg
    renorm resolve_conj resolve_neg rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell row_stack stft
    sum_to_size sym_float sym_int sym_max sym_min sym_not trapezoid trapz unravel_index
    unsafe_chunk unsafe_split cauchy_ geometric_ log_normal_ cfloat cdouble chalf element_size
    airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 entr erfcx gammainc gammaincc gammaln i0 i0e i1
    i1e igamma igammac log_ndtr modified_bessel_i0 modified_bessel_i1 multigammaln ndtr ndtri
    polygamma psi xlog1py zeta
    cholesky cholesky_inverse cholesky_solve eigh eigvals eigvalsh householder_product inv_ex logdet
    lu_factor matrix_rank pinv pinverse qr slogdet solve solve_triangular svd svdvals tensorinv
    tensorsolve vander vecdot
    fft fft2 fftn fftshift hfft hfft2 hfftn ifft ifft2 ifftn ifftshift ihfft ihfft2 ihfftn irfft
    irfft2 irfftn rfft rfft2 rfftn
"""
WITHOUT_A_ROW = tuple(_SPELLINGS.split())


def _without_a_row() -> Iterator[Function]:
    for name in WITHOUT_A_ROW:
        for spelling in (name, f"{name}_"):
            functions = (getattr(space, spelling, None) for space in TENSOR_SPACES)
            yield from (fn for fn in functions if callable(fn))


# the row `index` means torch.ops.aten's; this one creates values that are not plain tensors
_BARRED: frozenset[Any] = frozenset({getattr(Tensor, "index", None)})
FUNCTIONS: frozenset[Function] = (
    frozenset(fn for op in TABLE if op.pure for fn in op.functions)
    | frozenset(_without_a_row())
    | PYTHON
    | MATH
) - _BARRED


def _methods() -> Iterator[str]:
    """Methods of tensors, and of lists and dicts that a layer may return; none takes a function."""
    names = [name for op in TABLE if op.pure for name in op.methods]
    names += [f"{name}{end}" for name in WITHOUT_A_ROW for end in ("", "_")]
    for fn in FUNCTIONS:
        if getattr(operator, fn.__name__, None) is fn:
            bare = fn.__name__.strip("_")
            names += [f"__{bare}__", f"__r{bare}__"]
    methods = ((name, getattr(Tensor, name, None)) for name in names)
    yield from (name for name, fn in methods if callable(fn) and fn not in _BARRED)
    yield from ("count", "get", "items", "keys", "values")


METHODS: frozenset[str] = frozenset(_methods())
OPERATORS = PURE_SPELLINGS | frozenset(WITHOUT_A_ROW)  # of torch.ops.aten


def _named() -> Iterator[tuple[str, Function]]:
    for space, home in SPACES.items():
        private = space.startswith("torch") and home is not Tensor  # some of the table are private
        for name in dir(home):
            fn = getattr(home, name, None) if private or not name.startswith("_") else None
            if callable(fn) and fn in FUNCTIONS and (home is builtins or fn not in PYTHON):
                yield f"{space}.{name}", fn


NAMED: dict[str, Function] = dict(_named())  # by names such as "torch.add"


def _names_of() -> dict[Function, list[str]]:
    """The names of each function, public ones first."""
    names: dict[Function, list[str]] = {}
    for name in sorted(NAMED, key=lambda name: name.rpartition(".")[2].startswith("_")):
        names.setdefault(NAMED[name], []).append(name)
    return names


NAMES_OF = _names_of()
