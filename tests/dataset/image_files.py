"""Writers of the files that MNIST and CIFAR come in."""

import gzip
import io
import tarfile

import numpy as np

from chop.dataset import cifar, mnist

MNIST_FILES = list(mnist.CHECKSUMS)


def some_images(shape, num_classes, num_train=1000, num_test=50):
    """Random images (N, *shape) and labels of every class, to train with and to test."""
    random = np.random.default_rng(0)
    return [
        array
        for size in (num_train, num_test)
        for array in (
            random.integers(0, 256, (size, *shape), np.uint8),
            np.arange(size, dtype=np.uint8) % num_classes,
        )
    ]


def idx(array):
    sizes = np.array(array.shape, ">u4").tobytes()
    return b"\0\0\x08" + bytes([array.ndim]) + sizes + array.tobytes()


def write_mnist(folder, arrays, packed=True):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(MNIST_FILES, arrays, strict=True):
        data = gzip.compress(idx(array), 1) if packed else idx(array)
        (folder / (f"{name}.gz" if packed else name)).write_bytes(data)


def cifar_files(arrays, files=cifar.CIFAR10):
    """The binary files of these arrays, with group 0 before the class in CIFAR-100."""
    x_train, y_train, x_test, y_test = arrays

    def records(x, y):
        labels = [np.zeros_like(y)] * (files.num_labels - 1) + [y]
        pixels = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
        return np.concatenate([*(label[:, None] for label in labels), pixels], axis=1).tobytes()

    parts = len(files.train)
    pieces = zip(np.split(x_train, parts), np.split(y_train, parts), strict=True)
    train = {name: records(*piece) for name, piece in zip(files.train, pieces, strict=True)}
    return train | {files.test: records(x_test, y_test)}


def write_archive(path, contents, folder="cifar-10-batches-bin"):
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, data in {"batches.meta.txt": b"names", **contents}.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path
