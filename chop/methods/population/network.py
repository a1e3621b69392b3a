"""The networks of a family as one network: every layer is one batched operation.

Rows of features are [K, C, B] and maps [B, K·C, …], for K candidates of at most C channels and B
samples. Thus batch norm, pooling and convolution have their channels in the right dimension, and
nothing is copied between layers. Padded channels are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.methods.population.architecture import Family, LayerCall, layouts, widths_of
from chop.methods.population.fused import batch_norm
from chop.methods.population.rounding import MAPS, PARAMETER, ROWS, Rounder
from chop.methods.population.stacks import State, is_masked, owner_of, plan_of
from chop.numerics import NumberFormat
from chop.passes.graph.transforms.pruning.masks import mask_name


class Operand:
    """An activation: its number formats, and which of its channels are padding."""

    def __init__(
        self, formats: Sequence[NumberFormat | None], widths: Sequence[int], *, maps: bool
    ) -> None:
        self.formats, self.widths, self.maps = formats, widths, maps
        self.idle = not any(formats)
        self._rounders: dict[tuple[int, int], Rounder] = {}
        self._masks: dict[int, Tensor] = {}

    def _seen(self, x: Tensor) -> Tensor:
        return x.view(len(x), len(self.widths), -1, *x.shape[2:]) if self.maps else x

    def rounded(self, x: Tensor) -> Tensor:
        if self.idle:
            return x
        seen = self._seen(x)
        places = self._places(seen)
        key = (places, seen.dim())
        if key not in self._rounders:
            layout = MAPS if self.maps else ROWS
            extents = [(width * places,) for width in self.widths]
            self._rounders[key] = Rounder(self.formats, extents, layout, seen.dim(), x)
        return self._rounders[key](seen).reshape(x.shape)

    def _places(self, seen: Tensor) -> int:
        """Return the number of features per channel: more than one for flattened maps."""
        return 1 if self.maps else seen.shape[1] // max(self.widths)

    def masked(self, x: Tensor) -> Tensor:
        """Return `x` with zeros in the padding."""
        if len(set(self.widths)) == 1:
            return x
        seen = self._seen(x)
        places = self._places(seen)
        if places not in self._masks:
            channels = torch.arange(seen.shape[2 if self.maps else 1], device=x.device)
            widths = torch.tensor(self.widths, device=x.device) * places
            self._masks[places] = channels < widths.unsqueeze(1)
        mask = self._masks[places]  # [K, C]
        shape = (1, *mask.shape, *[1] * (seen.dim() - 3)) if self.maps else (*mask.shape, 1)
        return torch.where(mask.view(shape), seen, 0.0).reshape(x.shape)


Named = dict[str, Tensor]


# one call for all candidates: its inputs, its parameters, whether it is being trained -> output
Layer = Callable[[list[Tensor], Named, bool], Tensor]


def _linear(inputs: list[Tensor], parameters: Named, training: bool) -> Tensor:
    weight, bias = parameters["weight"], parameters.get("bias")
    if bias is None:
        return torch.bmm(weight, inputs[0])
    return torch.baddbmm(bias.unsqueeze(2), weight, inputs[0])


def _conv(call: LayerCall, inputs: list[Tensor], parameters: Named, training: bool) -> Tensor:
    """A grouped convolution with one group per candidate, or per channel of a candidate."""
    module: Any = call.module
    weight, kernel = parameters["weight"], parameters["weight"].flatten(0, 1)
    groups = len(kernel if call.settings["depthwise"] else weight)
    settings = (module.stride, module.padding, module.dilation, groups)
    convolve: Any = F.conv1d if len(module.kernel_size) == 1 else F.conv2d
    out: Tensor = convolve(inputs[0], kernel, _flat(parameters.get("bias")), *settings)
    return out


def _norm(
    call: LayerCall, maps: bool, inputs: list[Tensor], parameters: Named, training: bool
) -> Tensor:
    """Batch norm over the channels of all candidates."""
    x, module = inputs[0], cast(Any, call.module)
    statistics = parameters["running_mean"].view(-1), parameters["running_var"].view(-1)
    weight, bias = (_flat(parameters.get(name)) for name in ("weight", "bias"))
    constants = (module.momentum, module.eps)
    if training and not maps:
        rows = x.reshape(-1, x.shape[2])
        return batch_norm(rows, statistics, weight, bias, *constants).view(x.shape)
    seen = x if maps else x.reshape(1, -1, x.shape[2])
    return F.batch_norm(seen, *statistics, weight, bias, training, *constants).view(x.shape)


def _flat(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.flatten()


def _function(call: LayerCall, output: Operand) -> Layer:
    """Return an activation or pooling function that is applied to all candidates at once."""
    function: Any = call.function
    # padding must stay zero, but a sigmoid, for instance, is not zero at zero
    moves_zero = call.kind == "pointwise" and bool(function(torch.zeros(1)).any())
    if moves_zero:
        return lambda inputs, parameters, training: output.masked(function(inputs[0]))
    return lambda inputs, parameters, training: function(inputs[0])


def _flatten(
    candidates: int, maps: bool, inputs: list[Tensor], parameters: Named, training: bool
) -> Tensor:
    x = inputs[0]
    return x.reshape(len(x), candidates, -1).permute(1, 2, 0).contiguous() if maps else x


def _add(inputs: list[Tensor], parameters: Named, training: bool) -> Tensor:
    return inputs[0] + inputs[1]


class Network:
    """A family that computes with the parameters of a `State`."""

    def __init__(self, family: Family, *, maps: bool, channels: int) -> None:
        self.family, self.plan, self.maps = family, plan_of(family), maps
        self._layouts = layouts(family, maps=maps)
        self._widths = widths_of(family, channels)
        self._sizes, self._chosen = self.plan.pieces()
        self._owners = {
            number: owner_of(family, number)
            for number, call in enumerate(family.first)
            if call.module is not None
        }
        numbers = range(1, len(family.first))
        self._operands = {number: self._inputs(number) for number in numbers}
        self._output = {number: self._operand(number, "data_out", number) for number in numbers}
        self._layers = {number: self._layer(number) for number in numbers}
        self._rounders: dict[tuple[int, str], Rounder] = {}
        self._last_use = {i: n for n in numbers for i in family.first[n].inputs}

    def only(self, rows: Sequence[int]) -> Network:
        """Return the network of the candidates at `rows`."""
        return Network(self.family.only(rows), maps=self.maps, channels=self._widths[0][0])

    def _operand(self, number: int, name: str, value: int) -> Operand:
        formats = [call.formats.get(name) for call in self.family.calls(number)]
        return Operand(formats, self._widths[value], maps=self._layouts[value])

    def _inputs(self, number: int) -> list[Operand]:
        return [self._operand(number, "data_in", i) for i in self.family.first[number].inputs]

    def _layer(self, number: int) -> Layer:
        call, maps = self.family.first[number], self._layouts
        match call.kind:
            case "linear":
                return _linear
            case "conv":
                return partial(_conv, call)
            case "norm":
                return partial(_norm, call, maps[number])
            case "flatten":
                return partial(_flatten, len(self.family), maps[call.inputs[0]])
            case "add":
                return _add
        return _function(call, self._output[number])

    def __call__(self, state: State, x: Tensor, *, training: bool) -> Tensor:
        """Return the scores [K, classes, B] of samples in the layout of the input."""
        pieces = state.values.split(self._sizes, 1)
        stacks = {
            (slot.call, slot.name): pieces[at].view(-1, *slot.shape)
            for slot, at in zip(self.plan.slots, self._chosen, strict=True)
        } | state.buffers
        values: dict[int, Tensor] = {0: x}
        for number, layer in self._layers.items():
            call = self.family.first[number]
            inputs = [
                operand.rounded(values[i])
                for operand, i in zip(self._operands[number], call.inputs, strict=True)
            ]
            parameters = self._parameters(number, stacks) if call.module is not None else {}
            out = layer(inputs, parameters, training)
            values[number] = self._output[number].rounded(out)
            for i in call.inputs:
                if self._last_use[i] == number:
                    values.pop(i, None)
        return values[number]

    def _parameters(self, number: int, stacks: dict[tuple[int, str], Tensor]) -> Named:
        """Return the parameters of a layer, masked and then rounded."""
        owner, calls = self._owners[number], self.family.calls(number)
        parameters = {name: stack for (call, name), stack in stacks.items() if call == owner}
        for name in ("weight", "bias"):
            if name not in parameters:
                continue
            stack = parameters[name]
            if is_masked(calls, name):
                stack = torch.where(parameters[mask_name(name)], stack, 0.0)
            parameters[name] = self._rounder(number, name, stack)(stack)
        return parameters

    def _rounder(self, number: int, name: str, stack: Tensor) -> Rounder:
        if (number, name) not in self._rounders:
            calls: list[Any] = self.family.calls(number)
            formats = [call.formats.get(name) for call in calls]
            extents = [tuple(call.module._parameters[name].shape) for call in calls]
            self._rounders[number, name] = Rounder(formats, extents, PARAMETER, stack.dim(), stack)
        return self._rounders[number, name]
