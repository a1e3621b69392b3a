"""What a pass did, in a few words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.actions.transform.source import model_of

MOST_NUMBERS = 3  # of those that a pass returns


@dataclass(frozen=True)
class Traits:
    """What a pass may change, as far as a line can tell."""

    nodes: list[Any]
    layers: dict[str, str]
    parameters: int

    @classmethod
    def of(cls, subject: Any) -> Traits:
        model = model_of(subject)
        nodes = () if subject is model else subject.nodes
        return cls(
            [(node.name, node.op, str(node.target)) for node in nodes],
            {name: str(module) for name, module in model.named_modules() if not module._modules},
            sum(parameter.numel() for parameter in model.parameters()),
        )


def effect(before: Traits, after: Traits, info: Mapping[str, Any], files: list[Path]) -> str:
    """The line of a pass: what changed, what it wrote, what it found."""
    said = [*_changes(before, after, info), *(f"wrote {file.name}" for file in files)]
    return ", ".join([*said, *_findings(info)]) or "looked on"


def _changes(before: Traits, after: Traits, info: Mapping[str, Any]) -> Iterator[str]:
    listed = [(key, value) for key, value in info.items() if isinstance(value, list)]
    kept = before.layers.keys() & after.layers.keys()
    changed = sum(before.layers[name] != after.layers[name] for name in kept)
    if listed:
        key, value = listed[0]
        yield f"{len(value)} {key}"
    elif changed:
        yield f"{changed} layers changed"
    for what, one, two in (
        ("layers", len(before.layers), len(after.layers)),
        ("nodes", len(before.nodes), len(after.nodes)),
        ("parameters", before.parameters, after.parameters),
    ):
        if one != two:
            yield f"{one:,} -> {two:,} {what}"


def _findings(info: Mapping[str, Any]) -> Iterator[str]:
    numbers = [
        (key, value)
        for key, value in info.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    yield from (f"{key} = {value:.6g}" for key, value in numbers[:MOST_NUMBERS])
    weights = info.get("weight")
    if isinstance(weights, Mapping) and "total" in weights:
        total = weights["total"]
        yield f"{total['pruned']:,} of {total['total']:,} weights pruned"
    kept = info.get("kept")
    if isinstance(kept, Mapping) and kept:
        yield f"kept {', '.join(kept)}"
