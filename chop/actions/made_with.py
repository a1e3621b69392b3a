"""What a project was made with: its model, its data set, and the options that these need."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from chop.actions.config import OPTIONS, RunConfig
from chop.actions.named_by_files import why_not_named
from chop.actions.options import ConfigOption
from chop.system.files import is_onnx_file, read_json, write_whole

__all__ = ["note_made_with", "recorded_options"]

FILE = Path("software", "made_with.json")
NAMES = ("model", "dataset")
OF_MODEL = ("model_args", "quant_config")
OF_DATA = ("data_path", "dataset_args", "standardize", "legacy_val", "max_token_len")
PATHS = ("data_path", "quant_config")
Values = dict[str, Any]


def note_made_with(config: RunConfig, project: Path) -> None:
    """Note the options of a run that makes networks, for the commands that take the project."""
    names = (*NAMES, "task", *OF_MODEL, *OF_DATA, "imports")
    given = {n: getattr(config, n) for n in names if getattr(config, n) != OPTIONS[n].default}
    text = json.dumps({name: _plain(value) for name, value in given.items()}, indent=1)
    write_whole(project / FILE, text + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | None) else str(value)  # of TOML: dates


def recorded_options(chosen: Values, written: Collection[str], project: Path) -> tuple[Values, str]:
    """Return the options of a project that are not `written`, and a note of them for the log.

    Those of another model or data set than the chosen ones are left out, and those that would run
    code are named only, as a project may come from a stranger.
    """
    if not (project / FILE).is_file():
        return {}, ""
    advice = "delete it, and give the options on the command line"
    content = read_json(project / FILE, advice=advice)
    try:
        known = {n: ConfigOption.from_file(OPTIONS[n], content[n]) for n in _kept(content, chosen)}
    except (ValueError, TypeError) as error:
        raise ValueError(f"{project / FILE} is damaged: {error}; {advice}") from error
    taken = {name: value for name, value in known.items() if name not in written}
    model, dataset = (taken.get(name) or "" for name in NAMES)
    has_path = "data_path" in {*written, *taken}
    if (reason := why_not_named(model, dataset, project, has_path=has_path)) is not None:
        raise ValueError(
            f"{project / FILE} names {reason}; to use it, give MODEL and DATASET after the command"
        )
    told = [f"{name} = {value}" for name, value in taken.items()]
    imports = content.get("imports")
    if imports and "imports" not in written and isinstance(imports, list):
        flags = " ".join(f"--import {file}" for file in imports)
        told.append(f"its own code is run only if you give {flags}")
    return taken, f"Of the project {project.name}: {'; '.join(told)}" if told else ""


def _kept(content: Mapping[str, Any], chosen: Values) -> list[str]:
    """Return the names of the recorded options that fit the chosen model and data set."""
    same = {name: _is_same(chosen[name], content.get(name)) for name in NAMES}
    names = [name for name in NAMES if chosen[name] is None]
    names += OF_MODEL if same["model"] else ()
    names += OF_DATA if same["dataset"] else ()
    names += ["task"] if all(same.values()) else []
    gone = [n for n in PATHS if isinstance(content.get(n), str) and not Path(content[n]).exists()]
    return [name for name in names if name in content and name not in gone]


def _is_same(chosen: Any, recorded: Any) -> bool:
    if chosen is None:
        return True
    if is_onnx_file(chosen) and isinstance(recorded, str):
        return Path(chosen).absolute() == Path(recorded)
    return bool(chosen == recorded)
