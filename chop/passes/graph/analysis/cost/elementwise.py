"""Costs of elementwise ops, windows, norms and reductions."""

from __future__ import annotations

from collections.abc import Mapping

from chop.passes.graph.analysis.cost.call import (
    Call,
    Count,
    Rule,
    per_dimension,
    plain,
    rule,
    size,
)


# --- norms: statistics count as one operation per element, shifting and scaling as one each
@rule("batch_norm", "batch_norm1d", "batch_norm2d", "batch_norm3d", "sync_batch_norm")
def batch_norm(call: Call) -> Count:
    """With running statistics: subtract the mean, scale by the deviation, then weight and bias."""
    return plain(size(call.out) * (2 + _affine(call)))


@rule("layer_norm", "group_norm", "instance_norm", "rms_norm")
@rule("instance_norm1d", "instance_norm2d", "instance_norm3d")
def norm_with_own_statistics(call: Call) -> Count:
    """As batch_norm, and the statistics; for rms_norm squares, their sum, and scaling."""
    return plain(size(call.out) * (3 + _affine(call)))


def _affine(call: Call) -> int:
    return sum(call.shape(name) is not None for name in ("weight", "bias"))


# --- windows
def _pool(rank: int, forward: int, over_window: bool) -> Rule:
    def cost(call: Call) -> Count:
        window = size(per_dimension(call.option("kernel_size"), rank))
        n = size(call.out)
        return plain(forward * n * window, n * window if over_window else n)

    return cost


def _adaptive_pool(rank: int, over_window: bool) -> Rule:
    def cost(call: Call) -> Count:
        covered = size(call.out[:-rank])
        for n, m in zip(call.required("data_in_0")[-rank:], call.out[-rank:], strict=True):
            # windows reach from floor(i·n/m) to ceil((i+1)·n/m), so they may overlap
            covered *= sum(-(-(i + 1) * n // m) - i * n // m for i in range(m))
        return plain(covered, covered if over_window else size(call.out))

    return cost


for _rank in (1, 2, 3):
    rule(f"avg_pool{_rank}d")(_pool(_rank, 1, True))
    rule(f"max_pool{_rank}d")(_pool(_rank, 1, False))
    rule(f"lp_pool{_rank}d")(_pool(_rank, 2, True))
    rule(f"adaptive_avg_pool{_rank}d")(_adaptive_pool(_rank, True))
    rule(f"adaptive_max_pool{_rank}d")(_adaptive_pool(_rank, False))
rule("fractional_max_pool2d")(_pool(2, 1, False))
rule("fractional_max_pool3d")(_pool(3, 1, False))

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
    return plain(size(call.out) * (3 * call.data[0][-1] + 1))


@rule("topk", "sort", "argsort", "kthvalue", "median", "nanmedian", "quantile")
@rule("unique", "bucketize", "searchsorted")
def ordered(call: Call) -> Count:
    """Comparisons of a merge sort of the last dimension; there is no gradient."""
    shape = next(iter(call.inputs.values()), call.out)
    return plain(size(shape) * max(shape[-1] - 1, 0).bit_length() if shape else 0, 0)


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
