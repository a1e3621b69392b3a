"""CIFAR-10 and CIFAR-100, read from the official binary files (no pickle)."""

from __future__ import annotations

import functools
import io
import math
import tarfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chop.dataset.base import MaseDatasetInfo, Split
from chop.dataset.download import download
from chop.dataset.images import (
    CropAndFlip,
    Images,
    Normalize,
    corrupt,
    image_info,
    image_split,
    unpacked,
)
from chop.dataset.sources import DataSource, downloaded
from chop.dataset.tensors import TensorSplit

URL = "https://www.cs.toronto.edu/~kriz/"
SIZE = (3, 32, 32)
NAMES = "airplane automobile bird cat deer dog frog horse ship truck"  # of CIFAR-10


@dataclass(frozen=True)
class Files:
    """The files in the archive of a data set, and the layout of an image record."""

    archive: str
    checksum: str
    folder: str
    train: tuple[str, ...]
    test: str
    num_labels: int  # bytes before the pixels; the last one is the class
    prepare: Normalize  # statistics of the training images
    info: MaseDatasetInfo

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.train, self.test)


CIFAR10 = Files(
    archive="cifar-10-binary.tar.gz",
    checksum="md5:c32a1d4ab5d03f1284b67883e8d87530",
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test="test_batch.bin",
    num_labels=1,
    prepare=Normalize(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
    info=image_info("cifar10", SIZE, 10, NAMES.split()),
)
CIFAR100 = Files(
    archive="cifar-100-binary.tar.gz",
    checksum="md5:03b5dce01913d631647c71ecec9e9cb8",
    folder="cifar-100-binary",
    train=("train.bin",),
    test="test.bin",
    num_labels=2,  # one of 20 groups, then the class
    prepare=Normalize(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
    info=image_info("cifar100", SIZE, 100),
)


@downloaded(CIFAR10.info)
def cifar10(split: Split, source: DataSource) -> TensorSplit:
    """CIFAR-10: 45,000 training, 5,000 validation and 10,000 test photographs in 10 classes.

    `path` is the binary archive, or a directory with it or its files; `legacy_val` trains on all
    50,000 and validates on the test images, as the labs do.
    """
    return _split(CIFAR10, split, source)


@downloaded(CIFAR100.info)
def cifar100(split: Split, source: DataSource) -> TensorSplit:
    """CIFAR-100: 45,000 training, 5,000 validation and 10,000 test photographs in 100 classes.

    `path` and `legacy_val` are those of `cifar10`.
    """
    return _split(CIFAR100, split, source)


def _split(files: Files, split: Split, source: DataSource) -> TensorSplit:
    folder = source.cache / files.info.name
    if source.path:
        sources = _local_files(files, Path(source.path).expanduser())
    else:
        archive = folder / files.archive
        sources = [download(URL + files.archive, archive, checksum=files.checksum)]
    read = functools.partial(_read, files, sources)
    return image_split(
        split, source, folder, sources, read, prepare=files.prepare, augment=CropAndFlip()
    )


def _local_files(files: Files, path: Path) -> list[Path]:
    """Return the archive at the user's path, or its unpacked files."""
    if path.is_file():
        return [path]
    for folder in (path, path / files.folder):
        unpacked_files = [folder / name for name in files.names]
        if all(file.is_file() for file in unpacked_files):
            return unpacked_files
    if (path / files.archive).is_file():
        return [path / files.archive]
    raise FileNotFoundError(
        f"{path} has neither {files.archive} nor its files {', '.join(files.names)}; "
        f"put them there, or omit `path` to download them"
    )


def _read(files: Files, sources: list[Path]) -> tuple[Images, Images]:
    if len(sources) == 1:
        data = read_members(sources[0], files.names)
    else:
        data = {source.name: source.read_bytes() for source in sources}
    where = sources[0] if len(sources) == 1 else sources[0].parent
    parts = {name: _images(where / name, data[name], files) for name in files.names}
    train = [parts[name] for name in files.train]
    joined = Images(np.concatenate([p.x for p in train]), np.concatenate([p.y for p in train]))
    return joined, parts[files.test]


def read_members(archive: Path, names: Collection[str]) -> dict[str, bytes]:
    """Return the content of the files `names` in an archive, without unpacking it to disk."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(unpacked(archive))) as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                if name in names and member.isreg() and (data := tar.extractfile(member)):
                    contents[name] = data.read()
    except tarfile.TarError as error:
        raise corrupt(archive, f"cannot be unpacked ({error})") from error
    missing = [name for name in names if name not in contents]
    if missing:
        raise corrupt(archive, f"lacks {', '.join(missing)}, which the binary version has")
    return contents


def _images(file: Path, data: bytes, files: Files) -> Images:
    record, classes = files.num_labels + math.prod(SIZE), files.info["num_classes"]
    if not data or len(data) % record:
        raise corrupt(file, f"has {len(data)} bytes, which is not a multiple of {record}")
    records = np.frombuffer(data, np.uint8).reshape(-1, record)
    labels = records[:, files.num_labels - 1]
    if labels.max() >= classes:
        raise corrupt(file, f"holds the label {labels.max()}; there are {classes} classes")
    return Images(records[:, files.num_labels :].reshape(-1, *SIZE), labels)
