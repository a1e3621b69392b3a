"""What every statistic promises, checked against numpy on all the data at once."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch import Tensor

from chop.passes.graph.analysis.statistical_profiler.stat import (
    STAT_NAME_TO_CLS,
    ZERO,
    Reduction,
    create_new_stat,
)

# One line per registered statistic: the options of an example, and the keys it must report.
EXAMPLES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "record": ({"add_new_dim_before_concat": True}, {"data", "count", "size_in_bytes"}),
    "variance_online": ({"dims": None}, {"mean", "variance", "count"}),
    "variance_precise": ({"dims": [-1]}, {"mean", "variance", "count"}),
    "range_n_sigma": ({"num_sigma": 2, "abs": True}, {"min", "max", "range", "count"}),
    "range_min_max": ({"dims": [0], "abs": True}, {"min", "max", "range", "count"}),
    "range_quantile": ({"dims": 1, "quantile": 0.5}, {"min", "max", "range", "count"}),
    "abs_mean": ({"dims": "all"}, {"abs_mean", "count"}),
}
ALL_DIMS: dict[str, Any] = {"device": None, "dims": "all"}
DEFAULTS: dict[str, dict[str, Any]] = {
    "record": {"device": None, "add_new_dim_before_concat": False},
    "variance_online": ALL_DIMS,
    "variance_precise": ALL_DIMS,
    "range_n_sigma": {**ALL_DIMS, "abs": False, "var_mode": "online", "num_sigma": 3},
    "range_min_max": {**ALL_DIMS, "abs": False},
    "range_quantile": {**ALL_DIMS, "abs": False, "quantile": 0.975},
    "abs_mean": ALL_DIMS,
}
REDUCTIONS = sorted(set(EXAMPLES) - {"record"})
STREAMING = ["variance_online", "range_n_sigma", "range_min_max", "abs_mean"]
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]
DIMS = ["all", None, [], 0, 1, [0], [1], [-1], [-1, 1], (0, 1, 2)]  # of samples of shape [1, a, b]

ONE_TO_SIX = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])]


def fed(name: str, *samples: Tensor, **options: Any) -> dict[str, Any]:
    stat = create_new_stat(name, **options)
    for sample in samples:
        stat.update_a_sample(sample)
    return stat.export()


def fed_batches(name: str, *batches: Tensor, **options: Any) -> dict[str, Any]:
    stat = create_new_stat(name, **options)
    for batch in batches:
        stat.update_a_batch(batch)
    return stat.export()


def by_numpy(name: str, stack: np.ndarray, dims: Any, **options: Any) -> dict[str, Any]:
    """The formulas of the specification, on all samples [sample, *sample shape] at once."""
    rank = stack.ndim - 1
    listed = [dims] if isinstance(dims, int) else dims
    within = range(rank) if dims == "all" else listed or ()
    axis = (0, *sorted({dim % rank + 1 for dim in within}))
    count = math.prod(stack.shape[i] for i in axis)
    x = np.abs(stack) if options.get("abs") else stack
    if name == "abs_mean":
        return {"abs_mean": np.abs(x).mean(axis), "count": count}
    if name == "variance_online":
        return {"mean": x.mean(axis), "variance": x.var(axis), "count": count}
    if name == "variance_precise":
        return {"mean": x.mean(axis), "variance": x.var(axis, ddof=1), "count": count}
    if name == "range_min_max":
        low, high = x.min(axis), x.max(axis)
    elif name == "range_quantile":
        q = options.get("quantile", 0.975)
        low, high = np.quantile(x, 1 - q, axis), np.quantile(x, q, axis)
    else:
        ddof = 1 if options.get("var_mode") == "precise" else 0
        margin = options.get("num_sigma", 3) * x.std(axis, ddof=ddof)
        low, high = x.mean(axis) - margin, x.mean(axis) + margin
    return {"min": low, "max": high, "range": high - low, "count": count}


def assert_close(got: dict[str, Any], wanted: dict[str, Any], atol: float = 1e-9) -> None:
    """Equal up to the rounding of sums of float64."""
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        assert np.shape(got[key]) == np.shape(value), key
        np.testing.assert_allclose(got[key], value, rtol=1e-9, atol=atol, err_msg=key)


# The specification's numbers


RANGE = ("min", "max", "range", "count")
VARIANCE = ("mean", "variance", "count")
RECORD = ("data", "count", "size_in_bytes")
ROOT = 3.5**0.5


@pytest.mark.parametrize(
    ("name", "options", "keys", "wanted"),
    [
        ("variance_precise", {}, VARIANCE, (3.5, 3.5, 6)),
        ("variance_online", {}, VARIANCE, (3.5, 35 / 12, 6)),
        ("variance_online", {"dims": None}, VARIANCE, ([2.5, 3.5, 4.5], [2.25] * 3, 2)),
        ("variance_precise", {"dims": None}, VARIANCE, ([2.5, 3.5, 4.5], [4.5] * 3, 2)),
        ("variance_precise", {"dims": [0]}, VARIANCE, (3.5, 3.5, 6)),
        ("range_quantile", {"quantile": 0.75}, RANGE, (2.25, 4.75, 2.5, 6)),
        ("range_min_max", {}, RANGE, (1, 6, 5, 6)),
        ("range_min_max", {"dims": -1}, RANGE, (1, 6, 5, 6)),
        ("range_min_max", {"dims": None}, RANGE, ([1, 2, 3], [4, 5, 6], [3, 3, 3], 2)),
        (
            "range_n_sigma",
            {"num_sigma": 2, "var_mode": "precise"},
            RANGE,
            (3.5 - 2 * ROOT, 3.5 + 2 * ROOT, 4 * ROOT, 6),
        ),
        ("abs_mean", {}, ("abs_mean", "count"), (3.5, 6)),
        ("record", {}, RECORD, ([1, 2, 3, 4, 5, 6], 2, 24)),
        ("record", {"add_new_dim_before_concat": True}, RECORD, ([[1, 2, 3], [4, 5, 6]], 2, 24)),
    ],
)
def test_worked_example(name: str, options: dict[str, Any], keys: Any, wanted: Any) -> None:
    assert_close(fed(name, *ONE_TO_SIX, **options), dict(zip(keys, wanted, strict=True)))


def test_online_variance_of_single_numbers_is_a_number() -> None:
    samples = torch.tensor([1.0, 2.0, 4.0])
    assert_close(fed("variance_online", *samples), {"mean": 7 / 3, "variance": 14 / 9, "count": 3})


# Batches, samples and the formula agree

finite = st.floats(-1e3, 1e3, width=32)


@st.composite
def data(draw: st.DrawFn) -> Tensor:
    shape = draw(array_shapes(min_dims=3, max_dims=3, min_side=1, max_side=5))
    return torch.from_numpy(draw(arrays(np.float32, shape, elements=finite)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("variance_online", {}),
        ("variance_precise", {}),
        ("abs_mean", {}),
        ("range_min_max", {}),
        ("range_min_max", {"abs": True}),
        ("range_n_sigma", {"num_sigma": 2.5}),
        ("range_n_sigma", {"var_mode": "precise", "abs": True}),
        ("range_quantile", {}),
        ("range_quantile", {"quantile": 0.6, "abs": True}),
        ("range_quantile", {"quantile": 1}),
    ],
    ids=str,
)
@given(x=data(), cut=st.integers(0, 5))
def test_batches_and_samples_and_the_formula_agree(
    name: str, options: dict[str, Any], dims: Any, x: Tensor, cut: int
) -> None:
    options = options | {"dims": dims}
    by_batch = fed_batches(name, x[:cut], x[cut:], **options)
    by_sample = fed(name, *(x[[i], ...] for i in range(len(x))), **options)
    if by_batch["count"] < 2:
        assert by_batch == by_sample
        assert set(by_batch.values()) == {"NA", 1}
        return
    wanted = by_numpy(name, x.double().numpy()[:, None], **options)
    # a standard deviation magnifies rounding near zero: √1e-10 is 1e-5
    tolerance = 1e-4 if name == "range_n_sigma" else 1e-7
    assert_close(by_batch, wanted, tolerance)
    assert_close(by_sample, wanted, tolerance)


@given(x=data(), cut=st.integers(0, 5), new_dim=st.booleans())
def test_a_recorded_batch_is_its_recorded_samples(x: Tensor, cut: int, new_dim: bool) -> None:
    options = {"add_new_dim_before_concat": new_dim}
    by_batch = fed_batches("record", x[:cut], x[cut:], **options)
    assert by_batch == fed("record", *(x[[i], ...] for i in range(len(x))), **options)
    assert torch.equal(torch.tensor(by_batch["data"]), x[:, None] if new_dim else x)
    assert by_batch["count"] == len(x)


@pytest.mark.parametrize("dims", ["all", None, [1]], ids=str)
@given(
    x=arrays(np.float64, (7, 2, 3), elements=st.floats(-1, 1)),
    mean=st.sampled_from([0.0, 1e3, -1e6]),
)
def test_online_variance_is_the_precise_one_scaled(dims: Any, x: np.ndarray, mean: float) -> None:
    spread = np.linspace(-1, 1, x.size).reshape(x.shape)  # no column of (nearly) equal numbers
    batch = torch.from_numpy(x / 2 + spread + mean)
    online = fed_batches("variance_online", batch[:3], batch[3:4], batch[4:], dims=dims)
    precise = fed_batches("variance_precise", batch, dims=dims)
    n = online["count"]
    scaled = np.multiply(precise["variance"], (n - 1) / n)
    np.testing.assert_allclose(online["variance"], scaled, rtol=1e-6)


def test_quantiles_are_those_of_torch() -> None:
    x = torch.randn(1001, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for q in (0.5, 0.9, 0.97, 0.975, 1.0):
        got = fed("range_quantile", x, quantile=q)
        assert got["min"] == pytest.approx(torch.quantile(x, 1 - q).item(), abs=1e-12)
        assert got["max"] == pytest.approx(torch.quantile(x, q).item(), abs=1e-12)


def test_quantiles_of_more_elements_than_torch_takes() -> None:
    num, values = 17_000_000, 1000  # each of 0 … 999 stands 17 000 times
    x = torch.arange(num, dtype=torch.int32).mul_(7).remainder_(values).float()
    got = fed("range_quantile", x)
    assert_close(got, {"min": 24.975, "max": 974.025, "range": 949.05, "count": num})


def test_sorting_and_selecting_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerators sort; here the same code runs on the CPU."""
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    selected = fed_batches("range_quantile", x, dims=None)
    monkeypatch.setattr(Tensor, "is_cpu", False)
    assert fed_batches("range_quantile", x, dims=None) == selected


# Kinds of input


@pytest.mark.parametrize("name", REDUCTIONS)
def test_every_real_dtype_gives_the_result_of_its_values(name: str) -> None:
    for dtype in DTYPES:
        x = torch.tensor([[0, 1, 3], [5, 7, 100]]).to(dtype)
        assert_close(fed_batches(name, x), fed_batches(name, x.double()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_record_keeps_the_dtype(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1], [2, 3]]).to(dtype)
    stat = create_new_stat("record")
    stat.update_a_batch(x)
    result = stat.compute()
    assert torch.equal(result["data"], x)
    assert result["data"].dtype == dtype
    assert result["size_in_bytes"] == 4 * dtype.itemsize


def test_the_ends_of_narrow_dtypes_do_not_overflow() -> None:
    byte = torch.tensor([-128, 127], dtype=torch.int8)
    assert fed("range_min_max", byte, abs=True)["max"] == 128
    half = torch.tensor([-65504.0, 65504.0], dtype=torch.float16)
    assert fed("range_min_max", half)["range"] == 131008
    assert fed("variance_online", half)["variance"] == 65504.0**2
    large = torch.tensor([2**24, 2**24 + 1], dtype=torch.int32)
    assert fed("range_quantile", large, quantile=1)["range"] == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_numbers_that_are_none_stay_visible_in_their_column(name: str, bad: float) -> None:
    x = torch.tensor([[1.0, bad], [2.0, 3.0], [4.0, 7.0]])
    result = fed_batches(name, x, dims=None, **{"quantile": 1} if "quantile" in name else {})
    count = result.pop("count")
    assert count == 3
    assert all(math.isfinite(column[0][0]) for column in result.values())
    assert any(not math.isfinite(column[0][1]) for column in result.values())


def test_one_nan_spoils_a_quantile_as_in_torch() -> None:
    assert math.isnan(fed("range_quantile", torch.tensor([1.0, math.nan, 2.0, 3.0]))["min"])


def test_infinity_beside_a_quantile_leaves_it_alone() -> None:
    x = torch.tensor([-math.inf, -math.inf, *range(9), math.inf, math.inf])
    result = fed("range_quantile", x, quantile=0.75)
    assert (result["min"], result["max"]) == (1.0, 7.0)
    assert fed("range_quantile", x, quantile=1)["max"] == math.inf


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_later_changes_of_the_input_or_of_a_result_change_nothing(name: str) -> None:
    x = torch.arange(12.0).reshape(4, 3).requires_grad_()
    before = x.detach().clone()
    stat = create_new_stat(name)
    stat.update_a_batch(x)
    stat.update_a_sample(x)
    assert torch.equal(x, before)
    expected = stat.export()
    with torch.no_grad():
        x.fill_(-1)
    for value in stat.compute().values():
        if isinstance(value, Tensor):
            assert not value.requires_grad
            value.fill_(-1)
    assert stat.export() == expected


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_views_with_odd_strides_are_read_right(name: str) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    for view in (x.transpose(0, 2), x[:, ::2], x[:1].expand(5, 3, 4)):
        assert fed_batches(name, view) == fed_batches(name, view.contiguous())


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_nothing_and_empty_batches_leave_na(name: str) -> None:
    options, keys = EXAMPLES[name]
    empty = torch.empty(0, 2, 3)
    nothing = fed_batches(name, empty, torch.empty(0, 7, 8), **options)
    assert nothing == dict.fromkeys(keys, "NA") | {"count": 0}
    x = torch.ones(3, 2, 3)
    assert fed_batches(name, empty, x, empty, **options) == fed_batches(name, x, **options)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_single_observation_is_not_enough(name: str) -> None:
    keys = EXAMPLES[name][1]
    assert fed(name, torch.ones(1)) == dict.fromkeys(keys, "NA") | {"count": 1}
    assert fed(name, torch.ones(5), dims=None) == dict.fromkeys(keys, "NA") | {"count": 1}
    assert "NA" not in fed(name, torch.ones(5), dims=[0]).values()


def test_a_record_starts_with_the_first_sample() -> None:
    assert fed("record", torch.tensor(7)) == {"data": [7], "count": 1, "size_in_bytes": 8}


# Bad input


@pytest.mark.parametrize("dims", [None, [1], [0, 1]], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_samples_of_two_shapes_need_all_dims(name: str, dims: Any) -> None:
    a, b = torch.ones(2, 3), torch.ones(2, 4)
    with pytest.raises(ValueError, match=r"one shape; got \[2, 4\] after \[2, 3\]"):
        fed(name, a, b, dims=dims)
    assert fed(name, a, b)["count"] == 14


def test_recorded_samples_may_differ_in_the_joined_dim_alone() -> None:
    a, b, c = torch.ones(2, 3), torch.ones(4, 3), torch.ones(2, 4)
    assert np.shape(fed("record", a, b)["data"]) == (6, 3)
    with pytest.raises(ValueError, match="one shape"):
        fed("record", a, c)
    with pytest.raises(ValueError, match="one shape"):
        fed("record", a, b, add_new_dim_before_concat=True)


@pytest.mark.parametrize("dims", [2, [0, 2], [-3]], ids=str)
def test_dims_must_be_dims_of_the_sample(dims: Any) -> None:
    with pytest.raises(ValueError, match=r"dims of the samples, which have shape \[2, 3\]"):
        fed("range_min_max", torch.ones(2, 3), dims=dims)


def test_a_batch_has_a_dimension_and_real_numbers() -> None:
    with pytest.raises(ValueError, match="first dimension"):
        fed_batches("abs_mean", torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"real numbers; got .*complex64"):
        fed("abs_mean", torch.ones(2, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        ("range_quantile", "quantile", [0.4, 1.1, -1, math.nan, "0.9", None]),
        ("range_n_sigma", "num_sigma", [0, -3, math.nan, math.inf, "3", None]),
        ("range_n_sigma", "var_mode", ["welford", None, ["online"]]),
        ("range_min_max", "dims", ["al", 1.5, True, ["0"], [0, None], {0}]),
        ("range_min_max", "abs", ["false", 0, None]),
        ("record", "add_new_dim_before_concat", ["no", 1]),
    ],
)
def test_bad_values_are_refused_by_name(name: str, option: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"needs {option} to be .*; got "):
            create_new_stat(name, **{option: value})


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ValueError, match="'gpu' is not a torch device"):
        create_new_stat("abs_mean", device="gpu")


def test_an_unknown_name_comes_with_the_nearest_and_all_known_ones() -> None:
    message = "Unknown stat name: range_minmax, did you mean range_min_max[?] Available stat names"
    with pytest.raises(KeyError, match=message + r": \['record', 'variance_online', ") as caught:
        create_new_stat("range_minmax")
    assert all(name in str(caught.value) for name in STAT_NAME_TO_CLS)


def test_an_unknown_option_comes_with_the_nearest_and_all_known_ones() -> None:
    message = (
        "unknown range_quantile option 'quantil'; did you mean 'quantile'[?] "
        r"\(known: device, dims, abs, quantile\)"
    )
    with pytest.raises(TypeError, match=message):
        create_new_stat("range_quantile", quantil=0.9)


# The contract of the registry


@pytest.mark.parametrize("name", sorted(STAT_NAME_TO_CLS))
def test_every_statistic_reports_its_keys_in_plain_python(name: str) -> None:
    options, keys = EXAMPLES[name]
    stat = create_new_stat(name, **options)
    stat.update_a_batch(torch.randn(4, 2, 3))
    assert stat.compute().keys() == keys
    exported = stat.export()
    assert exported.keys() == keys
    assert_plain(exported)
    assert "NA" not in exported.values()


@pytest.mark.parametrize("name", sorted(STAT_NAME_TO_CLS))
def test_every_statistic_has_the_documented_defaults(name: str) -> None:
    stat = create_new_stat(name)
    assert {option: getattr(stat, option) for option in DEFAULTS[name]} == DEFAULTS[name]
    create_new_stat(name, **DEFAULTS[name])


def assert_plain(value: object) -> None:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            assert_plain(item)
    else:
        assert type(value) in (int, float, bool, str)


@pytest.mark.parametrize("name", STREAMING)
def test_streaming_statistics_do_not_grow(name: str) -> None:
    stat = create_new_stat(name, dims=None)
    sizes = []
    for _ in range(20):
        stat.update_a_batch(torch.randn(1000, 3))
        sizes.append(len(pickle.dumps(stat)))
    assert sizes[-1] < sizes[0] + 20  # the count takes a few bytes more


def test_a_statistic_of_ones_own_is_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STAT_NAME_TO_CLS, "_items", dict(STAT_NAME_TO_CLS))

    @STAT_NAME_TO_CLS.register("sparsity")
    class Sparsity(Reduction):
        keys = ("sparsity",)
        zeros: Tensor = ZERO

        def observe(self, rows: Tensor) -> None:
            self.zeros = self.zeros + self.keep((rows == 0).sum(dim=0))

        def values(self) -> dict[str, Any]:
            return {"sparsity": self.zeros / self.count}

    x = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    assert fed_batches("sparsity", x, dims=None) == {"sparsity": [[1.0, 0.5]], "count": 2}
    with pytest.raises(TypeError, match="known: device, dims"):
        create_new_stat("sparsity", dim=0)


@pytest.mark.gpu
@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_gpu_results_are_those_of_the_cpu(name: str, device: str | None) -> None:
    options = EXAMPLES[name][0]
    x = torch.randn(64, 2, 3, generator=torch.Generator().manual_seed(0))
    stat = create_new_stat(name, device=device, **options)
    stat.update_a_batch(x[:20].cuda())
    stat.update_a_batch(x[20:].cuda())
    assert_close(stat.export(), fed_batches(name, x, **options))
    kept = {v.device.type for v in stat.compute().values() if isinstance(v, Tensor)}
    assert kept == {device or "cuda"}
