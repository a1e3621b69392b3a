"""The user's file that a data set is read from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def own_file(path: Path | str, kinds: Sequence[str], *, name: str | None = None) -> Path:
    """Return the file at `path`; in a directory, the file with one of the suffixes `kinds`.

    If there are several, the one with the official `name` is returned.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; `path` must be a {' or '.join(kinds)} file, or its directory"
        )
    file = _in_folder(path, kinds, name) if path.is_dir() else path
    if file.stat().st_size == 0:
        raise ValueError(f"{file} is empty; download or write it again")
    return file


def _in_folder(folder: Path, kinds: Sequence[str], name: str | None) -> Path:
    if name is not None and (folder / name).is_file():
        return folder / name
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in kinds)
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(file.name for file in files[:5])
        raise ValueError(f"{folder} has {len(files)} such files ({names}); name one of them")
    wanted = f"{name} or another {' or '.join(kinds)}" if name else " or ".join(kinds)
    raise FileNotFoundError(f"{folder} has no {wanted} file; name the file itself")
