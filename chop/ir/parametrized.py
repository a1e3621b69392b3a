"""Layers with parametrized tensors: torch computes `weight` from parameters of other names."""

from __future__ import annotations

from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

TABLE = "parametrizations"  # the name under which torch keeps them in a layer


def parametrized_names(layer: nn.Module) -> list[str]:
    """Return the names of the tensors of a layer that are computed from other parameters."""
    return list(layer.parametrizations) if parametrize.is_parametrized(layer) else []  # type: ignore[arg-type]


def parameters_by_operand(layer: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of a layer, of which one stands for each parametrized tensor.

    That is the one with the most elements, under the name of the tensor: of a weight norm the
    direction is `weight`, while the lengths keep their name. Nothing is computed.
    """
    renamed = {
        f"{path}.{_main(part)}": path.replace(f"{TABLE}.", "")
        for path, part in layer.named_modules()
        if isinstance(part, parametrize.ParametrizationList)
    }
    return {renamed.get(name, name): p for name, p in layer.named_parameters()}


def _main(originals: Any) -> str | None:
    """Return the name of the largest of the parameters that a tensor is computed from."""
    sizes = {name: p.numel() for name, p in originals._parameters.items() if p is not None}
    return max(reversed(sizes), key=sizes.__getitem__, default=None)


def copies_of_results(model: nn.Module) -> dict[int, Any]:
    """Return copies of tensors that layers keep of the last call, which torch refuses to copy.

    Such are the weight of torch.nn.utils.weight_norm, and the weights of a parametrized LSTM.
    """
    kept = [value for module in model.modules() for value in vars(module).values()]
    flat = chain(kept, *(value for value in kept if isinstance(value, list)))
    results = [value for value in flat if isinstance(value, Tensor) and not value.is_leaf]
    return {id(result): result.detach().clone() for result in results}
