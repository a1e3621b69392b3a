"""Tables of samples: refuse what cannot be learned from, divide, standardise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from chop.dataset.store import PreparedData

Given = dict[str, int]  # how many samples a file has for train, validation and test
BLOCK = 1 << 16  # rows at a time: what is computed in double precision stays small


@dataclass(frozen=True)
class LabelledTable:
    """Samples `x` (N, …) and the codes `y` (N,) of their classes, as the file has them."""

    x: np.ndarray
    y: np.ndarray
    classes: tuple[str, ...]
    features: tuple[str, ...] = ()

    def rows(self, index: np.ndarray) -> LabelledTable:
        return replace(self, x=self.x[index], y=self.y[index])


@dataclass(frozen=True)
class Cut:
    """How samples are divided: `test` of them, then `validation` of the rest, drawn by `seed`."""

    test: float = 0.2
    validation: float = 0.1
    seed: int = 42

    def __post_init__(self) -> None:
        for name in ("test", "validation"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is a share from 0 to below 1, not {getattr(self, name)}")

    def order(self, given: Given) -> tuple[np.ndarray, dict[str, int]]:
        """The rows in the order train, validation, test, and how many each has.

        `given` are the lengths of what the file has of the three, one after the other; what it
        has not is taken from the training samples.
        """
        start, parts = 0, {}
        for name in ("train", "validation", "test"):
            parts[name] = np.arange(start, start + given.get(name, 0))
            start += given.get(name, 0)
        for name in ("test", "validation"):
            if name not in given:
                kept, held = held_out(len(parts["train"]), getattr(self, name), self.seed)
                parts[name], parts["train"] = parts["train"][held], parts["train"][kept]
        order = np.concatenate([parts[name] for name in ("train", "validation", "test")])
        return order, {name: len(part) for name, part in parts.items()}


def held_out(size: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows that stay and those that are held out, as scikit-learn's `train_test_split`."""
    held = int(np.ceil(share * size))
    order = np.random.RandomState(seed).permutation(size)
    return order[held:], order[:held]


def first_of_each(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The rows that no earlier row equals, in their order: `drop_duplicates` of pandas."""
    suspects = np.flatnonzero(_repeated(_row_hash(x, y)))
    if not len(suspects):
        return np.arange(len(x))
    rows = np.column_stack([x[suspects] + 0.0, y[suspects]])  # -0.0 + 0.0 is 0.0: they are equal
    _, first = np.unique(rows, axis=0, return_index=True)
    keep = np.ones(len(x), dtype=bool)
    keep[np.delete(suspects, first)] = False
    return np.flatnonzero(keep)


def _row_hash(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A number per row; equal rows have equal ones."""
    code = y.astype(np.uint64)
    for column in x.T:
        bits = (column.astype(np.float64) + 0.0).view(np.uint64)
        code = (code ^ bits) * np.uint64(0x9E3779B97F4A7C15)
        code ^= code >> np.uint64(29)
    return code


def _repeated(codes: np.ndarray) -> np.ndarray:
    order = np.argsort(codes, kind="stable")
    same = codes[order[1:]] == codes[order[:-1]]
    repeated = np.zeros(len(codes), dtype=bool)
    repeated[order[1:][same]] = repeated[order[:-1][same]] = True
    return repeated


def standardize(x: np.ndarray, fit: int) -> np.ndarray:
    """`x` as float32 with the mean and spread of its first `fit` rows taken out, by column.

    Computed in double precision, as scikit-learn's `StandardScaler` does.
    """
    mean, scale = moments(x[:fit])
    out = np.empty(x.shape, np.float32)
    for start in range(0, len(x), BLOCK):
        rows = slice(start, start + BLOCK)
        out[rows] = (x[rows].astype(np.float64) - mean) / scale
    return out


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation by column; a constant column has the deviation 1."""
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
    """Codes 0, 1, … and names of classes: the distinct labels in their order."""
    _check_labelled(labels, file)
    names, codes = np.unique(_as_numbers(labels), return_inverse=True)
    if names.dtype.kind == "f" and (odd := names[(names != names.round()) | np.isinf(names)]).size:
        raise ValueError(
            f"{file}: labels such as {odd[0]} are not classes; use whole numbers or words"
        )
    whole = names.astype(np.int64) if names.dtype.kind == "f" else names
    return codes.astype(np.int64), tuple(str(name) for name in whole)


def _check_labelled(labels: np.ndarray, file: Path) -> None:
    if labels.dtype.kind not in "US":
        return
    empty = np.strings.str_len(np.strings.strip(labels)) == 0
    if empty.any():
        raise ValueError(
            f"{file}: sample {int(empty.argmax())} has no label; give it one, or remove the sample"
        )


def _as_numbers(labels: np.ndarray) -> np.ndarray:
    """Words that are all numbers are sorted as numbers: 2 before 10."""
    if labels.dtype.kind not in "US":
        return labels
    try:
        return labels.astype(np.float64)
    except ValueError:
        return labels


def check_finite(file: Path, x: np.ndarray, features: Sequence[str] = ()) -> None:
    """Refuse values that are missing, infinite or beyond single precision."""
    if x.dtype.kind not in "f":
        return
    wrong = np.zeros(x.shape[1], dtype=np.int64)
    for start in range(0, len(x), BLOCK):
        block = x[start : start + BLOCK]
        bad = ~(np.abs(block) <= np.finfo(np.float32).max)
        wrong += bad.sum(axis=(0, *range(2, x.ndim)))
    if not wrong.any():
        return
    where = np.flatnonzero(wrong).tolist()
    names = [features[i] if features else f"channel {i}" for i in where]
    raise ValueError(
        f"{file}: {wrong.sum()} values are NaN, infinite or too large, in {', '.join(names[:5])}; "
        f"remove those samples or fill in the values"
    )


def check_classes(file: Path, y: np.ndarray, classes: Sequence[str]) -> None:
    """Refuse a table in which a class has no sample, or that has but one class."""
    if len(classes) < 2:
        raise ValueError(
            f"{file}: all labels are {', '.join(classes)}; at least two classes are needed"
        )
    missing = np.flatnonzero(np.bincount(y, minlength=len(classes)) == 0).tolist()
    if missing:
        raise ValueError(
            f"{file}: no sample of class {', '.join(classes[i] for i in missing)} among {len(y)}; "
            f"the file is incomplete; download it again"
        )


def prepare(
    table: LabelledTable, order: np.ndarray, rows: Mapping[str, int], *, standardize_by: int | None
) -> PreparedData:
    """The samples in `order`, standardised by the first `standardize_by` of them, as tensors."""
    x = table.x[order]
    if standardize_by is not None:
        x = standardize(x, standardize_by)
    elif x.dtype != np.uint8 or x.ndim == 2:  # bytes of pictures stay bytes
        x = x.astype(np.float32)
    return PreparedData(
        torch.from_numpy(x),
        torch.from_numpy(table.y[order].astype(np.int64)),
        dict(rows),
        features=table.features,
        classes=table.classes,
    )
