"""Small helpers: what each name of the labs gives."""

import os

import numpy as np
import pytest
import torch
from torch import nn

from chop.tools import utils


@pytest.fixture
def gpus(monkeypatch):
    """`gpus(n)` makes torch report n CUDA devices."""

    def report(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return report


@pytest.mark.parametrize(
    ("accelerator", "device"),
    [
        ("auto", "cuda:0"),
        ("gpu", "cuda:0"),
        ("cuda", "cuda:0"),
        ("cuda:1", "cuda:1"),
        ("cpu", "cpu"),
        (torch.device("cpu"), "cpu"),
        (torch.device("cuda:1"), "cuda:1"),
    ],
)
def test_accelerators_of_a_machine_with_two_gpus(gpus, accelerator, device):
    gpus(2)
    assert utils.parse_accelerator(accelerator) == torch.device(device)


def test_auto_is_the_cpu_where_there_is_no_gpu(gpus):
    gpus(0)
    assert utils.parse_accelerator() == torch.device("cpu")


@pytest.mark.parametrize("accelerator", ["gpu", "cuda", "cuda:0", torch.device("cuda")])
def test_a_gpu_that_is_not_there_is_refused(gpus, accelerator):
    gpus(0)
    with pytest.raises(RuntimeError, match="finds no CUDA device; use 'cpu'"):
        utils.parse_accelerator(accelerator)


def test_a_gpu_beyond_the_last_is_refused(gpus):
    gpus(2)
    with pytest.raises(RuntimeError, match="'cuda:2': this machine has cuda:0 to cuda:1"):
        utils.parse_accelerator("cuda:2")


@pytest.mark.parametrize("there", [True, False])
def test_mps_where_there_is_an_apple_gpu(monkeypatch, there):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: there)
    if there:
        assert utils.parse_accelerator("mps").type == "mps"
        return
    with pytest.raises(RuntimeError, match="does not have an Apple GPU"):
        utils.parse_accelerator("mps")


@pytest.mark.parametrize(("name", "meant"), [("cdua", "cuda"), ("GPU", "gpu"), ("tpu", None)])
def test_an_unknown_accelerator_is_refused(name, meant):
    with pytest.raises(ValueError, match=f"unknown accelerator '{name}'") as refused:
        utils.parse_accelerator(name)
    assert meant is None or f"did you mean '{meant}'?" in str(refused.value)


def test_tensors_and_arrays_change_into_each_other():
    x = torch.ones(2, requires_grad=True)
    assert isinstance(utils.to_numpy(x), np.ndarray)
    assert utils.is_tensor(utils.to_tensor(np.ones(2)))
    assert utils.to_numpy_if_tensor("a") == "a"
    assert utils.to_tensor_if_numpy("a") == "a"
    assert np.array_equal(utils.to_numpy_if_tensor(x), np.ones(2))
    assert torch.equal(utils.to_tensor_if_numpy(np.ones(2)), torch.ones(2, dtype=torch.float64))


def test_weights_are_copied_past_autograd():
    source, target = nn.Linear(3, 2), nn.Linear(3, 2)
    utils.copy_weights(source.weight, target.weight)
    assert torch.equal(source.weight, target.weight)
    assert target.weight.is_leaf


def test_replacing_values_leaves_the_callers_dictionary_alone():
    nested = {"a": torch.ones(1), "b": {"c": 3}}
    replaced = utils.nested_dict_replacer(nested, utils.to_numpy_if_tensor)
    assert isinstance(replaced["a"], np.ndarray)
    assert utils.is_tensor(nested["a"])


@pytest.mark.parametrize(
    ("n", "factors"), [(1, {1}), (7, {1, 7}), (36, {1, 2, 3, 4, 6, 9, 12, 18, 36})]
)
def test_factors(n, factors):
    assert utils.get_factors(n) == factors


def test_the_checkpoint_of_a_training(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no \.ckpt file in"):
        utils.get_checkpoint_file(tmp_path)
    for age, name in enumerate(["newest.ckpt", "older.ckpt"]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    assert utils.get_checkpoint_file(tmp_path) == str(tmp_path / "newest.ckpt")
    (tmp_path / "best.ckpt").touch()
    assert utils.get_checkpoint_file(str(tmp_path)) == str(tmp_path / "best.ckpt")
