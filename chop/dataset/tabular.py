"""Tables of samples: check, split, standardise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from chop.dataset.base import IGNORED
from chop.dataset.nested import Inputs
from chop.dataset.store import PreparedData
from chop.dataset.tensors import Scaler, Scalers

SplitLengths = dict[str, int]  # number of samples that a file has for train, validation and test
BLOCK = 1 << 16  # rows at a time, which limits the memory for double precision


@dataclass(frozen=True)
class LabelledTable:
    """Samples `x` (N, …) and labels `y` (N, …), in the order of the file.

    Inputs that keep their names are in `more`, and `x` is the first of them.
    """

    x: np.ndarray
    y: np.ndarray  # class codes, or numbers of a regression
    classes: tuple[str, ...]
    features: tuple[str, ...] = ()
    task: str = "cls"
    more: Mapping[str, np.ndarray] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # how the file was read, for the user

    def rows(self, index: np.ndarray) -> LabelledTable:
        more = {name: array[index] for name, array in self.more.items()}
        return replace(self, x=self.x[index], y=self.y[index], more=more)


@dataclass(frozen=True)
class Cut:
    """How to split samples: hold out a share for `test`, then one of the rest for `validation`."""

    test: float = 0.2
    validation: float = 0.1
    seed: int = 42

    def __post_init__(self) -> None:
        for name in ("test", "validation"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be from 0 to below 1, not {getattr(self, name)}")

    def order(self, lengths: SplitLengths) -> tuple[np.ndarray, dict[str, int]]:
        """Return the rows in the order train, validation, test, and the number of each.

        `lengths` holds the lengths of the splits in the file; a missing split is held out from the
        training samples.
        """
        start, parts = 0, {}
        for name in ("train", "validation", "test"):
            parts[name] = np.arange(start, start + lengths.get(name, 0))
            start += lengths.get(name, 0)
        for name in ("test", "validation"):
            if name not in lengths:
                kept, held = held_out(len(parts["train"]), getattr(self, name), self.seed)
                parts[name], parts["train"] = parts["train"][held], parts["train"][kept]
        order = np.concatenate([parts[name] for name in ("train", "validation", "test")])
        return order, {name: len(part) for name, part in parts.items()}


def held_out(size: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to keep and those to hold out, as scikit-learn's `train_test_split` does."""
    held = int(np.ceil(share * size))
    order = np.random.RandomState(seed).permutation(size)
    return order[held:], order[:held]


def first_of_each(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the rows without later duplicates, as pandas' `drop_duplicates` does."""
    _, hashes, counts = np.unique(_row_hash(x, y), return_inverse=True, return_counts=True)
    suspects = np.flatnonzero(counts[hashes] > 1)
    if not len(suspects):
        return np.arange(len(x))
    rows = np.column_stack([x[suspects] + 0.0, y[suspects]])  # -0.0 becomes 0.0
    _, first = np.unique(rows, axis=0, return_index=True)
    keep = np.ones(len(x), dtype=bool)
    keep[np.delete(suspects, first)] = False
    return np.flatnonzero(keep)


def _row_hash(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    code = y.astype(np.uint64)
    for column in x.T:
        bits = (column.astype(np.float64) + 0.0).view(np.uint64)
        code = (code ^ bits) * np.uint64(0x9E3779B97F4A7C15)
        code ^= code >> np.uint64(29)
    return code


def standardize(x: np.ndarray, fit: int) -> np.ndarray:
    """Standardise the columns of `x` by the statistics of its first `fit` rows, as float32.

    Computed in double precision, as scikit-learn's `StandardScaler` does.
    """
    mean, scale = moments(x[:fit])
    out = np.empty(x.shape, np.float32)
    for start in range(0, len(x), BLOCK):
        rows = slice(start, start + BLOCK)
        out[rows] = (x[rows].astype(np.float64) - mean) / scale
    return out


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and standard deviation of each column; for a constant column, 1."""
    blocks = [x[start : start + BLOCK] for start in range(0, len(x), BLOCK)]
    mean = np.sum([block.sum(0, dtype=np.float64) for block in blocks], axis=0) / len(x)
    rest, square = np.zeros_like(mean), np.zeros_like(mean)
    for block in blocks:
        difference = block.astype(np.float64) - mean
        rest += difference.sum(0)
        square += (difference**2).sum(0)
    variance = (square - rest**2 / len(x)) / len(x)
    eps = np.finfo(np.float64).eps
    constant = variance <= len(x) * eps * variance + (len(x) * mean * eps) ** 2
    return mean, np.where(constant, 1.0, np.sqrt(variance))


def coded(labels: np.ndarray, file: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the class codes 0, 1, … of the labels, and the sorted names of the classes."""
    names, codes = np.unique(_as_numbers(labels, file), return_inverse=True)
    if names.dtype.kind == "f" and (odd := names[(names != names.round()) | np.isinf(names)]).size:
        raise ValueError(f"{file}: labels such as {odd[0]} are not classes; use integers or words")
    whole = names.astype(np.int64) if names.dtype.kind == "f" else names
    return codes.astype(np.int64), tuple(str(name) for name in whole)


def labelled(
    labels: np.ndarray, file: Path, task: str | None
) -> tuple[np.ndarray, tuple[str, ...], str]:
    """Return the labels as numbers, the names of their classes, and their task.

    Without a `task`, numbers that are not whole are a regression, integers in two or more
    dimensions besides the samples are a dense prediction, and all others are classes.
    """
    values = _as_numbers(labels, file)
    task = task or _task_of(values)
    if task == "reg":
        return _targets(values, file), (), task
    if task == "dense":
        return _maps(values, file)
    return (*coded(values, file), task)


def _task_of(values: np.ndarray) -> str:
    if values.dtype.kind == "f" and bool((values != values.round()).any()):
        return "reg"
    return "dense" if values.ndim > 2 else "cls"


def _targets(values: np.ndarray, file: Path) -> np.ndarray:
    if values.dtype.kind not in "fiub":
        raise ValueError(
            f"{file}: labels such as {values.flat[0]} are not numbers, which a regression needs; "
            f"use `task='cls'` for classes, or name another column of labels"
        )
    finite = np.isfinite(values)
    if not finite.all():
        sample = int(np.argwhere(~finite)[0][0])
        raise ValueError(f"{file}: the label of sample {sample} is not finite; remove the sample")
    return values.astype(np.float32)


def _maps(values: np.ndarray, file: Path) -> tuple[np.ndarray, tuple[str, ...], str]:
    """Return the labels of pixels, which are numbered from 0."""
    whole = values.dtype.kind in "iub" or (
        values.dtype.kind == "f" and bool((values == values.round()).all())
    )
    if values.ndim < 2 or not whole:
        raise ValueError(
            f"{file}: a dense prediction needs an integer for each pixel of each sample, not "
            f"{values.dtype} of shape {values.shape[1:]}; convert them, or use another `task`"
        )
    codes = values.astype(np.int64)
    if (wrong := codes[(codes < 0) & (codes != IGNORED)]).size:
        raise ValueError(
            f"{file}: the label {wrong[0]} of a pixel is not a class; number classes from 0, and "
            f"use {IGNORED} for pixels that do not count"
        )
    return codes, tuple(str(n) for n in range(int(codes.max(initial=0)) + 1)), "dense"


def _as_numbers(labels: np.ndarray, file: Path) -> np.ndarray:
    """Return labels that are all numbers as numbers, to sort 2 before 10; refuse empty ones."""
    if labels.dtype.kind not in "US":
        return labels
    empty = np.strings.str_len(np.strings.strip(labels)) == 0
    if empty.any():
        raise ValueError(
            f"{file}: sample {int(empty.argmax())} has no label; give it one, or remove the sample"
        )
    try:
        return labels.astype(np.float64)
    except ValueError:
        return labels


def check_finite(
    file: Path, x: np.ndarray, features: Sequence[str] = (), input_name: str = ""
) -> None:
    """Refuse values that are missing, infinite or beyond single precision."""
    if x.dtype.kind not in "f":
        return
    x = x if x.ndim > 1 else x[:, None]
    wrong = np.zeros(x.shape[1], dtype=np.int64)
    for start in range(0, len(x), BLOCK):
        block = x[start : start + BLOCK]
        bad = ~(np.abs(block) <= np.finfo(np.float32).max)
        wrong += bad.sum(axis=(0, *range(2, x.ndim)))
    if not wrong.any():
        return
    where = np.flatnonzero(wrong).tolist()
    names = [features[i] if features else f"{input_name} channel {i}".strip() for i in where]
    raise ValueError(
        f"{file}: {wrong.sum()} value{' is' if wrong.sum() == 1 else 's are'} NaN, infinite or too "
        f"large, in {', '.join(names[:5])}; "
        f"remove those samples or fill in the values"
    )


def check_classes(file: Path, y: np.ndarray, classes: Sequence[str]) -> None:
    """Refuse a table with only one class, or with a class without samples."""
    if len(classes) < 2:
        raise ValueError(
            f"{file}: all labels are {', '.join(classes)}; at least two classes are needed"
        )
    missing = np.flatnonzero(np.bincount(y, minlength=len(classes)) == 0).tolist()
    if missing:
        raise ValueError(
            f"{file}: none of the {len(y)} samples is of class "
            f"{', '.join(classes[i] for i in missing)}; the file is incomplete: download it again"
        )


def scaler_of(x: np.ndarray, standardize_by: int | None) -> Scaler:
    """Return how `prepare` standardises the columns of `x`."""
    if standardize_by is None:
        return Scaler.neutral(x.shape[1])
    mean, deviation = moments(x[:standardize_by])
    return Scaler(tuple(mean.tolist()), tuple(deviation.tolist()))


def _scalers_of(inputs: Mapping[str, np.ndarray], standardize_by: int | None) -> Scalers | None:
    """Return the scaler of each named input that is a table; None if none is."""
    tables = {name: x for name, x in inputs.items() if is_table(x, named=True)}
    return {name: scaler_of(x, standardize_by) for name, x in tables.items()} or None


def is_table(x: np.ndarray, *, named: bool = False) -> bool:
    """Whether samples are rows of numbers to standardise; in a named input, those are floats."""
    return x.ndim == 2 and (not named or x.dtype.kind == "f")


def _tensor(x: np.ndarray, standardize_by: int | None, *, named: bool) -> Tensor:
    """Return an input as a tensor; integers of named inputs stay, as they may be indices."""
    if named and x.dtype.kind in "iub" and not (x.dtype == np.uint8 and x.ndim == 4):
        return torch.from_numpy(x.astype(np.int64))
    if standardize_by is not None and is_table(x):
        return torch.from_numpy(standardize(x, standardize_by))
    if x.dtype != np.uint8 or x.ndim == 2:  # bytes of images stay bytes
        x = x.astype(np.float32)
    return torch.from_numpy(x)


def prepare(
    table: LabelledTable, order: np.ndarray, rows: Mapping[str, int], *, standardize_by: int | None
) -> PreparedData:
    """Return the samples in `order`, standardised by the first `standardize_by`, as tensors."""
    inputs: Inputs
    scaler: Scalers | None = None
    if table.more:
        arrays = {name: x[order] for name, x in table.more.items()}
        scaler = _scalers_of(arrays, standardize_by)
        inputs = {name: _tensor(x, standardize_by, named=True) for name, x in arrays.items()}
    else:
        x = table.x[order]
        if is_table(x):
            scaler = scaler_of(x, standardize_by)
        inputs = _tensor(x, standardize_by, named=False)
    return PreparedData(
        inputs,
        torch.from_numpy(table.y[order].astype(np.float32 if table.task == "reg" else np.int64)),
        dict(rows),
        features=table.features,
        classes=table.classes,
        task=table.task,
        scaler=scaler,
        notes=table.notes,
    )
