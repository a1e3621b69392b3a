"""An ONNX file as a torch module, so that it is scored as any network is."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from chop.onnx.metadata import CODES_SUFFIX
from chop.onnx.runtime import Runtime, input_dtype

__all__ = ["RuntimeModule"]


class RuntimeModule(nn.Module):
    """Calls a runtime; the parameters of `forward` are the inputs of the model.

    It returns the only output, or a dict of several; codes beside their values are left out.
    Inputs are permuted by `permute`, as for a network that takes images with their channels last.
    `final_op` is that of `OnnxGraph`, for losses.
    """

    def __init__(
        self, runtime: Runtime, *, permute: tuple[int, ...] | None = None, final_op: str = ""
    ) -> None:
        super().__init__()
        self.runtime, self.final_op = runtime, final_op
        self._permute = permute
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(name, kind) for name in runtime.inputs]
        self._signature = inspect.Signature(parameters)
        values = [
            name for name in runtime.outputs if name.removesuffix(CODES_SUFFIX) not in (name, "")
        ]
        self._codes = {
            name for name in values if name.removesuffix(CODES_SUFFIX) in runtime.outputs
        }

        def forward(*args: Tensor, **kwargs: Tensor) -> Any:
            return self._run(*args, **kwargs)

        vars(forward)["__signature__"] = self._signature
        self.forward = forward

    def _run(self, *args: Tensor, **kwargs: Tensor) -> Any:
        given = self._signature.bind(*args, **kwargs).arguments
        if self._permute is not None:
            given = {name: x.permute(self._permute) for name, x in given.items()}
        arrays = {
            name: x.detach().cpu().numpy().astype(input_dtype(self.runtime.inputs[name].type))
            for name, x in given.items()
        }
        results = {
            name: torch.from_numpy(array)
            for name, array in self.runtime.run(arrays).items()
            if name not in self._codes
        }
        return next(iter(results.values())) if len(results) == 1 else results
