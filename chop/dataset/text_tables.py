"""Tables in text files: CSV and ARFF."""

from __future__ import annotations

import csv
import itertools
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from chop.dataset.tabular import LabelledTable, labelled
from chop.options import did_you_mean

BLOCK = 1 << 15  # lines at a time
LONGEST_LABEL = 40
LABELS = ("label", "class", "target")  # usual names of the column of labels
ATTRIBUTE = re.compile(r"@attribute\s+('[^']*'|\"[^\"]*\"|\S+)\s", re.IGNORECASE)


@dataclass(frozen=True)
class _Text:
    """The rows of a file, and what its header says about them."""

    file: Path
    names: Sequence[str]
    label: str
    line: int  # number of the first row's line, from 1
    delimiter: str = ","
    comment: str | None = None


def read_csv(file: Path, label: str | None = None, task: str | None = None) -> LabelledTable:
    """Read a CSV file of numbers and one column of labels, with or without a header."""
    with _opened(file) as lines:
        first = lines.readline()
        delimiter = max(",;\t", key=first.count)
        names = [cell.strip() for cell in next(csv.reader([first], delimiter=delimiter))]
        has_header = _are_names(names)
        if not has_header:
            names = [f"column {i + 1}" for i in range(len(names))]
            lines.seek(0)
        label = label_column(file, names, label)
        return _read(_Text(file, names, label, 2 if has_header else 1, delimiter), lines, task)


def read_arff(file: Path, label: str | None = None, task: str | None = None) -> LabelledTable:
    """Read an ARFF file, as OpenML publishes them: attributes, then rows separated by commas."""
    names: list[str] = []
    with _opened(file) as lines:
        for number, line in enumerate(lines, 1):
            if match := ATTRIBUTE.match(line.strip()):
                names.append(match[1].strip("'\""))
            elif line.strip().lower() == "@data":
                label = label_column(file, names, label)
                return _read(_Text(file, names, label, number + 1, comment="%"), lines, task)
    raise ValueError(f"{file} is not an ARFF file, as it has no line @DATA; download it again")


@contextmanager
def _opened(file: Path) -> Iterator[TextIO]:
    """Open the file as text; refuse a binary file."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            yield lines
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} is not UTF-8 text ({error}); write it again") from error


def _are_names(cells: Sequence[str]) -> bool:
    """Whether the first line is a header; a row has at most one word, its label."""
    words = [cell for cell in cells if not _is_number(cell)]
    counted = [cell for cell in cells if _is_number(cell)] == [
        str(i) for i in range(len(cells) - 1)
    ]
    return len(words) > 1 or (len(words) == 1 and (words[0].lower() in LABELS or counted))


def label_column(file: Path, names: Sequence[str], label: str | None) -> str:
    """Return the name of the column of labels: `label`, one with a usual name, or the last."""
    if label is not None:
        if label in names:
            return label
        hint = did_you_mean(label, names, f"; it has {', '.join(names[:20])}")
        raise ValueError(f"{file} has no column {label!r} of labels{hint}")
    if len(names) < 2:
        raise ValueError(
            f"{file} has {len(names)} columns; it needs at least one feature and the labels"
        )
    usual = [name for name in names if name.lower() in LABELS]
    return usual[0] if usual else names[-1]


def _read(text: _Text, lines: TextIO, task: str | None) -> LabelledTable:
    """Read all rows of `text`: numbers, except for the labels."""
    label = text.names.index(text.label)
    features = [i for i in range(len(text.names)) if i != label]
    kinds = [(f"f{i}", f"U{LONGEST_LABEL}" if i == label else "f8") for i in range(len(text.names))]
    xs, codes, words = [], [], dict[str, int]()
    for start, block in _blocks(lines):
        records = _parsed(text, block, text.line + start, np.dtype(kinds))
        xs.append(np.column_stack([records[f"f{i}"] for i in features]))
        labels = np.strings.strip(records[f"f{label}"], " '\"")
        if (labels == "").any():
            raise ValueError(_problem(text, block, text.line + start))
        codes.append(_numbered(text, labels, words))
    if not words:
        raise ValueError(f"{text.file} has no rows; download or write it again")
    values, classes, task = labelled(np.array(list(words)), text.file, task)
    names = tuple(text.names[i] for i in features)
    y = values[np.concatenate(codes)]
    return LabelledTable(np.concatenate(xs), y, classes, names, task)


def _numbered(text: _Text, labels: np.ndarray, words: dict[str, int]) -> np.ndarray:
    """Return the numbers of the labels in `words`, to which new labels are added."""
    longest = np.strings.str_len(labels).max(initial=1)
    if longest == LONGEST_LABEL:
        raise ValueError(
            f"{text.file}: labels in column {text.label!r} are longer than {LONGEST_LABEL - 1} "
            f"characters; set label to the column of classes, or shorten them"
        )
    distinct, places = np.unique(labels.astype(f"U{longest}"), return_inverse=True)
    numbers = [words.setdefault(word, len(words)) for word in distinct.tolist()]
    return np.array(numbers, dtype=np.int64)[places]


def _blocks(lines: TextIO) -> Iterator[tuple[int, list[str]]]:
    for start in itertools.count(0, BLOCK):
        block = list(itertools.islice(lines, BLOCK))
        if not block:
            return
        yield start, block


def _parsed(text: _Text, block: list[str], line: int, kind: np.dtype) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about blocks of blank lines
        try:
            return np.loadtxt(
                block, kind, delimiter=text.delimiter, comments=text.comment, quotechar='"', ndmin=1
            )
        except ValueError as error:
            raise ValueError(_problem(text, block, line) or f"{text.file}: {error}") from error


def _problem(text: _Text, block: list[str], line: int) -> str | None:
    """Return what is wrong with the first line that is not a row of the table."""
    for number, cells in enumerate(csv.reader(block, delimiter=text.delimiter), line):
        if not cells or (text.comment and cells[0].startswith(text.comment)):
            continue
        where = f"{text.file}, line {number}"
        if len(cells) != len(text.names):
            return (
                f"{where}: {len(cells)} cells instead of {len(text.names)}; the file is damaged "
                f"or truncated: download or write it again"
            )
        for name, cell in zip(text.names, cells, strict=True):
            if name == text.label and not cell.strip(" '\""):
                return f"{where}: no label in column {name!r}; fill it in, or remove the row"
            if name != text.label and not _is_number(cell):
                return (
                    f"{where}: {cell!r} in column {name!r} is not a number; fill it in, "
                    f"encode it or remove it (the column of labels is {text.label!r})"
                )
    return None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
