"""Quantized layers: operands are rounded to number formats, then the float op runs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from chop.ir.graph.tracer import Leaf
from chop.ir.ops import is_named_in_table
from chop.ir.parametrized import parametrized_names
from chop.numerics import FORMATS, NumberFormat
from chop.numerics.base import from_config, quantize_all
from chop.numerics.scratch import is_plain
from chop.numerics.weight_cache import TrackedWeights, round_or_reuse
from chop.passes.graph.transforms.metadata_sync import own_attributes
from chop.passes.graph.transforms.pruning.masks import masked_class, masked_names
from chop.passes.graph.transforms.quantize.config import as_in_place, layer_formats
from chop.passes.graph.transforms.quantize.quantized_modules.format_tensors import tensors_of
from chop.passes.graph.transforms.quantize.quantized_modules.scales import HasScales
from chop.passes.graph.transforms.quantize.quantized_modules.widths import LearnsWidths
from chop.passes.graph.transforms.quantize.variants import LAYER_VARIANTS


class Quantized(Leaf, HasScales):
    """Mixin before a float layer; it knows that operands have formats, but not which.

    Parameters stay in float and are rounded on the fly, so that training goes through the
    straight-through gradient. In eval mode and without gradients the rounded values are
    cached until the parameters change.
    """

    operands: ClassVar[tuple[str, ...]] = ("data_in", "weight", "bias")
    float_class: ClassVar[type[nn.Module]]  # the torch layer that this one quantizes
    layer: ClassVar[type[Quantized]]  # QuantLinear, for LinearInteger and all its siblings
    format_name: ClassVar[str | None] = None
    derived_attributes: ClassVar[tuple[str, ...]] = ("formats", "_kept")  # not saved with a graph
    _overrides_rounding: ClassVar[bool]  # whether a class overrides the common rounding

    config: Mapping[str, Any]
    pruning_masks: Any

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "float_class" in vars(cls):
            cls.layer = cls
        elif Quantized in cls.__bases__ or not hasattr(cls, "float_class"):
            bases = [base for base in cls.__mro__ if base.__module__.startswith("torch.nn.")]
            if bases and bases[0] is not nn.Module:
                cls.float_class, cls.layer = bases[0], cls
        cls._overrides_rounding = (
            cls.q is not Quantized.q or cls.q_parameter is not Quantized.q_parameter
        )

    def __init__(self, *args: Any, config: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pruning_masks = None
        self.configure(config)

    def configure(self, config: Mapping[str, Any]) -> Self:
        """Switch to another config, even of another format; nothing is rebuilt."""
        name = config.get("name", self.format_name)
        config = {**config, "name": name}
        formats = self._formats(config)
        # bypassing a layer and back leaves the tensors that were trained
        same = _settings(vars(self).get("config", {})) == _settings(config)
        keeps = same and (bool(self.format_tensors()) or not formats)
        tensors = {} if keeps else self.initial_tensors(formats)
        self.config, self.formats = config, formats
        self._kept = {}
        if not keeps:
            self.set_tensors(formats, tensors)
        if name != self.format_name:
            self._become(variant(self.layer, FORMATS[name]), type(self))
        return self

    def derive(self) -> None:
        """Rebuild what follows from the config after a graph was loaded."""
        loaded = {k: v.copy() if isinstance(v, dict | set) else v for k, v in vars(self).items()}
        self.configure(self.config)
        derived = {key: vars(self)[key] for key in self.derived_attributes}
        vars(self).update(loaded | derived)

    def _become(self, cls: type[Any], float_class: type) -> None:
        """Change the class to `cls`; masked and parametrized tensors keep their properties."""
        cls = masked_class(cls, masked_names(float_class))
        names = parametrized_names(self)
        self.__class__ = _parametrized(cls, float_class, names) if names else cls

    def _formats(self, config: Mapping[str, Any]) -> dict[str, NumberFormat]:
        formats = {
            operand: self.refine(operand, fmt)
            for operand, fmt in layer_formats(config, self._present()).items()
        }
        return self.with_bias_format(formats, config)

    def _present(self) -> list[str]:
        """Return the operands that this layer has."""
        computed = parametrized_names(self)  # computing a spectral norm would change its state
        present = [
            operand
            for operand in self.operands
            if operand in ("data_in", *computed) or getattr(self, operand, None) is not None
        ]
        if "weight" in present and "bias" in self.operands:
            return [*self.operands]  # a bias may be added later, as by fusing a norm
        return present

    def refine(self, operand: str, fmt: NumberFormat) -> NumberFormat:
        """Adjust a format by what only the op knows: batch dimensions, signs."""
        return fmt.for_operand(operand)

    @property
    def bypass(self) -> bool:
        """Whether the layer computes in float; setting it reconfigures the layer."""
        return bool(self.config.get("bypass", False))

    @bypass.setter
    def bypass(self, wanted: bool) -> None:
        self.configure({**self.config, "bypass": bool(wanted)})

    @classmethod
    def from_float(cls, layer: nn.Module, config: Mapping[str, Any]) -> Self:
        """Return the same layer, quantized: it shares parameters, buffers, hooks and settings."""
        usual = type(layer).forward in (cls.float_class.forward, getattr(cls, "forward", None))
        if not (usual or isinstance(layer, Quantized) or is_named_in_table(type(layer))):
            raise TypeError(
                f"{type(layer).__name__} has a custom forward, which {cls.__name__} would "
                f"replace by that of {cls.float_class.__name__}; quantize the layers inside it"
            )
        new = cls.__new__(cls)
        vars(new).update(own_attributes(layer))
        vars(new).setdefault("pruning_masks", None)
        new._become(cls, type(layer))
        return new.configure(config)

    def q(self, operand: str, x: Any) -> Any:
        """Return `x` in the format of that operand."""
        fmt = self.formats.get(operand)
        return x if fmt is None or x is None else self.rounding(operand, fmt)(x)

    def q_parameter(self, name: str) -> Any:
        """Return a parameter in its format; the rounded one is cached unless it may be training."""
        fmt, store = self.rounding(name, self.formats.get(self.operand_of(name))), self._kept
        idle = fmt is not None and not (self.training or torch.is_grad_enabled())
        # a replica on another device uses its original's
        is_ours = isinstance(store, TrackedWeights) and store.layer is self
        tracked = idle and is_ours and store.tracks(name)  # type: ignore[attr-defined]
        if tracked and (cached := store.unchanged(name)) is not None and cached.fmt == fmt:  # type: ignore[attr-defined]
            return cached.rounded
        tensor = self._parameter(name)
        if tensor is None or fmt is None:
            return tensor
        # reading the comparison's result would stall a GPU, where rounding costs no more
        if not (idle and (tracked or tensor.is_cpu) and is_plain(tensor) and fmt.deterministic):
            return fmt(tensor)
        cached = store[name] = round_or_reuse(tensor, fmt, store.get(name))
        return cached.rounded

    def q_operands(self, input: Tensor) -> tuple[Any, Any, Any]:
        """Input, weight and bias in their formats; with gradients, as one autograd node."""
        apart = self._overrides_rounding or any(map(tensors_of, self.formats.values()))
        if apart or not torch.is_grad_enabled():
            return self.q("data_in", input), self.q_parameter("weight"), self.q_parameter("bias")
        formats = self.formats
        operands = (("data_in", input), ("weight", self.weight), ("bias", self.bias))
        x, weight, bias = quantize_all([(formats.get(name), value) for name, value in operands])
        return x, weight, bias

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the float layer's forward on quantized operands."""
        if not self.formats:
            return self.float_class.forward(self, input, *args, **kwargs)
        x = self.q("data_in", input)
        y = self.float_class.forward(self._stand_in(), x, *args, **kwargs)
        return as_in_place(input, x, y, self.q("data_out", y))

    def _stand_in(self) -> nn.Module:
        """The float layer with quantized parameters; buffers, and so statistics, are shared."""
        stand_in = object.__new__(self.float_class)
        vars(stand_in).update(vars(self))
        for name in ("weight", "bias"):
            if name in self.formats or name in masked_names(type(self)):
                vars(stand_in)[name] = self.q_parameter(name)
        return stand_in

    @property
    def x_quantizer(self) -> Callable[[Tensor], Tensor]:
        return functools.partial(self.q, "data_in")

    @property
    def w_quantizer(self) -> Callable[[Tensor], Tensor]:
        return functools.partial(self.q, "weight")

    @property
    def b_quantizer(self) -> Callable[[Tensor], Tensor]:
        return functools.partial(self.q, "bias")

    def get_quantized_weight(self) -> Tensor:
        """The weight that the layer computes with."""
        weight: Tensor = self.q("weight", self.weight)
        return weight

    def get_quantized_weights_with_inputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weight and the input that the layer computes with."""
        return self.get_quantized_weight(), self.q("data_in", x)

    def __getstate__(self) -> dict[str, Any]:
        """Leave cached parameters out of copies and pickles."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {**state, "_kept": {}}


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without `bypass`."""
    return {key: value for key, value in config.items() if key != "bypass"}


_VARIANTS: dict[tuple[type, type], type[Quantized]] = {}


def _shown(layer: Quantized, name: str) -> int | Tensor:
    """Return an attribute of the format of the input: a count, or numbers like the parameters."""
    value = getattr(from_config(layer.config, "data_in"), name)
    like = next(layer.parameters(), torch.empty(0))
    if isinstance(value, int):
        return value
    return torch.tensor(value, dtype=like.dtype, device=like.device)


def variant(layer: type[Quantized], fmt: type[NumberFormat]) -> type[Quantized]:
    """Return the class for a format: QuantLinear, Integer -> LinearInteger, in the same module."""
    if (layer, fmt) not in _VARIANTS:
        name = layer.__name__.removeprefix("Quant") + fmt.suffix
        body = {
            "__module__": layer.__module__,
            "__qualname__": name,
            "__doc__": f"{layer.float_class.__name__} with {fmt.name} operands.",
            "format_name": fmt.name,
            **{
                name: property(functools.partial(_shown, name=name))
                for name in fmt.layer_attributes
            },
        }
        # after the layer, so that the classes of one layer have the same memory layout
        bases = (layer, LearnsWidths) if "frac_bits" in fmt.layer_tensors else (layer,)
        _VARIANTS[layer, fmt] = type(name, bases, body)
    return _VARIANTS[layer, fmt]


def layers_in(namespace: Mapping[str, Any]) -> tuple[type[Quantized], ...]:
    """Return the quantized layers that a module defines, of no format yet."""
    return tuple(item for item in namespace.values() if getattr(item, "layer", None) is item)


def variants(*layers: type[Quantized]) -> Callable[[str], type[Quantized]]:
    """Return a module `__getattr__` that resolves `<Layer><Format>` for every registered format."""
    by_prefix = {layer.__name__.removeprefix("Quant"): layer for layer in layers}

    def __getattr__(name: str) -> type[Quantized]:
        if name.startswith("__"):  # which the import system asks for
            raise AttributeError(name)
        for (prefix, layer), fmt in itertools.product(by_prefix.items(), FORMATS.values()):
            if name == prefix + fmt.suffix:
                return variant(layer, fmt)
        for cls in LAYER_VARIANTS.values():
            if name == cls.__name__ and issubclass(cls, layers):
                return cls  # type: ignore[no-any-return]
        raise AttributeError(
            f"there is no quantized layer {name!r}; use one of {', '.join(by_prefix)} "
            f"followed by a format's suffix such as Integer"
        )

    return __getattr__


def _parametrized(cls: type[Any], float_cls: type, names: list[str]) -> type[Any]:
    """Return `cls` with the properties through which a parametrized layer reads its tensors."""
    properties = {name: getattr(float_cls, name) for name in names}
    return type(f"Parametrized{cls.__name__}", (cls,), {"__module__": cls.__module__, **properties})
