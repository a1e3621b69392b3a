"""Merge defaults, file and command line, and report all problems."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.config import OPTIONS, ConfigError, RunConfig
from chop.actions.examples import config_path
from chop.actions.made_with import recorded_options
from chop.actions.options import ConfigOption
from chop.actions.project import owner_of
from chop.options import did_you_mean
from chop.system.files import is_onnx_file, later_checkpoint, restore_folder, why_missing
from chop.system.redaction import redacted
from chop.training.options import spellings

if TYPE_CHECKING:
    from chop.project_networks import Made

__all__ = ["Resolved", "resolve"]

Values = dict[str, Any]
SEARCHES, TRIAL = "search_ckpts", re.compile(r"trial_(\d+)")  # where `ch search --apply` saves
# the names that options of training have in other tables
OTHER_NAMES = {
    other: name
    for name in OPTIONS.keys() & spellings().keys()
    for other, present in spellings().items()
    if present == spellings()[name] and other != name
}


@dataclass(frozen=True)
class Resolved:
    """The effective options, and those in the file and on the command line."""

    config: RunConfig
    file: Values | None
    flags: Values
    notes: tuple[str, ...] = ()  # what was taken of a project, for the log

    @property
    def from_file(self) -> set[str]:
        """The options that are in the file, and not on the command line."""
        return set(self.file or ()) - set(self.flags)

    @property
    def written(self) -> set[str]:
        """The options that are in the file or on the command line."""
        return {*self.flags, *(self.file or ())}

    def table(self) -> str:
        """Return the labs' table: their rows always, the others if they are set."""
        from chop.tools.config_load import option_table

        shown = [name for name, option in OPTIONS.items() if option.has_row(name in self.written)]
        file, flags = redacted(self.file), redacted(self.flags)
        return option_table(shown, _defaults(), file, flags, redacted(vars(self.config)))


def resolve(
    flags: Mapping[str, Any], *, needs_names: bool = True, without: Collection[Made] = ()
) -> Resolved:
    """Return default < file < command line, merged and checked; report all problems at once.

    `flags` holds the options on the command line by name: text, True for switches, lists of text.
    With `needs_names`, a model and a data set are required. A project of --load stands for the best
    of its networks but those that were made as `without` says.
    """
    problems: list[str] = []
    typed = _typed(flags, ConfigOption.from_flag, _flag, problems)
    if typed.get("config") is not None:
        typed |= _typed({"config": typed.pop("config")}, _example_path, _flag, problems)
    file = _read_file(typed.get("config"), problems)
    if problems:
        raise ConfigError(*problems)
    chosen = _defaults() | (file or {}) | typed
    notes: list[str] = []
    chosen |= dict(_located(chosen, typed, problems))
    chosen |= _of_project(chosen, {*typed, *(file or {})}, problems, notes)
    chosen |= _checkpoint_in(chosen, without, notes)
    chosen |= _onnx_model(chosen, typed, problems)
    problems += _python_files(chosen)
    needed = {"model": "a model", "dataset": "a data set"}
    missing = [what for name, what in needed.items() if chosen[name] is None]
    if missing and needs_names:
        are = "are" if len(missing) > 1 else "is"
        problems.append(f"{' and '.join(missing)} {are} required; {_names_to_give(chosen)}")
    if problems:
        raise ConfigError(*problems)
    return Resolved(RunConfig(**chosen), file, typed, tuple(notes))


def _names_to_give(chosen: Values) -> str:
    """Return how to name model and data set: those of the graph of --load, if it says them."""
    from chop.actions.trained_on import names_in

    names: Mapping[str, str] = {}
    if chosen["load_name"] is not None and Path(chosen["load_name"]).exists():
        with contextlib.suppress(ValueError, OSError):  # a damaged graph
            names = names_in(chosen["load_name"], chosen["load_type"])
    if names.get("model") and names.get("dataset"):
        given = f"{names['model']} {names['dataset']}"
        return f"give {given} after the command, from which the graph of --load was made"
    return (
        "give MODEL and DATASET after the command, or set model and dataset in the file of --config"
    )


def _defaults() -> Values:
    return {name: option.default for name, option in OPTIONS.items()}


def _typed(
    values: Mapping[str, Any],
    parse: Callable[[ConfigOption, Any], Any],
    where: Callable[[str], str],
    problems: list[str],
) -> Values:
    typed = {}
    for name, value in values.items():
        try:
            typed[name] = parse(OPTIONS[name], value)
        except ValueError as error:
            problems.append(f"{where(name)}: {error}")
    return typed


def _example_path(option: ConfigOption, path: Path) -> Path:
    return config_path(path)


def _flag(name: str) -> str:
    """Return the option as it is written on the command line."""
    return OPTIONS[name].flags[0] if OPTIONS[name].flags else name.upper()


def _read_file(path: Path | None, problems: list[str]) -> Values | None:
    """Return the typed options of a TOML file; None without a file that can be read."""
    if path is None:
        return None
    if path.suffix != ".toml":
        problems.append(f"expected .toml configuration file, got {path}")
        return None
    if not path.is_file():
        problems.append(f"--config: {why_missing(path, 'file')}")
        return None
    from chop.tools.config_load import load_config

    try:
        written = load_config(path)
    except ValueError as error:
        problems.append(str(error))
        return None
    keys = [name for name in OPTIONS if name != "config"]
    for other, name in OTHER_NAMES.items():
        if other in written and written.setdefault(name, written[other]) != written.pop(other):
            problems.append(f"{path}: {other!r} and {name!r} are the same option; omit one of them")
    problems += [f"{path}: {_unknown(key, keys)}" for key in written if key not in keys]
    known = {key: value for key, value in written.items() if key in keys}
    return _typed(known, ConfigOption.from_file, lambda name: f"{path}: {name}", problems)


def _unknown(key: str, keys: list[str]) -> str:
    if key == "config":
        return "a configuration file cannot name another in 'config'"
    flags = {flag.lstrip("-"): name for name in keys for flag in OPTIONS[name].flags or ()}
    near, otherwise = flags.get(key.replace("_", "-"), key), "; docs/command_line.md lists the keys"
    return f"unknown key {key!r}{did_you_mean(near, [*keys, *OTHER_NAMES], otherwise)}"


def _located(chosen: Values, flags: Values, problems: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the options that are paths, absolute; add those that are missing to `problems`."""
    for name, option in OPTIONS.items():
        value, from_file = chosen[name], name not in flags
        if not option.is_path or not value:
            continue
        if name == "load_name" and chosen["load_type"] == "hf" and not Path(value).exists():
            continue  # a name on the Hugging Face hub
        config = chosen["config"] if from_file else None
        paths = [_absolute(path, config) for path in (value if option.is_list else [value])]
        where = f"{config}: {name}" if from_file else _flag(name)
        if name == "load_name":
            paths[0] = _in_project_dir(paths[0], Path(value), Path(chosen["project_dir"]))
            restore_folder(paths[0])
        missing = [path for path in paths if option.opt.exists and not path.exists()]
        hint = _where_to_find(paths[0], value, chosen) if name == "load_name" else ""
        problems += [f"{where}: {why_missing(path)}{hint}" for path in missing]
        yield name, tuple(paths) if option.is_list else type(value)(paths[0])


def _onnx_model(chosen: Values, flags: Values, problems: list[str]) -> Values:
    """Return the options with an ONNX file of --load as the model, and its path absolute."""
    model, load_name = chosen["model"], chosen["load_name"]
    if load_name is not None and is_onnx_file(load_name):
        fits = model in (None, "onnx", load_name) or is_onnx_file(model)
        if not fits and chosen["runtime"] == "torch":  # onnxruntime runs it as it is
            problems.append(
                f"--load: {load_name} is a whole network and not weights of {model!r}; give it in "
                f"place of {model!r}, and omit --load"
            )
        return {"model": str(load_name), "load_name": None}
    if model == "onnx":
        problems.append("MODEL: onnx needs the file of the network; give it with --load FILE.onnx")
    if model is None or not is_onnx_file(model):
        return {}
    path = _absolute(model, None if "model" in flags else chosen["config"])
    if not path.exists():
        problems.append(f"MODEL: {why_missing(path, 'file')}")
    return {"model": str(path)}


def _python_files(chosen: Values) -> Iterator[str]:
    """Yield what to give instead of a Python file in place of weights or of the name of a model."""
    instead = "give it with --import, and as MODEL the name that its @model(…) registers"
    for name, what, so in (
        ("load_name", "--load", ", which holds no weights"),
        ("model", "MODEL", ""),
    ):
        if chosen[name] is not None and re.search(r"\.py(:|$)", chosen[name]):
            yield f"{what}: {chosen[name]} is a Python file{so}; {instead}"


def _in_project_dir(path: Path, given: Path, project_dir: Path) -> Path:
    """Return the path; `mase_output/…` is in the project directory if it is not in the current."""
    there = project_dir.expanduser().absolute().parent / given
    is_there = given.parts[:1] == (project_dir.name,) and there.exists()
    return there if is_there and not path.exists() else path


def _where_to_find(path: Path, given: str, chosen: Values) -> str:
    """Return what to do about a missing checkpoint: a trial, or a project given by its name."""
    if path.parent.name == SEARCHES and (trial := TRIAL.fullmatch(path.name)):
        return f"; build it with ch search --apply {trial[1]}"
    project = Path(chosen["project_dir"]).expanduser().absolute() / given
    return f"; did you mean {str(project)!r}?" if project.exists() else ""


def _of_project(
    chosen: Values, written: Collection[str], problems: list[str], notes: list[str]
) -> Values:
    """Return the options with which the project of --load was made, unless others are written."""
    if chosen["load_name"] is None or chosen["load_type"] == "hf":
        return {}
    load = Path(chosen["load_name"])
    try:
        taken, note = recorded_options(chosen, written, owner_of(load / "x") or load)
    except ValueError as error:
        problems.append(f"--load: {error}")
        return {}
    notes += [note] if note else []
    return taken


def _checkpoint_in(chosen: Values, without: Collection[Made], notes: list[str]) -> Values:
    """Return --load as the network that its directory stands for, and note which it is."""
    if chosen["load_name"] is None:
        return {}
    path = Path(chosen["load_name"])
    if (later := later_checkpoint(path)) is not None:
        notes.append(f"{path} is of an earlier run; a later one beside it wrote {later.name}")
    if not path.is_dir():
        return {}
    from chop.checkpoints import network_at

    network = network_at(path, chosen["load_type"], without=without)
    if network is None:
        return {}
    notes.append(f"Of {path}, --load takes {network.about}: {network.path}")
    return {"load_name": str(network.path), "load_type": network.load_type}


def _absolute(path: str | Path, config: Path | None) -> Path:
    """Return the absolute path; a path in a configuration file may be relative to that file."""
    here = Path(path).expanduser().absolute()
    beside = here if config is None else config.absolute().parent / Path(path).expanduser()
    return beside if beside.exists() and not here.exists() else here
