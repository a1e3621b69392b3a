"""The user's file that a data set is read from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chop.dataset.base import MaseDatasetInfo, Split, dataset
from chop.dataset.tensors import TensorSplit
from chop.system.files import broken_link


@dataclass(frozen=True)
class DataSource:
    """The options of a data set that is downloaded to `cache`, or read from the user's `path`."""

    cache: Path
    path: Path | None
    legacy_val: bool  # validate as the labs do
    renew: bool


def downloaded(
    info: MaseDatasetInfo, *aliases: str
) -> Callable[[Callable[[Split, DataSource], TensorSplit]], Callable[..., TensorSplit]]:
    """Register `read(split, source)` as a data set with the options of a `DataSource`."""

    def add(read: Callable[[Split, DataSource], TensorSplit]) -> Callable[..., TensorSplit]:
        def load(
            split: Split,
            *,
            cache: Path,
            path: Path | None = None,
            legacy_val: bool = False,
            renew: bool = False,
        ) -> TensorSplit:
            return read(split, DataSource(cache, path, legacy_val, renew))

        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(load, name, getattr(read, name))
        return dataset(info, *aliases, is_downloaded=True)(load)

    return add


def own_file(path: Path | str, kinds: Sequence[str], *, name: str | None = None) -> Path:
    """Return the file at `path`; in a directory, the file with one of the suffixes `kinds`.

    If there are several, the one with the official `name` is returned.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"{broken_link(path) or f'{path} does not exist'}; "
            f"`path` must be a {' or '.join(kinds)} file, or its directory"
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
