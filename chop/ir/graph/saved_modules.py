"""A transformed model without a graph as a directory: `layers.json`, `state_dict.safetensors`.

The code of such a model is not saved: the model is built again, and the layers that passes have
replaced are put into it. docs/file_formats.md describes the files. Reading runs no code of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from chop import extensions
from chop.ir.graph.encoding import Tensors
from chop.ir.graph.fast_paths import forbid_fast_paths
from chop.ir.graph.layer_extras import EXTRAS
from chop.ir.graph.meta_file import (
    DAMAGE,
    PYTORCH,
    GraphFileError,
    StoredTensors,
    _reason,
    check_table,
    read_json,
    read_tensors,
    tensor_table,
)
from chop.ir.graph.names import ForeignName, SavedNames
from chop.ir.graph.saved_files import LAYERS
from chop.ir.graph.saved_layers import (
    described_layers,
    layers_without_parametrizations,
    rebuilt_layers,
)
from chop.system.files import replaced_folder, write_safetensors

FORMAT, VERSION = "mase-layers", 2
STATE = "state_dict.safetensors"
HOLDER = "model"  # the name under which the layers are described, as the model itself may be one
NOTES = ("made_from", "trained_on")


def transformed_layers(model: nn.Module, also: Iterable[str] = ()) -> dict[str, nn.Module]:
    """Return the layers that passes have made or masked, and those named in `also`, by name.

    A layer inside another of them is not listed.
    """
    names = {*also, *getattr(model, "_transformed_layers", ())}
    chosen: dict[str, nn.Module] = {}
    for name, layer in model.named_modules(remove_duplicate=False):
        ancestors = [name[:i] for i, letter in enumerate(name) if letter == "."] + [""]
        if any(parent in chosen for parent in ancestors if parent != name):
            continue
        ours = extensions.is_of_package(type(layer).__module__, transformed=True)
        if name in names or ours or any(extra.read(layer) for extra in EXTRAS.values()):
            chosen[name] = layer
    return chosen


# --- writing


def save_modules(
    model: nn.Module,
    folder: str | Path,
    *,
    also: Iterable[str] = (),
    notes: Mapping[str, Any] | None = None,
) -> Path:
    """Write the transformed layers and all weights of `model` to `folder`.

    `also` are names of further layers that are not what the model is built with; `notes` are what
    it was made from and trained on.
    """
    layers, names, tensors = transformed_layers(model, also), SavedNames(), Tensors()
    _check_parametrizations(layers)
    copies = {}  # of tensors that have two names
    for key, tensor in model.state_dict(keep_vars=True).items():
        if tensors.key(tensor, key) != key:
            copies[key] = tensor.detach().cpu().clone()
    content = {
        "format": FORMAT,
        "version": VERSION,
        **{key: (notes or {}).get(key) or {} for key in NOTES},
        "layers": list(layers),
        "modules": described_layers(_held(layers), names, tensors),
    }
    content["tensors"] = tensor_table(tensors.by_key | copies)
    text = json.dumps(content, indent=1, allow_nan=False)
    with replaced_folder(folder, [LAYERS, STATE]) as part:
        (part / LAYERS).write_text(text + "\n", encoding="utf-8")
        write_safetensors(tensors.by_key | copies, part / STATE, PYTORCH)
    return Path(folder)


def _check_parametrizations(layers: Mapping[str, nn.Module]) -> None:
    """Refuse layers that would be saved without what the model is built with."""
    lost = [name for name, layer in layers.items() if layers_without_parametrizations(layer)]
    if lost:
        raise ValueError(
            f"the parametrization of layer {lost[0]!r} cannot be saved without a graph, as it is "
            f"not one of torch's; make it permanent with "
            f"torch.nn.utils.parametrize.remove_parametrizations"
        )


def _held(layers: Mapping[str, nn.Module]) -> nn.Module:
    """Return a plain module that holds the layers under their dotted names."""
    root = nn.Module()
    for name, layer in layers.items():
        parent, path = root, [HOLDER, *name.split(".")] if name else [HOLDER]
        for key in path[:-1]:
            if key not in parent._modules:
                parent._modules[key] = nn.Module()
            parent = parent._modules[key]  # type: ignore[assignment]
        parent._modules[path[-1]] = layer
    return root


# --- reading


def notes_of(folder: str | Path) -> dict[str, dict[str, Any]]:
    """Return what the model in `folder` was made from and trained on."""
    content = _read(Path(folder).expanduser())
    return {key: content.get(key) or {} for key in NOTES}


Fill = Callable[[nn.Module, Mapping[str, Tensor], Path], None]


def load_modules(folder: str | Path, model: nn.Module, fill: Fill) -> nn.Module:
    """Put the layers in `folder` into `model`, and load its weights with `fill`.

    Return the model, which is another one if it was itself replaced. After an error, it is as it
    was before.
    """
    path = Path(folder).expanduser()
    content, tensors = _read(path), read_tensors(path / STATE)
    layers = _rebuilt(path, content, tensors)
    _check_fits(path, model, layers, tensors)
    before = {name: model.get_submodule(name) for name in layers if name}
    changed = _with_layers(model, layers)
    own, inside = changed.state_dict(), set(_tensors_in(content["modules"]))
    state = {key: x.clone() for key, x in tensors.items() if key in own or key not in inside}
    try:
        fill(changed, state, path)
    except BaseException:
        _with_layers(model, before)
        raise
    forbid_fast_paths(changed, lambda part: any(part is layer for layer in layers.values()))
    vars(changed)["_transformed_layers"] = tuple(layers)
    return changed


def _rebuilt(
    path: Path, content: Mapping[str, Any], tensors: StoredTensors
) -> dict[str, nn.Module]:
    """Return the layers in a file by name."""
    try:
        check_table(content.get("tensors"), tensors)
        root = rebuilt_layers(content["modules"], tensors, SavedNames())
        places = {name: f"{HOLDER}.{name}" if name else HOLDER for name in content["layers"]}
        return {name: root.get_submodule(place) for name, place in places.items()}
    except GraphFileError:
        raise
    except ForeignName as error:
        raise GraphFileError(f"{path / LAYERS} was not loaded: {error}") from error
    except DAMAGE as error:
        raise GraphFileError(f"{path / LAYERS} is damaged: {_reason(error)}") from error


def _tensors_in(rows: Iterable[Any]) -> Iterator[str]:
    """Yield the keys of all tensors that descriptions of layers refer to."""
    for value in rows:
        if isinstance(value, dict):
            if isinstance(value.get("tensor"), str):
                yield value["tensor"]
            yield from _tensors_in(value.values())
        elif isinstance(value, list):
            yield from _tensors_in(value)


def _check_fits(
    path: Path, model: nn.Module, layers: Mapping[str, nn.Module], tensors: Mapping[str, Tensor]
) -> None:
    """Refuse layers that the model does not have, and weights of other shapes."""
    known = dict(model.named_modules(remove_duplicate=False))
    strange = [f"the model has no layer {name!r}" for name in layers if name not in known]
    strange += [
        f"{key} has the shape {list(tensors[key].shape)}, not {list(weight.shape)}"
        for key, weight in model.state_dict().items()
        if key in tensors and tensors[key].shape != weight.shape
    ]
    if strange:
        raise ValueError(
            f"{path} does not fit the model: {strange[0]}; "
            f"is it the checkpoint of another model or data set?"
        )


def _with_layers(model: nn.Module, layers: Mapping[str, nn.Module]) -> nn.Module:
    """Return the model with the layers in it."""
    for name, layer in layers.items():
        layer.train(model.training)
        if name:
            model.set_submodule(name, layer)
    return layers.get("", model)


def _read(folder: Path) -> dict[str, Any]:
    file = folder / LAYERS
    content = read_json(file, FORMAT, VERSION)
    parts = {"layers": list, "modules": list, **dict.fromkeys(NOTES, dict)}
    wrong = [key for key, kind in parts.items() if not isinstance(content.get(key), kind)]
    wrong += ["layers" for name in content.get("layers", ()) if not isinstance(name, str)]
    if wrong:
        raise GraphFileError(f"{file} is damaged: its {wrong[0]!r} is missing or of another kind")
    return content
