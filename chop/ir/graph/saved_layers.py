"""The layers of a saved graph: describe them for the file, and rebuild them from it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from chop import extensions
from chop.ir.graph.encoding import ATTRIBUTES, Decoder, Encoder, Tensors
from chop.ir.graph.layer_extras import EXTRAS
from chop.ir.graph.layer_rules import INTERNAL, check_layer, derived_attributes
from chop.ir.graph.names import ForeignName, SavedNames
from chop.ir.graph.node_rules import DOTTED
from chop.ir.graph.saved_parametrizations import (
    attach_parametrizations,
    can_be_saved,
    described_parametrizations,
)
from chop.ir.graph.tensor_rules import check_tensors
from chop.ir.parametrized import TABLE as PARAMETRIZATIONS
from chop.ir.parametrized import parametrized_names

logger = logging.getLogger(__name__)

MAX_LAYERS = 1_000_000
# hooks of torch that compute a weight before each call; parametrizations have replaced them
NORMS = {"weight_norm": WeightNorm, "spectral_norm": SpectralNorm}
# of each layer; other tables are extras
TABLES = {"attributes", "parameters", "buffers", PARAMETRIZATIONS}


# --- writing


def described_layers(model: nn.Module, names: SavedNames, tensors: Tensors) -> list[dict[str, Any]]:
    """All modules, parents first; a shared one is listed again by its first name."""
    _warn_of_parametrizations(model)
    rows: list[dict[str, Any]] = []
    first: dict[int, str] = {}
    queue: list[tuple[str, nn.Module | None]] = [("", model)]
    while queue:
        name, module = queue.pop()
        if module is None:
            rows.append({"name": name, "class": None})
            continue
        if id(module) in first:
            rows.append({"name": name, "same_as": first[id(module)]})
            continue
        first[id(module)] = name
        try:
            rows.append(_module(name, module, names, tensors))
        except ValueError as error:
            raise ValueError(f"cannot save module {name!r}: {error}") from error
        prefix = f"{name}." if name else ""
        queue += reversed([(f"{prefix}{key}", m) for key, m in _children(module).items()])
    return rows


def _children(module: nn.Module) -> dict[str, nn.Module | None]:
    bare = not parametrize.is_parametrized(module)
    return {k: m for k, m in module._modules.items() if bare or k != PARAMETRIZATIONS}


def _warn_of_parametrizations(model: nn.Module) -> None:
    """Warn once of tensors that are saved as they are now, without what they are made from."""
    lost = layers_without_parametrizations(model)
    if lost:
        logger.warning(
            "the parametrizations of %s are not saved, as they are not torch's weight_norm, "
            "spectral_norm or orthogonal: the saved layers have the present tensors as plain "
            "parameters",
            ", ".join(map(repr, lost)),
        )


def layers_without_parametrizations(model: nn.Module) -> list[str]:
    """Return the names of the layers with parametrizations that a file cannot hold."""
    return [name for name, module in model.named_modules() if _lost_names(module)]


def _lost_names(module: nn.Module) -> list[str]:
    """Return the parametrized tensors of a layer that are saved as they are now: all or none."""
    names = parametrized_names(module)
    return names if not all(can_be_saved(module, name) for name in names) else []


def _without_parametrizations(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the tensors that parametrizations give now, as plain parameters."""
    tensors = {name: getattr(module, name) for name in _lost_names(module)}
    trained = {name: tensor.requires_grad for name, tensor in tensors.items()}
    return {name: nn.Parameter(t.detach(), trained[name]) for name, t in tensors.items()}


def _module(name: str, module: nn.Module, names: SavedNames, tensors: Tensors) -> dict[str, Any]:
    extras = {key: dict(extra.read(module)) for key, extra in EXTRAS.items()}
    values_of = [value for extra in extras.values() for value in extra.values()]
    theirs = {id(value) for value in values_of if isinstance(value, Tensor)}
    if _foreign_hooks(module, extras):
        logger.warning("the hooks of module %r are not saved%s", name, _effect_of_hooks(module))
    parametrized = parametrized_names(module)
    root = isinstance(module, fx.GraphModule)
    cls: type = nn.Module if root else type(module).__mro__[1 if parametrized else 0]
    if theirs:  # their generated classes have the name of the original class
        cls = names.meant_by(cls)
    lost = _without_parametrizations(module)
    parameters = {**module._parameters, **lost}
    buffers = {k: b for k, b in module._buffers.items() if b is None or id(b) not in theirs}

    def stored(key: str, tensor: Tensor | None) -> dict[str, Any] | None:
        return _tensor(f"{name}.{key}" if name else key, tensor, tensors)

    attributes = {} if root else _attributes(module, Encoder(names, tensors, f"{name}._"))
    values = {key: vars(module)[key] for key in attributes}
    described_class = fx.GraphModule if root else cls
    held = dict.fromkeys([*parameters, *buffers, *parametrized])
    check_layer(name, described_class, values, held, _children(module))
    row = {
        "name": name,
        "class": names.of_class(cls),
        "training": module.training,
        "attributes": attributes,
        "parameters": {key: stored(key, value) for key, value in parameters.items()},
        "buffers": {key: stored(key, value) for key, value in buffers.items()},
        "not_in_state_dict": sorted(module._non_persistent_buffers_set & buffers.keys()),
    }
    if parametrized and not lost:
        row[PARAMETRIZATIONS] = described_parametrizations(module, stored)
    known = {id(buffer): key for key, buffer in module._buffers.items()}
    for key, extra in extras.items():
        for what, value in extra.items():
            if isinstance(value, Tensor):  # under its name in the state_dict
                stored(known.get(id(value), f"{what}.{key}"), value)
        if extra:
            row[key] = {k: Encoder(names, tensors, name)(value) for k, value in extra.items()}
    return row


def _foreign_hooks(module: nn.Module, extras: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a module has hooks besides those of its extras."""
    ours = {hook for key, values in extras.items() if values for hook in EXTRAS[key].hooks}
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return any(getattr(hook, "__name__", "") not in ours for hook in hooks)


def _effect_of_hooks(module: nn.Module) -> str:
    """Return what a layer loses with hooks of torch that compute its weight, and the fix."""
    hooks = module._forward_pre_hooks.values()
    known = [name for name, kind in NORMS.items() if any(isinstance(h, kind) for h in hooks)]
    if not known:
        return ""
    return (
        f": training the saved layer would not change its weight; replace "
        f"torch.nn.utils.{known[0]} by torch.nn.utils.parametrizations.{known[0]}"
    )


def _tensor(key: str, tensor: Tensor | None, tensors: Tensors) -> dict[str, Any] | None:
    if tensor is None:
        return None
    described: dict[str, Any] = {"tensor": tensors.key(tensor, key)}
    if tensor.requires_grad:
        described["requires_grad"] = True
    if not tensor.is_contiguous():
        described["stride"] = list(tensor.stride())
    return described


def _attributes(module: nn.Module, encode: Encoder) -> dict[str, Any]:
    """The hyperparameters of a layer, as plain values."""
    derived = derived_attributes(type(module))[0]
    attributes = {}
    for key, value in vars(module).items():
        if key in INTERNAL or key in derived:
            continue
        try:
            attributes[key] = encode(value)
        except ValueError as error:
            raise ForeignName(
                f"the attribute {key!r} of {type(module).__name__} is a {type(value).__name__} "
                f"({error}); keep plain values and tensors in it, or list it in "
                f"derived_attributes and make it in derive()"
            ) from error
    return attributes


# --- reading


def rebuilt_layers(
    rows: list[dict[str, Any]], tensors: Mapping[str, Tensor], names: SavedNames
) -> nn.Module:
    """Return the root of the layers that `rows` describe, parents first."""
    layers = _Layers(tensors, names)
    tables = {key for row in rows for key, value in row.items() if isinstance(value, dict)}
    if tables - TABLES - EXTRAS.keys():
        extensions.import_all()
    for row in rows:
        layers.add(row)
    root = layers.by_name[""]
    _check_tree(root)
    described = [row for row in rows if "same_as" not in row and row["class"] is not None]
    for row in described:
        layers.check(row)
    for row in described:
        layers.finish(row)
    return root


class _Layers:
    """Layers created from rows of a file without running constructors."""

    def __init__(self, tensors: Mapping[str, Tensor], names: SavedNames) -> None:
        self.tensors, self.names = tensors, names
        self.decode = Decoder(names, tensors, kinds=ATTRIBUTES)
        self.by_name: dict[str, nn.Module] = {}
        self._parameters: dict[str, nn.Parameter] = {}

    def add(self, row: dict[str, Any]) -> None:
        name = row["name"]
        if name and not DOTTED.fullmatch(name):
            raise ValueError(f"{name!r:.40} is not a name of a layer")
        module = self._module(row)
        if not name and module is None:
            raise ValueError("it has no root module")
        if name:
            parent, _, key = name.rpartition(".")
            siblings = self.by_name[parent]._modules
            if key in siblings:
                raise ValueError(f"two layers are called {name!r}")
            siblings[key] = module

    def _module(self, row: dict[str, Any]) -> nn.Module | None:
        name = row["name"]
        if "same_as" in row:
            return self.by_name[row["same_as"]]
        if row["class"] is None:
            return None
        if name in self.by_name:
            raise ValueError(f"two layers are called {name!r}")
        self.by_name[name] = module = self._blank(row)
        for key, value in row["attributes"].items():
            vars(module)[key] = self.decode(value)
        for key, described in row["parameters"].items():
            module._parameters[key] = self._parameter(described)
        for key, described in row["buffers"].items():
            module._buffers[key] = self._tensor(described)
        return module

    def _blank(self, row: dict[str, Any]) -> nn.Module:
        cls = self.names.module_class(row["class"])
        if row["name"] == "" and (cls is not nn.Module or row["attributes"]):
            raise ForeignName(f"the root of a graph must be a plain Module, not a {cls.__name__}")
        taken = [key for key in row["attributes"] if key in INTERNAL]
        if taken:  # before it is set, as a module without these cannot even be read
            raise ForeignName(f"{taken[0]!r} is not an attribute that a file may set")
        module: nn.Module = cls.__new__(cls)
        nn.Module.__init__(module)
        not_saved = row["not_in_state_dict"]
        if not isinstance(row["training"], bool) or not set(not_saved) <= row["buffers"].keys():
            raise ValueError(f"the mode or the buffers of layer {row['name']!r} are not described")
        module.training, module._non_persistent_buffers_set = row["training"], set(not_saved)
        return module

    def _parameter(self, described: dict[str, Any] | None) -> nn.Parameter | None:
        if described is None:
            return None
        key = described["tensor"]
        if key not in self._parameters:
            tensor = self._tensor(described)
            assert tensor is not None
            trained = bool(described.get("requires_grad"))
            self._parameters[key] = nn.Parameter(tensor, requires_grad=trained)
        return self._parameters[key]

    def _tensor(self, described: dict[str, Any] | None) -> Tensor | None:
        if described is None:
            return None
        tensor = self.tensors[described["tensor"]]
        if "stride" not in described:
            return tensor
        stride = [-int(step) for step in described["stride"]]
        slowest_first = sorted(range(len(stride)), key=stride.__getitem__)
        like: Any = {"dtype": tensor.dtype, "device": tensor.device}
        return torch.empty_permuted(tensor.shape, slowest_first, **like).copy_(tensor)

    def check(self, row: dict[str, Any]) -> None:
        """Run `check_layer`, now that all children are known."""
        module = self.by_name[row["name"]]
        cls = type(module) if row["name"] else fx.GraphModule
        attributes = {key: vars(module)[key] for key in row["attributes"]}
        computed = row.get(PARAMETRIZATIONS, {})
        tensors = [*module._parameters, *module._buffers, *computed]
        check_layer(row["name"], cls, attributes, tensors, module._modules)

    def finish(self, row: dict[str, Any]) -> None:
        """Derive the remaining attributes, and attach a layer's extras."""
        module = self.by_name[row["name"]]
        computed = row.get(PARAMETRIZATIONS, {})
        attach_parametrizations(module, computed, self._parameter, self._tensor)
        derive = derived_attributes(type(module))[1]
        if derive is not None:
            derive(module)
        check_tensors(row["name"], module)
        decode = Decoder(self.names, self.tensors)
        for key, extra in EXTRAS.items():
            if key in row:
                extra.attach(module, {what: decode(value) for what, value in row[key].items()})


def _check_tree(root: nn.Module) -> None:
    """Refuse layers that contain themselves, or each other so often that torch would hang."""
    sizes: dict[nn.Module, int] = {}  # number of layers; shared ones count each time
    stack = [root]
    while stack:
        module = stack[-1]
        children = [child for child in module._modules.values() if child is not None]
        ahead = [child for child in children if child not in sizes]
        if module not in sizes and not ahead:
            sizes[module] = 1 + sum(sizes[child] for child in children)
        if module in sizes:
            stack.pop()
        elif any(child in stack for child in ahead):
            raise ValueError(f"a {type(module).__name__} contains itself")
        else:
            stack.append(ahead[0])
    if sizes[root] > MAX_LAYERS:
        raise ValueError(f"it has {sizes[root]} layers; at most {MAX_LAYERS} are allowed")
