"""Whatever a file holds, loading it ends in one sentence, and the model stays as it was."""

import json
import random
import re
import tarfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from chop.checkpoints import load_model

WEIGHT = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def state(**changed):
    return dict(network().state_dict()) | {f"0.{name}": value for name, value in changed.items()}


def refused(path, load_type, said=""):
    """What is said of a file; the model has not changed."""
    model = network()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises((ValueError, FileNotFoundError), match=said) as error:
        load_model(path, load_type, model)
    text = str(error.value)
    assert str(path) in text
    assert "\n" not in text
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    return text


@pytest.mark.sampled(1)
@pytest.mark.parametrize("load_type", ["pt", "pl", "mz", "hf"])
def test_any_text_file_is_one_sentence(tmp_path, load_type):
    file = tmp_path / "notes.ckpt" if load_type == "pl" else tmp_path / "notes"
    for first in range(256):
        file.write_bytes(bytes([first]) + b"oot:x:0:0:root:/root:/bin/sh\nbin:x:1:1::/:/bin/sh\n")
        said = refused(file, load_type, "damaged or not a checkpoint")
        fixes = {"mz": "a graph that `ch transform` saved", "hf": "a Hugging Face directory"}
        assert fixes.get(load_type, "torch.save") in said
        assert "out of range" not in said  # what torch's own code trips over


@pytest.mark.parametrize("zipped", [True, False])
def test_flipped_bits_are_one_sentence_or_a_checkpoint(tmp_path, zipped):
    file, chance = tmp_path / "a.pt", random.Random(7)
    torch.save(state(), file, _use_new_zipfile_serialization=zipped)
    whole, said = file.read_bytes(), []
    for _ in range(100):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            content[chance.randrange(min(len(content), 900))] ^= 1 << chance.randrange(8)
        file.write_bytes(content[: chance.choice([len(content), chance.randrange(len(content))])])
        try:
            load_model(file, "pt", network())
        except ValueError as error:
            said.append(str(error))
    assert len(said) > 20
    assert all(str(file) in sentence for sentence in said)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda x: x.to_sparse(), "0.weight is sparse"),
        (lambda x: x.to_sparse_csr(), "0.weight is sparse"),
        (lambda x: x.to("meta"), "0.weight has no values"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "0.weight is quantised"),
        (lambda x: torch.nested.nested_tensor([x, x[:2]]), "0.weight is nested"),
        (lambda x: x.to(torch.complex64), "0.weight is complex64"),
        (lambda x: x > 0, "0.weight is bool"),
    ],
    ids=["sparse", "csr", "meta", "quantised", "nested", "complex", "bool"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, of what it calls a prototype
def test_tensors_that_are_no_plain_numbers_are_refused(tmp_path, made, said):
    value = made(WEIGHT)
    torch.save(state(weight=value), tmp_path / "a.pt")
    refused(tmp_path / "a.pt", "pt", f"{re.escape(said)}.*; save the weights as plain tensors")
    wrapped = {f"model.{key}": tensor for key, tensor in state(weight=value).items()}
    torch.save({"state_dict": wrapped}, tmp_path / "a.ckpt")
    refused(tmp_path / "a.ckpt", "pl", re.escape(said))


def test_a_buffer_of_booleans_is_loaded_into_one(tmp_path):
    model = nn.Module()
    model.register_buffer("mask", torch.tensor([True, False]))
    torch.save({"mask": torch.tensor([False, True])}, tmp_path / "a.pt")
    assert load_model(tmp_path / "a.pt", "pt", model).mask.tolist() == [False, True]


@pytest.mark.parametrize("key", [1, None, (1, 2), b"0.weight"], ids=repr)
def test_keys_that_are_not_text_are_refused(tmp_path, key):
    torch.save(state() | {key: WEIGHT}, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", "pt", "is not text")


@pytest.mark.parametrize("given", [[1], None, "text", {"load_type": ["mz"], "load_name": 1}])
def test_hyper_parameters_of_others_do_not_matter(tmp_path, given):
    wrapped = {f"model.{key}": value for key, value in state().items()}
    content = {"state_dict": {**wrapped, 7: WEIGHT}, "hyper_parameters": given}
    torch.save(content, tmp_path / "a.ckpt")
    load_model(tmp_path / "a.ckpt", "pl", network())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "weight_map"),
        ("[]", "not an object"),
        ('{"weight_map": null}', "weight_map"),
        ('{"weight_map": ["a"]}', "weight_map"),
        ('{"weight_map": {"0.weight": 1}}', "weight_map"),
        ('{"weight_map": {"0.weight": ["a.safetensors"]}}', "weight_map"),
        ('{"weight_map": {"0.weight": "../a.safetensors"}}', "weight_map"),
        ('{"weight_map": {"0.weight": "/a.safetensors"}}', "weight_map"),
        ('{"weight_map": {}}', "weight_map"),
        ("not json", "Expecting value at line 1"),
        ("[" * 100_000, "nested too deeply"),
        ("\ud800", "byte 0 is not UTF-8"),
        ('{"weight_map": {"0.weight": "b.safetensors"}}', r"b\.safetensors"),
    ],
)
def test_an_index_that_names_no_files_is_refused(tmp_path, content, said):
    save_file(state(), tmp_path / "a.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(content.encode("utf-8", "surrogatepass"))
    refused(tmp_path, "hf", said)


def test_an_index_in_several_files_is_still_read(tmp_path):
    save_file(state(), tmp_path / "a.safetensors")
    weights = dict.fromkeys(state(), "a.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    load_model(tmp_path, "hf", network())


def test_a_file_of_old_versions_of_torch_is_refused_without_advice_to_run_it(tmp_path):
    file = tmp_path / "old.pt"
    with tarfile.open(file, "w") as tar:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            tar.addfile(tarfile.TarInfo(name))
    assert "weights_only" not in refused(file, "pt", "damaged or not a checkpoint")
