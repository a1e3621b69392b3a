"""Arrays of samples and labels in one file: npz, safetensors, and what `torch.save` writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from chop.dataset.npz_sizes import WRITE, check_npz_sizes
from chop.dataset.tabular import Given, LabelledTable, coded
from chop.plain_tensors import load_plain, why_not_plain, why_unreadable

PART = re.compile(r"([xy])(?:_(train|val|valid|validation|test))?", re.IGNORECASE)
PARTS = {None: "train", "train": "train", "test": "test"}  # anything else is validation
SAVE = 'write it with torch.save({"x": x, "y": y}, file)'
FLOATS = (torch.float16, torch.float32, torch.float64)  # those that numpy has
NAMES = "x and y, or x_train, y_train, x_test, y_test (and x_val, y_val)"


def read_npz(file: Path) -> tuple[LabelledTable, Given]:
    """Arrays that `numpy.savez` wrote; pickled objects among them are refused."""
    check_npz_sizes(file)
    try:
        with file.open("rb") as raw, np.load(raw, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except MemoryError:
        raise
    except ValueError as error:  # what numpy says about pickles is no advice of ours
        raise ValueError(f"{file} is not an npz file of plain arrays; {WRITE}") from error
    except Exception as error:  # a damaged header makes numpy and zipfile fail in any way
        raise ValueError(f"{file} cannot be read as npz ({_reason(error)}); {WRITE}") from error
    # other members of the archive come as bytes
    return _table(file, {n: array for n, array in found.items() if isinstance(array, np.ndarray)})


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def read_tensors(file: Path) -> tuple[LabelledTable, Given]:
    """Tensors in a safetensors file, or a dictionary of tensors in a pt file."""
    found = _safetensors(file) if file.suffix.lower() == ".safetensors" else _pt(file)
    return _table(file, found)


def _safetensors(file: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(file)
    except SafetensorError as error:
        raise ValueError(
            f"{file} cannot be read as safetensors ({error}); write it again"
        ) from error
    return {name: _array(file, name, tensor) for name, tensor in tensors.items()}


def _pt(file: Path) -> dict[str, np.ndarray]:
    try:
        found = load_plain(file)
    except MemoryError:
        raise
    except Exception as error:  # bytes that are no pickle make torch fail in any way
        reason = why_unreadable(error)
        raise ValueError(f"{file} cannot be read as tensors ({reason}); {SAVE}") from error
    if isinstance(found, (tuple, list)) and len(found) == 2:
        found = dict(zip("xy", found, strict=True))
    if not isinstance(found, Mapping) or not all(torch.is_tensor(t) for t in found.values()):
        raise ValueError(f"{file} does not hold a dictionary of tensors; it should have {NAMES}")
    return {str(name): _array(file, str(name), tensor) for name, tensor in found.items()}


def _array(file: Path, name: str, tensor: Tensor) -> np.ndarray:
    """The values of a tensor; those of a type that numpy has not, as single precision."""
    if (reason := why_not_plain(tensor)) is not None:
        raise ValueError(f"{file}: {name} {reason}; save it as a plain tensor")
    if tensor.is_floating_point() and tensor.dtype not in FLOATS:
        tensor = tensor.float()
    return tensor.detach().resolve_conj().resolve_neg().numpy()


def _table(file: Path, arrays: Mapping[str, np.ndarray]) -> tuple[LabelledTable, Given]:
    """Samples and labels of all parts, one part after the other."""
    parts = _by_part(file, arrays)
    pairs = {part: parts[part] for part in ("train", "validation", "test") if part in parts}
    if "train" not in pairs or any(pair.keys() != {"x", "y"} for pair in pairs.values()):
        raise ValueError(f"{file} has the arrays {', '.join(arrays) or 'none'}; it needs {NAMES}")
    x = _samples(file, [pair["x"] for pair in pairs.values()])
    labels = np.concatenate([_labels(file, part, **pair) for part, pair in pairs.items()])
    codes, classes = coded(labels, file)
    names = tuple(f"x{i}" for i in range(x.shape[1])) if x.ndim == 2 else ()
    return LabelledTable(x, codes, classes, names), {
        part: len(pair["y"]) for part, pair in pairs.items()
    }


def _by_part(file: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """What the file has of each split: x and y; other arrays in it are left alone."""
    parts: dict[str, dict[str, np.ndarray]] = {}
    names: dict[tuple[str, str], str] = {}
    for name, array in arrays.items():
        if match := PART.fullmatch(name):
            part, which = PARTS.get(match[2] and match[2].lower(), "validation"), match[1].lower()
            first = names.setdefault((part, which), name)
            if first != name:
                raise ValueError(f"{file} has both {first!r} and {name!r}; keep one of them")
            parts.setdefault(part, {})[which] = array
    return parts


def _samples(file: Path, parts: list[np.ndarray]) -> np.ndarray:
    for x in parts:
        if x.ndim not in (2, 4) or 0 in x.shape[1:]:
            raise ValueError(
                f"{file}: samples of shape {x.shape} are neither a table (N, features) nor "
                f"pictures (N, channels, height, width); reshape them"
            )
        if x.dtype.kind not in "fiub":
            raise ValueError(f"{file}: samples of type {x.dtype} are not numbers; convert them")
    shapes = {x.shape[1:] for x in parts}
    if len(shapes) > 1:
        raise ValueError(f"{file}: samples of shapes {sorted(shapes)} cannot be one data set")
    return np.concatenate(parts)


def _labels(file: Path, part: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1:
        raise ValueError(
            f"{file}: labels have shape {y.shape}, but should be one class per sample (N,); "
            f"convert one-hot labels with y.argmax(1)"
        )
    if y.dtype.kind not in "fiubUS":
        raise ValueError(f"{file}: labels of type {y.dtype} are neither numbers nor text")
    if len(x) != len(y):
        raise ValueError(
            f"{file}: {len(x)} samples but {len(y)} labels for {part}; write one label per sample"
        )
    if not len(y):
        raise ValueError(f"{file} has no samples for {part}; write some or omit the arrays")
    return y
