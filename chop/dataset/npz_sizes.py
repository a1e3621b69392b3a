"""Check the sizes of the arrays in an npz file before memory is allocated for them."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from chop.system.memory import OutOfMemory, available_memory, size

WRITE = "write it with numpy.savez(file, x=x, y=y)"


def check_npz_sizes(file: Path) -> None:
    """Refuse arrays that are larger than the file or than the available memory."""
    with file.open("rb") as content:
        start = content.read(len(np.lib.format.MAGIC_PREFIX))
    if start == np.lib.format.MAGIC_PREFIX:
        raise ValueError(f"{file} is a single array (npy); {WRITE}")
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        for member in members:
            declared = _size_in_header(archive, member)
            if declared > member.file_size:
                raise ValueError(
                    f"{file} is damaged: the header of {member.filename} says {size(declared)}, "
                    f"but the file holds {size(member.file_size)}; {WRITE}"
                )
    needed, available = sum(member.file_size for member in members), available_memory()
    if available is not None and needed > available:
        raise OutOfMemory(
            f"{file} needs {size(needed)} of memory, but {size(available)} are available; "
            f"use a file with fewer samples"
        )


def _size_in_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """Return the number of bytes of an array and its header; 0 if it is not a plain array."""
    try:
        with archive.open(member) as content:
            shape, dtype = _header(content)
            return 0 if dtype.hasobject else content.tell() + math.prod(shape) * dtype.itemsize
    except Exception:  # of any kind; the caller reports it when it reads the file
        return 0


def _header(content: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(content)
    first = np.lib.format.read_array_header_1_0
    read = first if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(content)
    return shape, dtype
