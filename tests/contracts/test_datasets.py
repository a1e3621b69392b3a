"""Every registered data set keeps the promises of a data set."""

import runpy
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chop.dataset import DATASETS, MaseDataModule, TensorSplit, cifar, get_dataset, get_dataset_info

IMAGES = runpy.run_path(str(Path(__file__).parents[1] / "dataset" / "image_files.py"))
LAYOUTS = runpy.run_path(str(Path(__file__).parents[1] / "dataset" / "layouts.py"))


@dataclass(frozen=True)
class Example:
    """What a data set is called with in these tests, and what it promises.

    `options(folder)` may write the files that the set reads into the empty `folder`.
    """

    options: Callable[[Path], dict[str, Any]] = lambda folder: {}
    disjoint: bool = True  # no sample of one split is in another one


JETS = LAYOUTS["jets"]()


def own_npz(folder: Path) -> dict[str, Any]:
    np.savez(folder / "pictures.npz", x=RANDOM.integers(0, 256, (90, 3, 4, 5), np.uint8), y=TWO)
    return {"path": folder / "pictures.npz"}


def own_tensors(folder: Path) -> dict[str, Any]:
    x = torch.from_numpy(RANDOM.standard_normal((90, 7)))
    torch.save({"x": x, "y": torch.from_numpy(TWO)}, folder / "own.pt")
    return {"path": folder / "own.pt"}


def mnist_files(folder: Path) -> dict[str, Any]:
    IMAGES["write_mnist"](folder, IMAGES["some_images"]((28, 28), 10))
    return {"path": folder}


def cifar_archive(num_classes: int) -> Callable[[Path], dict[str, Any]]:
    def options(folder: Path) -> dict[str, Any]:
        files = cifar.CIFAR10 if num_classes == 10 else cifar.CIFAR100
        images = IMAGES["some_images"]((32, 32, 3), num_classes)
        contents = IMAGES["cifar_files"](images, files)
        return {"path": IMAGES["write_archive"](folder / files.archive, contents)}

    return options


RANDOM = np.random.default_rng(0)
TWO = np.arange(90) % 2

# a data set without a line here fails the first test
EXAMPLES = {
    "cifar10": Example(cifar_archive(10)),
    "cifar100": Example(cifar_archive(100)),
    "csv": Example(lambda folder: {"path": LAYOUTS["write_csv"](folder / "own.csv", JETS)}),
    "digits": Example(),
    "friedman": Example(),
    "jsc": Example(lambda folder: {"path": LAYOUTS["write_cernbox"](folder / "jsc.h5", JETS)}),
    "jsc-openml": Example(lambda folder: {"path": LAYOUTS["write_arff"](folder / "j.arff", JETS)}),
    "jsc-sim": Example(),
    "mnist": Example(mnist_files),
    "npz": Example(own_npz),
    "parquet": Example(lambda folder: {"path": LAYOUTS["write_parquet"](folder / "j.pq", JETS)}),
    "tensors": Example(own_tensors),
    "toy_tiny": Example(),
}
OURS = sorted({d.info.name for d in DATASETS.values() if d.load.__module__.startswith("chop.")})
DESCRIBED = {"imagenet"}  # data sets without data
WITH_EXAMPLE = [name for name in OURS if name in EXAMPLES]


def test_every_data_set_has_an_example():
    assert set(OURS) - DESCRIBED == EXAMPLES.keys()


def test_imagenet_is_described_without_images():
    info = get_dataset_info("imagenet")
    assert (info.num_classes, info.image_size) == (1000, (3, 224, 224))
    with pytest.raises(ValueError, match=r"a description without images.*npz.*`path`"):
        MaseDataModule("imagenet").setup("fit")


@pytest.fixture(scope="module", autouse=True)
def _offline():
    """Data that is there already is never asked for over the network."""

    def refuse(*_args, **_more):
        raise AssertionError("a data set that has its file opened a connection")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "socket", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        yield


@dataclass(frozen=True)
class Loaded:
    """A data set as its example loads it."""

    example: Example
    info: Any
    options: dict[str, Any]
    splits: dict[str, TensorSplit]


def load(name: str, options: dict[str, Any], cache: Path) -> dict[str, TensorSplit]:
    splits = get_dataset_info(name, cache=cache, **options).available_splits
    return {split: get_dataset(name, split, cache=cache, **options) for split in splits}


@pytest.fixture(scope="module", params=WITH_EXAMPLE)
def loaded(request, tmp_path_factory) -> Loaded:
    name, example = request.param, EXAMPLES[request.param]
    options = example.options(tmp_path_factory.mktemp("files"))
    cache = tmp_path_factory.mktemp("cache")
    info = get_dataset_info(name, cache=cache, **options)
    return Loaded(example, info, options, load(name, options, cache))


def test_samples_have_the_shape_that_the_set_names(loaded):
    info = loaded.info
    shape = info.image_size if info.image_classification else (info.num_features,)
    for split in loaded.splits.values():
        x, y = split[:8]
        assert x.shape == (8, *shape)
        assert x.dtype == torch.float32
        assert y.shape == (8,)
        assert split[0][0].shape == shape


def test_every_sample_is_finite(loaded):
    for split in loaded.splits.values():
        assert split[: len(split)][0].isfinite().all()


def test_labels_are_classes_and_training_sees_them_all(loaded):
    info = loaded.info
    if info.known_task == "reg":
        assert all(
            s.y.dtype == torch.float32 and s.y.isfinite().all() for s in loaded.splits.values()
        )
        return
    for split in loaded.splits.values():
        assert split.y.dtype == torch.int64
        assert split.y.min() >= 0
        assert split.y.max() < info.num_classes
    assert loaded.splits["train"].y.unique().numel() == info.num_classes
    assert len(info.class_names) in (0, info.num_classes)
    assert len(info.feature_names) in (0, info.num_features)


@pytest.mark.sampled(6)
def test_splits_share_no_sample(loaded):
    if not loaded.example.disjoint:
        return
    names = [name for name in loaded.splits if name != "pred"]
    rows = {n: {row.numpy().tobytes() for row in loaded.splits[n].x} for n in names}
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            assert not rows[one] & rows[other], (one, other)


def test_data_is_the_same_every_time(loaded, tmp_path):
    again = load(loaded.info.name, loaded.options, tmp_path)
    assert again.keys() == loaded.splits.keys()
    for name, split in again.items():
        assert torch.equal(split.x, loaded.splits[name].x)
        assert torch.equal(split.y, loaded.splits[name].y)


def test_the_data_module_serves_it(loaded, tmp_path):
    options = {"cache": tmp_path, "load_from_cache_file": False} | loaded.options
    data = MaseDataModule(loaded.info.name, batch_size=16, **options)
    data.prepare_data()
    data.setup("fit")
    assert len(data.train_dataset) == len(loaded.splits["train"])
    x, _y = next(iter(data.train_dataloader()))
    assert len(x) == min(16, len(data.train_dataset))


def test_an_option_that_the_set_does_not_have_is_refused(loaded):
    with pytest.raises(ValueError, match="no option 'nonsense'"):
        get_dataset(loaded.info.name, "train", **loaded.options, nonsense=1)
