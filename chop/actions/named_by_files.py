"""What is not done because a file names it: opening other files as networks, and downloads."""

from __future__ import annotations

from pathlib import Path

from chop.system.files import cache_folder, is_onnx_file

__all__ = ["why_not_named"]


def why_not_named(model: str, dataset: str, folder: Path, *, has_path: bool) -> str | None:
    """Return which name of a file in `folder` is not followed, and why; None if both may be.

    Projects, graphs and ONNX files may come from strangers. With `has_path`, the data come from a
    file, and are not downloaded.
    """
    if is_onnx_file(model) and not _is_in(folder, model):
        return f"the model file {model}, which is outside its folder and opened only if you name it"
    if dataset and not has_path and _would_be_downloaded(dataset):
        return f"the data set {dataset}, which is downloaded only if you name it"
    return None


def _is_in(folder: Path, file: str) -> bool:
    return Path(file).expanduser().resolve().is_relative_to(folder.resolve())


def _would_be_downloaded(dataset: str) -> bool:
    from chop.dataset import DATASETS

    spec = DATASETS.get(dataset)
    is_here = spec is not None and any((cache_folder() / spec.info.name).glob("*"))
    return spec is not None and spec.is_downloaded and not is_here
