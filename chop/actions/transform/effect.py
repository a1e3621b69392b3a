"""Short descriptions of what a pass did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.actions.transform.source import model_of

MAX_NUMBERS = 3  # of those that a pass returns


@dataclass(frozen=True)
class Traits:
    """The parts of a graph or model that are compared before and after a pass."""

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
    """Return what a pass changed, wrote and measured, in one line."""
    changes = [*_changes(before, after, info), *(f"wrote {file.name}" for file in files)]
    return ", ".join([*changes, *_findings(info)]) or "no change"


def _changes(before: Traits, after: Traits, info: Mapping[str, Any]) -> Iterator[str]:
    listed = [f"{len(value)} {key}" for key, value in info.items() if isinstance(value, list)]
    kept = before.layers.keys() & after.layers.keys()
    changed = sum(before.layers[name] != after.layers[name] for name in kept)
    yield from listed[:1] or ([f"{changed} layers changed"] if changed else [])
    for name, old, new in (
        ("layers", len(before.layers), len(after.layers)),
        ("nodes", len(before.nodes), len(after.nodes)),
        ("parameters", before.parameters, after.parameters),
    ):
        if old != new:
            yield f"{old:,} -> {new:,} {name}"


def _findings(info: Mapping[str, Any]) -> Iterator[str]:
    numbers = [k for k, v in info.items() if isinstance(v, int | float) and not isinstance(v, bool)]
    yield from (f"{key} = {info[key]:.6g}" for key in numbers[:MAX_NUMBERS])
    weights = info.get("weight")
    if isinstance(weights, Mapping) and "total" in weights:
        total = weights["total"]
        yield f"{total['pruned']:,} of {total['total']:,} weights pruned"
    kept = info.get("kept")
    if isinstance(kept, Mapping) and kept:
        yield f"kept {', '.join(kept)}"
