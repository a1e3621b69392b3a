"""Integers with a fixed scale and zero point: x ≈ (code - zero_point) · scale."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from chop.numerics.affine_rounding import MIN_SCALE, ScaledAffine, Steps, next_power
from chop.numerics.base import NumberFormat
from chop.numerics.fast.plans import RoundingPlan
from chop.numerics.grid import Grid, code_range

CALIBRATED: Literal["calibrated"] = "calibrated"
SCALE_BITS, POWER_BITS = 32, 8  # a float32; an exponent
BIAS_WIDTH = 32


@dataclass(frozen=True)
class Affine(NumberFormat, name="affine", suffix="Affine"):
    """Integers with a fixed scale and zero point, one per tensor or one per channel.

    A number x becomes (clamp(round(x / scale) + zero_point, codes) - zero_point) · scale; ties go
    to the even multiple of the scale. There is one `scale` per tensor, or one per channel along the
    dimension `axis`: a positive float32, which `power_of_two` raises to the next power of two, so
    that nothing more is clipped.
    The default "calibrated" leaves it to calibration, or, for the weights of a layer, to their
    smallest and largest value; such a format cannot round yet. The `zero_point` is the code of 0:
    0 by default, a code, or "calibrated". `symmetric` drops the lowest code of signed numbers.

    A quantised layer keeps scale and zero point as buffers, or, with `learn`, the scale as a
    parameter, which is trained by the gradient of LSQ. A width of 32 is for biases.
    """

    light: ClassVar[bool] = True
    of_one_tensor: ClassVar[tuple[str, ...]] = ("axis", "scale", "zero_point")
    calibrated_keys: ClassVar[tuple[str, ...]] = ("scale", "zero_point")
    layer_tensors: ClassVar[tuple[str, ...]] = ("scale", "zero_point")
    shown: ClassVar[tuple[str, ...]] = (
        *("signed", "axis", "symmetric", "power_of_two", "scale", "zero_point"),
    )

    width: int
    signed: bool = True
    axis: int | None = None
    symmetric: bool = False
    power_of_two: bool = False
    learn: bool = False
    scale: float | tuple[float, ...] | Literal["calibrated"] = CALIBRATED
    zero_point: int | tuple[int, ...] | Literal["calibrated"] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("scale", "zero_point"):
            if hasattr(value := getattr(self, key), "tolist"):  # a tensor, or an array
                object.__setattr__(self, key, value.tolist())
        if self.width != BIAS_WIDTH or isinstance(self.width, float):
            self.require_whole("width", 2, 16)
        self.require_flags("signed", "symmetric", "power_of_two", "learn")
        if self.axis is not None:
            whole = isinstance(self.axis, Integral) and not isinstance(self.axis, bool)
            self.require(
                whole, "axis must be the number of a dimension; leave it out for one scale"
            )
        self._check_scale()
        self._check_zero_point()

    def _check_scale(self) -> None:
        if self.scale == CALIBRATED:
            return
        scales = self._per_channel("scale")
        self.require(
            all(_is_number(s) and math.isfinite(s) and s > 0 for s in scales),
            "scale must be a positive, finite number; give one, or 'calibrated'",
        )
        exact = [_float32(s) for s in scales]
        most = torch.finfo(torch.float32).max / 2**self.width
        self.require(
            all(MIN_SCALE <= s <= most for s in exact),
            f"scale must lie between 2**-126 and {most:.3g}, so that float32 can hold all values; "
            f"multiply the data by a constant",
        )
        if self.power_of_two:
            exact = [next_power(s) for s in exact]
        self._keep("scale", exact)

    def _check_zero_point(self) -> None:
        if self.zero_point == CALIBRATED:
            self.require(
                not self.symmetric, "symmetric needs a zero_point of 0; leave one of them out"
            )
            return
        points = self._per_channel("zero_point")
        low, high = self.codes
        whole = all(isinstance(z, Integral) and not isinstance(z, bool) for z in points)
        self.require(
            whole and all(low <= z <= high for z in points),
            f"zero_point must be an integer among the codes, which go from {low} to {high}; "
            f"give one of those",
        )
        fixed = self.symmetric or self.width == BIAS_WIDTH
        self.require(
            not (fixed and any(points)),
            "zero_point must be 0 with symmetric, and with a width of 32; leave it out",
        )
        scales: Any = self.scale
        many = isinstance(scales, tuple) and isinstance(self.zero_point, list | tuple)
        self.require(
            not many or len(points) == len(scales),
            "zero_point must have one number for each scale; give as many",
        )
        if isinstance(self.zero_point, list | tuple):
            self._keep("zero_point", [int(z) for z in points])
        else:
            object.__setattr__(self, "zero_point", int(points[0]))

    def _per_channel(self, key: str) -> list[Any]:
        """Return the numbers of a field, after checking that they are as many as `axis` says."""
        value = getattr(self, key)
        several = isinstance(value, list | tuple)
        if several:
            self.require(
                self.axis is not None or len(value) == 1,
                f"{key} must be one number without axis; give it, or the axis of the channels",
            )
            self.require(len(value) > 0, f"{key} must have a number for each channel; give them")
        elif key == "scale":
            self.require(
                self.axis is None,
                "scale must be a list of numbers along axis; give one for each channel, or leave "
                "out axis",
            )
        return list(value) if several else [value]

    def _keep(self, key: str, values: Sequence[Any]) -> None:
        """Keep one number per tensor, or a tuple of numbers along the axis."""
        kept = values[0] if self.axis is None else tuple(values)
        object.__setattr__(self, key, kept)

    @property
    def codes(self) -> tuple[int, int]:
        """The smallest and the largest code."""
        return code_range(self.width, self.signed, self.symmetric)

    @property
    def is_calibrated(self) -> bool:
        """Whether scale and zero point are known."""
        return CALIBRATED not in (self.scale, self.zero_point)

    @property
    def trained_tensors(self) -> tuple[str, ...]:
        return ("scale",) if self.learn else ()

    @property
    def in_product_steps(self) -> bool:
        return self.width == BIAS_WIDTH and self.scale == CALIBRATED

    @property
    def scales(self) -> tuple[float, ...]:
        """The scale of each channel, or that of the tensor."""
        self._require_scale()
        scale: Any = self.scale
        return scale if isinstance(scale, tuple) else (scale,)

    @property
    def zero_points(self) -> tuple[int, ...]:
        """The zero point of each channel, or that of the tensor."""
        self._require_scale()
        point: Any = self.zero_point
        return point if isinstance(point, tuple) else (point,) * len(self.scales)

    def _require_scale(self) -> None:
        if not self.is_calibrated:
            raise ValueError(no_scale("an affine format", "scale"))

    def tensors(self, device: Any = None) -> tuple[Tensor, Tensor]:
        """Return scale and zero point as tensors, of no dimension or of one per channel."""
        scale = torch.tensor(self.scales, dtype=torch.float32, device=device)
        point = torch.tensor(self.zero_points, dtype=torch.int32, device=device)
        return (scale, point) if self.axis is not None else (scale[0], point[0])

    def check_operand(self, operand: str) -> None:
        text = f"width must be an integer from 2 to 16; {BIAS_WIDTH} is for biases only"
        self.require(self.width != BIAS_WIDTH or operand == "bias", text)

    def for_operand(self, operand: str, *, non_negative: bool = False) -> Self:
        # a zero point other than 0 has its own place for the negative numbers
        free = non_negative and self.signed and self.zero_point == 0
        return replace(self, signed=False, symmetric=False) if free else self

    def quantize(self, x: Tensor) -> Tensor:
        self._require_scale()
        if self.axis is None or not x.is_floating_point():
            return super().quantize(x)
        return ScaledAffine(self, *self.tensors(x.device))(x)  # type: ignore[no-any-return]

    @functools.cached_property
    def _steps(self) -> Steps:
        (scale,), (point,) = self.scales, self.zero_points
        return Steps(scale, self.codes[0] - point, self.codes[1] - point)

    def round(self, x: Tensor) -> Tensor:
        if self.axis is None:
            return self._steps.round(x)
        return ScaledAffine(self, *self.tensors(x.device)).round(x)

    def plan(self, device: torch.device) -> RoundingPlan | None:
        return self._steps.plan(device) if self.axis is None else None

    @property
    def bits(self) -> float:
        return self.width

    @property
    def has_zero(self) -> bool:
        self._require_scale()
        return True  # its code is the zero point

    def average_bits(self, shape: Sequence[int]) -> float:
        if self.width == BIAS_WIDTH:  # in steps of the product of two other scales
            return self.bits
        channels = 1 if self.axis is None else shape[self.axis]
        each = POWER_BITS if self.power_of_two else SCALE_BITS
        each += 0 if _is_zero(self.zero_point) else self.width
        return self.bits + channels * each / max(1, math.prod(shape))

    @property
    def largest(self) -> float:
        return self.range[1]

    @property
    def smallest(self) -> float:
        if not self.is_calibrated:
            return 0.0
        return min(self.scales) if self.largest > 0 else 0.0

    @property
    def range(self) -> tuple[float, float]:
        """The values of the lowest and of the highest code, over all channels."""
        if not self.is_calibrated:
            return -math.inf, math.inf
        pairs = list(zip(self.scales, self.zero_points, strict=True))
        low, high = ([_float32((code - z) * s) for s, z in pairs] for code in self.codes)
        return min(low), max(high)

    def why_not_calibrated(self, operand: str) -> str | None:
        if self.is_calibrated:
            return None
        if self.scale == CALIBRATED:
            return no_scale(operand, f"{operand}_scale")
        return f"{operand} has no zero point yet; run calibrate, or give {operand}_zero_point"

    def calibrated_numbers(self) -> dict[str, Any]:
        if self.axis is None:
            return {"Scale": self.scale, "Zero point": self.zero_point}
        low, high = min(self.scales), max(self.scales)
        return {"Scale": f"{low:.4g} to {high:.4g}", "Zero point": "by channel"}

    def turned(self) -> Self:
        return self if self.axis is None else replace(self, axis=1 - self.axis % 2)

    def check_shape(self, operand: str, shape: Sequence[int]) -> None:
        axis, rank = self.axis, len(shape)
        if axis is None:
            return
        if not -rank <= axis < rank:
            raise ValueError(
                f"{operand}_axis is {axis}, but {operand} has {rank} dimensions; "
                f"give an axis from {-rank} to {rank - 1}"
            )
        for key, given in (("scale", self.scale), ("zero_point", self.zero_point)):
            if isinstance(given, tuple) and len(given) != shape[axis]:
                raise ValueError(
                    f"{operand}_{key} has {len(given)} numbers for {shape[axis]} channels along "
                    f"axis {axis}; give one for each channel"
                )

    def grid(self) -> Grid:
        return Grid(*self.codes, self.scales, self.zero_points, self.axis)

    def values(self) -> Tensor:
        if self.axis is not None or self.width == BIAS_WIDTH or not self.is_calibrated:
            raise NotImplementedError(
                "affine has no fixed grid: only a format with one scale and at most 16 bits does"
            )
        steps = self._steps
        codes = torch.arange(steps.low, steps.high + 1)
        return (codes.float() * steps.scale).double()  # as float32 has them


def no_scale(owner: str, key: str) -> str:
    """Return the sentence for an operand that cannot be rounded yet."""
    return f"{owner} has no scale yet; run calibrate, or give {key}"


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_zero(point: Any) -> bool:
    return not any(point) if isinstance(point, tuple) else point == 0


def _float32(value: Any) -> float:
    return float(torch.tensor(float(value), dtype=torch.float64).float())
