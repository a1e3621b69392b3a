"""Adapt the data of a run to those that the loaded network was trained on."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.system.files import is_onnx_file

if TYPE_CHECKING:
    from chop.dataset.facts import DataFacts

logger = logging.getLogger(__name__)


def facts_in(load_name: str | Path | None, load_type: str) -> DataFacts | None:
    """Return what a checkpoint records about its data; None if it records nothing."""
    if load_name is not None and is_onnx_file(load_name):
        return _of_onnx_file(load_name)
    if load_name is None or load_type == "hf":
        return None
    from chop.checkpoints import checkpoint_at

    path, load_type = checkpoint_at(Path(load_name).expanduser(), load_type)
    table = _saved_notes(path)["trained_on"] if path.is_dir() else _of_checkpoint(path)
    return read_facts(table, path)


def names_in(load_name: str | Path | None, load_type: str) -> dict[str, str]:
    """Return the names of model and data set that a saved graph was made from; {} if unknown."""
    return _saved_notes(Path(load_name))["made_from"] if load_name and load_type == "mz" else {}


def read_facts(table: Any, source: Path | str) -> DataFacts | None:
    """Return the facts in a table of a file; None for an empty one."""
    from chop.dataset.facts import DataFacts

    if table is None or (isinstance(table, Mapping) and not table):
        return None
    try:
        return DataFacts.read(table)
    except ValueError as error:
        raise ValueError(f"{source} is damaged: {error}; save it again") from error


def _of_onnx_file(file: str | Path) -> DataFacts | None:
    from chop.models.onnx_files import recorded_facts
    from chop.onnx.metadata import metadata_of
    from chop.onnx.reading.files import load_proto

    return recorded_facts(metadata_of(load_proto(file)), str(file))


def _saved_notes(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what a directory of `ch transform` says about model and data."""
    from chop.ir.graph.saved_files import has_saved_modules, is_saved_graph
    from chop.ir.graph.saved_modules import notes_of
    from chop.ir.graph.saving import made_from, trained_on

    if is_saved_graph(folder):
        return {"made_from": made_from(folder), "trained_on": trained_on(folder)}
    return notes_of(folder) if has_saved_modules(folder) else {"made_from": {}, "trained_on": {}}


def _of_checkpoint(file: Path) -> Any:
    from chop.checkpoints import read_torch_file

    content = None
    with contextlib.suppress(ValueError, OSError):  # `load_model` will tell what is wrong with it
        content = read_torch_file(file)
    ours = content.get("mase") if isinstance(content, Mapping) else None
    return ours.get("trained_on") if isinstance(ours, Mapping) else None


def adapt_data(
    data_module: Any, load_name: str | Path | None, load_type: str, *, strict: bool = True
) -> bool:
    """Adapt a data module to the network in a checkpoint; return whether it records its data.

    Unless `strict`, classes that the network does not have are left as they are.
    """
    from chop.dataset import MaseDataModule

    facts = facts_in(load_name, load_type)
    if facts is not None and isinstance(data_module, MaseDataModule):
        data_module.adapt_to(facts, strict=strict)
    return facts is not None


def log_assumed_classes(data_module: Any, load_name: str | Path) -> None:
    """Log the classes that the outputs of a loaded network without a record are taken for."""
    info = getattr(data_module, "dataset_info", None)
    if classes := getattr(info, "class_names", ()):
        logger.info(
            "%s does not record its classes; its outputs are taken for %s, in this order",
            *(load_name, ", ".join(classes)),
        )


def adapt_to_resumed(data_module: Any, saved: Mapping[str, Any]) -> None:
    """Adapt a data module as it was when the run with the checkpoint `saved` was interrupted."""
    from chop.dataset import MaseDataModule

    facts = read_facts(saved["mase"].get("trained_on"), "the resumed checkpoint")
    if facts is not None and isinstance(data_module, MaseDataModule):
        data_module.adapt_to(facts, strict=False)
