"""Inputs are matched to the parameters of `forward`: dictionaries by name, others by position."""

import pytest
import torch
from torch import nn

from chop.dataset.matching import ModelCall, named_inputs
from chop.ir import MaseGraph

A, B = torch.ones(2), torch.zeros(2)


class Features(nn.Module):
    def forward(self, features, scale=1.0):
        return features * scale


class Two(nn.Module):
    def forward(self, image, table):
        return image - 2 * table


class Keyword(nn.Module):
    def forward(self, image, *, table):
        return image - 2 * table


class OnlyKeyword(nn.Module):
    def forward(self, *, table, image=None):
        return table if image is None else image - 2 * table


class Whole(nn.Module):
    def forward(self, inputs):
        return inputs["image"] - 2 * inputs["table"]


class Pair(nn.Module):
    def forward(self, pair):
        return pair[0] - 2 * pair[1]


class Open(nn.Module):
    def forward(self, *everything):
        return sum(everything)


class OpenKeywords(nn.Module):
    def forward(self, image, **more):
        return image - 2 * more["table"]


class Hugging(nn.Module):
    def forward(self, input_ids=None, attention_mask=None, labels=None):
        return input_ids


class WholeHinted(nn.Module):
    def forward(self, inputs: dict[str, torch.Tensor]):
        return inputs["image"]


class WholeOrNone(nn.Module):
    def forward(self, inputs: dict[str, torch.Tensor] | None):
        return inputs["image"]


class WholeInWords(nn.Module):
    def forward(self, inputs: "Mapping[str, torch.Tensor]"):  # noqa: F821
        return inputs["image"]


BOTH = {"table": B, "image": A}


@pytest.mark.parametrize(
    ("model", "inputs", "names"),
    [
        (Features(), A, ["features"]),
        (nn.Sequential(nn.ReLU()), A, ["input"]),
        (Features(), {"features": A}, ["features"]),
        (Features(), (A, 3.0), ["features", "scale"]),
        (Two(), (A, B), ["image", "table"]),
        (Two(), [A, B], ["image", "table"]),
        (Two(), BOTH, ["table", "image"]),
        (Keyword(), (A, B), ["image", "table"]),
        (Keyword(), BOTH, ["table", "image"]),
        (OnlyKeyword(), A, ["table"]),
        (OnlyKeyword(), BOTH, ["table", "image"]),
        (Whole(), BOTH, ["inputs"]),
        (Pair(), ([A, B],), ["pair"]),
        (OpenKeywords(), BOTH, ["table", "image"]),
        (Hugging(), {"input_ids": A, "attention_mask": B}, ["input_ids", "attention_mask"]),
        (Hugging(), A, ["input_ids"]),
    ],
)
def test_inputs_get_the_names_of_parameters(model, inputs, names):
    assert list(named_inputs(model, inputs)) == names
    assert ModelCall(model)(inputs) is not None


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Two(), (A, B)),
        (Two(), BOTH),
        (Keyword(), (A, B)),
        (Keyword(), BOTH),
        (OnlyKeyword(), BOTH),
        (Whole(), BOTH),
        (Pair(), ((A, B),)),
        (OpenKeywords(), BOTH),
    ],
)
def test_a_model_and_its_graph_are_called_alike(model, inputs):
    assert torch.equal(ModelCall(model)(inputs), A - 2 * B)
    if not isinstance(model, OpenKeywords):  # fx has one name for further keywords
        assert torch.equal(ModelCall(MaseGraph(model).model)(inputs), A - 2 * B)


@pytest.mark.parametrize("model", [Features(), nn.Sequential(nn.ReLU())])
def test_the_only_input_of_a_data_set_may_have_any_name(model):
    assert list(named_inputs(model, {"ids": A}).values()) == [A]
    assert torch.equal(ModelCall(model)({"ids": A}), A)
    assert torch.equal(ModelCall(MaseGraph(model).model)({"ids": A}), A)


def test_not_if_several_parameters_could_be_meant():
    with pytest.raises(ValueError, match="gives the inputs ids, but forward of Hugging"):
        ModelCall(Hugging())({"ids": A})


@pytest.mark.parametrize("model", [WholeHinted(), WholeInWords(), WholeOrNone()])
def test_a_forward_that_is_annotated_with_a_dictionary_gets_it(model):
    assert named_inputs(model, {"image": A}) == {"inputs": {"image": A}}
    assert torch.equal(ModelCall(model)({"image": A}), A)


def test_a_forward_without_names_takes_everything():
    assert torch.equal(ModelCall(Open())((A, A, A)), 3 * A)
    assert torch.equal(ModelCall(Open())(A), A)


def test_without_a_model_an_input_is_called_x():
    assert named_inputs(None, A).keys() == {"x"}
    assert named_inputs(None, BOTH) == BOTH


@pytest.mark.parametrize(
    ("model", "inputs", "sentence"),
    [
        (Two(), A, r"gives one input, but forward of Two takes \(image, table\); let it give a"),
        (Two(), (A, B, A), "gives 3 inputs, but forward of Two takes"),
        (Two(), {"picture": A, "table": B}, "gives the inputs picture, table, but .* same names"),
        (Two(), {"image": A}, "gives the inputs image, but forward of Two takes"),
        (Hugging(), {"input_ids": A, "mask": B}, "gives the inputs input_ids, mask, but"),
        (Keyword(), (A,), r"takes \(image, table\)|takes \(image, \*?,? ?table\)"),
    ],
)
def test_what_cannot_be_matched_is_one_sentence(model, inputs, sentence):
    with pytest.raises(ValueError, match=sentence):
        ModelCall(model)(inputs)
