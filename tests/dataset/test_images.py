"""MNIST, CIFAR and digits: every byte as in the official files, arithmetic per batch."""

import contextlib
import dataclasses
import gzip
import hashlib
import http.server
import runpy
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from chop.dataset import MaseDataModule, cifar, digits, get_dataset, mnist
from chop.dataset.images import CropAndFlip, Normalize

SHARED = Path(__file__).parents[3] / "shared" / "data"
WRITERS = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("image_files.py"))))
MNIST_FILES, idx, write_mnist = WRITERS.MNIST_FILES, WRITERS.idx, WRITERS.write_mnist
cifar_files, write_archive = WRITERS.cifar_files, WRITERS.write_archive


def real_or_random(file, shape, num_train, num_test):
    """Some images of a real data set; random ones where it is not at hand."""
    if (SHARED / file).exists():
        with np.load(SHARED / file) as data:
            names = ("x_train", "y_train", "x_test", "y_test")
            sizes = (num_train, num_train, num_test, num_test)
            return [data[name][:size] for name, size in zip(names, sizes, strict=True)]
    return WRITERS.some_images(shape, 10, num_train, num_test)


@pytest.fixture(scope="module")
def mnist_arrays():
    return real_or_random("mnist-small.npz", (28, 28), 200, 50)


@pytest.fixture(scope="module")
def cifar_arrays():
    return real_or_random("cifar10-small.npz", (32, 32, 3), 200, 50)


@contextlib.contextmanager
def served(folder):
    """A web server of `folder` on this machine, as an address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as web:
        thread = threading.Thread(target=web.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{web.server_port}/"
        finally:
            web.shutdown()
            thread.join()


def md5(file):
    return hashlib.md5(file.read_bytes()).hexdigest()


def rows(split):
    return list(zip_rows(split.x.numpy(), split.y.numpy()))


def zip_rows(x, y):
    """Every image with its label, as something to sort and compare."""
    return [(image.tobytes(), int(label)) for image, label in zip(x, y, strict=True)]


@pytest.mark.parametrize(("packed", "inside"), [(True, "."), (False, "."), (True, "MNIST/raw")])
def test_mnist_is_read_byte_for_byte(tmp_path, mnist_arrays, packed, inside):
    write_mnist(tmp_path / "mine" / inside, mnist_arrays, packed)
    load = partial(get_dataset, "mnist", cache=tmp_path / "cache", path=tmp_path / "mine")
    train, validation, test = load("train"), load("validation"), load("test")
    x_train, y_train, x_test, y_test = mnist_arrays
    assert train.x.dtype == torch.uint8
    assert train.x.shape == (180, 1, 28, 28)
    assert np.array_equal(test.x[:, 0].numpy(), x_test)
    assert test.y.tolist() == y_test.tolist()
    assert sorted(rows(train) + rows(validation)) == sorted(zip_rows(x_train, y_train))


@pytest.mark.parametrize(
    ("name", "arrays"), [("mnist", "mnist_arrays"), ("cifar10", "cifar_arrays")]
)
def test_legacy_val_validates_on_the_test_images(request, tmp_path, name, arrays):
    arrays = request.getfixturevalue(arrays)
    if name == "mnist":
        write_mnist(tmp_path, arrays)
    else:
        write_archive(tmp_path / cifar.CIFAR10.archive, cifar_files(arrays))
    load = partial(get_dataset, name, cache=tmp_path / "cache", path=tmp_path, legacy_val=True)
    assert len(load("train")) == 200
    assert torch.equal(load("validation").x, load("test").x)
    assert load("validation").augment is None


def test_a_second_start_reads_what_the_first_prepared(tmp_path, mnist_arrays, monkeypatch):
    write_mnist(tmp_path, mnist_arrays)
    load = partial(get_dataset, "mnist", "train", cache=tmp_path / "cache", path=tmp_path)
    first = load()
    monkeypatch.setattr(mnist, "read_idx", None)
    assert torch.equal(load().x, first.x)
    monkeypatch.undo()
    x_train, y_train, *rest = mnist_arrays
    write_mnist(tmp_path, (x_train, 9 - y_train, *rest))
    assert torch.equal(load().y, 9 - first.y), "the labels have changed"


def test_mnist_is_downloaded_once(tmp_path, mnist_arrays, monkeypatch):
    write_mnist(tmp_path / "web", mnist_arrays)
    sums = {n: f"md5:{md5(tmp_path / 'web' / f'{n}.gz')}" for n in MNIST_FILES}
    monkeypatch.setattr(mnist, "CHECKSUMS", sums)
    with served(tmp_path / "web") as url:
        monkeypatch.setattr(mnist, "URL", url)
        first = get_dataset("mnist", "test", cache=tmp_path / "cache")
    again = get_dataset("mnist", "test", cache=tmp_path / "cache")  # the server is gone
    assert torch.equal(first.x, again.x)
    assert np.array_equal(first.x[:, 0].numpy(), mnist_arrays[2])


packed = partial(gzip.compress, compresslevel=1)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda data: packed(data[:-7]), "bytes of data, but its header says"),
        (lambda data: packed(data)[:-40], "cannot be unpacked"),
        (lambda data: packed(b"\0\0\x0d" + data[3:]), "with 00000d03, so it is not an idx file"),
        (lambda data: b"<html>not here</html>", "with 3c68746d, so it is not an idx file"),
        (lambda data: b"", "begins with nothing, so it is not an idx file"),
        (lambda data: packed(data + b"\0"), "bytes of data, but its header says"),
    ],
)
def test_a_broken_idx_file_is_refused(tmp_path, mnist_arrays, spoil, reason):
    write_mnist(tmp_path, mnist_arrays)
    broken = tmp_path / f"{MNIST_FILES[0]}.gz"
    broken.write_bytes(spoil(idx(mnist_arrays[0])))
    with pytest.raises(ValueError, match=reason) as refused:
        get_dataset("mnist", "train", cache=tmp_path / "cache", path=tmp_path)
    assert str(broken) in str(refused.value)
    assert "replace it with an intact copy" in str(refused.value)


def test_mnist_files_that_do_not_fit_together_are_refused(tmp_path, mnist_arrays):
    x_train, y_train, x_test, y_test = mnist_arrays
    for arrays, reason in [
        ((x_train, y_train[1:], x_test, y_test), r"an array \(199,\) of labels for 200 images"),
        ((x_train, y_train + np.uint8(1), x_test, y_test), "holds the label 10; digits are 0 to 9"),
        ((x_train, y_train, x_test[:0], y_test[:0]), r"an array \(0, 28, 28\) instead of images"),
        ((x_train, y_train, x_test[:, 1:], y_test), r"an array \(50, 27, 28\) instead of images"),
    ]:
        write_mnist(tmp_path, arrays)
        with pytest.raises(ValueError, match=reason):
            get_dataset("mnist", "train", cache=tmp_path / "cache", path=tmp_path)


def test_a_missing_mnist_file_is_named_with_the_folder(tmp_path, mnist_arrays):
    write_mnist(tmp_path, mnist_arrays)
    (tmp_path / f"{MNIST_FILES[3]}.gz").unlink()
    with pytest.raises(FileNotFoundError, match="has no t10k-labels-idx1-ubyte or") as refused:
        get_dataset("mnist", "train", cache=tmp_path / "cache", path=tmp_path)
    assert str(tmp_path) in str(refused.value)
    assert "omit `path`" in str(refused.value)


@pytest.mark.parametrize("form", ["archive", "folder of the archive", "folder", "folder of files"])
def test_cifar10_is_read_byte_for_byte(tmp_path, cifar_arrays, form):
    contents = cifar_files(cifar_arrays)
    archive = write_archive(tmp_path / cifar.CIFAR10.archive, contents)
    path = {"archive": archive}.get(form, tmp_path)
    if form in ("folder", "folder of files"):
        archive.unlink()
        inside = tmp_path / (cifar.CIFAR10.folder if form == "folder" else ".")
        inside.mkdir(exist_ok=True)
        for name, data in contents.items():
            (inside / name).write_bytes(data)
    load = partial(get_dataset, "cifar10", cache=tmp_path / "cache", path=path)
    train, validation, test = load("train"), load("validation"), load("test")
    x_train, y_train, x_test, y_test = cifar_arrays
    assert train.x.shape == (180, 3, 32, 32)
    assert np.array_equal(test.x.numpy(), x_test.transpose(0, 3, 1, 2))
    assert test.y.tolist() == y_test.tolist()
    expected = zip_rows(x_train.transpose(0, 3, 1, 2), y_train)
    assert sorted(rows(train) + rows(validation)) == sorted(expected)


def test_cifar100_takes_the_class_and_not_its_group(tmp_path, cifar_arrays):
    x_train, y_train, x_test, y_test = cifar_arrays
    arrays = (x_train, y_train + np.uint8(90), x_test, y_test + np.uint8(90))
    contents = cifar_files(arrays, cifar.CIFAR100)
    archive = write_archive(tmp_path / "any-name.tgz", contents, cifar.CIFAR100.folder)
    test = get_dataset("cifar100", "test", cache=tmp_path / "cache", path=archive)
    assert np.array_equal(test.x.numpy(), x_test.transpose(0, 3, 1, 2))
    assert test.y.tolist() == (y_test + 90).tolist()


def test_cifar10_is_downloaded_once(tmp_path, cifar_arrays, monkeypatch):
    (tmp_path / "web").mkdir()
    archive = write_archive(tmp_path / "web" / cifar.CIFAR10.archive, cifar_files(cifar_arrays))
    files = dataclasses.replace(cifar.CIFAR10, checksum=f"md5:{md5(archive)}")
    monkeypatch.setattr(cifar, "CIFAR10", files)
    with served(tmp_path / "web") as url:
        monkeypatch.setattr(cifar, "URL", url)
        module = MaseDataModule("cifar10", 64, cache=tmp_path / "cache")
        module.setup()
    assert len(get_dataset("cifar10", "test", cache=tmp_path / "cache")) == 50


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda f: f | {"test_batch.bin": f["test_batch.bin"][:-1]}, "is not a multiple of 3073"),
        (lambda f: f | {"test_batch.bin": b""}, "has 0 bytes"),
        (lambda f: f | {"test_batch.bin": b"\x0a" + f["test_batch.bin"][1:]}, "holds the label 10"),
        (lambda f: {n: d for n, d in f.items() if n != "data_batch_4.bin"}, "lacks data_batch_4"),
    ],
)
def test_a_wrong_cifar_archive_is_refused(tmp_path, cifar_arrays, spoil, reason):
    archive = write_archive(tmp_path / "mine.tar.gz", spoil(cifar_files(cifar_arrays)))
    with pytest.raises(ValueError, match=reason) as refused:
        get_dataset("cifar10", "train", cache=tmp_path / "cache", path=archive)
    assert str(archive) in str(refused.value)


@pytest.mark.parametrize("cut", [0, 100, 100_000, -20])  # the last cuts the checksum alone
def test_a_truncated_cifar_archive_is_refused(tmp_path, cifar_arrays, cut):
    archive = write_archive(tmp_path / "mine.tar.gz", cifar_files(cifar_arrays))
    archive.write_bytes(archive.read_bytes()[:cut])
    with pytest.raises(ValueError, match="cannot be unpacked") as refused:
        get_dataset("cifar10", "train", cache=tmp_path / "cache", path=archive)
    assert str(archive) in str(refused.value)


def test_a_folder_without_cifar_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has neither cifar-100-binary\.tar\.gz nor"):
        get_dataset("cifar100", "train", cache=tmp_path / "cache", path=tmp_path)


def test_nothing_of_an_archive_is_written_elsewhere(tmp_path, cifar_arrays):
    (tmp_path / "in").mkdir()
    contents = cifar_files(cifar_arrays)
    archive = write_archive(tmp_path / "in" / "mine.tar.gz", contents, folder="../../escape")
    get_dataset("cifar10", "test", cache=tmp_path / "cache", path=archive)
    assert {p.name for p in tmp_path.iterdir()} == {"in", "cache"}
    assert not list(tmp_path.rglob("*.bin"))


def test_normalized_pixels_have_the_stated_mean_and_deviation():
    normalize = Normalize(mean=(0.5, 0.25), std=(0.5, 0.125))
    x = torch.tensor([0, 255, 128], dtype=torch.uint8).expand(4, 2, 1, 3)
    mean, std = (torch.tensor(values).view(2, 1, 1) for values in ([0.5, 0.25], [0.5, 0.125]))
    expected = (x.double() / 255 - mean) / std
    torch.testing.assert_close(normalize(x), expected.float())
    assert x[0, 0, 0].tolist() == [0, 255, 128], "the stored bytes stay"


def test_what_is_kept_from_inference_serves_training():
    normalize = Normalize(mean=(0.125,), std=(0.75,))
    x = torch.zeros(1, 1, 2, 2)
    with torch.inference_mode():
        normalize(x)
    weight = torch.ones(1, requires_grad=True)
    (normalize(x) * weight).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize(
    ("name", "arrays"), [("mnist", "mnist_arrays"), ("cifar10", "cifar_arrays")]
)
def test_real_images_come_out_standardised(request, name, arrays):
    if not (SHARED / f"{name}-small.npz").exists():
        pytest.skip("random images have another mean: no ../shared/data")
    images = torch.from_numpy(request.getfixturevalue(arrays)[0])
    images = images[:, None] if name == "mnist" else images.permute(0, 3, 1, 2)
    prepare = {"mnist": mnist.PREPARE, "cifar10": cifar.CIFAR10.prepare}[name]
    x = prepare(images)
    # the mean of 200 images is known to about 0.04
    assert x.mean((0, 2, 3)).abs().max() < 0.12
    assert (x.std((0, 2, 3)) - 1).abs().max() < 0.1


def test_every_augmented_image_is_a_crop_or_a_mirrored_crop():
    x = torch.arange(1, 64 * 3 * 8 * 6 + 1, dtype=torch.int32).view(64, 3, 8, 6)
    out = CropAndFlip(padding=2)(x, torch.Generator().manual_seed(0))
    seen = set()
    for image, original in zip(out, x, strict=True):
        padded = torch.nn.functional.pad(original, (2, 2, 2, 2))
        crops = {
            (i, j, flip): padded[:, i : i + 8, j : j + 6].flip([2] if flip else [])
            for i in range(5)
            for j in range(5)
            for flip in (False, True)
        }
        [place] = [place for place, crop in crops.items() if torch.equal(crop, image)]
        seen.add(place)
    assert {i for i, _, _ in seen} == {j for _, j, _ in seen} == set(range(5))
    assert {flip for _, _, flip in seen} == {False, True}


def test_augmentation_keeps_bytes_and_follows_its_generator():
    x = torch.randint(256, (16, 3, 32, 32), dtype=torch.uint8)
    augment, before = CropAndFlip(), x.clone()
    first, again, other = (augment(x, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert first.dtype == torch.uint8
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(x, before)


def test_only_training_varies_its_images(tmp_path, cifar_arrays):
    archive = write_archive(tmp_path / "mine.tar.gz", cifar_files(cifar_arrays))
    module = MaseDataModule("cifar10", 180, custom_path=archive, cache=tmp_path / "cache")
    module.setup()
    [(varied, _)] = module.train_dataloader()
    stored = module.train_dataset[:][0]
    assert varied.shape == stored.shape
    assert not torch.equal(varied.sum((1, 2, 3)).sort()[0], stored.sum((1, 2, 3)).sort()[0])
    for name in ("val", "test"):
        loader, split = getattr(module, f"{name}_dataloader")(), getattr(module, f"{name}_dataset")
        assert torch.equal(torch.cat([x for x, _ in loader]), split[:][0])


def test_digits_are_those_of_scikit_learn(package):
    theirs = package("sklearn.datasets").load_digits()
    with np.load(digits.FILE) as file:
        assert np.array_equal(file["x"], theirs.images)
        assert np.array_equal(file["y"], theirs.target)


def test_digits_are_cut_in_three_without_overlap():
    parts = [get_dataset("digits", split) for split in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [1258, 180, 359]
    with np.load(digits.FILE) as file:
        everything = zip_rows(file["x"], file["y"])
    assert sorted(row for part in parts for row in rows(part)) == sorted(everything)
    x = parts[0][:][0]
    assert x.shape == (1258, 1, 8, 8)
    assert abs(x.mean().item()) < 0.01
    assert abs(x.std().item() - 1) < 0.01
