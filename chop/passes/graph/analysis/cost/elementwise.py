"""Costs of elementwise ops, windows, norms and reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from chop.passes.graph.analysis.cost.call import RULES, Call, Count, Rule, plain, rule, size, spelt

Pair = tuple[int, int]

# operations per element of the result, forward and backward: an addition, a multiplication, a
# division, a comparison, a root or an elementary function is one
PER_RESULT: dict[str, Pair] = {
    # activations
    "relu": (1, 1),
    "relu6": (2, 1),
    "rrelu": (2, 1),
    "leaky_relu": (2, 1),
    "prelu": (2, 3),
    "elu": (4, 2),
    "selu": (5, 3),
    "celu": (5, 3),
    "gelu": (5, 7),
    "silu": (5, 5),
    "mish": (5, 9),
    "sigmoid": (4, 3),
    "logsigmoid": (4, 4),
    "hardsigmoid": (4, 2),
    "tanh": (1, 3),
    "hardtanh": (2, 1),
    "hardswish": (5, 4),
    "hardshrink": (2, 1),
    "softshrink": (3, 1),
    "tanhshrink": (2, 3),
    "softsign": (3, 3),
    "softplus": (3, 4),
    "threshold": (1, 1),
    "glu": (5, 7),
    "softmax": (5, 4),
    "softmin": (6, 5),
    "log_softmax": (5, 4),
    "gumbel_softmax": (10, 5),
    # two tensors
    "add": (1, 0),
    "sub": (1, 1),
    "rsub": (1, 1),
    "mul": (1, 2),
    "div": (1, 4),
    "floor_divide": (2, 0),
    "remainder": (3, 1),
    "pow": (1, 3),
    "atan2": (1, 6),
    "maximum": (1, 1),
    "minimum": (1, 1),
    "fmax": (1, 1),
    "fmin": (1, 1),
    "hypot": (4, 4),
    "logaddexp": (5, 4),
    "xlogy": (2, 3),
    "addcmul": (3, 4),
    "addcdiv": (3, 6),
    "lerp": (3, 4),
    "outer": (1, 2),
    "addr": (2, 2),
    "kron": (1, 2),
    "cross": (3, 6),
    "isclose": (5, 0),
    # one tensor
    "abs": (1, 1),
    "clamp": (2, 1),
    "neg": (1, 1),
    "square": (1, 2),
    "sqrt": (1, 2),
    "rsqrt": (2, 3),
    "reciprocal": (1, 3),
    "exp": (1, 1),
    "exp2": (1, 2),
    "expm1": (1, 2),
    "log": (1, 1),
    "log2": (1, 2),
    "log10": (1, 2),
    "log1p": (1, 2),
    "logit": (3, 4),
    "sinc": (3, 5),
    "sin": (1, 2),
    "cos": (1, 3),
    "tan": (1, 3),
    "sinh": (1, 2),
    "cosh": (1, 2),
    "cumsum": (1, 1),
    "cumprod": (1, 3),
    "cummax": (1, 1),
    "cummin": (1, 1),
    "logcumsumexp": (3, 3),
    "diff": (1, 1),
    "dropout": (0, 0),
}
PER_RESULT |= dict.fromkeys(("erf", "erfc", "erfinv", "lgamma", "digamma"), (1, 4))
PER_RESULT |= dict.fromkeys(("asin", "acos", "atan", "asinh", "acosh", "atanh"), (1, 4))
PER_RESULT |= dict.fromkeys(
    spelt(
        "gt greater lt less le less_equal greater_equal eq ge ne not invert bitwise_and bitwise_or "
        "bitwise_xor bitwise_left_shift bitwise_right_shift sign sgn floor ceil trunc round "
        "frac signbit isnan isinf isfinite nan_to_num angle conj bernoulli"
    ),
    (1, 0),
)

# operations per element of the first input
PER_INPUT: dict[str, Pair] = {
    "sum": (1, 0),
    "nansum": (2, 1),
    "mean": (1, 1),
    "nanmean": (2, 1),
    "prod": (1, 2),
    "var": (4, 3),
    "std": (4, 4),
    "var_mean": (4, 3),
    "std_mean": (4, 4),
    "logsumexp": (4, 2),
    "norm": (2, 2),
    "normalize": (3, 5),
    "trace": (1, 0),
    "fold": (1, 0),
    "local_response_norm": (6, 6),
    "cosine_similarity": (6, 8),
    "pairwise_distance": (4, 4),
    # losses
    "crossentropyloss": (6, 2),
    "nll_loss": (1, 1),
    "mse_loss": (3, 2),
    "l1_loss": (3, 1),
    "smooth_l1_loss": (6, 3),
    "huber_loss": (6, 3),
    "kl_div": (4, 2),
    "binary_cross_entropy": (7, 4),
    "binary_cross_entropy_with_logits": (8, 5),
    "poisson_nll_loss": (4, 2),
    "gaussian_nll_loss": (7, 6),
    "hinge_embedding_loss": (3, 1),
    "cosine_embedding_loss": (7, 8),
    "margin_ranking_loss": (5, 2),
    "soft_margin_loss": (5, 4),
    "multi_margin_loss": (4, 2),
    "multilabel_margin_loss": (4, 2),
    "multilabel_soft_margin_loss": (8, 5),
    "triplet_margin_loss": (9, 8),
    "triplet_margin_with_distance_loss": (9, 8),
}
PER_INPUT |= dict.fromkeys(
    spelt(
        "max min amax amin aminmax argmax argmin any all count_nonzero bincount histc mode "
        "allclose equal isin unique_consecutive"
    ),
    (1, 0),
)

# moves or creates numbers without computing any: shapes, indices, bookkeeping, lookups
FREE = spelt(
    "placeholder get_attr output constant training_mode identity flatten unflatten embedding "
    "arange range cat concat zeros ones empty rand randn new_zeros new_ones new_empty tensor "
    "as_tensor full eye linspace logspace randint randperm multinomial normal zeros_like "
    "ones_like full_like empty_like rand_like randn_like randint_like new_full new_tensor meshgrid "
    "one_hot scalar_tensor tril_indices triu_indices uniform random exponential getattr getitem "
    "setitem _assert assert_metadata view reshape expand repeat tile permute flip transpose "
    "swapaxes swapdims split size type dim numel finfo iinfo masked_fill_ masked_fill to t "
    "contiguous where long type_as stack bool int squeeze unsqueeze cast shape gather slice "
    "index_select detach chunk unbind narrow select view_as expand_as reshape_as broadcast_to "
    "repeat_interleave roll rot90 fliplr flipud tril triu diag diagonal diag_embed item tolist "
    "clone float half double bfloat16 short char byte cpu cuda numpy ravel scatter index_copy "
    "index_fill index_put index masked_select masked_scatter take take_along_dim hstack vstack "
    "dstack column_stack split_with_sizes tensor_split hsplit vsplit is_floating_point is_complex "
    "is_contiguous is_nonzero fill zero copy requires_grad broadcast_tensors atleast_1d atleast_2d "
    "atleast_3d nonzero argwhere view_as_real view_as_complex real imag alias lift_fresh_copy "
    "as_strided stride get_device adjoint select_scatter slice_scatter movedim df_split pos pad "
    "unfold pixel_shuffle pixel_unshuffle channel_shuffle max_unpool1d max_unpool2d max_unpool3d"
)


def _per(elements: Callable[[Call], int], pair: Pair) -> Rule:
    def cost(call: Call) -> Count:
        n = elements(call)
        return plain(pair[0] * n, pair[1] * n)

    return cost


def _first_input(call: Call) -> int:
    return size(next(iter(call.inputs.values()), call.out))


RULES.update({op: _per(lambda call: size(call.out), pair) for op, pair in PER_RESULT.items()})
RULES.update({op: _per(_first_input, pair) for op, pair in PER_INPUT.items()})
RULES.update(dict.fromkeys(FREE, lambda call: plain(0)))


# --- norms: statistics count as one operation per element, shifting and scaling as one each
@rule("batch_norm", "batch_norm1d", "batch_norm2d", "batch_norm3d", "sync_batch_norm")
def batch_norm(call: Call) -> Count:
    """With running statistics: subtract the mean, scale by the deviation, then weight and bias."""
    return plain(size(call.out) * (2 + _affine(call)))


@rule("layer_norm", "group_norm", "instance_norm")
@rule("instance_norm1d", "instance_norm2d", "instance_norm3d")
def norm_with_own_statistics(call: Call) -> Count:
    return plain(size(call.out) * (3 + _affine(call)))


@rule("rms_norm")
def rms_norm(call: Call) -> Count:
    """Squares, their sum, and scaling."""
    return plain(size(call.out) * (3 + _affine(call)))


def _affine(call: Call) -> int:
    return sum(call.shape(name) is not None for name in ("weight", "bias"))


# --- windows
def _per_dimension(value: Any, rank: int) -> list[int]:
    if isinstance(value, int):
        return [value] * rank
    return list(value) * rank if len(value) == 1 else list(value)


def _pool(rank: int, forward: int, over_window: bool) -> Rule:
    def cost(call: Call) -> Count:
        window = math.prod(_per_dimension(call.option("kernel_size"), rank))
        n = size(call.out)
        return plain(forward * n * window, n * window if over_window else n)

    return cost


def _adaptive_pool(rank: int, over_window: bool) -> Rule:
    def cost(call: Call) -> Count:
        given = call.required("data_in_0")
        covered = size(call.out[:-rank])
        for before, after in zip(given[-rank:], call.out[-rank:], strict=True):
            # windows reach from floor(i·n/m) to ceil((i+1)·n/m), so they may overlap
            covered *= sum(
                -(-(i + 1) * before // after) - i * before // after for i in range(after)
            )
        return plain(covered, covered if over_window else size(call.out))

    return cost


for _rank in (1, 2, 3):
    RULES[f"avg_pool{_rank}d"] = _pool(_rank, 1, True)
    RULES[f"max_pool{_rank}d"] = _pool(_rank, 1, False)
    RULES[f"lp_pool{_rank}d"] = _pool(_rank, 2, True)
    RULES[f"adaptive_avg_pool{_rank}d"] = _adaptive_pool(_rank, True)
    RULES[f"adaptive_max_pool{_rank}d"] = _adaptive_pool(_rank, False)
RULES["fractional_max_pool2d"] = _pool(2, 1, False)
RULES["fractional_max_pool3d"] = _pool(3, 1, False)

TAPS: Mapping[str, int] = {"trilinear": 8, "bilinear": 4, "linear": 2, "bicubic": 16}


@rule("interpolate", "upsample", "grid_sample")
def resample(call: Call) -> Count:
    """A weighted sum of neighbours; nearest-neighbour interpolation costs nothing."""
    default = "bilinear" if call.op == "grid_sample" else "nearest"
    named = next((mode for mode in TAPS if mode in call.function), default)
    mode = call.option("mode", named)
    if mode == "area":
        return _adaptive_pool(len(call.out) - 2, True)(call)
    taps = TAPS.get(str(mode), 0)
    if call.op == "grid_sample" and len(call.out) == 5:
        taps *= 2
    return plain(size(call.out) * max(2 * taps - 1, 0))


@rule("affine_grid")
def affine_grid(call: Call) -> Count:
    return plain(2 * size(call.out) * call.data[0][-1])


# --- ops whose cost depends on more than one size
@rule("embedding_bag")
def embedding_bag(call: Call) -> Count:
    """Rows are looked up, which is free, and added."""
    return plain(size(call.data[0]) * call.required("weight")[-1])


@rule("scatter_add", "scatter_reduce", "index_add")
def scattered(call: Call) -> Count:
    """One addition per element of the source, which is the last tensor."""
    return plain(size(call.data[-1]), 0)


@rule("cdist")
def cdist(call: Call) -> Count:
    """Difference, power and sum for each coordinate, then a root."""
    n = size(call.out)
    return plain(n * (3 * call.data[0][-1] + 1))


@rule("topk", "sort", "argsort", "kthvalue", "median", "nanmedian", "quantile")
@rule("unique", "bucketize", "searchsorted")
def ordered(call: Call) -> Count:
    """Comparisons of a merge sort of the last dimension; there is no gradient."""
    given = next(iter(call.inputs.values()), call.out)
    return plain(size(given) * max(given[-1] - 1, 0).bit_length() if given else 0, 0)


@rule("det", "inverse")
def factorized(call: Call) -> Count:
    """Gaussian elimination: two thirds of the cube of the side, three times that to invert."""
    *batch, n, _ = call.required("data_in_0")
    return plain(size(batch) * (2 * n**3 if call.op == "inverse" else 2 * n**3 // 3))


@rule("ctc_loss")
def ctc_loss(call: Call) -> Count:
    """Per step, seven operations for each label and for the blanks around them."""
    steps, *_ = probabilities = call.data[0]
    sequences = probabilities[1] if len(probabilities) == 3 else 1
    return plain(7 * steps * (2 * size(call.data[1]) + sequences))
