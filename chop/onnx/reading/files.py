"""Read an ONNX file from disk: size limits first, then the parser, then its own checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chop.onnx.packages import need_package
from chop.onnx.reading.errors import UnreadableModel
from chop.onnx.reading.lowering import without_weights
from chop.onnx.reading.scan import MAX_STRUCTURE, measure
from chop.system.files import why_missing
from chop.system.memory import memory_for

__all__ = ["FIRST_READ", "MAX_NODES", "OPSETS", "load_proto"]

LARGEST = 2**31 - 1  # bytes; a protobuf cannot be larger
MAX_NODES = 100_000
OPSETS = range(1, 29)
FIRST_READ = 7  # older files are converted to this opset
FLATBUFFER = b"ORTM"  # after four bytes
# how files of other kinds start
OTHER_KINDS = {
    b"PK\x03\x04": "a zip archive; unpack it, and give the .onnx file in it",
    b"\x1f\x8b": "a gzip archive; unpack it first",
    b"\x89HDF": "an HDF5 file, as Keras saves; export it with tf2onnx or model.export",
    FLATBUFFER: "an onnxruntime file (.ort); give the .onnx file that it was made from",
}


def load_proto(file: str | Path) -> Any:
    """Return the `onnx.ModelProto` of a file, without its external data."""
    need_package("onnx", "reading an ONNX file")
    path = Path(file).expanduser()
    if not path.exists():
        raise FileNotFoundError(why_missing(path, "file"))
    if not path.is_file():
        raise UnreadableModel(f"{file} is not a file; give the .onnx file itself")
    if path.stat().st_size > LARGEST:
        raise UnreadableModel(
            f"{file} is larger than 2 GiB, which no ONNX file can be; export the network with "
            f"external data"
        )
    with memory_for(f"read {file}"):
        data = path.read_bytes()
    return parsed(data, str(file))


def parsed(data: bytes, owner: str) -> Any:
    """Return the model in the bytes of a file, checked."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    for start, kind in OTHER_KINDS.items():
        if data[4 if start == FLATBUFFER else 0 :][: len(start)] == start:
            raise UnreadableModel(f"{owner} is {kind}")
    if not data:
        raise UnreadableModel(f"{owner} is empty; export or copy it again")
    structure = measure(memoryview(data), owner)
    if len(data) - structure.numbers > MAX_STRUCTURE:
        raise UnreadableModel(
            f"{owner} has {(len(data) - structure.numbers) / 2**20:,.0f} MiB besides its weights, "
            f"and could fill the memory; export the network again"
        )
    if structure.by_kind.get("node", 0) > MAX_NODES:
        raise UnreadableModel(f"{owner} has more than {MAX_NODES:,} nodes; read a smaller network")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise UnreadableModel(
            f"{owner} is damaged, truncated or not an ONNX file; export or copy it again"
        ) from error
    _check_versions(model, owner)
    _check_structure(model, owner)
    return model


def _check_versions(model: Any, owner: str) -> None:
    if not model.HasField("graph") or not model.opset_import:
        raise UnreadableModel(
            f"{owner} is not an ONNX model: it has no graph or no opset; export it again"
        )
    opset = opset_of(model)
    if opset not in OPSETS:
        words = "too old" if opset < OPSETS.start else "too new"
        raise UnreadableModel(
            f"{owner} has opset {opset}, which is {words}; convert it to one from {FIRST_READ} "
            f"to {OPSETS.stop - 1} with onnx.version_converter"
        )


def opset_of(model: Any) -> int:
    """Return the version of the standard operators that a model uses."""
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    return max(versions, default=OPSETS.stop - 1)


def _check_structure(model: Any, owner: str) -> None:
    """Let onnx check names, types and the order of nodes; weights are checked later."""
    import onnx

    bare = without_weights(model)
    for output in bare.graph.output:
        output.type.tensor_type.shape.SetInParent()  # exporters may leave it out
    try:
        onnx.checker.check_model(bare)
    except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnreadableModel(
            f"{owner} is not a valid ONNX model ({reason}); export the network again"
        ) from error
