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


class Sentences(torch.utils.data.Dataset):
    """Tokens as dictionaries with labels, as tokenised data sets of transformers are."""

    def __init__(self, seed):
        rng = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, 50, (256, 8), generator=rng)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index]
        mask = torch.ones_like(tokens)
        return {"input_ids": tokens, "attention_mask": mask, "labels": int(tokens[0] > 25)}


@pytest.mark.slow
def test_a_network_of_transformers_learns_from_dictionaries(small, package):
    transformers = package("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "vocab_size": 50}
    config = transformers.BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    of = small.data(train_dataset=Sentences(0), val_dataset=Sentences(1), batch_size=32)
    score = small.training(model=model, of=of, max_epochs=5).fit().validation
    assert score.accuracy > 0.9
