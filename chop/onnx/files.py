"""Writing ONNX files: whole or not at all, with large tensors beside them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chop.system.files import naming, part_folder

__all__ = ["LARGEST", "save_model"]

LARGEST = 2**31 - 2**20  # bytes: a protobuf of 2 GiB cannot be read, and the nodes need some
ALIGNED = 4096  # bytes, so that tensors can be mapped into memory
SMALL = 1024  # bytes of a tensor that stays in the file itself


def save_model(model: Any, file: str | Path, *, largest: int = LARGEST) -> Path:
    """Check a model and write it; above 2 GiB, its tensors go to a file of data beside it.

    The file of data is named after its content, so that a model never meets another one's data.
    """
    import onnx

    path = Path(os.path.realpath(file))
    if path.is_dir():
        raise IsADirectoryError(f"{str(file)!r} is a directory; give a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = list(_large_tensors(model))
    outside = sum(len(tensor.raw_data) for tensor in tensors) > largest
    with naming(file), part_folder(path) as folder:
        if outside:
            small = onnx.ModelProto()
            small.CopyFrom(model)
            model, tensors = small, list(_large_tensors(small))
            data = _write_data(tensors, folder, path.stem)
        part = folder / path.name
        part.write_bytes(model.SerializeToString(deterministic=True))
        onnx.checker.check_model(str(part))
        if outside:
            os.replace(folder / data, path.parent / data)
        os.replace(part, path)
    return path


def _large_tensors(model: Any) -> Iterator[Any]:
    return (t for t in model.graph.initializer if len(t.raw_data) >= SMALL)


def _write_data(tensors: list[Any], folder: Path, stem: str) -> str:
    """Write the content of tensors to one file, let them refer to it, and return its name."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.raw_data)
    name = f"{stem}.{digest.hexdigest()[:12]}.data"
    from onnx.external_data_helper import set_external_data

    with (folder / name).open("wb") as data:
        for tensor in tensors:
            data.seek(-data.tell() % ALIGNED, os.SEEK_CUR)
            start = data.tell()
            data.write(tensor.raw_data)
            set_external_data(tensor, name, offset=start, length=data.tell() - start)
            tensor.ClearField("raw_data")
    return name
