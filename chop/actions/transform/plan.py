"""What a file asks for, checked as a whole before any work starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.config import ConfigError
from chop.files import restore_folder
from chop.registry import UnknownName

if TYPE_CHECKING:  # torch is imported when there is work to do
    from chop.passes.base import GraphPass
    from chop.passes.options import Problem

STYLES = ("graph", "module")
# names of passes in older files
ALIASES = {"remove_prune_wrappers": "prune_detach_hook"}
# where passes write, in the folder of the transform, unless the file says otherwise
PLACES = {
    ("report_graph", "file_name"): "report_graph.txt",
    ("report_node_meta_param", "save_path"): "report",
    ("save_mase_graph", "save_dir"): "saved_mase_graph",
    ("save_node_meta_param", "save_path"): "saved_node_meta_param",
}


@dataclass(frozen=True)
class PassStep:
    """One pass with its options; `label` tells two runs of a pass apart, `place` is in the file."""

    label: str
    place: str
    run: GraphPass
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return self.run.name

    def read(self) -> dict[str, Path]:
        """The files and folders that the pass was told to read, by option."""
        return self._named(is_written=False)

    def written(self) -> dict[str, Path]:
        """The files and folders that the pass was told to write, by option."""
        return self._named(is_written=True)

    def _named(self, is_written: bool) -> dict[str, Path]:
        named = {key: self.options.get(key) for key in paths_of(self.run, is_written)}
        given = {key: path for key, path in named.items() if isinstance(path, str | Path)}
        return {key: Path(path).expanduser() for key, path in given.items() if str(path)}


@dataclass(frozen=True)
class Plan:
    """A whole file, checked."""

    steps: list[PassStep]
    style: str
    cf_args: dict[str, Any]
    where: str = ""  # what its mistakes begin with

    def check_subject(self, subject: Any) -> None:
        """Refuse names of nodes and metadata that are not there, before the first pass runs."""
        problems: list[str] = []
        for i, step in enumerate(self.steps):
            problems += _lines(step.place, step.run, step.run.misfits(subject, _complete(step)))
            problems += _unfilled(step, subject, self.steps[:i])
            if step.run.new_nodes:
                break  # who knows what nodes are called from here on
        if problems:
            raise ConfigError(*(self.where + problem for problem in problems))


def paths_of(run: GraphPass, is_written: bool) -> list[str]:
    """The options of a pass that name what it writes, or what it reads."""
    from chop.passes.options import PathUse

    use = PathUse.WRITTEN if is_written else PathUse.READ
    return [key for key, its_use in run.paths.items() if its_use is use]


def plan_of(
    config: Mapping[str, Any],
    folder: Path | None,
    where: str = "",
    *,
    confined: bool = False,
    are_all_known: bool = True,
) -> Plan:
    """The passes of a configuration, all of whose mistakes are said at once; `where` they are.

    What passes write under a relative name lands in `folder`, and if `confined` nothing may lead
    out of it. Unless `are_all_known`, other passes may be registered later.
    """
    settings = config.get("transform") or {}
    style = settings.get("style", "graph")
    strange = [key for key in settings if key != "style"]
    problems = [f"transform has no key {key!r}; it has 'style'" for key in strange]
    if style not in STYLES:
        raise ConfigError(f"{where}transform.style is one of {', '.join(STYLES)}, not {style!r}")
    steps: list[PassStep] = []
    for place, name, options in _listed(config.get("passes") or {}, where):
        try:
            run = _pass(name, style)
        except UnknownName as error:
            problems += [f"passes: {error}"] if are_all_known else []
            continue
        placed = options if folder is None else _placed(run, options, folder, steps)
        step = PassStep(_label(run, steps), place, run, placed)
        problems += _problems(step)
        problems += _missing(step, _made(steps)) if are_all_known else ()
        problems += _escaping(step, folder) if confined and folder is not None else ()
        steps.append(step)
    if not config.get("passes"):
        problems.append("passes: there is nothing to do; add a table such as [passes.quantize]")
    if problems:
        raise ConfigError(*(where + problem for problem in problems))
    return Plan(steps, style, dict(config.get("cf_args") or {}), where)


def _listed(passes: Any, where: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """`[passes.x]` tables, or `[[passes]]` entries with a `name`: place in the file, name, rest."""
    if isinstance(passes, Mapping):
        for name, options in passes.items():
            if not isinstance(options, Mapping):
                raise ConfigError(
                    f"{where}passes.{name} is a table of options, not {options!r:.40}"
                )
            yield f"passes.{name}", name, dict(options)
        return
    if not isinstance(passes, list):
        raise ConfigError(f"{where}passes holds tables, not {passes!r:.40}")
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
    if name not in registry and ALIASES.get(name) in registry:
        name = ALIASES[name]
    short = _short(name)
    return registry[short if short in registry else name]


def _short(name: str) -> str:
    """A pass may be called by its function: quantize_transform_pass."""
    for kind in ("analysis", "transform", "interface"):
        name = name.removesuffix(f"_{kind}_pass")
    return name


def _label(run: GraphPass, earlier: list[PassStep]) -> str:
    return _numbered(run.name, run, earlier)


def _numbered(name: str, run: GraphPass, earlier: list[PassStep]) -> str:
    """The name as it is for the first run of a pass, then `name_1`, `name_2`."""
    again = sum(step.name == run.name for step in earlier)
    return Path(name).stem + f"_{again}" + Path(name).suffix if again else name


def _placed(
    run: GraphPass, options: dict[str, Any], folder: Path, earlier: list[PassStep]
) -> dict[str, Any]:
    """The options with paths in `folder`; what an earlier pass has written there is read there."""
    defaults = {
        key: _numbered(file, run, earlier)
        for (name, key), file in PLACES.items()
        if name == run.name
    }
    made, writes = _made(earlier), paths_of(run, is_written=True)

    def placed(key: str, value: Any) -> Any:
        if key not in run.options or not isinstance(value, str | Path):
            return value
        there = folder / Path(value).expanduser()  # an absolute one stays as it is
        return str(there) if key in writes or there in made else value

    return {key: placed(key, value) for key, value in (defaults | options).items()}


def _made(steps: list[PassStep]) -> set[Path]:
    return {path for step in steps for path in step.written().values()}


def _complete(step: PassStep) -> dict[str, Any]:
    """The options as they will be: batches of the data come with the run."""
    comes = {"input_generator": ()} if "input_generator" in step.run.options else {}
    return comes | step.options


def _problems(step: PassStep) -> Iterable[str]:
    """All that is wrong with the options of a step."""
    if step.run.python_only:
        text = "needs an object of Python, which no file can hold; call it from Python"
        return [f"{step.place}: pass {step.name!r} {text}"]
    return _lines(step.place, step.run, step.run.problems(_complete(step)))


def _missing(step: PassStep, made: set[Path]) -> Iterator[str]:
    """What the step reads and nobody has written; `made` will be there."""
    for key, path in step.read().items():
        restore_folder(path)
        if not path.exists() and path not in made:
            yield f"{step.place}.{key}: there is no file or folder {str(step.options[key])!r}"


def _escaping(step: PassStep, folder: Path) -> Iterator[str]:
    """What the step would write outside `folder`, also through a symbolic link."""
    for key, path in step.written().items():
        if not path.resolve().is_relative_to(folder.resolve()):
            yield f"{step.place}.{key}: {str(path)!r} is outside {folder}; use a path inside it"


def _unfilled(step: PassStep, subject: Any, earlier: list[PassStep]) -> Iterator[str]:
    """Parts of the metadata that the pass needs and nobody fills in before it."""
    from chop.passes.base import FILLED_BY, has_metadata

    done = {other.name for other in earlier}
    for part in step.run.needs:
        missing = not all(has_metadata(node, part) for node in subject.nodes)
        if missing and FILLED_BY[part] not in done:
            yield f"{step.place}: it needs {part} metadata; run {FILLED_BY[part]} before it"


def _lines(place: str, run: GraphPass, problems: Iterable[Problem]) -> Iterator[str]:
    for problem in problems:
        key = f".{problem.key}" if problem.key else ""
        yield f"{place}{key}: {problem.text.removeprefix(f'pass {run.name!r}: ')}"
