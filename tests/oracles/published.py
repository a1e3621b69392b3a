"""Published networks and their data: ResNet-20 for CIFAR-10, and the four of MLPerf Tiny."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

SEED, CALIBRATION = 0, 500


class Block(nn.Module):
    """Two convolutions, and a shortcut with channels of zeros."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.added = (after - before) // 2

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.added:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.added, self.added))
        return F.relu(y + x)


class ResNet20(nn.Module):
    """The network of resnet20-12fca82f.th, as somebody would write it for that file."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        widths = {1: (16, 16), 2: (16, 32), 3: (32, 64)}
        for stage, (before, after) in widths.items():
            first = Block(before, after, 1 + (before != after))
            others = [Block(after, after, 1) for _ in range(2)]
            self.add_module(f"layer{stage}", nn.Sequential(first, *others))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(F.avg_pool2d(x, x.size()[3]).flatten(1))


@dataclass
class Published:
    """A network, samples for calibration and others for its score, and the score as published."""

    model: nn.Module
    samples: Tensor
    tested: Tensor
    labels: Tensor | None
    published: float | None  # per cent
    file: Path | None = None


def cifar10(shared: Path) -> tuple[Tensor, Tensor]:
    """The test images, channels last, from 0 to 255."""
    with np.load(shared / "cifar10-test.npz") as data:
        return torch.from_numpy(data["x"]).float(), torch.from_numpy(data["y"]).long()


def resnet20(shared: Path) -> Published:
    file = shared / "resnet_cifar10" / "resnet20-12fca82f.th"
    state = torch.load(file, weights_only=True, map_location="cpu")["state_dict"]
    model = ResNet20()
    model.load_state_dict({name.removeprefix("module."): t for name, t in state.items()})
    images, labels = cifar10(shared)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = ((images / 255 - mean) / std).permute(0, 3, 1, 2).contiguous()
    return Published(model.eval(), x[:CALIBRATION], x[CALIBRATION:], labels[CALIBRATION:], 91.73)


def tiny(shared: Path, name: str, folder: Path) -> tuple[nn.Module, Path]:
    """A network of MLPerf Tiny, through an ONNX file."""
    from chop.onnx.reading import read_model

    from .tflite_networks import converted

    file = converted(shared / "mlperf_tiny" / f"{name}.tflite", folder)
    return read_model(file).eval(), file


def resnet8(shared: Path, folder: Path) -> Published:
    model, file = tiny(shared, "pretrainedResnet", folder)
    x, labels = cifar10(shared)
    return Published(model, x[:CALIBRATION], x[CALIBRATION:], labels[CALIBRATION:], 87.2, file)


def keywords(shared: Path, folder: Path) -> Published:
    model, file = tiny(shared, "kws_ref_model_float32", folder)
    with np.load(shared / "mlperf_tiny" / "kws01.npz") as data:
        codes, labels = torch.from_numpy(data["x"]).float(), torch.from_numpy(data["y"]).long()
    x = (codes.view(-1, 49, 10, 1) - 83) * 0.5847029  # of the int8 network's input
    return Published(model, x[::2], x[1::2], labels[1::2], 90.0, file)


def anomalies(shared: Path, folder: Path) -> Published:
    model, file = tiny(shared, "ad01_fp32", folder)
    x = 5 * torch.randn(1000, 640, generator=torch.Generator().manual_seed(SEED)) - 10
    return Published(model, x[:500], x[500:], None, None, file)


def wake_words(shared: Path, folder: Path) -> Published:
    model, file = tiny(shared, "vww_96_float", folder)
    images = cifar10(shared)[0][:400].permute(0, 3, 1, 2)
    x = F.interpolate(images, 96, mode="bilinear").permute(0, 2, 3, 1) / 255
    return Published(model, x[:200], x[200:], None, None, file)


MLPERF = {"resnet8": resnet8, "keywords": keywords, "anomalies": anomalies, "wake": wake_words}


def static_steps(published: Published, name: str) -> list[Any]:
    """The passes of the documented recipe of 8 bits."""
    batches = [{name: batch} for batch in published.samples.split(100)]
    return [
        "init_metadata",
        ("add_common_metadata", {"dummy_in": batches[0], "add_value": False}),
        "add_software_metadata",
        "fold_batch_norm",
        ("calibrate", {"input_generator": batches, "silent": True}),
        "quantize_static",
    ]
