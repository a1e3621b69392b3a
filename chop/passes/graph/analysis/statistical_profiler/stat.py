"""Statistics of tensors that arrive one sample or one batch at a time.

    stat = create_new_stat("range_quantile", dims="all", quantile=0.97)
    stat.update_a_batch(x)
    stat.export()  # {"min": -1.6, "max": 2.5, "range": 4.1, "count": 512}

A new statistic is one class; decorated, it can be asked for by its name:

    @STAT_NAME_TO_CLS.register("sparsity")
    class Sparsity(Reduction):
        keys = ("sparsity",)
        zeros: Tensor = ZERO

        def observe(self, rows: Tensor) -> None:
            self.zeros = self.zeros + self.keep((rows == 0).sum(dim=0))

        def values(self) -> dict[str, Any]:
            return {"sparsity": self.zeros / self.count}
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from chop.registry import Registry, UnknownName, nearest, unknown

Dims = Literal["all"] | int | list[int] | tuple[int, ...] | None

NA = "NA"
ZERO = torch.tensor(0.0, device="cpu")  # on the CPU, a 0-d tensor mixes with those of any device
WITHOUT_FLOAT64 = frozenset({"mps"})


def widest(x: Tensor) -> Tensor:
    """`x` in float64, or in float32 where the device has no float64."""
    return x.to(torch.float32 if x.device.type in WITHOUT_FLOAT64 else torch.float64)


def as_float(x: Tensor) -> Tensor:
    """`x` in float32 if that holds every value of its dtype, else in the widest float."""
    return x.float() if x.dtype.itemsize < 4 or x.dtype == torch.float32 else widest(x)


def moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of the rows, and the sum of their squared distances to it."""
    wide = widest(rows)
    mean = wide.mean(dim=0)
    return mean, (wide - mean).square_().sum(dim=0)


def ordered(rows: Tensor, ranks: list[int]) -> Tensor:
    """Return the rows that would be at `ranks` if each column was sorted with NaN last."""
    if rows.is_cpu:  # selecting a few values beats sorting all of them
        return torch.from_numpy(np.partition(rows.numpy(), ranks, axis=0)[ranks])
    return rows.sort(dim=0).values[ranks]


@dataclass(kw_only=True, eq=False)
class Statistic(ABC):
    """A summary of all samples so far; its values are "NA" below `min_count` observations."""

    keys: ClassVar[tuple[str, ...]]  # what it reports, besides the count
    min_count: ClassVar[int] = 2

    device: torch.device | str | None = None
    count: int = field(default=0, init=False)
    _chunks: list[Tensor] = field(default_factory=list, init=False, repr=False)  # stored data
    _shape: torch.Size | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            self.device = None if self.device is None else torch.device(self.device)
        except RuntimeError as error:
            raise ValueError(f"{self.device!r} is not a torch device") from error
        for switch in (f.name for f in fields(self) if f.type in (bool, "bool")):
            self._check(switch, isinstance(getattr(self, switch), bool), "true or false")

    @abstractmethod
    def observe(self, rows: Tensor) -> None:
        """Take in `rows` of shape [observation, *shape of the result]."""

    @abstractmethod
    def values(self) -> dict[str, Any]:
        """The values of `keys`."""

    def update_a_sample(self, sample: Tensor) -> None:
        """Take in one sample; an empty one is ignored."""
        self._update(sample, sample_dim=0)

    def update_a_batch(self, batch: Tensor) -> None:
        """Take in each `batch[[i], ...]` as a sample, all at once."""
        if batch.ndim == 0:
            raise ValueError("a batch has samples along its first dimension; got a single number")
        self._update(batch, sample_dim=1)

    def compute(self) -> dict[str, Any]:
        """Return tensors and numbers by name."""
        enough = self.count >= self.min_count
        values = self.values() if enough else dict.fromkeys(self.keys, NA)
        return values | {"count": self.count}

    def export(self) -> dict[str, Any]:
        """Return the values as plain Python: numbers, (nested) lists and "NA"."""
        return {k: v.tolist() if isinstance(v, Tensor) else v for k, v in self.compute().items()}

    def take(self, rows: Tensor) -> None:
        """Observe `rows` and count them."""
        self.observe(rows)
        self.count += len(rows)

    def keep(self, x: Tensor) -> Tensor:
        """A copy of `x` on the statistic's device."""
        device = torch.device(self.device or x.device)
        narrow = device.type in WITHOUT_FLOAT64 and x.dtype == torch.float64
        return x.to(device, torch.float32 if narrow else x.dtype, copy=True)

    def rows(self, stack: Tensor) -> Tensor:
        """Return the observations in a `stack` of samples along the first dimension."""
        return stack

    def _update(self, x: Tensor, sample_dim: int) -> None:
        if x.numel():
            self.take(self.rows(x.detach().unsqueeze(sample_dim)))

    def _check(self, option: str, valid: bool, law: str) -> None:
        if not valid:
            value = getattr(self, option)
            raise ValueError(f"{type(self).__name__} needs {option} to be {law}; got {value!r}")

    def _check_shape(self, shape: torch.Size) -> None:
        if self._shape is None:
            self._shape = shape
        if self._shape != shape:
            raise ValueError(
                f"{type(self).__name__} needs samples of one shape; got {list(shape)} after "
                f"{list(self._shape)} (statistics with dims='all' take any)"
            )


STAT_NAME_TO_CLS: Registry[type[Statistic]] = Registry("statistic")


def create_new_stat(name: str, **kwargs: Any) -> Statistic:
    """Create a statistic by its name; `kwargs` are the options of its class."""
    try:
        cls = STAT_NAME_TO_CLS[name]
    except UnknownName as error:
        near = nearest(name, STAT_NAME_TO_CLS)
        hint = f", did you mean {near}?" if near else "."
        known = list(STAT_NAME_TO_CLS)
        # the wording that documents and forum answers quote
        error.args = (f"Unknown stat name: {name}{hint} Available stat names: {known}",)
        raise
    options = inspect.signature(cls).parameters
    for key in kwargs:
        if key not in options:
            raise TypeError(unknown(f"{name} option", key, options))
    return cls(**kwargs)


@STAT_NAME_TO_CLS.register("record")
@dataclass(kw_only=True, eq=False)
class RecordedSamples(Statistic):
    """All samples, concatenated on dim 0 (or stacked on a new one)."""

    keys = ("data", "size_in_bytes")
    min_count = 1

    add_new_dim_before_concat: bool = False

    def observe(self, rows: Tensor) -> None:
        separate = self.add_new_dim_before_concat or rows.ndim == 1  # scalars have no dim to join
        chunk = rows if separate else rows.flatten(0, 1)
        self._check_shape(chunk.shape[1:])
        self._chunks.append(self.keep(chunk))

    def values(self) -> dict[str, Any]:
        data = torch.cat(self._chunks)
        return {"data": data, "size_in_bytes": data.nbytes}


@dataclass(kw_only=True, eq=False)
class Reduction(Statistic):
    """A reduction over the samples and over `dims` of each: "all", None, or a list of dims."""

    dims: Dims = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        dims = self.dims if isinstance(self.dims, list | tuple) else [self.dims]
        valid = self.dims in ("all", None) or all(type(dim) is int for dim in dims)
        self._check("dims", valid, "'all', None, an integer or a list of integers")

    def rows(self, stack: Tensor) -> Tensor:
        if stack.is_complex():
            raise ValueError(f"{type(self).__name__} needs real numbers; got {stack.dtype}")
        if self.dims == "all":
            return as_float(stack.flatten())
        shape = stack.shape[1:]
        reduced = (0, *self._reduced_dims(shape))
        self._check_shape(shape)
        rows = stack.movedim(reduced, tuple(range(len(reduced))))
        return as_float(rows.flatten(0, len(reduced) - 1))

    def _reduced_dims(self, shape: torch.Size) -> list[int]:
        """Map `dims` of a sample of that shape to dims of a stack of samples."""
        assert self.dims != "all"
        dims = [self.dims] if isinstance(self.dims, int) else self.dims or []
        rank = len(shape)
        within = all(-rank <= dim < rank for dim in dims)
        self._check("dims", within, f"dims of the samples, which have shape {list(shape)}")
        return sorted({dim % rank + 1 for dim in dims})


@STAT_NAME_TO_CLS.register("variance_online")
class VarianceOnline(Reduction):
    """Population variance (over n), updated by the formula of Chan et al.; stores no data."""

    keys = ("mean", "variance")
    mean: Tensor = ZERO
    squares: Tensor = ZERO  # the sum of squared distances to the mean

    def observe(self, rows: Tensor) -> None:
        old, new = self.count, len(rows)
        mean, squares = map(self.keep, moments(rows))
        delta = mean - self.mean
        self.mean = self.mean + delta * (new / (old + new))
        self.squares = self.squares + squares + delta * (delta * (old * new / (old + new)))

    def values(self) -> dict[str, Any]:
        return {"mean": self.mean.clone(), "variance": self.squares / self.count}


@STAT_NAME_TO_CLS.register("variance_precise")
class VariancePrecise(Reduction):
    """Unbiased variance (over n − 1) of all stored data."""

    keys = ("mean", "variance")

    def observe(self, rows: Tensor) -> None:
        self._chunks.append(self.keep(rows))

    def values(self) -> dict[str, Any]:
        mean, squares = moments(torch.cat(self._chunks))
        return {"mean": mean, "variance": squares / (self.count - 1)}


@dataclass(kw_only=True, eq=False)
class RangeStatistic(Reduction):
    """A lower and an upper limit, of absolute values if `abs`; "NA" below two observations."""

    keys = ("min", "max", "range")

    abs: bool = False

    @abstractmethod
    def limits(self) -> tuple[Tensor, Tensor]:
        """Return the lower and the upper limit."""

    def rows(self, stack: Tensor) -> Tensor:
        rows = super().rows(stack)
        return rows.abs() if self.abs else rows

    def values(self) -> dict[str, Any]:
        low, high = self.limits()
        return {"min": low, "max": high, "range": high - low}


@STAT_NAME_TO_CLS.register("range_n_sigma")
@dataclass(kw_only=True, eq=False)
class RangeNSigma(RangeStatistic):
    """`num_sigma` standard deviations around the mean, with either of the two variances."""

    var_mode: Literal["online", "precise"] = "online"
    num_sigma: float = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("var_mode", self.var_mode in ("online", "precise"), "'online' or 'precise'")
        positive = isinstance(self.num_sigma, int | float) and 0 < self.num_sigma < math.inf
        self._check("num_sigma", positive, "a positive number")
        name = f"variance_{self.var_mode}"
        self._variance = create_new_stat(name, device=self.device, dims=self.dims)

    def observe(self, rows: Tensor) -> None:
        self._variance.take(rows)

    def limits(self) -> tuple[Tensor, Tensor]:
        moments = self._variance.values()
        margin = self.num_sigma * moments["variance"].sqrt()
        return moments["mean"] - margin, moments["mean"] + margin


@STAT_NAME_TO_CLS.register("range_min_max")
class RangeMinMax(RangeStatistic):
    """Smallest and largest value; stores no data."""

    low: Tensor = ZERO + math.inf
    high: Tensor = ZERO - math.inf

    def observe(self, rows: Tensor) -> None:
        self.low = torch.minimum(self.low, self.keep(widest(rows.amin(dim=0))))
        self.high = torch.maximum(self.high, self.keep(widest(rows.amax(dim=0))))

    def limits(self) -> tuple[Tensor, Tensor]:
        return self.low.clone(), self.high.clone()


@STAT_NAME_TO_CLS.register("range_quantile")
@dataclass(kw_only=True, eq=False)
class RangeQuantile(RangeStatistic):
    """Exact quantiles 1 − q and q with linear interpolation; NaN if the data contain NaN."""

    quantile: float = 0.975

    def __post_init__(self) -> None:
        super().__post_init__()
        valid = isinstance(self.quantile, int | float) and 0.5 <= self.quantile <= 1
        self._check("quantile", valid, "between 0.5 and 1")

    def observe(self, rows: Tensor) -> None:
        self._chunks.append(self.keep(rows))

    def limits(self) -> tuple[Tensor, Tensor]:
        data, last = torch.cat(self._chunks), self.count - 1
        places = (last - last * self.quantile, last * self.quantile)
        ranks = [rank for place in places for rank in (math.floor(place), math.ceil(place))]
        values = widest(ordered(data, ranks))
        values = values.where(~data.isnan().any(dim=0), math.nan)
        # equal neighbours may be infinite, and lerp would make that NaN
        low, high = (
            torch.where(below == above, below, below.lerp(above, place % 1))
            for below, above, place in zip(values[0::2], values[1::2], places, strict=True)
        )
        return low, high


@STAT_NAME_TO_CLS.register("abs_mean")
class AbsMean(Reduction):
    """Mean absolute value; stores no data; "NA" for fewer than two observations."""

    keys = ("abs_mean",)
    total: Tensor = ZERO

    def observe(self, rows: Tensor) -> None:
        self.total = self.total + self.keep(widest(rows).abs().sum(dim=0))

    def values(self) -> dict[str, Any]:
        return {"abs_mean": self.total / self.count}
