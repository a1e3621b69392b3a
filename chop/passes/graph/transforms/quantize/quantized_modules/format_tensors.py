"""Tensors that belong to the format of an operand: buffers, or parameters that are trained."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from chop.ir.graph.tensor_rules import TensorRule
from chop.numerics import NumberFormat
from chop.numerics.grid import Grid
from chop.passes.graph.describe.formats import FormattedLayer
from chop.passes.graph.transforms.quantize.calibrated import ACTIVATIONS

Tensors = dict[str, Tensor]
Bits = tuple[Tensor, Tensor]  # of the integer and of the fraction


class FormatTensors(abc.ABC):
    """What a layer keeps for operands of one format: which tensors, and what they are for.

    An operand is an activation, `data_in` or `data_out`, or the name of a parameter. The kinds of
    tensors are `layer_tensors` of the format; `weight_<kind>` is the name of one.
    """

    @abc.abstractmethod
    def initial(self, layer: HasFormatTensors, name: str, fmt: Any) -> Tensors:
        """Return the tensors of an operand by kind, as the config gives them."""

    @abc.abstractmethod
    def shape(self, layer: Any, name: str, fmt: Any) -> tuple[int | None, ...]:
        """Return the shape of the tensors of an operand; None is a size that its values give."""

    def rule(self, layer: Any, name: str, kind: str, fmt: Any, *, trained: bool) -> TensorRule:
        """Return what a tensor of an operand must be like."""
        return TensorRule(self.shape(layer, name, fmt), "real" if trained else "number")

    @abc.abstractmethod
    def rounding(self, layer: HasFormatTensors, name: str, fmt: Any) -> Any:
        """Return what rounds an operand."""

    @abc.abstractmethod
    def current(self, layer: HasFormatTensors, name: str, fmt: Any) -> NumberFormat:
        """Return the format of an operand with the numbers in use now."""

    def bits(self, layer: HasFormatTensors, name: str, fmt: Any) -> Bits | None:
        """Return the integer and fraction bits of an operand, if the tensors are bits."""
        return None

    def counted(self, layer: HasFormatTensors, name: str, fmt: Any) -> NumberFormat:
        """Return the format whose bits an operand costs."""
        counted: NumberFormat = fmt
        return counted

    @abc.abstractmethod
    def cut(
        self, layer: HasFormatTensors, name: str, fmt: Any, dim: int | None, kept: Sequence[int]
    ) -> Tensors:
        """Return the tensors that change if an operand keeps only some channels."""


FORMAT_TENSORS: dict[tuple[str, ...], FormatTensors] = {}  # by the kinds of tensors


def tensors_of(fmt: NumberFormat | None) -> FormatTensors | None:
    """Return what a layer keeps for operands of a format; None for one without tensors."""
    return FORMAT_TENSORS.get(fmt.layer_tensors) if fmt is not None else None


class HasFormatTensors(FormattedLayer):
    """Mixin of quantised layers: `weight_scale` of an affine weight, and the like.

    The config gives their first values; from then on these tensors count.
    """

    # the weight's dimension of outputs, in layers that compute x · weight + bias
    output_axis: ClassVar[int | None] = None

    config: Mapping[str, Any]

    @classmethod
    def operand_of(cls, parameter: str) -> str:
        """Return the operand of the config that a parameter belongs to."""
        return parameter

    def _parameter(self, name: str) -> Any:
        """Return a parameter as the float layer reads it: masked, or parametrized."""
        return getattr(self, name)

    def _rounded_parameters(self) -> list[str]:
        """Return the names of the parameters that may be rounded."""
        return ["weight", "bias"]

    def _format_of(self, name: str) -> NumberFormat | None:
        return self.formats.get(name if name in ACTIVATIONS else self.operand_of(name))

    def initial_tensors(self, formats: Mapping[str, NumberFormat]) -> Tensors:
        """Return the tensors of a configuration, by name."""
        tensors: Tensors = {}
        for name in (*ACTIVATIONS, *self._rounded_parameters()):
            fmt = formats.get(name if name in ACTIVATIONS else self.operand_of(name))
            kept = tensors_of(fmt)
            if kept is None or (name not in ACTIVATIONS and self._parameter(name) is None):
                continue
            found = kept.initial(self, name, fmt)
            tensors |= {tensor_name(name, kind): tensor for kind, tensor in found.items()}
        return tensors

    def device(self) -> torch.device:
        """Return the device of the layer's parameters."""
        devices = (p.device for p in self.parameters() if not p.is_meta)
        return next(devices, torch.device("cpu"))

    def set_tensors(
        self, formats: Mapping[str, NumberFormat], tensors: Mapping[str, Tensor]
    ) -> None:
        """Replace all tensors that belong to formats."""
        for name in [*self.format_tensors()]:
            for store in (self._parameters, self._buffers):
                store.pop(name, None)
        owners = self._owners()
        for name, tensor in tensors.items():
            owner, kind = owners[name]
            fmt = formats.get(owner if owner in ACTIVATIONS else self.operand_of(owner))
            if fmt is not None and kind in fmt.trained_tensors:
                self._parameters[name] = nn.Parameter(tensor.clone())
            else:
                self._buffers[name] = tensor
                self._non_persistent_buffers_set.discard(name)

    def reset_tensors(self) -> None:
        """Give the tensors that are trained the values of the config again, as before training."""
        tensors = self.initial_tensors(self.formats)
        with torch.no_grad():
            for name, tensor in self.format_tensors().items():
                if name in tensors and name in self._parameters:
                    tensor.copy_(tensors[name])

    def cut_tensors(self, name: str, dim: int | None, kept: Sequence[int]) -> None:
        fmt = self._format_of(name)
        tensors = tensors_of(fmt)
        if tensors is None:
            return
        for kind, cut in tensors.cut(self, name, fmt, dim, kept).items():
            key = tensor_name(name, kind)
            store: Any = self._parameters if key in self._parameters else self._buffers
            store[key] = nn.Parameter(cut) if store is self._parameters else cut

    def _owners(self) -> dict[str, tuple[str, str]]:
        """Return the operand and the kind of each tensor that the layer may keep, by name."""
        owners = (*ACTIVATIONS, *self._rounded_parameters())
        kinds = [*itertools.chain(*FORMAT_TENSORS)]
        return {tensor_name(owner, kind): (owner, kind) for owner in owners for kind in kinds}

    def format_tensors(self) -> Tensors:
        """Return the tensors that belong to formats, by name."""
        found = {name: self.format_tensor(name) for name in self._owners()}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def tensor_rules(self) -> dict[str, TensorRule]:
        """Return what the tensors that belong to formats must be like."""
        rules = {}
        for name, tensor in self.format_tensors().items():
            owner, kind = self._owners()[name]
            fmt = self._format_of(owner)
            kept = tensors_of(fmt)
            if kept is not None:
                rules[name] = kept.rule(self, owner, kind, fmt, trained=tensor.requires_grad)
        return rules

    def format_tensor(self, name: str) -> Tensor | None:
        """Return one of these tensors, or None if the layer does not keep it."""
        buffer = self._buffers.get(name)
        return self._parameters.get(name) if buffer is None else buffer

    def kept_tensors(self, name: str, kinds: Sequence[str]) -> Tensors:
        """Return the tensors of an operand by kind, without those that the layer does not keep."""
        found = {kind: self.format_tensor(tensor_name(name, kind)) for kind in kinds}
        return {kind: tensor for kind, tensor in found.items() if tensor is not None}

    def rounding(self, name: str, fmt: NumberFormat | None) -> Any:
        """Return what rounds an operand or a parameter of that format."""
        kept = tensors_of(fmt)
        return fmt if kept is None else kept.rounding(self, name, fmt)

    def bits_of(self, name: str) -> Bits | None:
        """Return the integer and fraction bits that a layer keeps for an operand; None: none."""
        fmt = self._format_of(name)
        kept = tensors_of(fmt) if self._is_kept(name) else None
        return None if kept is None else kept.bits(self, name, fmt)

    def grid_of(self, name: str) -> Grid | None:
        """Return the codes that an operand or a parameter is rounded to now, if it has some."""
        rounding = self.rounding(name, self._format_of(name))
        grid: Grid | None = None if rounding is None else rounding.grid()
        return grid

    def current_formats(self) -> dict[str, NumberFormat]:
        """Return the formats with the numbers in use now, such as scales."""
        return {operand: self._current(operand, fmt) for operand, fmt in self.formats.items()}

    def counted_formats(self) -> dict[str, NumberFormat]:
        """Return the formats whose bits the operands cost now; the same dict if they are fixed."""
        if not any(map(tensors_of, self.formats.values())):
            return self.formats
        return {operand: self.counted_format(operand, fmt) for operand, fmt in self.formats.items()}

    def counted_format(self, name: str, fmt: NumberFormat) -> NumberFormat:
        """Return the format whose bits an operand or a parameter costs now."""
        kept = tensors_of(fmt) if self._is_kept(name) else None
        return fmt if kept is None else kept.counted(self, name, fmt)

    def parameter_formats(self) -> dict[str, NumberFormat]:
        named = {name: self.operand_of(name) for name in self._rounded_parameters()}
        formats = {name: self.formats.get(operand) for name, operand in named.items()}
        return {
            name: self._current(name, fmt)
            for name, fmt in formats.items()
            if fmt is not None and tensors_of(fmt) is not None and name != named[name]
        }

    def _current(self, name: str, fmt: NumberFormat) -> NumberFormat:
        kept = tensors_of(fmt) if self._is_kept(name) else None
        return fmt if kept is None else kept.current(self, name, fmt)

    def _is_kept(self, name: str) -> bool:
        """Return whether an operand is an activation or a parameter that the layer has."""
        if name in ACTIVATIONS:
            return True
        return name in self._rounded_parameters() and self._parameter(name) is not None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move these tensors with the layer, but keep their dtypes."""
        before = {name: tensor.detach() for name, tensor in self.format_tensors().items()}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in before.items():
            now = self.format_tensor(name)
            if now is not None and now.dtype != tensor.dtype:
                with torch.no_grad():
                    now.data = tensor.to(now.device)
        return self


def tensor_name(owner: str, kind: str) -> str:
    """Return the name of a tensor of an operand; that of a part has no dots."""
    return f"{owner.replace('.', '_')}_{kind}"


def parameter_names(layer: nn.Module) -> list[str]:
    """Return the names of a layer's parameters and of its parts', parametrized ones included."""
    endings = tuple(f"_{kind}" for kind in itertools.chain(*FORMAT_TENSORS))
    names = [name for name, _ in layer.named_parameters() if not name.endswith(endings)]
    names = [name for name in names if "parametrizations." not in name]
    if parametrize.is_parametrized(layer):
        names += list(layer.parametrizations)  # type: ignore[arg-type]
    return names
