"""Arrays of samples and labels in one file: npz, safetensors, or written by `torch.save`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from chop.dataset.npz_sizes import WRITE, check_npz_sizes
from chop.dataset.tabular import LabelledTable, SplitLengths, coded
from chop.plain_tensors import load_plain, why_not_plain, why_unreadable

PART = re.compile(r"([xy])(?:_(train|val|valid|validation|test))?", re.IGNORECASE)
PARTS = {None: "train", "train": "train", "test": "test"}  # any other suffix is validation
SAVE = 'write it with torch.save({"x": x, "y": y}, file)'
FLOATS = (torch.float16, torch.float32, torch.float64)  # types that numpy supports
CHANNELS = {1, 3, 4}  # grey, colour, and colour with transparency
NAMES = "x and y, or x_train, y_train, x_test, y_test (and x_val, y_val)"


def read_npz(file: Path) -> tuple[LabelledTable, SplitLengths]:
    """Read the arrays that `numpy.savez` wrote; refuse pickled objects."""
    check_npz_sizes(file)
    try:
        with file.open("rb") as raw, np.load(raw, allow_pickle=False) as archive:
            members = {name: archive[name] for name in archive.files}
    except MemoryError:
        raise
    except ValueError as error:  # numpy would advise to allow pickles
        raise ValueError(f"{file} is not an npz file of plain arrays; {WRITE}") from error
    except Exception as error:  # a damaged header makes numpy and zipfile fail in any way
        raise ValueError(f"{file} cannot be read as npz ({_reason(error)}); {WRITE}") from error
    # numpy returns files in the archive that are not arrays as bytes
    return _table(file, {n: array for n, array in members.items() if isinstance(array, np.ndarray)})


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def read_tensors(file: Path) -> tuple[LabelledTable, SplitLengths]:
    """Read the tensors of a safetensors file, or a dictionary of tensors from a pt file."""
    is_safetensors = file.suffix.lower() == ".safetensors"
    return _table(file, _safetensors(file) if is_safetensors else _pt(file))


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
        content = load_plain(file)
    except MemoryError:
        raise
    except Exception as error:  # on bytes that are not a pickle, torch can fail in any way
        reason = why_unreadable(error)
        raise ValueError(f"{file} cannot be read as tensors ({reason}); {SAVE}") from error
    if isinstance(content, (tuple, list)) and len(content) == 2:
        content = dict(zip("xy", content, strict=True))
    if not isinstance(content, Mapping) or not all(torch.is_tensor(t) for t in content.values()):
        raise ValueError(f"{file} does not hold a dictionary of tensors; it should have {NAMES}")
    return {str(name): _array(file, str(name), tensor) for name, tensor in content.items()}


def _array(file: Path, name: str, tensor: Tensor) -> np.ndarray:
    """Return the values of a tensor, as float32 if numpy does not support its type."""
    if (reason := why_not_plain(tensor)) is not None:
        raise ValueError(f"{file}: {name} {reason}; save it as a plain tensor")
    if tensor.is_floating_point() and tensor.dtype not in FLOATS:
        tensor = tensor.float()
    return tensor.detach().resolve_conj().resolve_neg().numpy()


def _table(file: Path, arrays: Mapping[str, np.ndarray]) -> tuple[LabelledTable, SplitLengths]:
    """Concatenate the samples and labels of all splits, and return the length of each."""
    parts = _by_part(file, arrays)
    pairs = {part: parts[part] for part in ("train", "validation", "test") if part in parts}
    if "train" not in pairs or any(pair.keys() != {"x", "y"} for pair in pairs.values()):
        raise ValueError(f"{file} has the arrays {', '.join(arrays) or 'none'}; it needs {NAMES}")
    x = _samples(file, [pair["x"] for pair in pairs.values()])
    x, notes = _channels_first(file, x)
    labels = np.concatenate([_labels(file, part, **pair) for part, pair in pairs.items()])
    codes, classes = coded(labels, file)
    names = tuple(f"x{i}" for i in range(x.shape[1])) if x.ndim == 2 else ()
    table = LabelledTable(x, codes, classes, names, notes)
    return table, {part: len(pair["y"]) for part, pair in pairs.items()}


def _by_part(file: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Return the arrays x and y of each split in the file; ignore other arrays."""
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
                f"images (N, channels, height, width); reshape them"
            )
        if x.dtype.kind not in "fiub":
            raise ValueError(f"{file}: samples of type {x.dtype} are not numbers; convert them")
    shapes = {x.shape[1:] for x in parts}
    if len(shapes) > 1:
        raise ValueError(f"{file}: samples of shapes {sorted(shapes)} cannot be one data set")
    return np.concatenate(parts)


def _channels_first(file: Path, x: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return images with the channels before height and width, and a note if they were last."""
    if x.ndim != 4 or x.shape[3] not in CHANNELS or {x.shape[1], x.shape[2]} & CHANNELS:
        return x, ()
    note = (
        f"{file}: images of shape {x.shape[1:]} have their channels last; they are used as "
        f"(channels, height, width) = {(x.shape[3], *x.shape[1:3])}"
    )
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)), (note,)


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
