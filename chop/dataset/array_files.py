"""Arrays of samples and labels in one file: npz, safetensors, or written by `torch.save`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from chop.dataset.npz_sizes import WRITE, check_npz_sizes
from chop.dataset.tabular import LabelledTable, SplitLengths, labelled
from chop.system.plain_tensors import load_plain, why_not_plain, why_unreadable

PART = re.compile(r"(.+?)(?:_(train|val|valid|validation|test))?", re.IGNORECASE)
PARTS = {None: "train", "train": "train", "test": "test"}  # any other suffix is validation
SAVE = 'write it with torch.save({"x": x, "y": y}, file)'
FLOATS = (torch.float16, torch.float32, torch.float64)  # types that numpy supports
CHANNELS = {1, 3, 4}  # grey, colour, and colour with transparency
NAMES = "x and y, or x_train, y_train, x_test, y_test (and x_val, y_val)"
Arrays = Mapping[str, np.ndarray]

logger = logging.getLogger(__name__)


def read_npz(file: Path, task: str | None = None) -> tuple[LabelledTable, SplitLengths]:
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
    arrays = {name: array for name, array in members.items() if isinstance(array, np.ndarray)}
    return _table(file, arrays, task)


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def read_tensors(file: Path, task: str | None = None) -> tuple[LabelledTable, SplitLengths]:
    """Read the tensors of a safetensors file, or a dictionary of tensors from a pt file."""
    is_safetensors = file.suffix.lower() == ".safetensors"
    return _table(file, _safetensors(file) if is_safetensors else _pt(file), task)


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


def _table(file: Path, arrays: Arrays, task: str | None) -> tuple[LabelledTable, SplitLengths]:
    """Concatenate the samples and labels of all splits, and return the length of each."""
    by_part = _by_part(file, arrays)
    parts = {part: by_part[part] for part in ("train", "validation", "test") if part in by_part}
    names = list(dict.fromkeys(name for part in parts.values() for name in part if name != "y"))
    wanted = {*names, "y"}
    if "train" not in parts or not names or any(part.keys() != wanted for part in parts.values()):
        raise ValueError(f"{file} has the arrays {', '.join(arrays) or 'none'}; it needs {NAMES}")
    inputs = {name: _samples(file, [part[name] for part in parts.values()], name) for name in names}
    notes: list[str] = []
    inputs = {name: _channels_first(file, x, notes) for name, x in inputs.items()}
    first = inputs[names[0]]
    is_one = names == ["x"] or (len(names) == 1 and _is_table_or_images(first))
    for name, part in parts.items():
        _check_lengths(file, name, part)
    labels = _joined(file, [_labels(file, part["y"], task) for part in parts.values()], "labels")
    y, classes, kind = labelled(labels, file, task)
    features = tuple(f"x{i}" for i in range(first.shape[1])) if is_one and first.ndim == 2 else ()
    more = {} if is_one else inputs
    table = LabelledTable(first, y, classes, features, kind, more, tuple(notes))
    return table, {part: len(its["y"]) for part, its in parts.items()}


def _by_part(file: Path, arrays: Arrays) -> dict[str, dict[str, np.ndarray]]:
    """Return the inputs and the labels `y` of each split in the file.

    Inputs are `x`, or else all arrays that are not labels.
    """
    named = {name: match for name in arrays if (match := PART.fullmatch(name))}
    only_x = any(match[1] in ("x", "X") for match in named.values())
    parts: dict[str, dict[str, np.ndarray]] = {}
    seen: dict[tuple[str, str], str] = {}
    for name, match in named.items():
        which = match[1].lower() if match[1] in ("X", "Y") else match[1]
        if only_x and which not in ("x", "y"):
            continue
        part = PARTS.get(match[2] and match[2].lower(), "validation")
        first = seen.setdefault((part, which), name)
        if first != name:
            raise ValueError(f"{file} has both {first!r} and {name!r}; keep one of them")
        parts.setdefault(part, {})[which] = arrays[name]
    if only_x:
        _warn_of_unused(file, arrays, parts)
    return parts


def _warn_of_unused(
    file: Path, arrays: Arrays, parts: Mapping[str, Mapping[str, np.ndarray]]
) -> None:
    """Warn of arrays that look like further inputs."""
    used = [array for part in parts.values() for array in part.values()]
    lengths = {len(array) for array in used if array.ndim}
    others = [
        name
        for name, array in arrays.items()
        if not any(array is one for one in used)
        and array.ndim
        and len(array) in lengths
        and array.dtype.kind in "fiub"
    ]
    if others:
        logger.warning(
            "%s: %s not used, as the file has x; to use several inputs, name them all, without x",
            *(file, f"{', '.join(others)} {'is' if len(others) == 1 else 'are'}"),
        )


def _is_table_or_images(x: np.ndarray) -> bool:
    """Whether samples can only be a table of real numbers or images, whatever their name."""
    return x.ndim in (2, 4) and (x.dtype.kind == "f" or (x.ndim == 4 and x.dtype == np.uint8))


def _samples(file: Path, parts: list[np.ndarray], name: str) -> np.ndarray:
    """Return the samples of all splits; those not named `x` may have any shape."""
    what = "samples" if name == "x" else f"samples of input {name!r}"
    for x in parts:
        if not x.ndim or 0 in x.shape[1:]:
            raise ValueError(f"{file}: {what} have shape {x.shape}; give one row per sample")
        if name == "x" and x.ndim not in (2, 4):
            raise ValueError(
                f"{file}: samples of shape {x.shape} are neither a table (N, features) nor "
                f"images (N, channels, height, width); {_better_shape(x)}"
            )
        if x.dtype.kind not in "fiub":
            raise ValueError(f"{file}: {what} of type {x.dtype} are not numbers; convert them")
    return _joined(file, parts, what)


def _better_shape(x: np.ndarray) -> str:
    """Return how to save an array `x` that is neither a table nor images."""
    if x.ndim == 1:
        return "save x[:, None], a table of one feature"
    rename = "save them under another name than x, such as seq"
    if x.ndim == 3:
        return f"save images of one channel as x[:, None]; if they are sequences, {rename}"
    return rename.replace("seq", "volume")


def _joined(file: Path, parts: list[np.ndarray], what: str) -> np.ndarray:
    shapes = {x.shape[1:] for x in parts}
    if len(shapes) > 1:
        raise ValueError(f"{file}: {what} of shapes {sorted(shapes)} cannot be one data set")
    return np.concatenate(parts)


def _channels_first(file: Path, x: np.ndarray, notes: list[str]) -> np.ndarray:
    """Return images with the channels before height and width; add a note if they were last."""
    if x.ndim != 4 or x.shape[3] not in CHANNELS or {x.shape[1], x.shape[2]} & CHANNELS:
        return x
    notes.append(
        f"{file}: images of shape {x.shape[1:]} have their channels last; they are used as "
        f"(channels, height, width) = {(x.shape[3], *x.shape[1:3])}"
    )
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def _check_lengths(file: Path, part: str, arrays: Arrays) -> None:
    """Refuse inputs and labels of different lengths."""
    count = len(arrays["y"]) if arrays["y"].ndim else 0
    for name, x in arrays.items():
        if name != "y" and len(x) != count:
            what = "samples" if name == "x" else f"samples of input {name!r}"
            raise ValueError(
                f"{file}: {len(x)} {what} but {count} labels for {part}; write one label per sample"
            )
    if not count:
        raise ValueError(f"{file} has no samples for {part}; write some or omit the arrays")


def _labels(file: Path, y: np.ndarray, task: str | None) -> np.ndarray:
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.dtype.kind not in "fiubUS":
        raise ValueError(f"{file}: labels of type {y.dtype} are neither numbers nor text")
    is_real = y.dtype.kind == "f" and bool((y != y.round()).any())
    is_known = y.ndim == 1 or task in ("reg", "dense") or (task is None and is_real)
    if not is_known and (task == "cls" or y.ndim < 3):
        raise ValueError(
            f"{file}: labels have shape {y.shape}, but should be one class per sample (N,); "
            f"convert one-hot labels with y.argmax(1), or use `task='reg'` for several numbers"
        )
    return y
