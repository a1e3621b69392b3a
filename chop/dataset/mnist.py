"""Handwritten digits of 28 × 28 pixels, read from the official idx files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from chop.dataset.base import Split
from chop.dataset.download import download, instead
from chop.dataset.images import Images, Normalize, corrupt, image_info, image_split, unpacked
from chop.dataset.sources import DataSource, downloaded
from chop.dataset.tensors import TensorSplit

SIZE = (1, 28, 28)
URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
CHECKSUMS = {
    "train-images-idx3-ubyte": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "md5:d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "md5:9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "md5:ec29112dd5afa0611ce80d1b7f02629c",
}
PREPARE = Normalize(mean=(0.1307,), std=(0.3081,))  # of the 60,000 training images
UNSIGNED_BYTES = b"\0\0\x08"  # first bytes of an idx file; the number of axes follows

INFO = image_info("mnist", SIZE, 10, "0123456789")


@downloaded(INFO)
def mnist(split: Split, source: DataSource) -> TensorSplit:
    """MNIST: 54,000 training, 6,000 validation and 10,000 test digits of 28 × 28 pixels.

    `path` is a directory with the four official files, compressed (.gz) or not; `legacy_val`
    trains on all 60,000 and validates on the test images, as the labs do.
    """
    folder, path = source.cache / INFO.name, source.path
    files = [
        _local_file(Path(path).expanduser(), name) if path else _fetched(folder, name)
        for name in CHECKSUMS
    ]

    def read() -> tuple[Images, Images]:
        return _labelled(*files[:2]), _labelled(*files[2:])

    return image_split(split, source, folder, files, read, prepare=PREPARE)


def _fetched(folder: Path, name: str) -> Path:
    file = folder / f"{name}.gz"
    with instead("digits needs no download"):
        return download(URL + file.name, file, checksum=CHECKSUMS[name])


def _local_file(folder: Path, name: str) -> Path:
    """Return the file `name` in the user's directory, or where torchvision stores it there."""
    for place in (folder, folder / "raw", folder / "MNIST" / "raw"):
        for file in (place / name, place / f"{name}.gz"):
            if file.is_file():
                return file
    raise FileNotFoundError(
        f"{folder} has no {name} or {name}.gz; put the four MNIST files there, "
        f"or omit `path` to download them"
    )


def _labelled(images: Path, labels: Path) -> Images:
    x, y = read_idx(images), read_idx(labels)
    if x.shape[1:] != SIZE[1:] or not len(x):
        raise corrupt(images, f"holds an array {x.shape} instead of images (N, 28, 28)")
    if y.shape != x.shape[:1]:
        raise corrupt(labels, f"holds an array {y.shape} of labels for {len(x)} images")
    if y.max(initial=0) > 9:
        raise corrupt(labels, f"holds the label {y.max()}; digits are 0 to 9")
    return Images(x.reshape(-1, *SIZE), y)


def read_idx(file: Path) -> np.ndarray:
    """Read the array of bytes in an idx file, compressed or not."""
    data = unpacked(file)
    if data[:3] != UNSIGNED_BYTES or len(data) < 4 + 4 * data[3]:
        raise corrupt(
            file, f"begins with {data[:4].hex() or 'nothing'}, so it is not an idx file of bytes"
        )
    start = 4 + 4 * data[3]
    shape = tuple(np.frombuffer(data, ">u4", count=data[3], offset=4).tolist())
    if len(data) - start != np.prod(shape, dtype=np.int64):
        raise corrupt(file, f"has {len(data) - start} bytes of data, but its header says {shape}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
