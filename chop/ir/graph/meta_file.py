"""Metadata of nodes in a TOML file with one table per node, and tensors in a file beside it."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from itertools import takewhile
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.ir.graph.encoding import DECODERS, METADATA, Decoder, Encoder, Tensors
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import COMMON_KEYS, CommonMeta, MaseMetadata, TensorMeta
from chop.ir.graph.names import SavedNames
from chop.ir.record import Record
from chop.system.files import whole_file, write_safetensors, write_whole

NA = "NA"  # TOML has no null
COPY = "copy the whole directory again, or save the graph again"
PYTORCH = {"format": "pt"}  # the header that safetensors files of PyTorch have
BARE = re.compile(r"[A-Za-z0-9_-]+")
# errors from values of the wrong kind, or nested too deeply
DAMAGE = (
    *(ValueError, LookupError, TypeError, AttributeError, RuntimeError),
    *(ArithmeticError, AssertionError, SyntaxError),
)


class GraphFileError(ValueError):
    """A saved graph, or part of one, that cannot be read."""


def write_node_meta(graph: MaseGraph, file: Path, names: SavedNames) -> None:
    """Write the metadata of every node to `file`; the graph is only read."""
    tensors, tables = Tensors(), {}
    for node in graph.nodes:
        meta = node.meta.get("mase")
        if meta is not None:
            encode = Encoder(names, tensors, node.name, lenient=True)
            tables[node.name] = encode(dict(meta.parameters))
    write_whole(file, toml_text(tables))
    beside = tensor_file(file)
    if tensors.by_key:
        with whole_file(beside) as part:
            write_safetensors(tensors.by_key, part, PYTORCH)
    else:
        beside.unlink(missing_ok=True)


def read_node_meta(graph: MaseGraph, file: Path, names: SavedNames, device: Any = "cpu") -> None:
    """Read the metadata of every node from `file`; nothing changes if reading fails."""
    tables = _read_toml(file)
    nodes = {node.name: node for node in graph.nodes}
    strange = [name for name in tables if name not in nodes]
    if strange:
        raise GraphFileError(
            f"{file} describes a node {strange[0]!r}, which this graph does not have; "
            f"is it the file of another graph?"
        )
    beside = tensor_file(file)
    tensors = read_tensors(beside, device) if beside.exists() else StoredTensors({}, beside)
    decode = Decoder(names, tensors, nodes, METADATA)
    try:
        metadata_of = {
            name: MaseMetadata(nodes[name], parameters=decode(_without_na(table)))
            for name, table in tables.items()
        }
        for metadata in metadata_of.values():
            check_records(metadata.parameters)
    except GraphFileError:
        raise
    except DAMAGE as error:
        raise GraphFileError(f"{file} is damaged: {_reason(error)}") from error
    for name, metadata in metadata_of.items():
        nodes[name].meta["mase"] = metadata


TEXTS = ("mase_type", "mase_op")  # of every node
# keys of a tensor's entry; other keys are the user's
TENSOR_KINDS = {"torch_dtype": torch.dtype, "shape": list | torch.Size | tuple, "precision": list}


def check_records(record: Record) -> None:
    """Raise an error if metadata has a plain value where a table belongs."""
    if isinstance(record, TensorMeta) and not isinstance(record.get("type"), type):
        for key, kind in TENSOR_KINDS.items():
            if record.get(key) is not None and not isinstance(record[key], kind):
                raise ValueError(f"{key!r} of a tensor is a {type(record[key]).__name__}")
    for key, kind in record.fields().items():
        if key in record and not isinstance(record[key], kind):
            raise ValueError(f"{key!r} in it is not a table")
    for entry in record.values():
        if isinstance(entry, Record):
            check_records(entry)
    for key in TEXTS if isinstance(record, CommonMeta) else ():
        if not isinstance(record.get(key, ""), str):
            raise ValueError(f"{key!r} of a node is a {type(record[key]).__name__}, not text")
    missing = [key for key in COMMON_KEYS if key not in record]
    if isinstance(record, CommonMeta) and 0 < len(missing) < len(COMMON_KEYS):
        raise ValueError(f"the metadata of a node has no {missing[0]!r}")


def tensor_file(file: Path) -> Path:
    """Return the path of the tensors of a metadata file."""
    return file.with_name(f"{file.stem}.safetensors")


def _reason(error: Exception) -> str:
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if isinstance(error, KeyError) and " " not in text:  # not a sentence but the missing key
        return f"it has no {text!r}"
    return text.partition("\n")[0] or type(error).__name__


def read_json(file: Path, form: str, wanted: int) -> dict[str, Any]:
    """Return the content of a JSON file of MASE's format `form` and the version `wanted`."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise GraphFileError(f"{file} is damaged: {_reason(error)}") from error
    if not isinstance(content, dict) or content.get("format") != form:
        raise GraphFileError(f"{file} was not saved by MASE: its format is not {form!r}")
    version = content.get("version")
    if type(version) is not int:
        raise GraphFileError(f"{file} is damaged: its version {version!r:.40} is not a number")
    if version != wanted:
        raise GraphFileError(
            f"{file} is of version {version}, and this MASE reads version {wanted}; load it with "
            f"the MASE that saved it"
        )
    return content


def _read_toml(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"there is no metadata file {str(file)!r}")
    try:
        text = file.read_text(encoding="utf-8")
        tables = _read_lines(text) or tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise GraphFileError(f"{file} is damaged or not a TOML file: {_reason(error)}") from error
    wrong = [name for name, table in tables.items() if not isinstance(table, dict)]
    if wrong:
        raise GraphFileError(
            f"{file} does not hold metadata: {wrong[0]!r} is not the table of a node"
        )
    return tables


SECTION = re.compile(rf"\[({BARE.pattern}(?:\.{BARE.pattern})*)\]")
PAIR = re.compile(rf"({BARE.pattern}) = (.+)")


def _read_lines(text: str) -> dict[str, Any] | None:
    """Parse the output of `toml_text`, one section or pair per line; None for any other TOML.

    Nodes share many values, and line by line each distinct value is parsed once. Equal values are
    the same object, so they must not be modified.
    """
    sections: dict[str, dict[str, Any]] = {"": {}}
    table, parsed = sections[""], cache(_parsed)
    for line in filter(None, text.split("\n")):
        if pair := PAIR.fullmatch(line):
            key, value = pair.groups()
            if key in table:
                return None
            try:
                table[key] = parsed(value)
            except tomllib.TOMLDecodeError:
                return None
        elif section := SECTION.fullmatch(line):
            opened = _new_section(sections, section[1])
            if opened is None:
                return None
            table = opened
        else:
            return None
    return sections[""]


def _parsed(text: str) -> Any:
    return tomllib.loads(f"value = {text}")["value"]


def _new_section(sections: dict[str, dict[str, Any]], path: str) -> dict[str, Any] | None:
    """Create a section; None if its name is already taken."""
    parent, _, key = path.rpartition(".")
    table = sections[parent] if parent in sections else _new_section(sections, parent)
    if table is None or key in table:
        return None
    sections[path] = table[key] = {}
    return sections[path]


def _without_na(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) == 1 and "text" in value:
            return value
        return {key: _without_na(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_na(item) for item in value]
    return None if value == NA else value


def toml_text(tables: dict[str, Any]) -> str:
    """Write a mapping of plain values as TOML: one section per nested mapping, in key order."""
    return "".join(_section(tables, ""))


def _section(table: dict[str, Any], path: str) -> Iterator[str]:
    """Yield a section; mappings before a plain value stay inline, as a section ends at the next."""
    inline = len(table) - len(list(takewhile(_is_table, reversed(table.values()))))
    if path and (inline or not table):
        yield f"\n[{path}]\n"
    for place, (key, value) in enumerate(table.items()):
        if place < inline:
            yield f"{_key(key)} = {_inline(value)}\n"
        else:
            yield from _section(value, f"{path}.{_key(key)}" if path else _key(key))


def _is_table(value: Any) -> bool:
    """Whether this is a mapping rather than a tagged value."""
    return isinstance(value, dict) and not (len(value) == 1 and next(iter(value)) in DECODERS)


@lru_cache(maxsize=1024)
def _key(key: str) -> str:
    return key if BARE.fullmatch(key) else _quoted(key)


def _quoted(text: str) -> str:
    return encode_basestring(text).replace("\x7f", "\\u007f")


def _inline(value: Any) -> str:
    if isinstance(value, str):
        return '{ text = "NA" }' if value == NA else _quoted(value)
    if value is None:
        return _quoted(NA)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        pairs = [f"{_key(key)} = {_inline(item)}" for key, item in value.items()]
        return "{ " + ", ".join(pairs) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join([_inline(item) for item in value]) + "]"
    assert isinstance(value, int) or math.isfinite(value), "other floats are written with a tag"
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


class StoredTensors(dict[str, Tensor]):
    """The tensors of a file."""

    def __init__(self, tensors: Mapping[str, Tensor], file: Path) -> None:
        super().__init__(tensors)
        self.file = file

    def __missing__(self, key: str) -> Tensor:
        raise GraphFileError(f"{self.file} has no tensor {key!r}; {COPY}")


def tensor_table(tensors: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """Return the types and sizes of tensors, to be written beside them and compared when read."""
    return {key: [_type(tensor), *tensor.shape] for key, tensor in tensors.items()}


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def check_table(table: Any, tensors: StoredTensors) -> None:
    """Refuse tensors that are not of the types and sizes that they were saved with."""
    if not isinstance(table, dict) or not all(isinstance(row, list) for row in table.values()):
        raise ValueError("its 'tensors' is not a table of types and sizes")
    if unknown := sorted(tensors.keys() - table.keys()):
        raise GraphFileError(f"{tensors.file} was saved without a tensor {unknown[0]!r}; {COPY}")
    for key, saved in table.items():
        present = [_type(tensors[key]), *tensors[key].shape]
        if present != saved:
            is_and_was = (f"{str(row[0])[:20]} of the shape {row[1:]}" for row in (present, saved))
            raise GraphFileError(
                f"{key!r} in {tensors.file} is {' and not '.join(is_and_was)}, as it was saved; "
                f"{COPY}"
            )


def read_tensors(file: Path, device: Any = "cpu") -> StoredTensors:
    """All tensors of a safetensors file, on `device`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not file.is_file():
        raise GraphFileError(f"{file} is missing; {COPY}")
    try:
        tensors = load_file(file, device=str(torch.device(device)))
        # in separate memory with torch's alignment, as rounding in kernels may depend on it
        return StoredTensors({k: t.clone() if t.is_cpu else t for k, t in tensors.items()}, file)
    except (SafetensorError, OSError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise GraphFileError(f"{file} is damaged or not a safetensors file: {reason}") from error
