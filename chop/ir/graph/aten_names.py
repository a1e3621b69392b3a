"""Translate operators of torch.ops.aten to the functions and methods that a model would call.

Then exported graphs have the ops, operands and quantized functions of traced ones. An operator
without a translation stays as it is.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.ir.op_spec import functional_places
from chop.ir.operators import Overload


class TorchCall(NamedTuple):
    """What a node calls: the kind of node, the target, and the arguments."""

    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Arguments = dict[str, Any]  # by the names in the operator's schema, defaults included

OPERATORS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name)
    for name in ("add", "sub", "mul", "neg", "pow", "eq", "ne", "lt", "le", "gt", "ge")
}
OPERATORS |= {
    "div": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "bitwise_not": operator.invert,
    "__and__": operator.and_,
    "__or__": operator.or_,
    "__xor__": operator.xor,
}
# operators that a model calls as methods
_METHODS = """
    view reshape permute transpose t contiguous expand expand_as unsqueeze squeeze flatten unflatten
    masked_fill clone detach chunk split split_with_sizes unbind repeat type_as new_zeros new_ones
    new_empty new_full view_as reshape_as movedim narrow numel mean sum
"""
METHODS = frozenset(_METHODS.split())
FUNCTIONS = {"feature_dropout": F.dropout2d}
# operators that only check what torch.export assumed
CHECKS = frozenset(
    ("_assert_scalar", "_assert_async", "_assert_tensor_metadata", "sym_constrain_range")
) | {"sym_constrain_range_for_size"}
REDUCTIONS = ("none", "mean", "sum")


def is_check(target: Any) -> bool:
    """Return whether a node only checks what torch.export assumed."""
    return isinstance(target, Overload) and name_of(target) in CHECKS


def is_of_torch_func(target: Any) -> bool:
    """Return whether a function is a part of a transform of torch.func, such as vmap."""
    return str(getattr(target, "__module__", "")).startswith("torch._functorch.")


def name_of(target: Any) -> str:
    """Return `add` for torch.ops.aten.add.Tensor, "" for anything that is not of torch.ops.aten."""
    return str(target.overloadpacket.__name__) if target.namespace == "aten" else ""


def arguments_of(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """Return all arguments of a call of an operator by name."""
    schema = target._schema.arguments  # torch has no public name for it
    given = dict(zip((argument.name for argument in schema), args, strict=False)) | dict(kwargs)
    return {arg.name: given.get(arg.name, arg.default_value) for arg in schema}


def translated(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TorchCall:
    """Return what a model would call for an operator."""
    kept = TorchCall("call_function", target, args, dict(kwargs))
    if not isinstance(target, Overload):
        return _of_sizes(kept)
    name = name_of(target)
    if not name:
        return kept
    arguments = arguments_of(target, args, kwargs)
    special = SPECIAL.get(name)
    if special is not None:
        return special(arguments, target) or kept
    function = FUNCTIONS.get(name) or getattr(F, name, None)
    if function is not None and (places := functional_places(name)):
        return _function(function, *list(arguments.values())[:places])
    given = {key: value for key, value in kwargs.items() if not _is_empty(key, value)}
    if "reduction" in list(arguments)[len(args) :]:  # torch's functions have another default
        given["reduction"] = arguments["reduction"]
    if name in OPERATORS and not given:
        return _function(OPERATORS[name], *args)
    if name in METHODS or (name.endswith("_") and hasattr(Tensor, name)):
        return TorchCall("call_method", name, args, given)
    function = _public(name)
    if function is not None:
        return TorchCall("call_function", function, args, given)
    # methods that are written in Python, such as stft, take and give something else
    is_same = isinstance(getattr(Tensor, name, None), MethodDescriptorType)
    return TorchCall("call_method", name, args, given) if is_same else kept


def _is_empty(key: str, value: Any) -> bool:
    return value is None or (key == "pin_memory" and value is False) or key == "layout"


def _public(name: str) -> Any:
    """The function of torch, or of a namespace such as torch.linalg, that an operator is.

    Only those of C++ take the operator's arguments as they are, and a few of Python.
    """
    space, _, last = name.partition("_")
    homes: dict[str, Any] = {"linalg": torch.linalg, "special": torch.special, "fft": torch.fft}
    home, last = (homes[space], last) if space in homes else (torch, name)
    for place in (home, torch._C._nn):
        function = getattr(place, last, None)
        if isinstance(function, BuiltinFunctionType) or last in ("einsum", "meshgrid"):
            return function
    return None


_SIZES = {"_sym_sqrt": "sqrt", "_sym_ceil": "ceil", "_sym_floor": "floor", "_sym_exp": "exp"}
_SIZES |= {"_sym_log2": "log2", "_sym_cos": "cos", "_sym_sin": "sin", "_sym_tanh": "tanh"}


def _of_sizes(call: TorchCall) -> TorchCall:
    """Arithmetic on sizes, which torch.export spells in its own way."""
    name = getattr(call.target, "__name__", "")
    if name in _SIZES:
        return call._replace(target=getattr(math, _SIZES[name]))
    python: dict[Any, Any] = {torch.sym_int: int, torch.sym_float: float, torch.sym_max: max}
    python |= {torch.sym_min: min, torch.sym_not: operator.not_}
    return call._replace(target=python.get(call.target, call.target))


def _function(function: Any, *args: Any, **kwargs: Any) -> TorchCall:
    rest = {key: value for key, value in kwargs.items() if value is not None}
    while args and args[-1] is None:
        args = args[:-1]
    return TorchCall("call_function", function, args, rest)


def _softmax(a: Arguments, target: Any) -> TorchCall:
    function = F.log_softmax if name_of(target) == "log_softmax" else F.softmax
    return _function(function, a["self"], dim=a["dim"], dtype=a["dtype"])


def _gelu(a: Arguments, target: Any) -> TorchCall:
    words = {} if a["approximate"] == "none" else {"approximate": a["approximate"]}
    return _function(F.gelu, a["self"], **words)


def _attention(a: Arguments, target: Any) -> TorchCall:
    plain = {"dropout_p": 0.0, "is_causal": False, "enable_gqa": False, "attn_mask": None}
    options = {key: a[key] for key in (*plain, "scale") if a[key] != plain.get(key)}
    return _function(F.scaled_dot_product_attention, a["query"], a["key"], a["value"], **options)


def _embedding(a: Arguments, target: Any) -> TorchCall:
    padding = a["padding_idx"]
    words = {} if isinstance(padding, int) and padding < 0 else {"padding_idx": padding}
    flags = {key: True for key in ("scale_grad_by_freq", "sparse") if a[key]}
    return _function(F.embedding, a["indices"], a["weight"], **words, **flags)


def _batch_norm(a: Arguments, target: Any) -> TorchCall:
    mean, var = a["running_mean"], a["running_var"]
    last = "use_input_stats" if "use_input_stats" in a else "training"
    function = F.instance_norm if last == "use_input_stats" else F.batch_norm
    rest = {last: a[last], "momentum": a["momentum"], "eps": a["eps"]}
    return _function(function, a["input"], mean, var, weight=a["weight"], bias=a["bias"], **rest)


def _pool(a: Arguments, target: Any) -> TorchCall:
    function = getattr(F, name_of(target))
    words = {key: value for key, value in a.items() if key not in ("self", "kernel_size")}
    if not words["stride"]:  # the kernel's size
        words["stride"] = None
    return _function(function, a["self"], a["kernel_size"], **words)


def _resize(a: Arguments, target: Any) -> TorchCall | None:
    if "scale_factors" not in a:
        return None
    mode = name_of(target).removeprefix("upsample_")[:-2]  # bilinear2d
    words = {"align_corners": a["align_corners"]} if "align_corners" in a else {}
    size, scale = a["output_size"], a["scale_factors"]
    return _function(F.interpolate, a["input"], size=size, scale_factor=scale, mode=mode, **words)


def _loss(a: Arguments, target: Any) -> TorchCall:
    function = F.cross_entropy if "cross_entropy" in name_of(target) else F.nll_loss
    if name_of(target) in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
        function = getattr(F, name_of(target))
    names = ("weight", "ignore_index", "label_smoothing", "beta", "delta")
    words = {key: a[key] for key in names if key in a}
    return _function(
        function, a["self"], a["target"], reduction=REDUCTIONS[a["reduction"]], **words
    )


def _slice(a: Arguments, target: Any) -> TorchCall:
    end = None if a["end"] == sys.maxsize else a["end"]
    start = None if a["start"] == 0 else a["start"]
    step = None if a["step"] == 1 else a["step"]
    return _item(a, slice(start, end, step))


def _select(a: Arguments, target: Any) -> TorchCall:
    return _item(a, a["index"])


def _item(a: Arguments, index: Any) -> TorchCall:
    dim = a["dim"]
    before = (slice(None),) * dim if dim >= 0 else (Ellipsis,)
    after = (slice(None),) * (-dim - 1) if dim < 0 else ()
    key = (*before, index, *after)
    return _function(operator.getitem, a["self"], key)


def _index(a: Arguments, target: Any) -> TorchCall:
    key = tuple(slice(None) if index is None else index for index in a["indices"])
    return _function(operator.getitem, a["self"], key if len(key) > 1 else key[0])


def _to(a: Arguments, target: Any) -> TorchCall:
    words = {key: a[key] for key in ("dtype", "device") if a.get(key) is not None}
    if "other" in a:
        return TorchCall("call_method", "to", (a["self"], a["other"]), {})
    words |= {"copy": True} if a.get("copy") is True else {}
    place = words.pop("dtype") if set(words) == {"dtype"} else None
    return TorchCall(
        "call_method", "to", (a["self"],) if place is None else (a["self"], place), words
    )


ATTRIBUTES = {"numpy_T": "T", "mT": "mT", "mH": "mH", "matrix_H": "H"}


def _attribute(a: Arguments, target: Any) -> TorchCall:
    return _function(getattr, a["self"], ATTRIBUTES[name_of(target)])


def _size(a: Arguments, target: Any) -> TorchCall:
    return TorchCall("call_method", "size", (a["self"], a["dim"]), {})


def _numel(a: Arguments, target: Any) -> TorchCall:
    return TorchCall("call_method", "numel", (a["self"],), {})


def _reversed_difference(a: Arguments, target: Any) -> TorchCall | None:
    return _function(operator.sub, a["other"], a["self"]) if a["alpha"] == 1 else None


def _matmul(a: Arguments, target: Any) -> TorchCall:
    return _function(torch.matmul, a["self"], a["other"])


def _constant_pad(a: Arguments, target: Any) -> TorchCall:
    return _function(F.pad, a["self"], a["pad"], value=a["value"])


SPECIAL: dict[str, Callable[[Arguments, Any], TorchCall | None]] = {
    "softmax": _softmax,
    "log_softmax": _softmax,
    "gelu": _gelu,
    "scaled_dot_product_attention": _attention,
    "embedding": _embedding,
    "batch_norm": _batch_norm,
    "instance_norm": _batch_norm,
    "slice": _slice,
    "select": _select,
    "index": _index,
    "to": _to,
    "sym_size": _size,
    "sym_numel": _numel,
    "rsub": _reversed_difference,
    "matmul": _matmul,
    "constant_pad_nd": _constant_pad,
    # torch's function returns one tensor or several, the operator always three
    "unique_consecutive": lambda arguments, target: None,
}
SPECIAL |= dict.fromkeys((f"{kind}_pool{d}d" for kind in ("max", "avg") for d in (1, 2, 3)), _pool)
SPECIAL |= dict.fromkeys(ATTRIBUTES, _attribute)
_LOSSES = "cross_entropy_loss nll_loss nll_loss_nd mse_loss l1_loss smooth_l1_loss huber_loss"
SPECIAL |= dict.fromkeys(_LOSSES.split(), _loss)
_RESIZES = "nearest1d nearest2d nearest3d linear1d bilinear2d bicubic2d trilinear3d"
SPECIAL |= dict.fromkeys((f"upsample_{kind}" for kind in _RESIZES.split()), _resize)
