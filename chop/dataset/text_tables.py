"""Tables written as text: CSV and ARFF."""

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

from chop.dataset.tabular import LabelledTable, coded
from chop.registry import nearest

BLOCK = 1 << 15  # lines at a time
LONGEST_LABEL = 40
LABELS = ("label", "class", "target")  # what a column of labels is usually called
ATTRIBUTE = re.compile(r"@attribute\s+('[^']*'|\"[^\"]*\"|\S+)\s", re.IGNORECASE)


@dataclass(frozen=True)
class _Text:
    """The part of a file that holds the rows, and what is known about it before reading them."""

    file: Path
    names: Sequence[str]
    label: str
    line: int  # where the rows begin, counted from 1
    delimiter: str = ","
    comment: str | None = None


def read_csv(file: Path, label: str | None = None) -> LabelledTable:
    """A CSV file: a line of names (or none), numbers, and one column of labels."""
    with _opened(file) as lines:
        first = lines.readline()
        delimiter = max(",;\t", key=first.count)
        names = [cell.strip() for cell in next(csv.reader([first], delimiter=delimiter))]
        named = _are_names(names)
        if not named:  # the first line is a row already
            names = [f"column {i + 1}" for i in range(len(names))]
            lines.seek(0)
        label = label_column(file, names, label)
        return _read(_Text(file, names, label, 2 if named else 1, delimiter), lines)


def read_arff(file: Path, label: str | None = None) -> LabelledTable:
    """An ARFF file, as OpenML has them: attributes, then rows separated by commas."""
    names: list[str] = []
    with _opened(file) as lines:
        for number, line in enumerate(lines, 1):
            if match := ATTRIBUTE.match(line.strip()):
                names.append(match[1].strip("'\""))
            elif line.strip().lower() == "@data":
                label = label_column(file, names, label)
                return _read(_Text(file, names, label, number + 1, comment="%"), lines)
    raise ValueError(f"{file} is not an ARFF file, as it has no line @DATA; download it again")


@contextmanager
def _opened(file: Path) -> Iterator[TextIO]:
    """The file as text; one that is no text is refused."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            yield lines
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} is not UTF-8 text ({error}); write it again") from error


def _are_names(cells: Sequence[str]) -> bool:
    """Whether the first line of a file names columns; a row has one word at most, its label."""
    words = [cell for cell in cells if not _is_number(cell)]
    counted = [cell for cell in cells if _is_number(cell)] == [
        str(i) for i in range(len(cells) - 1)
    ]
    return len(words) > 1 or (len(words) == 1 and (words[0].lower() in LABELS or counted))


def label_column(file: Path, names: Sequence[str], label: str | None) -> str:
    """The column of labels: the one asked for, one with a usual name, or the last."""
    if label is not None:
        if label in names:
            return label
        near = nearest(label, names)
        hint = f"did you mean {near!r}?" if near else f"it has {', '.join(names[:20])}"
        raise ValueError(f"{file} has no column {label!r} of labels; {hint}")
    if len(names) < 2:
        raise ValueError(
            f"{file} has {len(names)} columns; it needs at least one feature and the labels"
        )
    usual = [name for name in names if name.lower() in LABELS]
    return usual[0] if usual else names[-1]


def _read(text: _Text, lines: TextIO) -> LabelledTable:
    """All rows of `text`: numbers, except for the labels."""
    label = text.names.index(text.label)
    features = [i for i in range(len(text.names)) if i != label]
    kinds = [(f"f{i}", f"U{LONGEST_LABEL}" if i == label else "f8") for i in range(len(text.names))]
    xs, codes, words = [], [], dict[str, int]()
    for start, block in _blocks(lines):
        records = _parsed(text, block, text.line + start, np.dtype(kinds))
        xs.append(np.column_stack([records[f"f{i}"] for i in features]))
        labels = np.strings.strip(records[f"f{label}"], " '\"")
        if (labels == "").any():
            raise ValueError(_blame(text, block, text.line + start))
        codes.append(_numbered(text, labels, words))
    if not words:
        raise ValueError(f"{text.file} has no rows; fetch or write it again")
    ranks, classes = coded(np.array(list(words)), text.file)
    names = tuple(text.names[i] for i in features)
    return LabelledTable(np.concatenate(xs), ranks[np.concatenate(codes)], classes, names)


def _numbered(text: _Text, labels: np.ndarray, words: dict[str, int]) -> np.ndarray:
    """Numbers for labels: those that `words` has, and new ones for new words."""
    longest = np.strings.str_len(labels).max(initial=1)
    if longest == LONGEST_LABEL:
        raise ValueError(
            f"{text.file}: labels in column {text.label!r} are longer than {LONGEST_LABEL - 1} "
            f"characters; give the name of the column of classes, or shorten them"
        )
    found, places = np.unique(labels.astype(f"U{longest}"), return_inverse=True)
    numbers = [words.setdefault(word, len(words)) for word in found.tolist()]
    return np.array(numbers, dtype=np.int64)[places]


def _blocks(lines: TextIO) -> Iterator[tuple[int, list[str]]]:
    for start in itertools.count(0, BLOCK):
        block = list(itertools.islice(lines, BLOCK))
        if not block:
            return
        yield start, block


def _parsed(text: _Text, block: list[str], line: int, kind: np.dtype) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a block of blank lines is no news
        try:
            return np.loadtxt(
                block,
                kind,
                delimiter=text.delimiter,
                comments=text.comment,
                quotechar='"',
                ndmin=1,
            )
        except ValueError as error:
            raise ValueError(_blame(text, block, line) or f"{text.file}: {error}") from error


def _blame(text: _Text, block: list[str], line: int) -> str | None:
    """The first line that is no row of the table, and why."""
    for number, cells in enumerate(csv.reader(block, delimiter=text.delimiter), line):
        if not cells or (text.comment and cells[0].startswith(text.comment)):
            continue
        where = f"{text.file}, line {number}"
        if len(cells) != len(text.names):
            return (
                f"{where}: {len(cells)} cells instead of {len(text.names)}; the file is damaged "
                f"or was cut: fetch or write it again"
            )
        for name, cell in zip(text.names, cells, strict=True):
            if name == text.label and not cell.strip(" '\""):
                return f"{where}: no label in column {name!r}; fill it in, or remove the row"
            if name != text.label and not _is_number(cell):
                return (
                    f"{where}: {cell!r} in column {name!r} is not a number; fill in, "
                    f"encode or remove it (the column of labels is {text.label!r})"
                )
    return None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
