"""Inputs as the labs ask for them."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from chop.dataset import MaseDataModule
from chop.ir import MaseGraph
from chop.models import MaseModelInfo
from chop.tools.get_input import InputGenerator, get_cf_args, get_dummy_input

VISION = MaseModelInfo("net", "toy", "vision", image_classification=True)
TEXT = MaseModelInfo("reader", "manual", "nlp", sequence_classification=True)


@pytest.fixture
def data_module():
    module = MaseDataModule("toy_tiny", batch_size=4096, num_workers=0)
    module.prepare_data()
    module.setup()
    return module


class Sentences:
    """A data module of three tokenised sentences, all loaders alike."""

    batch_size = 2
    train_dataset = [  # noqa: RUF012
        {"sentence": "abc", "input_ids": torch.arange(5) + i}
        | {"attention_mask": torch.ones(5), "labels": [1]}
        for i in range(3)
    ]

    def train_dataloader(self):
        samples = [
            {k: torch.as_tensor(v) for k, v in s.items() if k != "sentence"}
            for s in self.train_dataset
        ]
        return DataLoader(samples, batch_size=2)


class Reader(nn.Module):
    def forward(self, input_ids, attention_mask=None, labels=None, use_cache=True, head_mask=None):
        return input_ids


def test_the_labs_call_runs_as_written(data_module):
    input_generator = InputGenerator(
        data_module=data_module, model_info=VISION, task="cls", which_dataloader="train"
    )
    dummy_in = next(iter(input_generator))
    assert dummy_in.keys() == {"x"}
    assert nn.Flatten()(dummy_in["x"]).shape == (4096, 4)


@pytest.mark.parametrize("which", ["train", "val", "test"])
def test_a_generator_ends_and_can_be_iterated_again(data_module, which):
    generator = InputGenerator(VISION, data_module, "cls", which)
    assert generator.batch_size == 4096
    for _ in range(2):
        assert [len(batch["x"]) for batch in generator] == [4096, 4096, 2048]
        assert generator.current_batch == 3
    with pytest.raises(StopIteration):
        next(generator)


def test_no_more_than_max_batches_come(data_module):
    generator = InputGenerator(None, data_module, "classification", "val", max_batches=2)
    assert generator.max_batches == 2
    assert len(list(generator)) == 2
    assert len(list(generator)) == 2


def test_next_works_without_iter(data_module):
    generator = InputGenerator(VISION, data_module, "cls", "test", max_batches=1)
    expected = next(iter(data_module.test_dataloader()))[0]
    assert torch.equal(next(generator)["x"], expected)
    with pytest.raises(StopIteration):
        next(generator)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"which_dataloader": "vall"}, "unknown dataloader 'vall'; did you mean 'val'"),
        ({"task": "lm"}, "unknown task 'lm'"),
        ({"max_batches": 0}, "max_batches must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused(data_module, wrong, message):
    arguments = {"task": "cls", "which_dataloader": "train"} | wrong
    with pytest.raises(ValueError, match=message):
        InputGenerator(VISION, data_module, **arguments)


def test_dummy_input_is_a_whole_batch_and_has_no_values_by_default(data_module):
    assert get_dummy_input(VISION, data_module, "cls")["x"].device.type == "meta"
    x = get_dummy_input(model_info=None, data_module=data_module, task="cls", device="cpu")["x"]
    assert x.shape == (4096, 1, 2, 2)
    assert x.device.type == "cpu"


def test_dummy_input_needs_data():
    with pytest.raises(ValueError, match=r"call its prepare_data\(\) and setup\(\)"):
        get_dummy_input(VISION, MaseDataModule("toy_tiny", 4), "cls")


def test_text_comes_by_the_names_that_the_task_knows():
    generator = InputGenerator(TEXT, Sentences(), "lm", "train")
    assert [len(batch["input_ids"]) for batch in generator] == [2, 1]
    sample = get_dummy_input(TEXT, Sentences(), "cls", device="cpu")
    shapes = {"input_ids": (1, 5), "attention_mask": (1, 5), "labels": (1, 1)}
    assert {name: tuple(x.shape) for name, x in sample.items()} == shapes
    translated = get_dummy_input(TEXT, Sentences(), "translation")
    assert translated.keys() == {"input_ids", "attention_mask"}


def test_cf_args_fix_what_the_task_does_not_give():
    assert get_cf_args(VISION, "cls", Reader()) == {}
    assert get_cf_args(None, "cls", Reader()) == {}
    assert get_cf_args(TEXT, "cls", Reader()) == {"use_cache": True, "head_mask": None}


def test_cf_args_of_a_patched_model_are_its_own():
    model = Reader()
    model.patched_nodes = {"concrete_forward_args": {"past": None}}
    assert get_cf_args(TEXT, "cls", model) == {"past": None}


class Named(nn.Module):
    def forward(self, features, scale=1.0):
        return features * scale


class Unnamed(nn.Module):
    def forward(self, *everything):
        return everything[0]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Named(), "features"),
        (nn.Sequential(nn.Flatten()), "input"),
        (MaseGraph(nn.Sequential(nn.Flatten())).model, "input"),
        (MaseGraph(Named()).model, "features"),
        (Unnamed(), "x"),
        (None, "x"),
    ],
)
def test_a_batch_is_called_what_the_model_calls_it(data_module, model, name):
    assert get_dummy_input(VISION, data_module, "cls", model=model).keys() == {name}
    generator = InputGenerator(VISION, data_module, "cls", "train", model=model)
    assert next(iter(generator)).keys() == {name}


def test_the_inputs_of_a_language_model_have_their_own_names():
    inputs = get_dummy_input(TEXT, Sentences(), "cls", model=Reader())
    assert inputs.keys() == {"input_ids", "attention_mask", "labels"}
