"""On a GPU images are varied and normalised where they lie, as on the CPU."""

import pytest
import torch

from chop.dataset import TensorSplit
from chop.dataset.images import CropAndFlip, Normalize
from chop.dataset.tensors import TensorLoader

pytestmark = pytest.mark.gpu

NORMALIZE = Normalize(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


def some_images():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8, generator=generator)


def test_normalizing_gives_the_values_of_the_cpu():
    x = some_images()
    torch.testing.assert_close(NORMALIZE(x.cuda()).cpu(), NORMALIZE(x))


def test_every_varied_image_is_a_crop_or_a_mirrored_crop():
    x = some_images().cuda()
    out = CropAndFlip()(x, torch.Generator("cuda").manual_seed(0))
    assert out.is_cuda
    windows = torch.nn.functional.pad(x, (4,) * 4).unfold(2, 32, 1).unfold(3, 32, 1)
    crops = windows.permute(2, 3, 0, 1, 4, 5).flatten(0, 1)  # 81 of each image
    same = (crops == out).flatten(2).all(2) | (crops.flip(-1) == out).flatten(2).all(2)
    assert same.any(0).all()


def test_a_loader_on_the_gpu_repeats_an_epoch():
    y = torch.arange(64)
    split = TensorSplit(some_images(), y, prepare=NORMALIZE, augment=CropAndFlip()).to("cuda")
    first, again = (list(TensorLoader(split, 16, shuffle=True, seed=3)) for _ in range(2))
    assert all(x.is_cuda for x, _ in first)
    assert torch.equal(torch.cat([x for x, _ in first]), torch.cat([x for x, _ in again]))
