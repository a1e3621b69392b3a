"""The numbers of an ONNX tensor, whose declared size must agree with its bytes."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.onnx.reading.errors import UnreadableModel

__all__ = ["TYPES", "Stored", "kind_of_type", "stored_tensor", "torch_type", "type_name"]

# name in TensorProto.DataType -> type in torch, bits of an element
TYPES: dict[str, tuple[torch.dtype, int]] = {
    "FLOAT": (torch.float32, 32),
    "DOUBLE": (torch.float64, 64),
    "FLOAT16": (torch.float16, 16),
    "BFLOAT16": (torch.bfloat16, 16),
    "BOOL": (torch.bool, 8),
    "INT8": (torch.int8, 8),
    "UINT8": (torch.uint8, 8),
    "INT16": (torch.int16, 16),
    "UINT16": (torch.int32, 16),
    "INT32": (torch.int32, 32),
    "UINT32": (torch.int64, 32),
    "INT64": (torch.int64, 64),
    "INT4": (torch.int8, 4),
    "UINT4": (torch.uint8, 4),
    "INT2": (torch.int8, 2),
    "UINT2": (torch.uint8, 2),
}
# names of fields with numbers of a tensor that has no raw_data
FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


@dataclass(frozen=True)
class Stored:
    """The numbers of a tensor, and the name of their type in the file."""

    tensor: Tensor
    kind: str


def type_name(kind: int) -> str:
    """Return the name of a type, such as FLOAT."""
    from onnx import TensorProto

    try:
        return str(TensorProto.DataType.Name(kind))
    except ValueError:
        return f"type {kind}"


def kind_of_type(dtype: torch.dtype) -> str:
    """Return the name of the type in a file that has a type in torch."""
    own = {torch.int32: "INT32", torch.int64: "INT64"}  # also hold UINT16 and UINT32
    return own.get(dtype) or next(name for name, (type_, _) in TYPES.items() if type_ == dtype)


def torch_type(kind: int, owner: str) -> torch.dtype:
    """Return the type in torch of a type in a file."""
    name = type_name(kind)
    if name not in TYPES:
        raise UnreadableModel(
            f"{owner} has numbers of type {name}; only {', '.join(TYPES)} can be read"
        )
    return TYPES[name][0]


def stored_tensor(proto: Any, owner: str, folder: Path | None) -> Stored:
    """Return the numbers of a tensor of a file; external data must lie in `folder`."""
    from onnx import TensorProto, numpy_helper

    owner = f"{owner}: tensor {proto.name!r:.80}"
    dtype, kind = torch_type(proto.data_type, owner), type_name(proto.data_type)
    if any(size < 0 for size in proto.dims):
        raise UnreadableModel(f"{owner} has a negative size; export the network again")
    count = math.prod(proto.dims)
    if proto.HasField("segment"):
        raise UnreadableModel(f"{owner} is stored in segments; export the network again")
    copy = proto
    if proto.data_location == TensorProto.EXTERNAL:
        copy = TensorProto(data_type=proto.data_type, dims=proto.dims)
        copy.raw_data = _external(proto, _bytes(count, kind), owner, folder)
    _check_size(copy, count, kind, owner)
    try:
        array = numpy_helper.to_array(copy)
    except Exception as error:  # numpy and ml_dtypes fail in any way on wrong fields
        raise UnreadableModel(
            f"{owner} cannot be decoded ({type(error).__name__}); export the network again"
        ) from error
    return Stored(_in_torch(array, dtype, kind), kind)


def _bytes(count: int, kind: str) -> int:
    return -(-count * TYPES[kind][1] // 8)


def _check_size(proto: Any, count: int, kind: str, owner: str) -> None:
    """Refuse a tensor with more or fewer numbers than its shape has."""
    if proto.HasField("raw_data"):
        have, wanted, what = len(proto.raw_data), _bytes(count, kind), "bytes"
    else:
        have = max(len(getattr(proto, name)) for name in FIELDS)
        bits = TYPES[kind][1]
        packed = -(-count * bits // 8) if bits < 8 else count
        wanted, what = packed, "numbers"
    if have != wanted:
        raise UnreadableModel(
            f"{owner} has {have:,} {what}, but its shape {list(proto.dims)} needs {wanted:,}; "
            f"the file is damaged: export or copy it again"
        )


def _in_torch(array: Any, dtype: torch.dtype, kind: str) -> Tensor:
    if kind == "BFLOAT16":
        bits = np.array(array).view(np.int16)
        return torch.from_numpy(bits.reshape(array.shape)).view(torch.bfloat16)
    if kind in ("UINT16", "UINT32") or TYPES[kind][1] < 8:
        plain = np.asarray(array).astype(np.int64)
        return torch.from_numpy(plain.reshape(array.shape)).to(dtype)
    # its memory belongs to the parsed file
    return torch.from_numpy(np.array(array, order="C").reshape(array.shape))


def _external(proto: Any, size: int, owner: str, folder: Path | None) -> bytes:
    """Return the bytes of a tensor that is stored in another file of the same directory."""
    entries = {entry.key: entry.value for entry in proto.external_data}
    location = entries.get("location", "")
    path = _beside(location, owner, folder)
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or size)
    except ValueError:
        raise UnreadableModel(
            f"{owner} has an offset or length that is not a number; export the network again"
        ) from None
    if offset < 0 or length != size:
        raise UnreadableModel(
            f"{owner} refers to {length:,} bytes at {offset:,} of {location!r:.80}, but its shape "
            f"needs {size:,}; export the network again"
        )
    if offset + size > path.stat().st_size:
        raise UnreadableModel(
            f"{owner} lies beyond the end of {location!r:.80}; copy the whole file again"
        )
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def _beside(location: str, owner: str, folder: Path | None) -> Path:
    """Return the path of a file of external data; it must not lead out of the directory."""
    if folder is None:
        raise UnreadableModel(f"{owner} is stored in another file; give the path of the model")
    plain = Path(location)
    root = Path(os.path.realpath(folder))
    inside = location and not plain.is_absolute() and ".." not in plain.parts
    real = Path(os.path.realpath(root / plain)) if inside and "\0" not in location else None
    if real is None or root not in real.parents:
        raise UnreadableModel(
            f"{owner} refers to the file {location!r:.80} outside the directory of the model, "
            f"which is not read; put its data beside the model and export it again"
        )
    if not real.is_file():
        raise UnreadableModel(
            f"{owner} is stored in {location!r:.80}, which is missing beside the model; copy it too"
        )
    return real
