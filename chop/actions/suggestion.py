"""Commands that go on with the result of a run, with all options that they need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from chop.actions.config import OPTIONS, RunConfig, default_project_dir
from chop.actions.invocation import command
from chop.actions.project import owner_of
from chop.actions.resolve import resolve

# options on which the score of a model depends, besides the names of model and data set
SCORED_BY = (
    *("task", "quant_config", "max_token_len", "trainer_precision", "imports", "size"),
    *("data_path", "standardize", "legacy_val", "seed", "batch_size", "num_workers", "accelerator"),
)


def command_to_test(config: RunConfig, load_name: Path, load_type: str) -> str:
    """Return the command line that tests the checkpoint `load_name` as the run did."""
    return command_for("test", config, load_name, load_type)


def command_for(
    action: str,
    config: RunConfig,
    load_name: Path | None,
    load_type: str,
    project: Path | None = None,
) -> str:
    """Return the command line of an action on a checkpoint, in the directory `project` if given.

    Without a checkpoint, the model is an ONNX file.
    """
    words: list[object] = [action, config.model, config.dataset]
    words += [] if load_name is None else ["--load", load_name, "--load-type", load_type]
    flags = {"model": config.model, "dataset": config.dataset}
    if config.config is not None:
        words += ["--config", config.config]
        flags["config"] = str(config.config)
    base = resolve(flags).config
    # without a project in the file, the results belong to the project of the checkpoint
    is_placed = base.project is not None or base.project_dir != default_project_dir()
    if project is not None and (load_name is None or owner_of(load_name) != project):
        config = replace(config, project=project.name, project_dir=project.parent)
        is_placed = True
    names = (*SCORED_BY, *(("project", "project_dir") if is_placed else ()))
    return command(*words, *(word for name in names for word in _flags(name, base, config)))


def _flags(name: str, base: RunConfig, config: RunConfig) -> Iterator[object]:
    """Yield the words that set an option, if its value is not that of `base`."""
    value, option = getattr(config, name), OPTIONS[name]
    if value == getattr(base, name) or value is None:
        return
    if option.is_switch:
        yield from option.flags[:1] if value else ()
        return
    for each in value if option.is_list else [value]:
        yield from (option.flags[0], each)
