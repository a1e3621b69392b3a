"""A graph as a directory: `graph.json`, `state_dict.safetensors`, `node_meta_param.toml`.

docs/file_formats.md describes the files. Reading runs no constructor and no code of the
file: layers are created empty and filled from it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.graph.encoding import ARGUMENTS, METADATA, VALUES, Decoder, Encoder, Tensors
from chop.ir.graph.mase_graph import (
    FRONT_ENDS,
    MODEL_ATTRIBUTES,
    MaseGraph,
    set_model_attributes,
)
from chop.ir.graph.mase_graph_metadata import MaseGraphMetadata
from chop.ir.graph.mase_metadata import TensorMeta, mase
from chop.ir.graph.meta_file import (
    COPY,
    DAMAGE,
    PYTORCH,
    GraphFileError,
    _reason,
    check_records,
    check_table,
    read_json,
    read_node_meta,
    read_tensors,
    tensor_table,
    write_node_meta,
)
from chop.ir.graph.model_checks import checked_custom_ops
from chop.ir.graph.names import ForeignName, SavedNames, user_definitions
from chop.ir.graph.node_rules import CHECKS, check_node, is_identifier
from chop.ir.graph.saved_files import GRAPH
from chop.ir.graph.saved_layers import described_layers, rebuilt_layers
from chop.ir.nested import named_output
from chop.ir.pure import FUNCTIONS
from chop.system.caches import Lru
from chop.system.files import replaced_folder, restore_folder, whole_file, write_safetensors

FORMAT, VERSION = "mase-graph", 3
STATE, META = "state_dict.safetensors", "node_meta_param.toml"
FILES = (GRAPH, STATE, META, "node_meta_param.safetensors")


# --- writing


def save_graph(graph: MaseGraph, folder: str | Path) -> Path:
    """Write `graph` to `folder`, which is replaced as a whole or not at all."""
    names, tensors = SavedNames(user_definitions(graph.custom_ops)), Tensors()
    text = _json(_described(graph, names, tensors) | {"tensors": tensor_table(tensors.by_key)})
    with replaced_folder(folder, FILES) as part:
        (part / GRAPH).write_text(text, encoding="utf-8")
        write_safetensors(tensors.by_key, part / STATE, PYTORCH)
        write_node_meta(graph, part / META, names)
    return Path(folder)


def write_state_dict(graph: MaseGraph, path: str | Path) -> Path:
    """Write the weights of a graph to a file with the suffix .pt, and return its path."""
    file = Path(path) if Path(path).suffix == ".pt" else Path(f"{path}.pt")
    state = {key: value.detach().cpu().clone() for key, value in graph.model.state_dict().items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as part:
        torch.save(state, part)
    return file


def _json(content: Mapping[str, Any]) -> str:
    """Write one node or module per line, for people and for diff.

    Indenting everything is ten times slower, as Python's json then does not use its C code."""
    dumps = json.JSONEncoder(allow_nan=False).encode
    parts = []
    for key, value in content.items():
        text = dumps(value)
        if value and isinstance(value, list):
            text = "[\n" + ",\n".join(["  " + dumps(row) for row in value]) + "\n ]"
        parts.append(f" {dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _described(graph: MaseGraph, names: SavedNames, tensors: Tensors) -> dict[str, Any]:
    model = graph.model
    # set by the public set_codegen(), but read only by this name
    if type(graph.fx_graph._codegen) is not fx.graph.CodeGen:
        raise ValueError("a graph with inputs nested in lists or dicts cannot be saved")
    modules = described_layers(model, names, tensors)
    encode = Encoder(names, tensors, "_constant")
    lenient = Encoder(names, tensors, "_metadata", lenient=True)
    attributes = {k: v for k, v in vars(model).items() if k in MODEL_ATTRIBUTES}
    return {
        "format": FORMAT,
        "version": VERSION,
        "class_name": type(model).__name__,
        "made_from": _made_from(graph.meta.get("made_from", {})),
        "trained_on": _trained_on(graph.meta.get("trained_on", {})),
        "front_end": graph.front_end,
        "nodes": [_node(node, model, names, encode) for node in graph.nodes],
        "modules": modules,
        "attributes": encode(attributes),
        "cf_args": encode(graph.cf_args),
        "custom_ops": encode(graph.custom_ops),
        "metadata": lenient(dict(graph.meta["mase"].parameters)),
    }


def _made_from(names: Any) -> dict[str, str]:
    """Check the note of what a graph was made from, such as the names of model and data set."""
    if not isinstance(names, dict) or not all(isinstance(v, str) for v in names.values()):
        raise ValueError(f"made_from has names by kind, and is {names!r:.60}")
    return dict(names)


def _trained_on(facts: Any) -> dict[str, Any]:
    """Check that the facts about the data of a graph are JSON values in a table."""
    if not isinstance(facts, dict):
        raise ValueError(f"trained_on is a table of facts, and is {facts!r:.60}")
    return dict(facts)


def _front_end(name: Any) -> str:
    """Check the note of the front end."""
    if name not in FRONT_ENDS:
        raise ValueError(f"its front end is {name!r:.40}, and not one of {', '.join(FRONT_ENDS)}")
    return str(name)


def made_from(folder: str | Path) -> dict[str, str]:
    """Return what the graph in `folder` was made from; {} if unknown."""
    return _note(folder, "made_from", _made_from)


def trained_on(folder: str | Path) -> dict[str, Any]:
    """Return the facts about the data that the graph in `folder` was trained on; {} if unknown."""
    return _note(folder, "trained_on", _trained_on)


def _note(folder: str | Path, key: str, check: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    path = Path(folder).expanduser()
    file = _file_in(path)
    state = file.stat()
    key_of_file = (file.absolute(), state.st_ino, state.st_mtime_ns, state.st_size)
    try:
        return copy.deepcopy(check(_NOTES.get_or(key_of_file, _notes, path).get(key, {})))
    except GraphFileError:
        raise
    except ValueError as error:
        raise GraphFileError(f"{path / GRAPH} is damaged: {_reason(error)}") from error


_NOTES: Lru[tuple[Path, int, int, int], dict[str, Any]] = Lru(16)  # of the latest files


def _notes(folder: Path) -> dict[str, Any]:
    """Return the short parts of a file, which commands ask for several times."""
    content = _read_json(folder)
    return {key: content[key] for key in ("made_from", "trained_on") if key in content}


def _node(node: fx.Node, model: nn.Module, names: SavedNames, encode: Encoder) -> dict[str, Any]:
    try:
        target: Any = node.target
        if node.op == "call_function":
            # torch.fx builds a dataclass in forward() by its class, which a file may not call
            results_by_name = isinstance(target, type) and is_dataclass(target)
            target = names.of_function(named_output if results_by_name else target)
        described = {
            "name": node.name,
            "op": node.op,
            "target": target,
            "args": encode.all(node.args),
            "kwargs": {key: encode(value) for key, value in node.kwargs.items()},
        }
        check_node(node, model)
    except ValueError as error:
        raise ValueError(f"cannot save node {node.name!r}: {error}") from error
    annotations = [name for name, kind in ANNOTATIONS.items() if kind == node.type]
    if annotations:
        described["type"] = annotations[0]
    if node.meta.get("is_wrapped"):  # by torch.fx.wrap, which the model's code calls
        described["wrapped"] = True
    return described


# annotations that fx writes into forward(); others are dropped
ANNOTATIONS: dict[str, Any] = {kind.__name__: kind for kind in (Tensor, int, float, bool, str)}
ANNOTATIONS["Tensor | None"] = Tensor | None


# --- reading


def load_graph(
    folder: str | Path,
    map_location: str | torch.device = "cpu",
    custom_ops: Mapping[str, Mapping[Any, Any]] | None = None,
) -> MaseGraph:
    """Load a graph that `save_graph` wrote, with its tensors on `map_location`.

    `custom_ops` adds your classes and functions that the file may use, as for MaseGraph; those in
    imported user files are known.
    """
    path = Path(folder).expanduser()
    content = _read_json(path)
    tensors = read_tensors(path / STATE, map_location)
    names = SavedNames(user_definitions(custom_ops))
    try:
        check_table(content.get("tensors"), tensors)
        graph = _built(content, tensors, names)
    except GraphFileError:
        raise
    except ForeignName as error:
        raise GraphFileError(f"{path / GRAPH} was not loaded: {error}") from error
    except DAMAGE as error:
        raise GraphFileError(f"{path / GRAPH} is damaged: {_reason(error)}") from error
    if not (path / META).is_file():
        raise GraphFileError(f"{path / META} is missing; {COPY}")
    read_node_meta(graph, path / META, names, map_location)
    graph.example_inputs = _kept_inputs(graph)
    return graph


def _kept_inputs(graph: MaseGraph) -> dict[str, Any]:
    """Return the inputs whose values are in the metadata, or none at all."""
    inputs: dict[str, Any] = {}
    for node in graph.inputs:
        common = mase(node).common if "mase" in node.meta else {}
        results = list(common.get("results", {}).values())
        if len(results) != 1 or "nesting" in common or not _has_its_value(results[0]):
            return {}
        inputs[str(node.target)] = results[0]["value"]
    return inputs


def _has_its_value(entry: Any) -> bool:
    """Whether metadata holds a tensor of its shape and dtype, or another value of its type."""
    if not isinstance(entry, TensorMeta) or "value" not in entry:
        return False
    value = entry["value"]
    if not isinstance(value, Tensor):
        return type(value) is entry.get("type")
    is_like_it = entry.get("torch_dtype") == value.dtype
    return is_like_it and [*value.shape] == [*(entry.get("shape") or ())]


def _read_json(folder: Path) -> dict[str, Any]:
    return read_json(_file_in(folder), FORMAT, VERSION)


def _file_in(folder: Path) -> Path:
    """Return the file of a saved graph, or refuse a directory without one."""
    file = folder / GRAPH
    restore_folder(folder)
    if not folder.exists():
        raise FileNotFoundError(f"there is no directory {str(folder)!r} to load a graph from")
    if not folder.is_dir() or not file.is_file():
        raise GraphFileError(f"{folder} is not a saved graph: it has no {GRAPH}")
    return file


PARTS = {"class_name": str, "nodes": list, "modules": list}
PARTS |= dict.fromkeys(("attributes", "cf_args", "custom_ops", "metadata"), dict)


def _built(content: dict[str, Any], tensors: dict[str, Tensor], names: SavedNames) -> MaseGraph:
    for part, kind in PARTS.items():
        if not isinstance(content[part], kind):
            raise ValueError(f"its {part!r} is a {type(content[part]).__name__}")
    decode = Decoder(names, tensors)
    root = rebuilt_layers(content["modules"], tensors, names)
    name = content["class_name"]
    if not is_identifier(name):
        raise ValueError(f"{name!r:.40} is not a name of a class")
    model = fx.GraphModule(root, _fx_graph(content["nodes"], root, names), class_name=name)
    own_class: Any = type(model)
    own_class._wrapped_call = staticmethod(nn.Module.__call__)  # fx's prints a traceback
    # fx copies only what the graph calls
    for part in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set", "training"):
        vars(model)[part] = vars(root)[part]
    graph = MaseGraph(model)
    graph.meta["made_from"] = _made_from(content.get("made_from", {}))
    graph.meta["trained_on"] = _trained_on(content.get("trained_on", {}))
    graph.front_end = _front_end(content["front_end"])
    graph.cf_args = decode(content["cf_args"])
    settings = Decoder(names, tensors, kinds=VALUES | {"function"})
    graph.custom_ops = checked_custom_ops(settings(content["custom_ops"]))
    set_model_attributes(model, _model_attributes(graph, content["attributes"], settings))
    whole = Decoder(names, tensors, {node.name: node for node in graph.nodes}, METADATA)
    graph.meta["mase"] = _checked_metadata(graph, whole(content["metadata"]))
    return graph


def _model_attributes(
    graph: MaseGraph, described: dict[str, Any], decode: Decoder
) -> dict[str, Any]:
    """The attributes of the model that passes read."""
    values = {key: decode(described[key]) for key in MODEL_ATTRIBUTES if key in described}
    if "custom_ops" in values:
        values["custom_ops"] = graph.custom_ops
    kinds = {"patched_op_names": str, "patched_custom_layers": type}
    for key, value in values.items():
        if not isinstance(value, MODEL_ATTRIBUTES[key]):
            raise ValueError(f"its attribute {key!r} is a {type(value).__name__}")
        if not all(isinstance(item, kinds[key]) for item in values[key] if key in kinds):
            raise ValueError(f"its attribute {key!r} has an item of another kind")
    return values


def _checked_metadata(graph: MaseGraph, described: dict[str, Any]) -> MaseGraphMetadata:
    metadata = MaseGraphMetadata(graph, described)
    check_records(metadata.parameters)
    for key in ("nodes_in", "nodes_out"):
        if not all(isinstance(node, fx.Node) for node in metadata.common.get(key, [])):
            raise ValueError(f"{key!r} of its metadata has something that is not a node")
    return metadata


def _fx_graph(rows: list[dict[str, Any]], root: nn.Module, names: SavedNames) -> fx.Graph:
    """Build the fx graph; fx writes Python from it, so every name must be a plain identifier."""
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}
    decode = Decoder(names, {}, nodes, ARGUMENTS)
    for row in rows:
        name = row["name"]
        if not is_identifier(name) or name in nodes:
            raise ValueError(f"a node may not be called {name!r:.40}, or two nodes have that name")
        try:
            nodes[name] = _made_node(row, graph, decode)
            check_node(nodes[name], root)
        except ForeignName as error:
            raise ForeignName(f"node {name!r} cannot be used: {error}") from error
    if not nodes or nodes[name].op != "output":
        raise ValueError("it ends without an output")
    graph.lint()
    return graph


def _made_node(row: dict[str, Any], graph: fx.Graph, decode: Decoder) -> fx.Node:
    op, target = row["op"], row["target"]
    if op not in CHECKS or not isinstance(target, str) or not isinstance(row["args"], list):
        raise ValueError(f"node {row['name']!r} has no op, target or arguments")
    called = decode.names.function(target) if op == "call_function" else target
    args = tuple(decode(row["args"]))
    kwargs = {key: decode(value) for key, value in row["kwargs"].items()}
    kind = ANNOTATIONS.get(row.get("type", ""))
    node = graph.create_node(op, called, args, kwargs, row["name"], kind)
    if node.name != row["name"]:
        node._rename(row["name"])  # private; fx numbers names by itself
    if node.name != row["name"]:
        raise ValueError(f"a node may not be called {row['name']!r}")
    if row.get("wrapped") is True and isinstance(called, FunctionType) and called not in FUNCTIONS:
        node.meta["is_wrapped"] = True
    return node
