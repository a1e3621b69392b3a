"""A graph as a folder: `graph.json`, `state_dict.safetensors`, `node_meta_param.toml`.

docs/file_formats.md describes the files. Reading one runs no constructor and no code from it:
layers are made empty and given what the file says of them.
"""

from __future__ import annotations

import importlib
import json
import keyword
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from chop.files import replaced_folder, restore_folder
from chop.ir.graph.encoding import Decoder, Encoder, Tensors
from chop.ir.graph.mase_graph import MODEL_ATTRIBUTES, MaseGraph, set_model_attributes
from chop.ir.graph.mase_graph_metadata import MaseGraphMetadata
from chop.ir.graph.meta_file import (
    GraphFileError,
    _reason,
    read_node_meta,
    read_tensors,
    write_node_meta,
    write_tensors,
)
from chop.ir.graph.names import ForeignName, Names, check_method, is_harmless, own_of

logger = logging.getLogger(__name__)

FORMAT, VERSION = "mase-graph", 1
GRAPH, STATE, META = "graph.json", "state_dict.safetensors", "node_meta_param.toml"
FILES = (GRAPH, STATE, META, "node_meta_param.safetensors")
INTERNAL = frozenset(vars(nn.Module()))
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
DOTTED = re.compile(r"\w+(\.\w+)*", re.ASCII)
INPUT = re.compile(r"\*{0,2}[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class Extra:
    """Something that layers carry beside their attributes, such as masks: values by name."""

    read: Callable[[nn.Module], Mapping[str, Any]]  # {} for a layer without
    attach: Callable[[nn.Module, Mapping[str, Any]], None]
    hooks: tuple[str, ...] = ()  # functions that `attach` hangs on the layer again


EXTRAS: dict[str, Extra] = {}
# who fills it in: a file may have extras that nobody has asked for yet
EXTRA_HOMES = dict.fromkeys(
    ("masks", "activation_pruning", "movement"), "chop.passes.graph.interface.pruning"
)


# --- writing


def save_graph(graph: MaseGraph, folder: str | Path) -> Path:
    """Write `graph` to `folder`, which is replaced as a whole or not at all; the graph is read."""
    names = Names(own_of(graph.custom_ops))
    tensors = Tensors()
    content = _described(graph, names, tensors)
    text = _json(content)
    with replaced_folder(folder, FILES) as part:
        (part / GRAPH).write_text(text, encoding="utf-8")
        write_tensors(tensors.by_key, part / STATE)
        write_node_meta(graph, part / META, names)
    return Path(folder)


def _json(content: Mapping[str, Any]) -> str:
    """A node or module a line, for people and for diff; indenting all of it takes ten times as
    long, as Python's json does that without its C code."""
    dumps = json.JSONEncoder(allow_nan=False).encode
    parts = []
    for key, value in content.items():
        text = dumps(value)
        if value and isinstance(value, list):
            text = "[\n" + ",\n".join(["  " + dumps(row) for row in value]) + "\n ]"
        parts.append(f" {dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _described(graph: MaseGraph, names: Names, tensors: Tensors) -> dict[str, Any]:
    model = graph.model
    if type(graph.fx_graph._codegen) is not fx.graph.CodeGen:
        raise ValueError("a graph whose inputs are nested in lists or dicts cannot be saved")
    modules = _modules(model, names, tensors)
    encode = Encoder(names, tensors, "_constant")
    lenient = Encoder(names, tensors, "_metadata", lenient=True)
    attributes = {k: v for k, v in vars(model).items() if k in MODEL_ATTRIBUTES}
    return {
        "format": FORMAT,
        "version": VERSION,
        "class_name": type(model).__name__,
        "made_from": _made_from(graph.meta.get("made_from", {})),
        "nodes": [_node(node, names, encode) for node in graph.nodes],
        "modules": modules,
        "attributes": encode(attributes),
        "cf_args": encode(graph.cf_args),
        "custom_ops": encode(graph.custom_ops),
        "metadata": lenient(dict(graph.meta["mase"].parameters)),
    }


def _made_from(noted: Any) -> dict[str, str]:
    """What a graph was made from, such as the names of a model and of a data set."""
    if not isinstance(noted, dict) or not all(isinstance(v, str) for v in noted.values()):
        raise ValueError(f"made_from has names by kind, and is {noted!r:.60}")
    return dict(noted)


def made_from(folder: str | Path) -> dict[str, str]:
    """What the graph in `folder` was made from; nothing, if it is older than this note."""
    path = Path(folder).expanduser()
    try:
        return _made_from(_read_json(path).get("made_from", {}))
    except ValueError as error:
        raise GraphFileError(f"{path / GRAPH} is damaged: {_reason(error)}") from error


def _node(node: fx.Node, names: Names, encode: Encoder) -> dict[str, Any]:
    try:
        target: Any = node.target
        if node.op == "call_function":
            target = names.of_function(target)
        elif node.op == "call_method":
            target = check_method(str(target))
        described = {
            "name": node.name,
            "op": node.op,
            "target": target,
            "args": encode.all(node.args),
            "kwargs": {key: encode(value) for key, value in node.kwargs.items()},
        }
    except ValueError as error:
        raise ValueError(f"cannot save node {node.name!r}: {error}") from error
    annotation = _annotation(node.type)
    if annotation:
        described["type"] = annotation
    if node.meta.get("is_wrapped"):  # by torch.fx.wrap, which the code of the model says
        described["wrapped"] = True
    return described


# annotations that fx writes into forward(); any other is left out
ANNOTATIONS: dict[str, Any] = {
    "Tensor": Tensor,
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "Tensor | None": Tensor | None,
}


def _annotation(kind: Any) -> str | None:
    return next((name for name, known in ANNOTATIONS.items() if known == kind), None)


def _modules(model: nn.Module, names: Names, tensors: Tensors) -> list[dict[str, Any]]:
    """All modules, parents first; one that is met again is named by its first name."""
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
        children = [
            (f"{name}.{key}" if name else key, child) for key, child in _children(module).items()
        ]
        queue += reversed(children)
    return rows


def _children(module: nn.Module) -> dict[str, nn.Module | None]:
    bare = not parametrize.is_parametrized(module)
    return {k: m for k, m in module._modules.items() if bare or k != "parametrizations"}


def _module(name: str, module: nn.Module, names: Names, tensors: Tensors) -> dict[str, Any]:
    extras = {key: dict(extra.read(module)) for key, extra in EXTRAS.items()}
    theirs = {id(v) for found in extras.values() for v in found.values() if isinstance(v, Tensor)}
    if _foreign_hooks(module, extras):
        logger.warning("the hooks of module %r are not saved", name)
    parametrized = parametrize.is_parametrized(module)
    if parametrized and not theirs:
        raise ForeignName(
            "its parametrizations cannot be saved; make them permanent with "
            "torch.nn.utils.parametrize.remove_parametrizations"
        )
    root = isinstance(module, fx.GraphModule)
    cls: type = nn.Module if root else type(module).__mro__[1 if parametrized else 0]
    if theirs:  # classes made for them bear the name of the layer's own
        cls = names.meant_by(cls)
    parameters = dict(module._parameters)
    if parametrized:
        lists: Any = module.parametrizations
        parameters |= {key: entry.original for key, entry in lists.items()}
    buffers = {k: b for k, b in module._buffers.items() if b is None or id(b) not in theirs}

    def stored(key: str, tensor: Tensor | None) -> dict[str, Any] | None:
        return _tensor(f"{name}.{key}" if name else key, tensor, tensors)

    row = {
        "name": name,
        "class": names.of_class(cls),
        "training": module.training,
        "attributes": {} if root else _attributes(module, Encoder(names, tensors, f"{name}._")),
        "parameters": {key: stored(key, value) for key, value in parameters.items()},
        "buffers": {key: stored(key, value) for key, value in buffers.items()},
        "not_in_state_dict": sorted(module._non_persistent_buffers_set & buffers.keys()),
    }
    known = {id(buffer): key for key, buffer in module._buffers.items()}
    for key, found in extras.items():
        for what, value in found.items():
            if isinstance(value, Tensor):  # under the name that it has in the state_dict
                stored(known.get(id(value), f"{what}.{key}"), value)
        if found:
            encode = Encoder(names, tensors, name)
            row[key] = {what: encode(value) for what, value in found.items()}
    return row


def _foreign_hooks(module: nn.Module, extras: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a module has hooks beside those that come with what it carries."""
    ours = {hook for key, found in extras.items() if found for hook in EXTRAS[key].hooks}
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return any(getattr(hook, "__name__", "") not in ours for hook in hooks)


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
    """The hyper-parameters of a layer: what its constructor left, as plain values."""
    derived = _derived(type(module))[0]
    found = {}
    for key, value in vars(module).items():
        if key in INTERNAL or key in derived:
            continue
        try:
            found[key] = encode(value)
        except ValueError as error:
            raise ForeignName(
                f"the attribute {key!r} of {type(module).__name__} is a {type(value).__name__} "
                f"({error}); keep plain values and tensors in it, or list it in "
                f"derived_attributes and make it in derive()"
            ) from error
    return found


def _derived(cls: type) -> tuple[tuple[str, ...], Callable[[Any], Any] | None]:
    """Attributes that follow from the others, and who makes them."""
    if issubclass(cls, nn.RNNBase):
        return ("_flat_weights", "_flat_weight_refs"), nn.RNNBase._init_flat_weights
    attributes = tuple(getattr(cls, "derived_attributes", ()))
    return attributes, getattr(cls, "derive", None) if attributes else None


# --- reading


def load_graph(
    folder: str | Path,
    map_location: str | torch.device = "cpu",
    custom_ops: Mapping[str, Mapping[Any, Any]] | None = None,
) -> MaseGraph:
    """The graph that `save_graph` wrote, with its tensors on `map_location`.

    `custom_ops` gives classes and functions of yours that the file may name, as for MaseGraph;
    those in files that were imported with --import are known.
    """
    path = Path(folder).expanduser()
    content = _read_json(path)
    tensors = read_tensors(path / STATE, map_location)
    names = Names(own_of(custom_ops))
    try:
        graph = _built(content, tensors, names)
    except ForeignName as error:
        raise GraphFileError(f"{path / GRAPH} was not loaded: {error}") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RuntimeError) as error:
        raise GraphFileError(f"{path / GRAPH} is damaged: {_reason(error)}") from error
    if not (path / META).is_file():
        raise GraphFileError(f"{path / META} is missing; was the folder copied as a whole?")
    read_node_meta(graph, path / META, names, map_location)
    return graph


def is_saved_graph(folder: str | Path) -> bool:
    """Whether `folder` looks like one that `save_graph` wrote."""
    restore_folder(folder)
    return (Path(folder).expanduser() / GRAPH).is_file()


def _read_json(folder: Path) -> dict[str, Any]:
    file = folder / GRAPH
    restore_folder(folder)
    if not folder.exists():
        raise FileNotFoundError(f"there is no folder {str(folder)!r} to load a graph from")
    if not folder.is_dir() or not file.is_file():
        raise GraphFileError(f"{folder} is no saved graph: a folder with {GRAPH} is")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise GraphFileError(f"{file} is damaged: {_reason(error)}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise GraphFileError(f"{file} is no graph of MASE: its format is not {FORMAT!r}")
    version = content.get("version")
    if type(version) is not int or version < 1:
        raise GraphFileError(f"{file} is damaged: its version is {version!r:.40}, no number")
    if version > VERSION:
        raise GraphFileError(
            f"{file} is of version {version}, and this MASE reads up to version {VERSION}; "
            f"load it with a newer MASE"
        )
    return content


PARTS = {
    "class_name": str,
    "nodes": list,
    "modules": list,
    "attributes": dict,
    "cf_args": dict,
    "custom_ops": dict,
    "metadata": dict,
}


def _built(content: dict[str, Any], tensors: dict[str, Tensor], names: Names) -> MaseGraph:
    for part, kind in PARTS.items():
        if not isinstance(content[part], kind):
            raise ValueError(f"its {part!r} is a {type(content[part]).__name__}")
    decode = Decoder(names, tensors)
    root = _root(content["modules"], tensors, decode)
    name = content["class_name"]
    if not _is_identifier(name):
        raise ValueError(f"{name!r:.40} is no name of a class")
    fx_graph = _fx_graph(content["nodes"], names, tensors)
    for node in fx_graph.nodes:
        if node.op in ("get_attr", "call_module"):
            _check_target(root, node)
    model = fx.GraphModule(root, fx_graph, class_name=name)
    # fx takes along what the graph calls only
    for part in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set", "training"):
        vars(model)[part] = vars(root)[part]
    graph = MaseGraph(model)
    graph.meta["made_from"] = _made_from(content.get("made_from", {}))
    graph.cf_args = decode(content["cf_args"])
    graph.custom_ops = decode(content["custom_ops"])
    set_model_attributes(model, decode(content["attributes"]))
    whole = Decoder(names, tensors, {node.name: node for node in graph.nodes})
    graph.meta["mase"] = MaseGraphMetadata(graph, whole(content["metadata"]))
    return graph


def _is_identifier(name: object) -> bool:
    return (
        isinstance(name, str) and bool(IDENTIFIER.fullmatch(name)) and not keyword.iskeyword(name)
    )


def _check_target(root: nn.Module, node: fx.Node) -> None:
    owner, _, last = str(node.target).rpartition(".")
    module = root.get_submodule(owner)
    tables = (
        (module._modules,) if node.op == "call_module" else (module._parameters, module._buffers)
    )
    if not any(table.get(last) is not None for table in tables):
        raise ValueError(f"node {node.name!r} uses {node.target!r}, which is not in the file")


def _fx_graph(rows: list[dict[str, Any]], names: Names, tensors: Mapping[str, Tensor]) -> fx.Graph:
    """fx writes Python from a graph, so every name in it has to be just a name."""
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}
    decode = Decoder(names, tensors, nodes)
    for row in rows:
        name, op = row["name"], row["op"]
        if not _is_identifier(name) or not all(map(_is_identifier, row["kwargs"])):
            raise ValueError(f"{name!r:.40} or one of its arguments has no name of Python")
        target = _target(op, row["target"], names)
        args = tuple(decode(row["args"]))
        kwargs = {key: decode(value) for key, value in row["kwargs"].items()}
        if target is getattr and not (len(args) > 1 and is_harmless(str(args[1]))):
            raise ForeignName(f"node {name!r} asks for an attribute that is not public")
        kind = ANNOTATIONS.get(row.get("type", ""))
        node = graph.create_node(op, target, args, kwargs, name, kind)
        if node.name != name:
            node._rename(name)
        if row.get("wrapped") is True:
            node.meta["is_wrapped"] = True
        if node.name != name or name in nodes:
            raise ValueError(f"two nodes are called {name!r}")
        nodes[name] = node
    if not nodes or node.op != "output":
        raise ValueError("it ends without an output")
    graph.lint()
    return graph


def _target(op: str, target: Any, names: Names) -> Any:
    if not isinstance(target, str):
        raise ValueError(f"the target {target!r:.40} is no text")
    if op == "call_function":
        return names.function(target)
    if op == "call_method":
        return check_method(target)
    patterns = {"placeholder": INPUT, "output": INPUT, "get_attr": DOTTED, "call_module": DOTTED}
    if op not in patterns or not patterns[op].fullmatch(target):
        raise ValueError(f"the target {target!r:.40} of a {op!r:.20} node is no name")
    return target


def _root(rows: list[dict[str, Any]], tensors: dict[str, Tensor], decode: Decoder) -> nn.Module:
    made: dict[str, nn.Module] = {}
    made_tensors: dict[str, Tensor] = {}
    for row in rows:
        name = row["name"]
        if name and not DOTTED.fullmatch(name):
            raise ValueError(f"{name!r:.40} is no name of a module")
        if "same_as" in row:
            module: nn.Module | None = made[row["same_as"]]
        elif row["class"] is None:
            module = None
        else:
            module = made[name] = _made(row, tensors, made_tensors, decode)
        if name:
            parent, _, key = name.rpartition(".")
            made[parent]._modules[key] = module
        elif module is None:
            raise ValueError("it has no root module")
    for row in rows:
        if "same_as" not in row and row["class"] is not None:
            _finish(made[row["name"]], row, decode)
    return made[""]


def _made(
    row: dict[str, Any],
    tensors: dict[str, Tensor],
    made: dict[str, Tensor],
    decode: Decoder,
) -> nn.Module:
    """The layer, without its constructor having run."""
    cls = decode.names.module_class(row["class"])
    module: nn.Module = cls.__new__(cls)
    nn.Module.__init__(module)
    for key, value in row["attributes"].items():
        if key in INTERNAL or hasattr(nn.Module, key):
            raise ForeignName(f"{key!r} of {row['name']!r} is no attribute that a file may set")
        vars(module)[key] = decode(value)
    for key, described in row["parameters"].items():
        module._parameters[key] = _parameter(described, tensors, made)
    for key, described in row["buffers"].items():
        module._buffers[key] = _strided(described, tensors)
    module._non_persistent_buffers_set = set(row["not_in_state_dict"])
    module.training = bool(row["training"])
    return module


def _parameter(
    described: dict[str, Any] | None, tensors: dict[str, Tensor], made: dict[str, Tensor]
) -> nn.Parameter | None:
    if described is None:
        return None
    key = described["tensor"]
    if key not in made:
        tensor = _strided(described, tensors)
        assert tensor is not None
        made[key] = nn.Parameter(tensor, requires_grad=bool(described.get("requires_grad")))
    found = made[key]
    assert isinstance(found, nn.Parameter)
    return found


def _strided(described: dict[str, Any] | None, tensors: dict[str, Tensor]) -> Tensor | None:
    if described is None:
        return None
    tensor = tensors[described["tensor"]]
    if "stride" not in described:
        return tensor
    there = torch.empty_permuted(
        tensor.shape, _order(described["stride"]), dtype=tensor.dtype, device=tensor.device
    )
    return there.copy_(tensor)


def _order(stride: list[int]) -> list[int]:
    """The dimensions from the slowest to the fastest."""
    return sorted(range(len(stride)), key=lambda i: -int(stride[i]))


def _finish(module: nn.Module, row: dict[str, Any], decode: Decoder) -> None:
    derive = _derived(type(module))[1]
    if derive is not None:
        derive(module)
    for key, home in EXTRA_HOMES.items():
        if key in row:
            importlib.import_module(home)
            found = {what: decode(value) for what, value in row[key].items()}
            EXTRAS[key].attach(module, found)
