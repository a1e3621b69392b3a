"""Arrays of samples and labels in one file: npz, safetensors, and what `torch.save` writes."""

from __future__ import annotations

import pickle
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from chop.dataset.npz_sizes import WRITE, check_npz_sizes
from chop.dataset.tabular import Given, Table, coded

PART = re.compile(r"([xy])(?:_(train|val|valid|validation|test))?", re.IGNORECASE)
PARTS = {None: "train", "train": "train", "test": "test"}  # anything else is validation
BROKEN = (OSError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error)
NAMES = "x and y, or x_train, y_train, x_test, y_test (and x_val, y_val)"


def read_npz(file: Path) -> tuple[Table, Given]:
    """Arrays that `numpy.savez` wrote; pickled objects among them are refused."""
    check_npz_sizes(file)
    try:
        with file.open("rb") as raw, np.load(raw, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except ValueError as error:  # what numpy says about pickles is no advice of ours
        raise ValueError(f"{file} is no npz file of plain arrays; {WRITE}") from error
    except BROKEN as error:
        raise ValueError(f"{file} cannot be read as npz ({error}); {WRITE}") from error
    return _table(file, found)


def read_tensors(file: Path) -> tuple[Table, Given]:
    """Tensors in a safetensors file, or a dictionary of tensors in a pt file."""
    found = _safetensors(file) if file.suffix.lower() == ".safetensors" else _pt(file)
    return _table(file, found)


def _safetensors(file: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return {name: _array(tensor) for name, tensor in load_file(file).items()}
    except SafetensorError as error:
        raise ValueError(
            f"{file} cannot be read as safetensors ({error}); write it again"
        ) from error


def _pt(file: Path) -> dict[str, np.ndarray]:
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{file} cannot be read as tensors ({reason}); write it with "
            f'torch.save({{"x": x, "y": y}}, file)'
        ) from error
    if isinstance(found, (tuple, list)) and len(found) == 2:
        found = dict(zip("xy", found, strict=True))
    if not isinstance(found, Mapping) or not all(torch.is_tensor(t) for t in found.values()):
        raise ValueError(f"{file} holds no dictionary of tensors; it should have {NAMES}")
    return {str(name): _array(tensor) for name, tensor in found.items()}


def _array(tensor: Tensor) -> np.ndarray:
    """The values of a tensor; those of a type that numpy has not, as single precision."""
    return tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def _table(file: Path, arrays: Mapping[str, np.ndarray]) -> tuple[Table, Given]:
    """Samples and labels of all parts, one part after the other."""
    parts: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        if match := PART.fullmatch(name):
            part = PARTS.get(match[2] and match[2].lower(), "validation")
            parts.setdefault(part, {})[match[1].lower()] = array
    pairs = {part: parts[part] for part in ("train", "validation", "test") if part in parts}
    if "train" not in pairs or any(pair.keys() != {"x", "y"} for pair in pairs.values()):
        raise ValueError(f"{file} has the arrays {', '.join(arrays) or 'none'}; it needs {NAMES}")
    labels = np.concatenate([_labels(file, part, **pair) for part, pair in pairs.items()])
    x = _samples(file, [pair["x"] for pair in pairs.values()])
    codes, classes = coded(labels, file)
    names = tuple(f"x{i}" for i in range(x.shape[1])) if x.ndim == 2 else ()
    return Table(x, codes, classes, names), {part: len(pair["y"]) for part, pair in pairs.items()}


def _samples(file: Path, parts: list[np.ndarray]) -> np.ndarray:
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise ValueError(f"{file}: samples of shapes {sorted(shapes)} cannot be one data set")
    x = np.concatenate(parts)
    if x.ndim not in (2, 4):
        raise ValueError(
            f"{file}: samples of shape {x.shape} are neither a table (N, features) nor pictures "
            f"(N, channels, height, width); reshape them"
        )
    if x.dtype.kind not in "fiub":
        raise ValueError(f"{file}: samples of type {x.dtype} are no numbers")
    return x


def _labels(file: Path, part: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1:
        raise ValueError(
            f"{file}: labels of shape {y.shape} should be one class each (N,); "
            f"y.argmax(1) makes that of one-hot labels"
        )
    if len(x) != len(y):
        raise ValueError(f"{file}: {len(x)} samples but {len(y)} labels for {part}; write as many")
    if not len(y):
        raise ValueError(f"{file} has no samples for {part}; write some or leave the arrays out")
    return y
