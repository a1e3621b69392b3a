"""Weights of other programs load as they are published: wrapped, renamed, without counters."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from chop.checkpoints import load_model

DATA = Path(__file__).parents[2] / "shared" / "data" / "resnet_cifar10" / "resnet20-12fca82f.th"
RESNET = """
import torch
import torch.nn.functional as F
from torch import nn

from chop.models import model


class Block(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.more = 0 if stride == 1 and before == width else (width - before) // 2

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.more:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.more, self.more))
        return F.relu(y + x)


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(Block(16, 16, 1), Block(16, 16, 1), Block(16, 16, 1))
        self.layer2 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1), Block(32, 32, 1))
        self.layer3 = nn.Sequential(Block(32, 64, 2), Block(64, 64, 1), Block(64, 64, 1))
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


@model("resnet20-published", task_type="vision")
def resnet20(info) -> nn.Module:
    return ResNet20()
"""


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def compiled(key: str) -> str:
    first, _, rest = key.partition(".")
    return f"_orig_mod.{first}._orig_mod.{rest}"


RENAMED = {
    "as it is": lambda key: key,
    "DataParallel": lambda key: f"module.{key}",
    "torch.compile": lambda key: f"_orig_mod.{key}",
    "both": lambda key: f"_orig_mod.module.{key}",
    "parts of it compiled": compiled,
    "a model in a model": lambda key: f"model.{key}",
    "a model in a DataParallel": lambda key: f"module.model.{key}",
    "a part of another model": lambda key: f"backbone.{key}",
    "a part of a part": lambda key: f"student.module.backbone.{key}",
}
WRAPPED = {
    "alone": lambda state: state,
    "state_dict": lambda state: {"epoch": 3, "state_dict": state, "best_prec1": 91.7},
    "model": lambda state: {"model": state, "optimizer": {"lr": 0.1}},
    "model_state_dict": lambda state: {"model_state_dict": state, "loss": 0.3},
    "net": lambda state: {"net": state, "acc": 92.0, "epoch": 4},
    "twice": lambda state: {"state_dict": {"model": state}},
    "averaged": lambda state: {"ema": {"state_dict": state}, "epoch": 3},
}
ENDINGS = (".th", ".pt", ".pth", ".ckpt", ".pth.tar", "", ".bin")


@pytest.mark.parametrize("counters", [True, False])
@pytest.mark.parametrize("names", RENAMED)
@pytest.mark.parametrize(("wrapper", "ending"), [*zip(WRAPPED, ENDINGS, strict=True)])
def test_weights_are_found_whatever_is_around_them(tmp_path, wrapper, ending, names, counters):
    model, other, file = network(), network(), tmp_path / f"weights{ending}"
    state = {
        RENAMED[names](key): tensor
        for key, tensor in model.state_dict().items()
        if counters or not key.endswith("num_batches_tracked")
    }
    torch.save(WRAPPED[wrapper](state), file)
    for load_type in ("pt", "mz"):
        other.load_state_dict(network().state_dict())
        load_model(file, load_type, other)
        for key, tensor in model.state_dict().items():
            assert torch.equal(other.state_dict()[key], tensor), key


@pytest.mark.parametrize("ending", [".pt", ".ckpt", ".bin", ".safetensors", ""])
@pytest.mark.parametrize("load_type", ["pt", "mz", "auto"])
def test_safetensors_and_lightning_are_recognised_by_their_content(tmp_path, ending, load_type):
    model, file = network(), tmp_path / f"weights{ending}"
    save_file(model.state_dict(), file)
    lightning = {f"model.{k}": t for k, t in model.state_dict().items()} | {"loss.w": torch.ones(1)}
    whole = {"pytorch-lightning_version": "2.0", "state_dict": lightning}
    torch.save(whole, tmp_path / "lightning.pt")
    for each in (file, tmp_path / "lightning.pt"):
        if load_type == "auto" and ending == ".ckpt" and each is file:
            continue  # which says that it is Lightning's
        other = network()
        load_model(each, load_type, other)
        assert torch.equal(other[0].weight, model[0].weight)


def test_a_layer_that_is_called_like_a_wrapper_keeps_its_name(tmp_path):
    model, other = nn.Module(), nn.Module()
    model.module, other.module = nn.Linear(2, 2), nn.Linear(2, 2)
    torch.save(model.state_dict(), tmp_path / "a.pt")
    load_model(tmp_path / "a.pt", "pt", other)
    assert torch.equal(other.module.weight, model.module.weight)
    torch.save({f"module.{k}": t for k, t in model.state_dict().items()}, tmp_path / "b.pt")
    with pytest.raises(ValueError, match=r"does not fit the model"):
        load_model(tmp_path / "b.pt", "pt", network())


def test_a_checkpoint_that_contains_itself_is_refused(tmp_path):
    content = {"epoch": 3}
    content["model"] = content
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"does not hold a state_dict: 'epoch' is not a tensor"):
        load_model(tmp_path / "a.pt", "pt", network())


def test_several_networks_and_whole_modules_are_refused_with_what_to_save(tmp_path):
    state = network().state_dict()
    torch.save({"teacher": state, "student": state}, tmp_path / "a.pt")
    torch.save(network(), tmp_path / "b.pt")
    for name in ("a.pt", "b.pt"):
        for load_type in ("pt", "mz", "hf"):
            with pytest.raises(
                ValueError, match=r"save .* with torch\.save\(model\.state_dict\(\)"
            ):
                load_model(tmp_path / name, load_type, network())


def test_codes_in_place_of_weights_are_refused(tmp_path):
    state = network().state_dict()
    state["2.weight"] = (state["2.weight"] * 127).to(torch.int8)
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(
        ValueError, match=r"2\.weight is int8, but the model's is float32; save the"
    ):
        load_model(tmp_path / "a.pt", "pt", network())


def test_other_missing_weights_are_still_refused(tmp_path):
    state = {f"module.{key}": tensor for key, tensor in network().state_dict().items()}
    del state["module.1.running_mean"], state["module.1.num_batches_tracked"]
    torch.save(state, tmp_path / "a.th")
    with pytest.raises(ValueError, match=r"does not fit the model: missing 1.running_mean;"):
        load_model(tmp_path / "a.th", "pt", network())


@pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is not there")
def test_a_published_resnet_loads_as_it_is_published(here, tmp_path):
    (tmp_path / "own.py").write_text(RESNET)
    rows = torch.rand(40, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    import numpy as np

    np.savez(tmp_path / "data.npz", x=rows.numpy(), y=np.arange(40) % 10)
    words = ("resnet20-published", "npz", "--data-path", "data.npz", "--import", "own.py")
    more = ("--load", DATA, "--cpu", 0, "--accelerator", "cpu", "--batch-size", 20)
    for load_type in ((), ("--load-type", "pt")):
        code, out, err = here("test", *words, *more, *load_type)
        assert code == 0, err
        assert "accuracy" in out + err
    space: dict = {}
    exec(compile(RESNET.partition("\n\n@model")[0], "own", "exec"), space)
    ours, theirs = space["ResNet20"]().eval(), space["ResNet20"]().eval()
    load_model(DATA, "pt", ours)
    published = torch.load(DATA, weights_only=True, map_location="cpu")["state_dict"]
    named = {key.removeprefix("module."): tensor for key, tensor in published.items()}
    theirs.load_state_dict(named, strict=False)
    with torch.no_grad():
        assert torch.equal(ours(rows), theirs(rows))
