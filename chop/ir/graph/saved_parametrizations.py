"""Parametrizations of torch in a saved graph, by name: weight norm, spectral norm, orthogonal.

A file names a kind and gives plain numbers and tensors for it; nothing else of it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _OrthMaps, _Orthogonal, _SpectralNorm, _WeightNorm

from chop.ir.checked import why_no_lengths
from chop.ir.graph.names import ForeignName
from chop.ir.parametrized import TABLE, parametrized_names

Stored = dict[str, Any] | None
Store = Callable[[str, Tensor | None], Stored]  # writes a tensor under a key, and describes it
Values = Mapping[str, Any]


def _is_count(value: Any) -> bool:
    return type(value) is int


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


@dataclass(frozen=True)
class _Kind:
    """A parametrization of torch: its class, the checks of its attributes, and its buffers."""

    cls: type[nn.Module]
    attributes: Mapping[str, Callable[[Any], bool]]
    buffers: tuple[str, ...] = ()
    originals: tuple[str, ...] = ("original",)


KINDS = {
    "weight_norm": _Kind(_WeightNorm, {"dim": _is_count}, originals=("original0", "original1")),
    "spectral_norm": _Kind(
        _SpectralNorm,
        {
            "dim": _is_count,
            "eps": lambda value: type(value) in (int, float) and value >= 0,
            "n_power_iterations": lambda value: _is_count(value) and value > 0,
        },
        ("_u", "_v"),
    ),
    "orthogonal": _Kind(
        _Orthogonal,
        {"shape": _is_shape, "orthogonal_map": lambda value: value in _OrthMaps.__members__},
        ("base",),
    ),
}
OPTIONAL = ("n_power_iterations",)  # a spectral norm of a vector has none


# --- writing


def can_be_saved(layer: nn.Module, name: str) -> bool:
    """Return whether a tensor of a layer is parametrized by kinds that a file may name."""
    entry: Any = layer.parametrizations[name]  # type: ignore[index]
    kinds = [_kind_of(step) for step in entry]
    alone = "weight_norm" not in kinds[1:]  # as it takes two tensors
    return alone and None not in kinds and not entry._buffers


def _kind_of(step: nn.Module) -> str | None:
    return next((name for name, kind in KINDS.items() if type(step) is kind.cls), None)


def described_parametrizations(layer: nn.Module, store: Store) -> dict[str, Any]:
    """Return the parametrized tensors of a layer as a table for the file."""
    table = {}
    for name in parametrized_names(layer):
        entry: Any = layer.parametrizations[name]  # type: ignore[index]
        key = f"{TABLE}.{name}"
        originals = {k: store(f"{key}.{k}", p) for k, p in entry._parameters.items()}
        steps = [_step(step, f"{key}.{i}", store) for i, step in enumerate(entry)]
        table[name] = {"originals": originals, "steps": steps, "unsafe": bool(entry.unsafe)}
    return table


def _step(step: nn.Module, key: str, store: Store) -> dict[str, Any]:
    kind = _kind_of(step)
    assert kind is not None, f"{type(step).__name__} cannot be saved"
    values = {name: vars(step)[name] for name in KINDS[kind].attributes if name in vars(step)}
    plain = {name: _plain(value) for name, value in values.items()}
    buffers = {name: store(f"{key}.{name}", buffer) for name, buffer in step._buffers.items()}
    return {"kind": kind, **plain, "buffers": buffers}


def _plain(value: Any) -> Any:
    if isinstance(value, _OrthMaps):
        return value.name
    return list(value) if isinstance(value, torch.Size) else value


# --- reading


def attach_parametrizations(
    layer: nn.Module,
    table: Mapping[str, Any],
    parameter: Callable[[Stored], nn.Parameter | None],
    buffer: Callable[[Stored], Tensor | None],
) -> None:
    """Make a layer compute tensors from the parameters that the table of a file describes."""
    lists = {name: _list_of(name, entry, parameter, buffer) for name, entry in table.items()}
    for entry in lists.values():
        entry.train(layer.training)
    taken = [name for name in lists if hasattr(layer, name)]
    if taken:
        raise ForeignName(f"{taken[0]!r:.60} is parametrized, and a tensor of its layer as well")
    if lists:
        parametrize._inject_new_class(layer)  # no constructor, which would compute with weights
        layer._modules[TABLE] = nn.ModuleDict(lists)
    for name in lists:
        parametrize._inject_property(layer, name)


def _list_of(name: str, entry: Any, parameter: Any, buffer: Any) -> nn.Module:
    described, steps = entry["originals"], entry["steps"]
    kinds = [step["kind"] for step in steps]
    strange = [kind for kind in kinds if kind not in KINDS]
    if strange or not kinds or "weight_norm" in kinds[1:]:
        known = ", ".join(KINDS)
        raise ForeignName(f"the parametrizations {kinds!r:.60} of {name!r} may only be {known}")
    originals = {key: parameter(value) for key, value in described.items()}
    wanted = KINDS[kinds[0]].originals
    if sorted(originals) != sorted(wanted) or None in originals.values():
        raise ValueError(f"the parametrized {name!r:.40} is made from {', '.join(wanted)}")
    if kinds[0] == "weight_norm":
        lengths, directions = (originals[key] for key in wanted)
        dim = steps[0].get("dim")
        if _is_count(dim) and (reason := why_no_lengths(lengths, directions, dim)) is not None:
            raise ValueError(f"the lengths of the weight norm of {name!r:.40} {reason}")
    made: Any = parametrize.ParametrizationList.__new__(parametrize.ParametrizationList)
    nn.Module.__init__(made)
    made.is_tensor, made.ntensors = len(wanted) == 1, len(wanted)
    made.unsafe = entry["unsafe"] is True
    made._parameters.update(originals)
    made._modules.update({str(i): _made_step(step, buffer) for i, step in enumerate(steps)})
    return made  # type: ignore[no-any-return]


def _made_step(described: Mapping[str, Any], buffer: Any) -> nn.Module:
    """Return one parametrization, with the numbers and tensors in the file."""
    kind = KINDS[described["kind"]]
    given = {key: value for key, value in described.items() if key not in ("kind", "buffers")}
    for key, is_good in kind.attributes.items():
        if key not in given and key not in OPTIONAL:
            raise ValueError(f"{described['kind']} has no {key!r}")
        if key in given and not is_good(given[key]):
            raise ValueError(f"{key!r} of {described['kind']} is {given[key]!r:.40}")
    strange = [key for key in given if key not in kind.attributes]
    strange += [key for key in described["buffers"] if key not in kind.buffers]
    if strange:
        raise ForeignName(f"{strange[0]!r:.60} is not an attribute of {described['kind']}")
    step: nn.Module = kind.cls.__new__(kind.cls)
    nn.Module.__init__(step)
    vars(step).update({key: _decoded(key, value) for key, value in given.items()})
    step._buffers.update({key: buffer(value) for key, value in described["buffers"].items()})
    if described["kind"] == "weight_norm":  # whose tensors the graph may change in place
        step.register_forward_pre_hook(_check_lengths)
    return step


def _check_lengths(step: Any, given: tuple[Any, ...]) -> None:
    lengths, directions = given
    if (reason := why_no_lengths(lengths, directions, step.dim)) is not None:
        raise ValueError(f"the lengths of a weight norm {reason}")


def _decoded(key: str, value: Any) -> Any:
    if key == "orthogonal_map":
        return _OrthMaps[value]
    return torch.Size(value) if key == "shape" else value
