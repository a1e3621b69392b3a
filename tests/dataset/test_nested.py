"""Inputs of a data set: one tensor, or several in tuples, lists and dictionaries."""

from collections import UserDict, namedtuple

import pytest
import torch

from chop.dataset import TensorSplit
from chop.dataset.nested import joined, map_tensors, num_samples, pair_of, shapes_of, split_up
from chop.dataset.tensors import EpochPass, TensorLoader, batches

Named = namedtuple("Named", "a b")
A, B = torch.arange(10.0).view(5, 2), torch.arange(5)
NESTED = [
    A,
    (A, B),
    [A, (B, A)],
    {"image": A, "rest": {"ids": B, "pair": (A, B)}},
    Named(A, B),
]


@pytest.mark.parametrize("inputs", NESTED)
def test_splitting_and_joining_gives_the_inputs_again(inputs):
    assert num_samples(inputs) == 5
    parts = list(split_up(inputs, 2))
    assert [num_samples(part) for part in parts] == [2, 2, 1]
    whole = joined(parts)
    same = map_tensors(lambda t: t, whole)
    assert str(same) == str(inputs if isinstance(inputs, torch.Tensor) else map_all(inputs))


def map_all(inputs):
    return map_tensors(torch.clone, inputs)


def test_other_mappings_become_dictionaries_and_other_values_stay():
    doubled = map_tensors(lambda t: 2 * t, UserDict({"a": A, "text": "words", "none": None}))
    assert type(doubled) is dict
    assert torch.equal(doubled["a"], 2 * A)
    assert (doubled["text"], doubled["none"]) == ("words", None)


def test_shapes_are_named():
    assert shapes_of(A) == "(5, 2)"
    assert shapes_of({"image": A, "pair": (B, A)}) == "image (5, 2), pair.0 (5,), pair.1 (5, 2)"


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({"a": A, "b": B[:3]}, "the same number of samples, but a has 5, b has 3"),
        ({"text": "words"}, "tensors with one row per sample, not dict without any"),
        (torch.tensor(1.0), "tensors with one row per sample"),
    ],
)
def test_inputs_without_a_number_of_samples_are_refused(inputs, sentence):
    with pytest.raises(ValueError, match=sentence):
        num_samples(inputs)


def test_a_split_of_several_inputs_is_served_like_one(tmp_path):
    split = TensorSplit({"image": A, "ids": B}, torch.arange(5) % 2)
    inputs, label = split[3]
    assert (inputs["image"].tolist(), inputs["ids"].item(), label.item()) == ([6, 7], 3, 1)
    assert split[-1][0]["ids"].item() == 4
    assert split[1:3][0]["ids"].tolist() == [1, 2]
    assert split.nbytes == A.nbytes + 2 * B.nbytes
    for x, y in batches(split, 2, EpochPass(seed=1, epoch=0)):
        assert torch.equal(x["image"][:, 0], 2.0 * x["ids"])
        assert torch.equal(y, x["ids"] % 2)
    seen = [i for x, _ in TensorLoader(split, 2, shuffle=True) for i in x["ids"].tolist()]
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_fingerprints_tell_values_and_names_of_inputs_apart():
    y = torch.arange(5)
    marks = {
        TensorSplit(x, y).fingerprint
        for x in (A, (A,), {"a": A}, {"b": A}, {"a": A + 1}, {"a": A, "b": B}, {"b": B, "a": A})
    }
    assert len(marks) == 7
    assert TensorSplit({"a": A}, y).fingerprint == TensorSplit({"a": A.clone()}, y).fingerprint


def test_a_sample_is_a_pair_or_a_dictionary_with_labels():
    assert pair_of(((A, B), B))[0] == (A, B)
    inputs, labels = pair_of({"ids": A, "labels": B})
    assert inputs.keys() == {"ids"}
    assert labels is B


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        ((A, A, B), r"a pair \(inputs, label\), not 3 values; put several inputs into a tuple"),
        ({"ids": A}, "not dict"),
        (A, "not Tensor"),
        ((A, ["cat"] * 5), "labels of a batch must be a tensor, not list"),
    ],
)
def test_other_samples_are_refused(batch, sentence):
    with pytest.raises(ValueError, match=sentence):
        pair_of(batch)
