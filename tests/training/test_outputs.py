"""The prediction is found in tensors, tuples, mappings and dataclasses."""

from collections import UserDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from chop.training.outputs import prediction_of

X, Y = torch.ones(2, 3), torch.zeros(2)
Named = namedtuple("Named", "hidden logits")


@dataclass
class Output:
    loss: object = None
    logits: object = None
    hidden: object = None


@pytest.mark.parametrize(
    "output",
    [
        X,
        (X, Y),
        [X],
        {"logits": X, "hidden": Y},
        {"scores": X, "names": ["a"]},
        UserDict({"logits": X, "loss": Y}),
        Output(loss=Y, logits=X),
        Output(hidden=X),
        Named(Y, X),
    ],
)
def test_it_is_found(output):
    assert prediction_of(output) is X


@pytest.mark.parametrize(
    ("output", "what"),
    [
        (None, "NoneType"),
        ((), "a tuple that does not start with a tensor"),
        ((None, X), "a tuple that does not start with a tensor"),
        ({"a": X, "b": Y}, "dict with a, b"),
        (Output(loss=X, hidden=Y), "Output with loss, logits, hidden"),
        ({}, "dict with nothing"),
    ],
)
def test_otherwise_one_sentence_says_what_to_return(output, what):
    with pytest.raises(ValueError, match=f"returns {what}, .*; return a tensor, a tuple that"):
        prediction_of(output)


@pytest.mark.slow
def test_outputs_of_transformers(package):
    output = package("transformers.modeling_outputs").SequenceClassifierOutput(loss=Y, logits=X)
    assert prediction_of(output) is X


class Wrapped(nn.Linear):
    def forward(self, input):
        return {"logits": super().forward(input), "hidden": input}


def test_a_model_that_returns_more_trains_like_one_that_does_not(small):
    losses = []
    for cls in (nn.Linear, Wrapped):
        torch.manual_seed(0)
        losses.append(small.training(model=cls(16, 5), max_epochs=2).fit().validation.loss)
    assert losses[0] == losses[1]
