"""The description of a search: a study can only be resumed by the same search."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from chop.actions.config import ConfigError
from chop.actions.search.metrics.base import RUNNERS
from chop.actions.search.metrics.identity import fingerprints_of, weights_of
from chop.actions.search.results.files import plain
from chop.actions.search.space.calibration import calibration_of
from chop.actions.search.space.choices import Choice, Choices, OneOf, Parameter, shown_size
from chop.actions.search.spec.settings import GradientTable
from chop.actions.search.spec.study_spec import StudySpec
from chop.actions.search.store.study_store import StudyStore
from chop.numerics import FORMATS, NumberFormat
from chop.passes.graph.transforms.quantize.config import OPERANDS
from chop.passes.graph.transforms.quantize.marks import CALIBRATED

NEW_NAME = "name a new study with --study"
Path = tuple[str, ...]  # keys of tables within tables
SEVERAL = "several values"  # of an option of a format, in different layers
LONGEST = 10**300  # a number that every JSON reader accepts
# in a study that is resumed; the samples follow from runners and data, which are compared
MAY_DIFFER = {"dataset_title", "samples", "simulated"}


def description_of(spec: StudySpec) -> dict[str, Any]:
    """Return what identifies a search, as its study and search.json store it."""
    data, settings, space = spec.parent.data_module, spec.settings, spec.space
    info, stopping, objectives = data.dataset_info, settings.early_stopping, settings.objectives
    fixed = getattr(space, "fixed", {})
    description: dict[str, Any] = plain(
        {
            "model": spec.model_name,
            "weights": weights_of(spec.parent.graph.model),
            "front_end": spec.parent.graph.front_end,
            "dataset": data.name,
            "dataset_title": getattr(info, "title", data.name),
            "simulated": bool(getattr(info, "simulated", False)),
            "fingerprints": fingerprints_of(data),
            "batch_size": data.batch_size,
            "seed": spec.parent.seed,
            "sampler": settings.sampler,
            "sampler_options": settings.sampler_options,
            "uniform_first": settings.uniform_first,
            "in_flight": settings.in_flight,
            "population": spec.group_size,
            "threads": settings.threads,
            "space": {
                "name": space.name,
                "size": _written_size(space.choices.size),
                "choices": {p.key: p.choice.plain() for p in space.choices.open},
                **({"options": fixed} if fixed else {}),
            },
            "samples": {m: n for r in spec.runners for m, n in r.samples_by_metric().items()},
            "runners": _runners(spec),
            "early_stopping": stopping and stopping.model_dump(),
            "honour_directions": objectives.honour_directions,
            "objectives": [dataclasses.asdict(objective) for objective in objectives.members],
            "summed": objectives.summed,
            "constraints": [str(constraint) for constraint in objectives.constraints],
        }
    )
    single = {p.key: p.choice.plain() for p in space.choices.parameters if p.choice.count == 1}
    changed = _formats(space.choices)
    calibrated = _has_calibrated(space.choices) and calibration_of(spec.parent.graph)
    return (
        description
        | {"single_choices": plain(single)}
        | ({"formats": changed} if changed else {})
        | ({"calibration": plain(calibrated)} if calibrated else {})
        | ({"gradient": _gradient(settings.gradient)} if settings.gradient else {})
    )


def _gradient(how: GradientTable) -> Any:
    """Return how the front is trained; the seed is that of the search."""
    return plain({**dataclasses.asdict(how.front), "seed": None, "teacher": how.teacher})


def _has_calibrated(choices: Choices) -> bool:
    return any(CALIBRATED in list(_values(p.choice)) for p in choices.parameters)


def _values(choice: Choice) -> Iterable[Any]:
    return choice.values if isinstance(choice, OneOf) else ()


def _runners(spec: StudySpec) -> dict[str, dict[str, Any]]:
    """Return the options of each runner, with the defaults that depend on other options."""
    return {
        cls.name: {**cls.dependent_defaults(options), **options}
        for cls, options in spec.settings.runners
    }


def _formats(choices: Choices) -> dict[str, dict[str, Any]]:
    """Return the options of formats in a space that had another default in earlier versions."""
    layers: dict[str, list[Parameter]] = {}
    for parameter in choices.parameters:
        layers.setdefault(parameter.key.rpartition("/")[0], []).append(parameter)
    formats = {}
    for cls in (cls for cls in FORMATS.values() if cls.earlier):
        tables = [_table(cls.name, keys) for keys in layers.values() if _offers(cls.name, keys)]
        if tables:
            formats[cls.name] = {option: _value(cls, option, tables) for option in cls.earlier}
    return formats


def _offers(name: str, parameters: list[Parameter]) -> bool:
    heads = (p for p in parameters if p.key.endswith("/name"))
    return any(name in head.choice.plain() for head in heads)


def _table(name: str, parameters: list[Parameter]) -> dict[str, Any]:
    """Return the choices of a layer for a format, by key."""
    own = (p for p in parameters if p.parent is None or name in p.when)
    return {p.key.rpartition("/")[2]: p.choice.plain() for p in own}


def _value(cls: type[NumberFormat], option: str, tables: list[dict[str, Any]]) -> Any:
    """Return the value of an option of a format if it is the same in all layers and operands."""
    default = [next(field.default for field in fields(cls) if field.name == option)]
    values = []
    for table in tables:
        operands = [o for o in OPERANDS if any(key.startswith(f"{o}_") for key in table)]
        general = table.get(option, default)
        values += [table.get(f"{operand}_{option}", general) for operand in operands] or [general]
    is_one = all(value == values[0] and len(value) == 1 for value in values)
    return values[0][0] if is_one else SEVERAL


def _with_earlier(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with what earlier versions did not store, because it had one value."""
    formats = {cls.name: dict(cls.earlier) for cls in FORMATS.values() if cls.earlier}
    runners = {
        name: {**_earlier_options(name, stored), **options}
        for name, options in stored.get("runners", {}).items()
    }
    return {"formats": formats, **stored, **({"runners": runners} if runners else {})}


def _earlier_options(name: str, stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options of a runner as the version meant them that stored a study without them."""
    if name not in RUNNERS:
        return {}
    # versions with uniform designs had the present defaults, and did not store them at first
    is_present = "uniform_first" in stored
    defaults = RUNNERS[name].dependent_defaults(stored["runners"][name])
    return defaults if is_present else RUNNERS[name].earlier


def _written_size(size: int | None) -> int | str | None:
    """Return the size of a space as a number or text that JSON can hold."""
    return size if size is None or size < LONGEST else shown_size(size)


def check_same(store: StudyStore, about: Mapping[str, Any], fix: str = NEW_NAME) -> None:
    """Refuse a study of a different search."""
    stored = _with_earlier(store.about) if store.about else {}
    compared = about.keys() & stored.keys() - MAY_DIFFER
    differ = [key for key in about if key in compared and stored[key] != about[key]]
    if differ:
        path, theirs, ours = _difference((differ[0],), stored[differ[0]], about[differ[0]])
        if _has(stored, path) and not _has(store.about, path):
            raise ConfigError(
                f"the study {store.study!r} in {store.shown} is of an earlier version, with "
                f"{_as_earlier(path, theirs)} to continue it, or {fix}"
            )
        raise ConfigError(
            f"the study {store.study!r} in {store.shown} belongs to a different search: "
            f"its {'.'.join(path)} is {_shown(theirs)}, not {_shown(ours)}; {fix}"
        )


def _has(table: Any, path: Path) -> bool:
    for key in path:
        if not isinstance(table, Mapping) or key not in table:
            return False
        table = table[key]
    return True


def _as_earlier(path: Path, value: Any) -> str:
    """Return what an earlier version did, and how a file asks for the same."""
    kind, name, option = path
    text = json.dumps(value)  # as TOML has it
    if kind == "formats":
        where = f"{option} = [{text}] in every table of the seed with {name}"
    else:
        side = "sw_runner" if RUNNERS[name].side == "software" else "hw_runner"
        where = f"{option} = {text} in search.strategy.{side}.{name}"
    return f"{option} = {text} for {name}; set {where}"


def _difference(path: Path, theirs: Any, ours: Any) -> tuple[Path, Any, Any]:
    """Return the path of the first difference, and both values there."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in [*theirs, *ours]:
            one, other = (table.get(key, "nothing") for table in (theirs, ours))
            if one != other:
                return _difference((*path, key), one, other)
    return path, theirs, ours


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 100 else text[:99] + "…"
