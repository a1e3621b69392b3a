"""The prediction in what a model returns: a tensor, or one inside a tuple, dict or dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.dataset.matching import ModelCall
from chop.dataset.nested import Inputs, copied
from chop.ir.graph.trial_runs import unchanged
from chop.ir.probabilities import INVERSES, KeepsScores

KEY = "logits"  # the prediction in a mapping, dataclass or ModelOutput


class Predictor:
    """Calls a model with inputs of a data set, and returns its prediction.

    `forward` may wrap the model, for several devices. With `scores`, the prediction of a model
    that ends in softmax is what enters it.
    """

    def __init__(
        self, model: nn.Module, forward: Callable[..., Any] | None = None, *, scores: bool = False
    ) -> None:
        self.model, self.call = model, ModelCall(model, forward)
        # the op at the end, which a module that is no network of torch declares; None: not known
        declared = getattr(model, "final_op", None)
        self._is_foreign = isinstance(declared, str)
        end: str | None = (declared if self._is_foreign else None) if scores else ""
        # by `training`, as a model may return scores while it is trained, and probabilities later
        self._ends = {True: end, False: end}

    def __call__(self, inputs: Inputs) -> Tensor:
        end = self._ends[self.model.training]
        if end == "":
            return prediction_of(self.call(inputs))
        if end is not None and (self._is_foreign or torch.compiler.is_compiling()):
            # a mode does not see into other runtimes, and breaks the graph of a compiled step
            return INVERSES[end](prediction_of(self.call(inputs)))
        prediction, scores, end = prediction_and_scores(lambda: self.call(inputs))
        self._ends[self.model.training] = end
        return prediction if scores is None else scores

    def learn_the_end(self, inputs: Inputs) -> None:
        """Run the model once as it is, so that compiled code knows how it ends in this mode.

        Its buffers, such as statistics of batch norms, its attributes and the random state stay.
        """
        held = [*self.model.parameters(), *self.model.buffers()]
        with torch.no_grad(), unchanged(self.model, held):
            self(copied(inputs))


def prediction_and_scores(run: Callable[[], Any]) -> tuple[Tensor, Tensor | None, str]:
    """Return the prediction of a run of a model, and the scores and the op that it comes from."""
    with KeepsScores() as kept:
        prediction = prediction_of(run())
    return prediction, *kept.origin(prediction)


def prediction_of(output: Any) -> Tensor:
    """Return the tensor that a model predicts.

    It is the first element of a tuple or list; of a mapping, dataclass or ModelOutput it is
    `logits`, or else the only tensor.
    """
    if isinstance(output, Tensor):
        return output
    fields = _fields(output)
    if fields is not None:
        tensors = [value for value in fields.values() if isinstance(value, Tensor)]
        if isinstance(fields.get(KEY), Tensor):
            return fields[KEY]  # type: ignore[no-any-return]
        if len(tensors) == 1:
            return tensors[0]
        what = f"{type(output).__name__} with {', '.join(map(str, fields)) or 'nothing'}"
    elif isinstance(output, tuple | list):
        if output and isinstance(output[0], Tensor):
            return output[0]
        what = f"a {type(output).__name__} that does not start with a tensor"
    else:
        what = type(output).__name__
    raise ValueError(
        f"the model returns {what}, in which the prediction cannot be found; return a tensor, a "
        f"tuple that starts with it, or a dictionary with it under {KEY!r}"
    )


def _fields(output: Any) -> Mapping[str, Any] | None:
    """Return the named values of a mapping, dataclass or named tuple; None for other objects."""
    if isinstance(output, Mapping):  # not items(), which a result may be called
        return {key: output[key] for key in output}
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    if isinstance(output, tuple) and KEY in getattr(output, "_fields", ()):
        return output._asdict()  # type: ignore[attr-defined,no-any-return]
    return None
