"""Number formats: which numbers are representable, and how a float is rounded to one of them."""

from __future__ import annotations

import abc
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from chop.numerics import fused
from chop.numerics.fast.plans import RoundingPlan
from chop.numerics.grid import FixedScales, Grid
from chop.numerics.straight_through import Limits, all_straight_through, straight_through
from chop.registry import Registry, UnknownName

FORMATS: Registry[type[NumberFormat]] = Registry("number format", "chop.numerics")

__all__ = [
    "FORMATS",
    "NumberFormat",
    "check_keys",
    "from_config",
    "from_dtype",
    "from_precision",
    "quantize_all",
    "straight_through",
]


@dataclass(frozen=True)
class NumberFormat(abc.ABC):
    """A set of representable numbers, and rounding to the nearest of them.

    Required fields, in order, are the `precision` list and the `<operand>_<field>` config keys.
    Fields with a default refine the format and stay out of the published precision.

    Every format guarantees: the result has the shape, dtype and device of `x`; NaN stays NaN;
    infinities become the largest value of their sign, except in a format that has infinities
    itself (float, and fp8 [5, 2] unless it saturates); gradients pass straight through, or, with
    `ste = "clip"`, only where `x` lies within the format's range.
    """

    name: ClassVar[str]  # `type` in metadata, `name` in TOML: "integer"
    suffix: ClassVar[str]  # class names: LinearInteger
    elementwise: ClassVar[bool] = True  # the same grid for every element; not true of block formats
    rounds: ClassVar[bool] = True  # or leaves the float tensor unchanged
    light: ClassVar[bool] = False  # rounds in few passes over memory
    has_row_codes: ClassVar[bool] = False  # `coded` returns codes and the scale of each row
    other_keys: ClassVar[tuple[str, ...]] = ()  # ignored keys of older configs
    advice: ClassVar[Mapping[str, str]] = {}  # key of the precision -> how to choose a missing one
    # options beyond the precision that metadata show where they differ from the default
    shown: ClassVar[tuple[str, ...]] = ()
    # fields that None leaves to profiled statistics: statistic and entry of each
    profiled: ClassVar[Mapping[str, tuple[str, str]]] = {}
    # options of a weight that a bias without keys does not take
    of_one_tensor: ClassVar[tuple[str, ...]] = ()
    # keys of an operand that a config may leave to calibration
    calibrated_keys: ClassVar[tuple[str, ...]] = ()
    # tensors that a layer keeps for an operand, such as its `scale`, instead of the numbers here
    layer_tensors: ClassVar[tuple[str, ...]] = ()
    # attributes of the format of `data_in` that scripts read from a layer
    layer_attributes: ClassVar[tuple[str, ...]] = ()

    ste: Literal["identity", "clip"] = field(default="identity", kw_only=True)

    def __init_subclass__(
        cls, name: str | None = None, suffix: str = "", aliases: tuple[str, ...] = ()
    ) -> None:
        if name is None:  # a common base class of formats
            return
        cls.name, cls.suffix = name, suffix
        FORMATS.register(name, *aliases)(cls)

    def __post_init__(self) -> None:
        self.require(self.ste in ("identity", "clip"), "ste must be 'identity' or 'clip'")

    @abc.abstractmethod
    def round(self, x: Tensor) -> Tensor:
        """Return the nearest representable values of `x` (float32 or float64); no gradient."""

    def plan(self, device: torch.device) -> RoundingPlan | None:
        """Return the kernel that rounds like `round`, or None to run `round` itself.

        Subclasses do not inherit it: one that rounds differently would get a wrong kernel.
        """
        return None

    @property
    def deterministic(self) -> bool:
        """Whether the same tensor is always rounded the same way."""
        return True

    @property
    @abc.abstractmethod
    def bits(self) -> float:
        """Average storage bits per element, shared exponents included."""

    @property
    @abc.abstractmethod
    def largest(self) -> float:
        """The largest value; infinity for formats that scale with the data."""

    @property
    @abc.abstractmethod
    def smallest(self) -> float:
        """The smallest positive value; zero for formats that scale with the data."""

    @property
    def has_zero(self) -> bool:
        """Whether zero is one of the values; it is not for some formats."""
        return bool(self(0.0) == 0.0)

    def average_bits(self, shape: Sequence[int]) -> float:
        """Storage bits per element of a tensor of that shape, including incomplete blocks."""
        return self.bits

    def grid(self) -> Grid | None:
        """Return the codes of the values; None for a format without fixed ones, or of a layer."""
        return None

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of torch to which `cast` rounds; None for a format that torch does not have."""
        return None

    @property
    def is_calibrated(self) -> bool:
        """Whether all that calibration chooses is known."""
        return True

    def why_not_calibrated(self, operand: str) -> str | None:
        """Return what has to be done before an operand can be rounded; None if nothing has."""
        return None

    @property
    def trained_tensors(self) -> tuple[str, ...]:
        """Those of `layer_tensors` that are parameters, which training changes."""
        return ()

    @property
    def in_product_steps(self) -> bool:
        """Whether a bias has the scale of the input times that of the weight."""
        return False

    @property
    def only_signs(self) -> bool:
        """Whether the values are -1 and 1."""
        return False

    def power_blocks(self, shape: Sequence[int]) -> tuple[int, int] | None:
        """Return axis and size of the blocks along one axis that share a power of two, if any."""
        return None

    def calibrated_numbers(self) -> dict[str, Any]:
        """Return what calibration chose, as columns of its table."""
        return {}

    def check_shape(self, operand: str, shape: Sequence[int]) -> None:  # noqa: B027 (as above)
        """Raise an error if the format is not one for tensors of this shape."""

    def turned(self) -> NumberFormat:
        """Return the format of a matrix for the transposed matrix."""
        return self

    def uniform(self) -> NumberFormat:
        """Return the format of all numbers, where no layer has bits of its own for each."""
        return self

    def with_scales_of(self, x: Tensor) -> FixedScales | None:
        """Return rounding with the scales that `x` has; None if it is unknown who shares one."""
        return FixedScales(self) if self.elementwise else None

    def values(self) -> Tensor:
        """All values in ascending order, in float64, for a format with a fixed grid."""
        raise NotImplementedError(f"{self.name} has no fixed grid: it scales with the data")

    @property
    def range(self) -> tuple[float, float]:
        """The range in which gradients pass with `ste = "clip"`."""
        return -self.largest, self.largest

    def quantize(self, x: Tensor) -> Tensor:
        """Return the nearest representable values in the shape and dtype of `x`."""
        if not x.is_floating_point():
            raise TypeError(f"{self.name} rounds floating-point tensors, not {x.dtype}")
        return straight_through(x, self._round_fast, self._limits)

    def _round_fast(self, x: Tensor) -> Tensor:
        return fused.rounded(self, x)

    @property
    def _limits(self) -> Limits | None:
        """The limits between which gradients pass, or None for no limits."""
        return self.range if self.ste == "clip" else None

    @classmethod
    def _uses_common_rounding(cls) -> bool:
        """Whether the class does not override the common rounding."""
        return cls.__call__ is NumberFormat.__call__ and cls.quantize is NumberFormat.quantize

    def rounded(self, x: Tensor) -> Tensor:
        """`round` for any float dtype: half precision is rounded in float32.

        Values that half precision cannot hold become its nearest finite number.
        """
        if x.dtype in (torch.float32, torch.float64):
            return self.round(x)
        highest = torch.finfo(x.dtype).max
        return self.round(x.float()).clamp(-highest, highest).to(x.dtype)

    def __call__(self, x: Any) -> Any:
        """Quantize `x`; a Python float counts as a tensor, integers and None pass unchanged."""
        if isinstance(x, Tensor):
            return self.quantize(x)
        if isinstance(x, float):
            return self.quantize(torch.tensor(x, dtype=torch.float64)).item()
        if x is None or isinstance(x, int):
            return x
        # such as a traced value, which would silently stay unrounded
        raise TypeError(f"{self.name} rounds tensors and floats, not {type(x).__name__}")

    def for_operand(self, operand: str, *, non_negative: bool = False) -> Self:
        """The format for one operand: blocks do not span batches, and the sign may be dropped."""
        return self

    def check_operand(self, operand: str) -> None:  # noqa: B027 (most formats suit all operands)
        """Raise an error if the format is not one for this operand of a layer."""

    @classmethod
    def precision_keys(cls) -> list[str]:
        """The names of the values in the precision list, in order."""
        return [f.name for f in fields(cls) if f.default is MISSING]

    @classmethod
    def config_name(cls) -> str:
        """Return what messages call a config of the format: "an integer config"."""
        return f"{'an' if cls.name[0] in 'aeiou' else 'a'} {cls.name} config"

    @classmethod
    def refinement_keys(cls) -> list[str]:
        """The options beyond the precision."""
        return [f.name for f in fields(cls) if f.default is not MISSING]

    @property
    def precision(self) -> list[Any]:
        return [getattr(self, key) for key in self.precision_keys()]

    @property
    def shown_options(self) -> dict[str, Any]:
        """The options beyond the precision that metadata show."""
        defaults = {f.name: f.default for f in fields(self)}
        values = {key: getattr(self, key) for key in self.shown}
        values = {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}
        return {key: value for key, value in values.items() if value != defaults[key]}

    def require(self, law: bool, text: str) -> None:
        """Raise an error with `text` unless the condition `law` holds."""
        if not law:
            told = [f for f in fields(self) if self._is_told(f, text)]
            values = ", ".join(f"{f.name} = {_shown(getattr(self, f.name)):.60}" for f in told)
            raise ValueError(f"{self.name}: {text} (got {values})")

    def _is_told(self, option: Any, text: str) -> bool:
        """Whether an error shows a field: it is in the text, or not the default."""
        value = getattr(self, option.name)
        usual = type(value) is type(option.default) and value == option.default
        return not usual or re.search(rf"\b{option.name}\b", text) is not None

    def require_whole(self, key: str, low: int, high: int) -> None:
        value = getattr(self, key)
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        whole = whole and low <= int(value) <= high
        self.require(whole, f"{key} must be an integer from {low} to {high}")
        object.__setattr__(self, key, int(value))  # numpy has its own integers

    def require_flags(self, *keys: str) -> None:
        for key in keys:
            value = getattr(self, key)
            self.require(isinstance(value, int) and value in (0, 1), f"{key} must be true or false")

    def require_word(self, key: str, *words: str) -> None:
        *others, last = map(repr, words)
        text = f"{key} must be {', '.join(others)} or {last}"
        self.require(getattr(self, key) in words, text)

    def fill_in(self, key: str, value: Any) -> None:
        """Replace None by its default, so that the precision shows it."""
        if getattr(self, key) is None:
            object.__setattr__(self, key, value)


def _shown(value: Any) -> str:
    """Return a value as it was given: 0.1, although a scale is the float32 number next to it."""
    return repr(float(f"{value:.8g}") if isinstance(value, float) else value)


def quantize_all(operands: Sequence[tuple[NumberFormat | None, Any]]) -> list[Any]:
    """Quantize each operand that has a format, like `fmt(x)`, with fewer autograd nodes."""
    joining = [
        (i, fmt, x)
        for i, (fmt, x) in enumerate(operands)
        if fmt is not None and fmt._uses_common_rounding()
        if isinstance(x, Tensor) and x.is_floating_point()
    ]
    rounded = all_straight_through([(x, fmt._round_fast, fmt._limits) for _, fmt, x in joining])
    joined = {i: y for (i, *_), y in zip(joining, rounded, strict=True)}
    return [
        joined[i] if i in joined else x if fmt is None else fmt(x)
        for i, (fmt, x) in enumerate(operands)
    ]


def from_precision(name: str, precision: list[Any], **options: Any) -> NumberFormat:
    """`"integer", [8, 4]` -> Integer(8, 4); the inverse of `fmt.name, fmt.precision`.

    `options` are those beyond the precision, such as `fmt.shown_options`.
    """
    cls = FORMATS[name]
    keys = cls.precision_keys()
    if not isinstance(precision, list | tuple) or len(precision) != len(keys):
        raise ValueError(f"{name} needs the precision [{', '.join(keys)}], not {precision!r}")
    return cls(*precision, **options)


def from_config(config: Mapping[str, Any], operand: str) -> NumberFormat:
    """Return the format of one operand: {"name": "integer", "weight_width": 8, …}, "weight".

    A bias without its own keys uses the weight's. A refinement may be given for one operand,
    `weight_floor`, or for all, `floor`.
    """
    cls = format_in(config)
    keys = cls.precision_keys()
    has_keys = any(f"{operand}_{key}" in config for key in keys)
    source = "weight" if operand == "bias" and not has_keys else operand
    wanted = [f"{source}_{key}" for key in keys]
    missing = [key for key in wanted if key not in config]
    if missing:
        advice = [text for key, text in cls.advice.items() if f"{source}_{key}" in missing]
        law = f"{cls.name} needs {wanted} for {operand!r}"
        raise ValueError("; ".join([law, f"missing {missing} in {dict(config)}", *advice]))
    keys_of = dict(zip(keys, wanted, strict=True))
    for key in cls.refinement_keys():
        places = [f"{operand}_{key}", f"{source}_{key}", key]
        if key in cls.of_one_tensor:
            places.remove(f"{source}_{key}")
        given = [place for place in places if place in config]
        keys_of |= {key: given[0]} if given else {}
    try:
        fmt = cls(**{key: config[place] for key, place in keys_of.items()})
        fmt.check_operand(source)
        return fmt
    except ValueError as error:
        raise ValueError(_with_keys(str(error), keys_of)) from error


def _with_keys(message: str, keys_of: Mapping[str, str]) -> str:
    """Return the message of a format with the keys of the config instead of its fields."""
    head, colon, rest = message.partition(": ")  # the name of the format stays
    fields_in = "|".join(map(re.escape, keys_of))
    names = rf"(?<!')\b({fields_in})\b(?!')"  # not the values in quotes
    return head + colon + re.sub(names, lambda found: keys_of[found[1]], rest)


def format_in(config: Mapping[str, Any]) -> type[NumberFormat]:
    """Return the class of the format that a config names."""
    if isinstance(name := config["name"], list | tuple | Mapping):
        raise ValueError(
            f"name must be one format, not a {type(name).__name__}; "
            f"lists of choices belong in a search space (got {name!r:.80})"
        )
    return FORMATS[name]


def config_keys(name: str, operands: Iterable[str]) -> list[str]:
    """All keys that a config of the format `name` may have."""
    cls = FORMATS[name]
    keys = [*cls.precision_keys(), *cls.refinement_keys(), *cls.other_keys]
    known = [f"{operand}_{key}" for operand in operands for key in keys]
    return [*known, *cls.refinement_keys(), "name", "bypass"]


def check_keys(config: Mapping[str, Any], operands: Iterable[str], extra: Iterable[str]) -> None:
    """Raise an error for a key that the format of `config` does not have, with the nearest one."""
    cls = format_in(config)
    known = [*config_keys(config["name"], operands), *extra]
    for key in config:
        if key not in known:
            raise UnknownName(f"key of {cls.config_name()}", key, known)


@cache
def from_dtype(dtype: torch.dtype) -> NumberFormat:
    """The format of a torch dtype: float32 -> Float(32), int64 -> Integer(64, 0)."""
    bits = 1 if dtype == torch.bool else 8 * dtype.itemsize
    if dtype.is_floating_point or dtype.is_complex:
        return from_precision("float", [bits])
    return from_precision("integer", [bits, 0])
