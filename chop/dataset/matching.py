"""Match the inputs of a data set to the parameters of a model's `forward`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter
from typing import Any

from torch import Tensor, nn

from chop.dataset.nested import Inputs

STARRED = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
ANONYMOUS = "x"  # the name of an input without a model, or of a model without named parameters


@dataclass(frozen=True)
class ForwardSignature:
    """The parameters of a `forward`, to which inputs are matched.

    A dictionary is matched by name and anything else by position; keyword-only parameters take
    their turn after the positional ones. To a `forward` with one parameter, the one tensor of a
    dictionary is passed, whatever its name, unless the parameter is annotated as a mapping; a
    dictionary of more, or a tuple of another length, is passed as a whole.
    """

    parameters: tuple[Parameter, ...]
    owner: str = "the model"

    @classmethod
    def of(cls, model: nn.Module) -> ForwardSignature:
        """Return the signature of a model."""
        parameters = inspect.signature(model.forward).parameters.values()
        return cls(tuple(parameters), type(model).__name__)

    @cached_property
    def named(self) -> dict[str, Parameter]:
        """The parameters that take one input each, positional ones first."""
        return {p.name: p for p in self.parameters if p.kind not in STARRED}

    @cached_property
    def required(self) -> list[str]:
        return [name for name, p in self.named.items() if p.default is Parameter.empty]

    def _takes(self, kind: Any) -> bool:
        return any(p.kind is kind for p in self.parameters)

    def match(self, inputs: Inputs) -> dict[str, Any]:
        """Return the inputs by the names of their parameters."""
        if isinstance(inputs, Mapping) and self._accepts(inputs):
            return dict(inputs)
        if isinstance(inputs, tuple | list) and self._has_room_for(len(inputs)):
            return dict(zip(self.named, inputs, strict=False))
        if self._takes_whole(inputs):
            return {self._one.name: self._unnamed(inputs)}
        if not self.named and not isinstance(inputs, Mapping | tuple | list):
            return {ANONYMOUS: inputs}
        raise ValueError(self._mismatch(inputs))

    def _accepts(self, inputs: Mapping[str, Any]) -> bool:
        """Whether the keys are names of parameters, and none that is required is missing."""
        known = self._takes(Parameter.VAR_KEYWORD) or all(key in self.named for key in inputs)
        return known and all(name in inputs for name in self.required)

    def _has_room_for(self, count: int) -> bool:
        return len(self.required) <= count <= len(self.named)

    def _takes_whole(self, inputs: Inputs) -> bool:
        """Whether one parameter takes all inputs; names of parameters are never ignored."""
        if not self.named or len(self.required) > 1:
            return False
        if isinstance(inputs, Mapping):
            return len(self.required or self.named) == 1 and not any(
                k in self.named for k in inputs
            )
        return True

    @property
    def _one(self) -> Parameter:
        """The parameter that takes all inputs."""
        return self.named[next(iter(self.required or self.named))]

    def _unnamed(self, inputs: Inputs) -> Any:
        """Return the tensor of a dictionary of one, unless `forward` asks for a mapping."""
        values = list(inputs.values()) if isinstance(inputs, Mapping) else []
        if len(values) != 1 or not isinstance(values[0], Tensor) or _is_mapping(self._one):
            return inputs
        return values[0]

    def _mismatch(self, inputs: Inputs) -> str:
        taken = ", ".join(str(p) for p in self.parameters) or "nothing"
        if isinstance(inputs, Mapping):
            given, fix = f"the inputs {', '.join(inputs)}", "give them the same names"
        elif isinstance(inputs, tuple | list):
            given, fix = f"{len(inputs)} inputs", "give one for each parameter without a default"
        else:
            given, fix = "one input", "let it give a tuple or a dictionary of inputs"
        return f"the data set gives {given}, but forward of {self.owner} takes ({taken}); {fix}"

    def arguments(self, inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments of a call."""
        if not self.named and isinstance(inputs, tuple | list):
            return tuple(inputs), {}
        by_name, positional = self.match(inputs), []
        for parameter in self.parameters:
            if parameter.kind is Parameter.KEYWORD_ONLY or parameter.name not in by_name:
                break
            positional.append(by_name.pop(parameter.name))
        if not self.named and ANONYMOUS in by_name and self._takes(Parameter.VAR_POSITIONAL):
            positional.append(by_name.pop(ANONYMOUS))
        return tuple(positional), by_name

    @cached_property
    def takes_one_positional(self) -> bool:
        """Whether a single tensor is passed as the first positional argument."""
        first = next(iter(self.parameters), None)
        is_first = first is not None and first.kind is not Parameter.KEYWORD_ONLY
        return is_first and len(self.required) <= 1 and self._first_is_required()

    def _first_is_required(self) -> bool:
        return not self.required or self.required[0] == next(iter(self.named))


def _is_mapping(parameter: Parameter) -> bool:
    """Whether a parameter is annotated as a dictionary, possibly by a string."""
    hint = parameter.annotation
    if isinstance(hint, type):
        return issubclass(hint, Mapping)
    return re.search(r"(?i)\b(dict|mapping)\b", str(hint)) is not None


class ModelCall:
    """Calls a model with inputs of a data set; `forward` may wrap the model."""

    def __init__(self, model: nn.Module, forward: Callable[..., Any] | None = None) -> None:
        self.signature, self.forward = ForwardSignature.of(model), forward or model
        self._is_direct = self.signature.takes_one_positional

    def __call__(self, inputs: Inputs) -> Any:
        if self._is_direct and isinstance(inputs, Tensor):
            return self.forward(inputs)
        positional, by_name = self.signature.arguments(inputs)
        return self.forward(*positional, **by_name)


def named_inputs(model: nn.Module | None, inputs: Inputs) -> dict[str, Any]:
    """Return the inputs by the names that `model` gives them; without a model, one input is `x`."""
    if model is not None:
        return ForwardSignature.of(model).match(inputs)
    return dict(inputs) if isinstance(inputs, Mapping) else {ANONYMOUS: inputs}
