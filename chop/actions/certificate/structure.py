"""What each part of a certificate is, to name what is damaged in one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from annotated_types import Len, Predicate

from chop.actions.certificate.artefacts import Artefact
from chop.actions.certificate.ways import Way
from chop.options import NonNegativeInt

__all__ = ["damage"]

Checksum = Annotated[str, Len(64, 64)]
Number = Annotated[float, Predicate(math.isfinite)]
NAMES = ("load_name", "load_type")  # options that are one text


@dataclass
class NetworkPart:
    checksum: Checksum
    metric: str
    inputs: list[str]
    outputs: list[str]
    notes: list[str]
    model: str = ""
    dataset: str = ""


@dataclass
class Inputs:
    split: str
    samples: NonNegativeInt
    random: NonNegativeInt
    seed: int
    boundary: NonNegativeInt
    total: NonNegativeInt
    sha256: Checksum


@dataclass
class LayerPart:
    node: str
    op: str
    type: str
    lowest: int | None
    highest: int | None
    accumulator_width: NonNegativeInt | None
    equality: Literal["proven", "observed"]
    values: NonNegativeInt
    mismatches: NonNegativeInt


@dataclass
class Bounds:
    proven: NonNegativeInt
    observed: NonNegativeInt
    layers: list[LayerPart]


@dataclass
class First:
    node: str
    vector: str
    place: list[NonNegativeInt]
    expected: Number
    got: Number
    module: str | None


@dataclass
class WayPart:
    way: Way
    file: str | None
    session: str | None
    score: Number | None
    mismatches: NonNegativeInt | None
    wrong_vectors: NonNegativeInt | None
    first: First | None
    faults: list[str]
    notes: list[str]
    network: str | None


@dataclass
class Machine:
    cpu: str
    architecture: str
    system: str
    cores: int | None
    flags: list[str]
    vnni: bool


@dataclass
class WholeRecord:
    """All that is in the file, apart from its format and version."""

    verdict: Literal["equal", "different", "not compared"]
    difference: str | None
    made: datetime
    command: str
    options: dict[str, Any]
    network: NetworkPart
    artefacts: list[Artefact]
    vectors: Inputs
    codes: Checksum
    bounds: Bounds
    findings: list[str]
    ways: list[WayPart]
    missing: dict[Way, str]
    versions: dict[str, str | None]
    machine: Machine


def damage(record: Mapping[str, Any]) -> str | None:
    """Return, as a clause, the first part that a certificate does not have so; None if all fit."""
    from pydantic import TypeAdapter, ValidationError

    try:
        checked = TypeAdapter(WholeRecord).validate_json(json.dumps(record), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        part = ".".join(str(step) for step in first["loc"])
        return f"its {part!r} is missing or of another kind" if part else first["msg"]
    wrong = (name for name, value in checked.options.items() if not _is_option(name, value))
    return next((f"its 'options.{name}' is not an option" for name in wrong), None)


def _is_option(name: str, value: Any) -> bool:
    if name in NAMES:
        return isinstance(value, str)
    return all(isinstance(each, str | bool) for each in (value if type(value) is list else [value]))
