"""Names of ONNX nodes and weights, made the names of layers and nodes of a graph."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable

from torch import fx, nn

__all__ = ["free_path", "identifier", "layer_path", "parameter_name", "path_of_weight", "shortened"]

# what the code of a graph reads, besides functions of Python
HIDDEN = ("self", "torch", "operator", "inf", "nan", "device", "fx_pytree", "pytree")
USUAL_INPUTS = ("input",)
# attributes of layers and graphs, such as `training`, `forward` or `code`
RESERVED = frozenset((*dir(nn.Module()), *dir(fx.GraphModule)))
# names become those of files and columns; paths of PyTorch's layers stay as checkpoints have them
MAX_LETTERS, MAX_IN_PATH = 40, 80
WEIGHT = re.compile(r"(.+)[._/](?:weight|kernel|W|w|gamma|scale)(?::\d+|/Read.*|_quantized)?")
# scopes that exporters put around the whole network
SCOPES = re.compile(r"StatefulPartitionedCall(_\d+)?|PartitionedCall(_\d+)?|main_graph|")


def identifier(text: str, otherwise: str = "value") -> str:
    """Return text as a name in Python.

    >>> identifier("/fc1/Gemm_output_0"), identifier("onnx::Add 3"), identifier("1")
    ('fc1_Gemm_output_0', 'onnx_Add_3', 'value_1')
    """
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or otherwise
    name = f"{otherwise}_{name}" if name[0].isdigit() else name
    return f"{name}_" if keyword.iskeyword(name) else name


def parameter_name(text: str, taken: Iterable[str]) -> str:
    """Return text as the name of a parameter of `forward`, which no other parameter has.

    The code that fx writes reads functions by their names, which a parameter must not hide.

    >>> parameter_name("x", []), parameter_name("torch", []), parameter_name("x", ["x"])
    ('x', 'torch_', 'x_1')
    """
    name, known = shortened(identifier(text, "input")), set(taken)
    is_read = name in HIDDEN or (hasattr(builtins, name) and name not in USUAL_INPUTS)
    name = f"{name}_" if is_read else name
    new, number = name, 1
    while new in known:
        new, number = f"{name}_{number}", number + 1
    return new


def layer_path(node_name: str, op: str) -> str:
    """Return the path of the layer that a node belongs to; "" if its name tells nothing.

    >>> layer_path("/features/features.0/conv/Conv", "Conv")
    'features.0.conv'
    >>> layer_path("StatefulPartitionedCall/net/dense_1/MatMul", "MatMul")
    'net.dense_1'
    >>> layer_path("Relu_3", "Relu"), layer_path("fc1", "Gemm")
    ('', 'fc1')
    """
    parts = re.split(r"[/:]+", node_name.removeprefix("node_"))
    parts = [part for part in parts if not SCOPES.fullmatch(part)]
    if parts and re.fullmatch(rf"(?i){re.escape(op)}(\dd)?(_?\d+)?|\d+", parts[-1]):
        parts.pop()
    path: list[str] = []
    for part in parts:
        # PyTorch writes the path within the parent again: layers, layers.0
        if path and part.startswith(f"{path[-1]}."):
            path.pop()
        path.append(part)
    return _dotted(".".join(path))


def path_of_weight(name: str) -> str:
    """Return the path of the layer that a weight is called after; "" if it tells nothing.

    >>> path_of_weight("blocks.1.fc.weight"), path_of_weight("onnx::MatMul_12")
    ('blocks.1.fc', '')
    """
    found = WEIGHT.fullmatch(name)
    return layer_path(found[1], "") if found and "::" not in name else ""


def _dotted(path: str) -> str:
    """Return a path of names and numbers, as those of layers are."""
    parts = [part if part.isdigit() else identifier(part, "layer") for part in path.split(".")]
    if not path or parts[0].isdigit():
        return identifier(path, "layer") if path else ""
    return ".".join(part for part in parts if part)


def shortened(path: str) -> str:
    """Return the last meaningful part of a name that is too long for files and tables.

    >>> shortened("bert.encoder.layer.11.attention.output.LayerNorm")
    'bert.encoder.layer.11.attention.output.LayerNorm'
    >>> shortened("StatefulPartitionedCall_functional_1_batch_normalization_2_FusedBatchNormV3")
    'batch_normalization_2_FusedBatchNormV3'
    """
    parts = path.split(".")
    if len(path) <= MAX_IN_PATH and all(len(part) <= MAX_LETTERS for part in parts):
        return path
    while len(parts) > 1 and (len(".".join(parts)) > MAX_LETTERS or parts[0].isdigit()):
        parts.pop(0)
    words = ".".join(parts).split("_")
    while len(words) > 1 and len("_".join(words)) > MAX_LETTERS:
        words.pop(0)
    short = "_".join(words)[-MAX_LETTERS:].lstrip("._")
    return f"layer_{short}"[:MAX_LETTERS] if not short or short[0].isdigit() else short


def free_path(path: str, taken: Iterable[str]) -> str:
    """Return a short path that no layer has, and that is not inside of one."""
    parts = shortened(path).split(".")
    path = ".".join(f"{part}_" if part in RESERVED else part for part in parts)
    known = list(taken)
    inside = any(path.startswith(f"{other}.") or other.startswith(f"{path}.") for other in known)
    path = path.replace(".", "_") if inside else path
    new, number = path, 1
    while new in known:
        new, number = f"{path}_{number}", number + 1
    return new
