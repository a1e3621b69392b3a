"""The reason why a loss is NaN or infinite."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from chop.dataset.matching import ModelCall
from chop.dataset.nested import Inputs, tensors_of


def cause(model: nn.Module, batch: Inputs | None = None, data: Inputs | None = None) -> str:
    """Return the first reason, from the data to the loss, for values that are not finite.

    `batch` is the failing batch if it is known; `data` holds all samples.
    """
    for samples, what in ((batch, "the batch itself holds"), (data, "the data hold")):
        if not all(torch.isfinite(tensor).all() for tensor in tensors_of(samples)):
            return f"{what} values that are not finite: clean the data"
    for name, values in (*model.named_parameters(), *model.named_buffers()):
        if not torch.isfinite(values).all():
            return f"{name} is no longer finite: the steps are too large; lower `learning_rate`"
    layer = first_overflow(model, batch) if batch is not None else None
    if layer is not None:
        return (
            f"the output of {layer} overflows: lower `learning_rate`, set `gradient_clip`, "
            f"or use `precision='32'`"
        )
    return "the outputs are too large for the loss: lower `learning_rate` or set `gradient_clip`"


def first_overflow(model: nn.Module, x: Inputs) -> str | None:
    """Return the name of the first layer with an output that is not finite for `x`."""
    names: list[str] = []

    def look(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and not torch.isfinite(output).all():
                names.append(name)

        return hook

    leaves = [(n, m) for n, m in model.named_modules() if not any(m.children())]
    handles = [m.register_forward_hook(look(n or "the model")) for n, m in leaves]
    was_training = model.training
    try:
        model.eval()  # does not change running statistics
        with torch.no_grad():
            ModelCall(model)(x)
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    return names[0] if names else None
