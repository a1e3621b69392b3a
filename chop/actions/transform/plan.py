"""The passes in a file and their options, checked before any work starts."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chop.actions.config import ConfigError
from chop.registry import UnknownName
from chop.system.files import restore_folder

if TYPE_CHECKING:  # reading a plan does not import torch
    from chop.passes.base import GraphPass
    from chop.passes.options import Problem

STYLES = ("graph", "module")
# former names of passes
ALIASES = {"remove_prune_wrappers": "prune_detach_hook"}
FUNCTION_SUFFIX = re.compile(r"_(analysis|transform|interface)_pass\Z")
SUPPLIED = {"input_generator", "dummy_in"}  # objects that the run makes from its data
PROJECT = "../.."  # the directory of the run, which has hardware/ in it
# default paths that passes write to, in the directory of the transform
PLACES = {
    ("calibrate", "picture"): "calibration.svg",
    ("report_graph", "file_name"): "report_graph.txt",
    ("report_node_meta_param", "save_path"): "report",
    ("save_mase_graph", "save_dir"): "saved_mase_graph",
    ("save_node_meta_param", "save_path"): "saved_node_meta_param",
    ("emit_verilog_top", "project_dir"): PROJECT,
}


@dataclass(frozen=True)
class PassStep:
    """One pass with its options; `label` is unique, `place` is its position in the file."""

    label: str
    place: str
    run: GraphPass
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return self.run.name

    def paths(self, use: Literal["read", "written"]) -> dict[str, Path]:
        """Return the files and directories that the pass reads or writes, by option."""
        values = {k: self.options.get(k) for k, its in self.run.paths.items() if its.value == use}
        paths = {key: path for key, path in values.items() if isinstance(path, str | Path)}
        return {key: Path(path).expanduser() for key, path in paths.items() if str(path)}


@dataclass(frozen=True)
class Plan:
    """The checked passes and settings of a file."""

    steps: list[PassStep]
    style: str
    cf_args: dict[str, Any]
    where: str = ""  # prefix of its error messages

    def check_subject(self, subject: Any) -> None:
        """Refuse unknown names of nodes and missing metadata before the first pass runs."""
        problems: list[str] = []
        for i, step in enumerate(self.steps):
            problems += _lines(step.place, step.run, step.run.misfits(subject, _complete(step)))
            problems += _unfilled(step, subject, self.steps[:i])
            if step.run.new_nodes:
                break  # the names of later nodes are not known yet
        if problems:
            raise ConfigError(*(self.where + problem for problem in problems))


def plan_of(
    config: Mapping[str, Any],
    folder: Path | None,
    where: str = "",
    *,
    confined: bool = False,
    are_all_known: bool = True,
) -> Plan:
    """Return the passes of a configuration, or report all its mistakes, prefixed by `where`.

    Relative paths that passes write to are in `folder`; with `confined`, no path may leave it.
    Unless `are_all_known`, further passes may be registered later.
    """
    settings = config.get("transform") or {}
    style = settings.get("style", "graph")
    unknown = [key for key in settings if key != "style"]
    problems = [f"transform has no key {key!r}; it has 'style'" for key in unknown]
    if style not in STYLES:
        raise ConfigError(f"{where}transform.style must be {' or '.join(STYLES)}, not {style!r}")
    steps: list[PassStep] = []
    for place, name, options in _listed(config.get("passes") or {}, where):
        try:
            run = _pass(name, style)
        except UnknownName as error:
            problems += [f"passes: {error}"] if are_all_known else []
            continue
        given = options.keys()
        options = options if folder is None else placed(run, options, folder, steps)
        step = PassStep(_numbered(run.name, run, steps), place, run, options)
        problems += _problems(step)
        problems += _missing(step, _written(steps)) if are_all_known else ()
        problems += _escaping(step, folder, given) if confined and folder is not None else ()
        steps.append(step)
    problems += _late_calibrations(steps)
    if not config.get("passes"):
        problems.append("passes: there are no passes to run; add a table such as [passes.quantize]")
    if problems:
        raise ConfigError(*(where + problem for problem in problems))
    return Plan(steps, style, dict(config.get("cf_args") or {}), where)


def _listed(passes: Any, where: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield position, name and options of each `[passes.x]` table or `[[passes]]` entry."""
    if isinstance(passes, Mapping):
        for name, options in passes.items():
            if not isinstance(options, Mapping):
                raise ConfigError(
                    f"{where}passes.{name} must be a table of options, not {options!r:.40}"
                )
            yield f"passes.{name}", name, dict(options)
        return
    if not isinstance(passes, list):
        raise ConfigError(f"{where}passes must be a table of tables, not {passes!r:.40}")
    for i, entry in enumerate(passes, 1):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise ConfigError(
                f'{where}passes: entry {i} needs the name of a pass: name = "quantize"'
            )
        options = {key: value for key, value in entry.items() if key != "name"}
        yield f"entry {i}: passes.{entry['name']}", entry["name"], options


def _pass(name: str, style: str) -> GraphPass:
    from chop.passes.base import PASSES as GRAPH_PASSES
    from chop.passes.module.base import PASSES as MODULE_PASSES

    registry: Mapping[str, GraphPass] = GRAPH_PASSES if style == "graph" else MODULE_PASSES
    names = (FUNCTION_SUFFIX.sub("", name), ALIASES.get(name, name))
    return registry[next((known for known in names if known in registry), name)]


def _numbered(name: str, run: GraphPass, earlier: list[PassStep]) -> str:
    """Return `name` for the first run of a pass, then `name_1`, `name_2`."""
    again = sum(step.name == run.name for step in earlier)
    return Path(name).stem + f"_{again}" + Path(name).suffix if again else name


def placed(
    run: GraphPass, options: dict[str, Any], folder: Path, earlier: list[PassStep]
) -> dict[str, Any]:
    """Return the options with written paths, and reads of paths written earlier, in `folder`."""
    defaults = {
        key: os.path.normpath(folder / (file if file == PROJECT else _numbered(file, run, earlier)))
        for (name, key), file in PLACES.items()
        if name == run.name
    }
    written = _written(earlier)
    writes = [key for key, use in run.paths.items() if use.value == "written"]

    def in_folder(key: str, value: Any) -> Any:
        if key not in run.options or not isinstance(value, str | Path):
            return value
        path = folder / Path(value).expanduser()  # an absolute path is unchanged
        return str(path) if key in writes or path in written else value

    return {key: in_folder(key, value) for key, value in (defaults | options).items()}


def _written(steps: list[PassStep]) -> set[Path]:
    return {path for step in steps for path in step.paths("written").values()}


def _complete(step: PassStep) -> dict[str, Any]:
    """Return the options with a placeholder for the batches that the run supplies."""
    supplied = {"input_generator": ()} if "input_generator" in step.run.options else {}
    return supplied | step.options


def _problems(step: PassStep) -> Iterable[str]:
    """Return everything that is wrong with the options of a step."""
    if step.run.python_only:
        text = "needs a Python object, which a file cannot hold; call it from Python"
        return [f"{step.place}: pass {step.name!r} {text}"]
    return [
        *_lines(step.place, step.run, step.run.problems(_complete(step))),
        *_objects_as_text(step),
    ]


def _objects_as_text(step: PassStep) -> Iterator[str]:
    """Yield options that are Python objects, but that have a text or a number in the file."""
    for key in SUPPLIED & step.run.options.keys():
        if isinstance(value := step.options.get(key), str | int | float):
            yield (
                f"{step.place}.{key}: only Python code can give {key}, as an object, not "
                f"{value!r:.40}; leave it out, and the data of the run are used"
            )


def _late_calibrations(steps: list[PassStep]) -> Iterator[str]:
    """Yield runs of `calibrate`, which needs a float graph, that come after a quantisation."""
    quantized = next((i for i, step in enumerate(steps) if step.name == "quantize"), len(steps))
    for step in steps[quantized:]:
        if step.name == "calibrate":
            yield (
                f"{step.place}: calibrate needs a float graph, but {steps[quantized].place} comes "
                f"before it; calibrate first, then quantise"
            )


def _missing(step: PassStep, written: set[Path]) -> Iterator[str]:
    """Yield paths that the step reads, but that neither exist nor will be `written` before it."""
    for key, path in step.paths("read").items():
        restore_folder(path)
        if not path.exists() and path not in written:
            yield f"{step.place}.{key}: there is no file or directory {str(step.options[key])!r}"


def _escaping(step: PassStep, folder: Path, given: Collection[str]) -> Iterator[str]:
    """Yield `given` paths that the step would write outside `folder`, also through a link."""
    for key, path in step.paths("written").items():
        if key in given and not path.resolve().is_relative_to(folder.resolve()):
            yield f"{step.place}.{key}: {str(path)!r} is outside {folder}; use a path inside it"


def _unfilled(step: PassStep, subject: Any, earlier: list[PassStep]) -> Iterator[str]:
    """Yield the parts of the metadata that the pass needs but no earlier pass adds."""
    from chop.passes.base import FILLED_BY, has_metadata

    done = {other.name for other in earlier}
    for part in step.run.needs:
        missing = not all(has_metadata(node, part) for node in subject.nodes)
        if missing and FILLED_BY[part] not in done:
            yield f"{step.place}: it needs {part} metadata; run {FILLED_BY[part]} before it"


def _lines(place: str, run: GraphPass, problems: Iterable[Problem]) -> Iterator[str]:
    for problem in problems:
        key = f".{problem.key}" if problem.key else ""
        text = problem.text.removeprefix(f"pass {run.name!r}: ")
        yield f"{place}{key}: {text.removeprefix(f'{problem.key!r}: ')}"
