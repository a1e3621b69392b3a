"""Encode values for JSON and TOML; docs/file_formats.md lists how each kind is written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import chain, count
from types import BuiltinFunctionType, EllipsisType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from chop.ir.graph.names import ForeignName, SavedNames
from chop.ir.ops import StandIn

# classes that occur in metadata and in annotations
TYPES: dict[str, type] = {
    cls.__name__: cls
    for cls in (bool, int, float, complex, str, tuple, list, dict, set, slice, object, type(None))
} | {"Tensor": Tensor, "Size": torch.Size, "device": torch.device, "dtype": torch.dtype}
_TYPE_NAMES = {cls: name for name, cls in TYPES.items()}


class Tensors:
    """Tensors by key; each is stored once, even if it occurs several times."""

    def __init__(self) -> None:
        self.by_key: dict[str, Tensor] = {}
        self._keys: dict[int, str] = {}
        self._met: list[Tensor] = []  # keeps ids from being reused
        self._storages: set[int] = set()

    def key(self, tensor: Tensor, wanted: str) -> str:
        """Return the key of `tensor`: its existing one, or `wanted`."""
        if id(tensor) in self._keys:
            return self._keys[id(tensor)]
        if tensor.is_meta:
            raise ValueError(f"{wanted} is on the meta device and has no values to save")
        if tensor.layout != torch.strided:
            raise ValueError(f"{wanted} is {tensor.layout}, which cannot be saved; make it dense")
        keys = chain([wanted], (f"{wanted}#{again}" for again in count(1)))
        key = next(key for key in keys if key not in self.by_key)
        self.by_key[key] = self._separate_copy(tensor.detach())
        self._keys[id(tensor)] = key
        self._met.append(tensor)
        return key

    def _separate_copy(self, tensor: Tensor) -> Tensor:
        """Copy to separate CPU memory, as safetensors requires."""
        copy = tensor.cpu().contiguous().resolve_conj().resolve_neg()
        storage = copy.untyped_storage()
        whole = storage.nbytes() == copy.numel() * copy.element_size()
        if not whole or storage.data_ptr() in self._storages:
            copy = copy.clone(memory_format=torch.contiguous_format)
        self._storages.add(copy.untyped_storage().data_ptr())
        return copy


class Encoder:
    """Encodes values for a file; tensors go to `tensors`, with names that start with `prefix`."""

    def __init__(
        self, names: SavedNames, tensors: Tensors, prefix: str, lenient: bool = False
    ) -> None:
        self.names, self.tensors, self.prefix, self.lenient = names, tensors, prefix, lenient

    def __call__(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        encode = _encoder_of(value.__class__)
        if encode is not None:
            return encode(self, value)
        if self.lenient:  # metadata may hold anything; a value that cannot be saved becomes a note
            return {"repr": repr(value)[:200]}
        if callable(value):
            return {"function": self.names.of_function(value)}
        raise ForeignName(f"a {type(value).__name__} cannot be saved")

    def all(self, values: Any) -> list[Any]:
        return [self(value) for value in values]


def _dict(encode: Encoder, value: Mapping[Any, Any]) -> Any:
    plain = all(type(key) is str for key in value)
    if plain and not (len(value) == 1 and next(iter(value)) in DECODERS):
        return {key: encode(item) for key, item in value.items()}
    return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}


def _class(encode: Encoder, value: type) -> Any:
    if value in _TYPE_NAMES:
        return {"type": _TYPE_NAMES[value]}
    if issubclass(value, torch.nn.Module):
        return {"class": encode.names.of_class(value)}
    if encode.lenient:
        return {"type": "object"}
    raise ForeignName(f"the class {value.__qualname__!r} cannot be saved")


def _function(encode: Encoder, value: Any) -> Any:
    if encode.lenient:  # metadata is read, never called
        return {"repr": str(getattr(value, "__qualname__", value))[:200]}
    return {"function": encode.names.of_function(value)}


Encode = Callable[[Encoder, Any], Any]
ENCODERS: list[tuple[Any, Encode]] = [
    (fx.Node, lambda e, v: {"node": v.name}),
    (Tensor, lambda e, v: {"tensor": e.tensors.key(v, e.prefix)}),
    (np.ndarray, lambda e, v: {"array": e.tensors.key(torch.from_numpy(v.copy()), e.prefix)}),
    (np.generic, lambda e, v: e(v.item())),
    (torch.Size, lambda e, v: {"size": list(v)}),
    (tuple, lambda e, v: {"tuple": e.all(v)}),
    (list, lambda e, v: e.all(v)),
    (set | frozenset, lambda e, v: {"set": e.all(sorted(v, key=repr))}),
    (Mapping, _dict),
    (slice, lambda e, v: {"slice": e.all((v.start, v.stop, v.step))}),
    (range, lambda e, v: {"range": [v.start, v.stop, v.step]}),
    (EllipsisType, lambda e, v: {"ellipsis": True}),
    (complex, lambda e, v: {"complex": e.all((v.real, v.imag))}),
    (torch.dtype, lambda e, v: {"dtype": str(v).removeprefix("torch.")}),
    (torch.device, lambda e, v: {"device": str(v)}),
    (torch.layout, lambda e, v: {"layout": str(v).removeprefix("torch.")}),
    (torch.memory_format, lambda e, v: {"memory_format": str(v).removeprefix("torch.")}),
    (type, _class),
    (StandIn | FunctionType | BuiltinFunctionType, _function),
    (bool, lambda e, v: bool(v)),
    (int, lambda e, v: int(v)),  # subclasses: enums and the like
    (str, lambda e, v: str(v)),
    (float, lambda e, v: e(float(v))),
]


@lru_cache(maxsize=256)
def _encoder_of(cls: type) -> Encode | None:
    return next((encode for kind, encode in ENCODERS if issubclass(cls, kind)), None)


# tags of the kinds of values that are allowed in each part of a file
PLAIN = frozenset(
    ("size", "tuple", "dict", "slice", "range", "ellipsis", "complex", "float", "text", "repr")
) | {"dtype", "device", "layout", "memory_format"}
ARGUMENTS = PLAIN | {"node"}  # of nodes
VALUES = PLAIN | {"set", "tensor", "array", "type", "class"}  # settings of the graph
ATTRIBUTES = VALUES | {"function"}  # of layers
METADATA = VALUES | {"node", "function"}
JSON = (bool, int, float, str, type(None))


class Decoder:
    """Decodes values of a file, of the kinds in `kinds`."""

    def __init__(
        self,
        names: SavedNames,
        tensors: Mapping[str, Tensor],
        nodes: Mapping[str, fx.Node] | None = None,
        kinds: frozenset[str] = VALUES,
    ) -> None:
        self.names, self.tensors, self.kinds = names, tensors, kinds
        self.nodes: Mapping[str, fx.Node] = nodes if nodes is not None else {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, JSON):
            return value
        if isinstance(value, list):
            return [self(item) for item in value]
        if not isinstance(value, dict):
            raise ValueError(f"a {type(value).__name__} is not a value that a graph holds")
        if len(value) == 1:
            ((tag, content),) = value.items()
            if tag in DECODERS:
                return self._tagged(tag, content)
        return {key: self(item) for key, item in value.items()}

    def _tagged(self, tag: str, content: Any) -> Any:
        if tag not in self.kinds:
            raise ForeignName(f"a value of the kind {tag!r} is not allowed here")
        if self.kinds is METADATA and tag == "function":  # nothing in metadata can be called
            return str(content)
        return DECODERS[tag](self, content)


def _torch_constants(kind: type) -> Callable[[Decoder, Any], Any]:
    known = {str(v).removeprefix("torch."): v for v in vars(torch).values() if isinstance(v, kind)}

    def decode(decoder: Decoder, name: Any) -> Any:
        if name not in known:
            raise ForeignName(f"{name!r:.60} is not a {kind.__name__} of torch")
        return known[name]

    return decode


def _device(decoder: Decoder, name: Any) -> torch.device:
    if not isinstance(name, str) or not DEVICE.fullmatch(name):
        raise ForeignName(f"{name!r:.60} is not a device; use cpu, cuda or cuda:0")
    return torch.device(name)


def _function_value(decode: Decoder, name: Any) -> Any:
    fn = decode.names.function(name)
    if fn is getattr:
        raise ForeignName("getattr may not be the value of an attribute")
    return fn


DEVICE = re.compile(r"(cpu|cuda|hpu|meta|mps|mtia|xla|xpu)(:\d{1,3})?", re.ASCII)
DECODERS: dict[str, Callable[[Decoder, Any], Any]] = {
    "node": lambda d, v: d.nodes[v],
    "tensor": lambda d, v: d.tensors[v],
    "array": lambda d, v: d.tensors[v].cpu().numpy(),
    "size": lambda d, v: torch.Size(v),
    "tuple": lambda d, v: tuple(d(v)),
    "set": lambda d, v: set(d(v)),
    "dict": lambda d, v: {d(key): d(value) for key, value in v},
    "slice": lambda d, v: slice(*d(v)),
    "range": lambda d, v: range(*v),
    "ellipsis": lambda d, v: ...,
    "complex": lambda d, v: complex(*d(v)),
    "float": lambda d, v: float(v),
    "dtype": _torch_constants(torch.dtype),
    "device": _device,
    "layout": _torch_constants(torch.layout),
    "memory_format": _torch_constants(torch.memory_format),
    "type": lambda d, v: TYPES[v],
    "class": lambda d, v: d.names.module_class(v),
    "function": _function_value,
    "repr": lambda d, v: str(v),
    "text": lambda d, v: str(v),
}
