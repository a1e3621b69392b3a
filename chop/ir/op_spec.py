"""One row of the table of ops, and the op that a node, a module or a function is."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from chop.ir.operators import Overload, Overloads
from chop.registry import Registry, UnknownName

MaseType = Literal[
    "module_related_func",  # exists both as nn.Module and as function
    "module",  # an nn.Module without a functional twin
    "builtin_func",  # arithmetic of Python and torch
    "implicit_func",  # shapes and bookkeeping: no hardware
    "patched_func",  # what the table does not know: yours
    "placeholder",
    "get_attr",
    "output",
]
MASE_TYPES: tuple[MaseType, ...] = get_args(MaseType)

# What passes may rely on; an op without a trait promises nothing.
Trait = Literal[
    "pointwise",  # a number of the result depends on the numbers at its place alone, broadcast
    "activation",  # a fixed function of one number, as networks have them behind layers
    "signed",  # an activation that is positive exactly where its input is, and damped elsewhere
    "idempotent",  # applied twice, it gives what it gives once; dropout does in eval mode
    "no_op",  # returns its input; dropout does in eval mode
    "no_arithmetic",  # moves, creates or looks up numbers, and computes none
    "sizes",  # gives sizes or other facts of a tensor, without its numbers
    "weighted_sum",  # a layer that sums inputs times weights: linear layers and convolutions
    "inner_products",  # another layer that multiplies with weights: attention, recurrence
    "convolution",
    "transposed",  # a convolution whose weight has its inputs first
    "homogeneous",  # f(a·x) = a·f(x) for a > 0, each channel by itself; dropout in eval mode
    "pool",  # reduces fixed windows of each channel
    "probabilities",  # makes probabilities of scores of classes, or their logarithms
    "reshape",  # gives the same numbers in the same order under another shape
    "non_negative",  # all its results are 0 or more
    "keeps_grid",  # its results are numbers of its input's format, if that has 0
    "rectifier",  # gives 0 for negative numbers, and others unchanged
]
TRAITS: frozenset[str] = frozenset(get_args(Trait))
COLUMNS = ("flops", "onnx", "aten", "integer")  # of a row in a text

# Where the functions of an op are looked up by name. Tensor comes last: its methods are call_method
# targets, and `torch.Tensor.add` itself may be called as a function.
NAMESPACES = (torch, F, torch.special, torch.linalg, operator, math, torch._C._nn, Tensor)


class Flops(NamedTuple):
    """Operations per number of the result or of the first input, forward and backward.

    An addition, multiplication, division, comparison, root or elementary function counts as one.
    """

    forward: int
    backward: int
    per: Literal["result", "input"] = "result"


class OnnxOperator(NamedTuple):
    """The ONNX operator that an op is, one to one, and the settings that its attributes are."""

    name: str
    settings: tuple[tuple[str, str], ...] = ()  # attribute, setting of the op's module


class Adapter(NamedTuple):
    """A layer around a layer of another op, which passes on that op would leave unchanged."""

    op: str
    name: str  # "a LoRA adapter"
    inserted_by: str  # pass
    fused_by: str


class Final(NamedTuple):
    """Why nothing can be made from the nodes of an op, and what to do instead."""

    reason: str
    instead: str


@dataclass(frozen=True)
class OpSpec:
    """One op. `functions` are compared by identity, `modules` by nearest base class."""

    name: str
    mase_type: MaseType
    modules: tuple[type[nn.Module], ...] = ()
    functions: tuple[Callable[..., Any], ...] = ()
    methods: tuple[str, ...] = ()
    params: tuple[str, ...] = ()  # argument names in metadata where torch's own differ; dim_0=dim0
    quantized: tuple[str, ...] = ()  # operands that a format applies to, in argument order
    given: tuple[Callable[..., Any], ...] = ()  # functions that were not looked up by a name
    # whether it takes and gives tensors and plain values and touches nothing else, files above all;
    # a graph that was loaded from a file may call pure ops only
    pure: bool = True
    traits: frozenset[str] = frozenset()
    flops: Flops | None = None
    onnx: OnnxOperator | None = None
    aten_places: int = 0  # arguments that torch.ops.aten and torch.nn.functional have in common
    integer: str = ""  # the class of chop.integers that a node becomes
    adapter: Adapter | None = None
    final: Final | None = None

    @property
    def origin(self) -> list[tuple[str, str]]:
        """Where its modules and functions were defined."""
        things: tuple[Any, ...] = (*self.modules, *self.functions)
        return [(str(thing.__module__), str(thing.__qualname__)) for thing in things]


class StandIn:
    """A function that computes another one's op, such as its quantized form."""

    target: Callable[..., Any]
    spec: OpSpec
    own_arguments: frozenset[str]  # those that only the stand-in takes


OPS: Registry[OpSpec] = Registry("op", room="rows")
_BY_MODULE: dict[type, OpSpec] = {}
_BY_FUNCTION: dict[Any, OpSpec] = {}
_BY_NAME: dict[str, OpSpec] = {}  # spellings of functions and methods
# classes of libraries that need not be installed, by path: "transformers.pytorch_utils.Conv1D"
_BY_PATH: dict[str, OpSpec] = {}
_BY_ONNX: dict[str, OpSpec] = {}


def define(
    name: str,
    mase_type: MaseType,
    *modules: type[nn.Module],
    names: str | None = None,
    functions: tuple[Callable[..., Any], ...] = (),
    params: str = "",
    quantized: str = "",
    pure: bool = True,
    traits: str = "",
    paths: tuple[str, ...] = (),
    flops: tuple[int, int] | Flops | None = None,
    onnx: str = "",
    aten_places: int = 0,
    integer: str = "",
    adapter: Adapter | None = None,
    final: Final | None = None,
) -> OpSpec:
    """Add an op. `names` are the spellings of its functions and methods, by default the op's name.

    A name means the functions of `NAMESPACES` and the Tensor method of that name, with their
    in-place forms, unless such a form is an op itself. Your own op lists its `modules` and
    `functions`. Saved graphs may call them, unless it is not `pure`. `paths` are classes of
    libraries that need not be installed; they compute what the first of `modules` does. `flops` are
    operations per number of the result, forward and backward. `onnx` is the operator that the op
    is, such as `"Elu alpha=alpha"`: its attributes are settings of the op's module. `integer` names
    the class of `chop.integers` that nodes become; an activation becomes a table. `adapter` and
    `final` say of which layers passes have to know more.
    """
    for trait in traits.split():
        if trait not in TRAITS:
            raise UnknownName("trait", trait, sorted(TRAITS))
    spellings = (name if names is None else names).split()
    inplace = (f"{spelling}_" for spelling in spellings if not spelling.endswith("_"))
    spellings += [spelling for spelling in inplace if OPS.present(spelling) is None]
    named = (getattr(space, spelling, None) for spelling in spellings for space in NAMESPACES)
    unique = tuple({id(fn): fn for fn in (*functions, *named) if callable(fn)}.values())
    methods = tuple(spelling for spelling in spellings if hasattr(Tensor, spelling))
    spec = OpSpec(
        name, mase_type, modules, unique, methods, tuple(params.split()), tuple(quantized.split()),
        functions, pure, frozenset(traits.split()), flops and Flops(*flops), _operator(onnx),
        aten_places, integer or ("Lookup" if "activation" in traits.split() else ""),
        adapter, final,
    )  # fmt: skip
    before = OPS.present(name)  # methods add their rows when the table is complete
    again = before is not None and before.origin == spec.origin  # a notebook cell that is run again
    claimed = [_BY_MODULE.get(cls) for cls in modules] + [_BY_FUNCTION.get(fn) for fn in functions]
    for other in claimed:
        if other is not None and other.name != name:
            raise ValueError(f"op {name!r} claims a function or module of op {other.name!r}")
    OPS.register(name, replace=again)(spec)
    _BY_MODULE.update(dict.fromkeys(modules, spec))
    _BY_PATH.update(dict.fromkeys(paths, spec))
    # of a name that two rows spell, such as sum in torch and in Python, the first row has it
    for fn in unique:
        _BY_FUNCTION.setdefault(fn, spec)
    for spelling in spellings:
        _BY_NAME.setdefault(spelling, spec)
    if spec.onnx is not None and _BY_ONNX.get(spec.onnx.name, spec).name == name:
        _BY_ONNX[spec.onnx.name] = spec
    module_op.cache_clear()
    return spec


def define_rows(
    mase_type: MaseType,
    rows: str,
    params: str = "",
    traits: str = "",
    quantized: str = "",
    per: Literal["result", "input"] = "result",
    integer: str = "",
) -> None:
    """Define an op for each word of `rows`, with the columns that follow it.

    `add/iadd` is the op add, which is spelt iadd as well; `a=b/c` is spelt b and c only, and `a=`
    not at all. Its classes in torch.nn follow, as in `relu:ReLU`. Columns are `flops=1,2`, per
    number of the result or the first input, `onnx=Elu,alpha=alpha`, `aten=2` and `integer=Lookup`.
    """
    table: list[tuple[str, dict[str, str]]] = []
    for word in rows.split():
        key, _, value = word.partition("=")
        if key in COLUMNS:
            table[-1][1][key] = value
        else:
            table.append((word, {}))
    for row, columns in table:
        spelt, *classes = row.split(":")
        name, only, spellings = spelt.partition("=")
        forward, _, backward = columns.get("flops", "").partition(",")
        define(
            name.partition("/")[0],
            mase_type,
            *(getattr(nn, cls) for cls in classes),
            names=(spellings if only else name).replace("/", " "),
            params=params,
            quantized=quantized,
            traits=traits,
            flops=Flops(int(forward), int(backward), per) if backward else None,
            onnx=columns.get("onnx", "").replace(",", " "),
            aten_places=int(columns.get("aten", 0)),
            integer=columns.get("integer", integer),
        )


def _operator(text: str) -> OnnxOperator | None:
    name, *settings = text.split() or [""]
    pairs = (setting.partition("=") for setting in settings)
    return OnnxOperator(name, tuple((key, value) for key, _, value in pairs)) if name else None


def op_of_onnx(operator: str) -> OpSpec | None:
    """Return the op that an ONNX operator is one to one; of several the first of the table."""
    return _BY_ONNX.get(operator)


def functional_places(function: str) -> int:
    """Return how many arguments a function of torch.nn.functional shares with torch.ops.aten."""
    op = _BY_NAME.get(function)
    return op.aten_places if op is not None and not function.endswith("_") else 0


class OpNames(Collection[str]):
    """The names of the ops of which something holds, of those of yours as well."""

    def __init__(self, holds: Callable[[OpSpec], bool]) -> None:
        self.holds = holds

    def __contains__(self, name: object) -> bool:
        return name in OPS and self.holds(OPS[str(name)])

    def __iter__(self) -> Iterator[str]:
        return (name for name, op in OPS.items() if self.holds(op))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def ops_with(trait: Trait) -> tuple[str, ...]:
    """Return the names of the ops that have a trait, in the order of the table."""
    return tuple(name for name, op in OPS.items() if trait in op.traits)


def has_trait(op: str, trait: Trait) -> bool:
    """Return whether the op of this name has a trait."""
    return op in OPS and trait in OPS[op].traits


def drops_sign(op: str, operand: str) -> bool:
    """Return whether an op makes negative numbers 0, so that the operand needs no sign."""
    return operand == "data_in" and has_trait(op, "rectifier")


@cache
def module_op(cls: Any) -> OpSpec | None:
    """Find an op by the nearest known base class: ReLU6 is not Hardtanh, LinearInteger is linear.

    A composed layer of MASE names its row itself, as the table contains only torch's layers.
    """
    named = getattr(cls, "mase_op", None)
    if isinstance(named, str):
        return OPS[named]
    return next((spec for base in cls.__mro__ if (spec := _of_class(base)) is not None), None)


def _of_class(cls: type) -> OpSpec | None:
    return _BY_MODULE.get(cls) or _BY_PATH.get(f"{cls.__module__}.{cls.__qualname__}")


def is_named_in_table(cls: type) -> bool:
    """Return whether the table names a class by its path, as transformers' Conv1D."""
    return f"{cls.__module__}.{cls.__qualname__}" in _BY_PATH


def _function_op(target: Any) -> OpSpec | None:
    """Find an op by identity; torch's operators, as torch.ops.aten.add.Tensor, by exact name."""
    if isinstance(target, StandIn):
        return target.spec
    if isinstance(target, Overload):
        target = target.overloadpacket
    if isinstance(target, Overloads):
        space, _, name = str(target).partition(".")
        return _named_op(name) if space == "aten" else None
    return _BY_FUNCTION.get(target)


def _named_op(name: str) -> OpSpec | None:
    """Find an op by the name of a method or an operator; `__and__` is Python's operator."""
    if name.startswith("__"):
        return _BY_FUNCTION.get(getattr(operator, name, None))
    return _BY_NAME.get(name)


_TENSOR_CONSTANT = re.compile(r"_tensor_constant\d+")
_LAB_PARAMETER = re.compile(
    r"(block|seq_blocks|linear|conv2d)(_\d+)?(_\d+)?_(weight|bias|gamma|means|pruning_masks)"
)


def is_tensor_constant(s: str) -> bool:
    """Return whether fx gave this name to a tensor constant in forward().

    >>> is_tensor_constant("_tensor_constant0"), is_tensor_constant("x")
    (True, False)
    """
    return _TENSOR_CONSTANT.fullmatch(s) is not None


def is_seq_blocks_parameter(s: str) -> bool:
    """Return whether functional layers of the labs' models read a parameter of this name.

    >>> is_seq_blocks_parameter("seq_blocks_2_weight"), is_seq_blocks_parameter("head_weight")
    (True, False)
    """
    return _LAB_PARAMETER.fullmatch(s) is not None


def identify(node: fx.Node, module: nn.Module | None = None) -> OpSpec:
    """Return the op of a node; unknown ones are user-defined ops, never an error."""
    if node.op == "call_module":
        cls: Any = type(module)
        return module_op(cls) or OPS["user_defined_module"]
    if node.op == "call_function":
        return _function_op(node.target) or OPS["user_defined_function"]
    if node.op == "call_method":
        return _named_op(str(node.target)) or OPS["user_defined_method"]
    if node.op == "get_attr" and (
        is_tensor_constant(node.name) or is_seq_blocks_parameter(node.name)
    ):
        return OPS["constant"]
    return OPS[node.op]
