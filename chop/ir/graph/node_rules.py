"""Rules for nodes of a saved graph, the same for writing and reading.

A node calls a pure function or method, a layer of the file, or a function of the user, with
arguments of plain kinds. Its value is a tensor, a number, or a container of these; never a function
or a method, which another node could call.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.graph.encoding import DEVICE
from chop.ir.graph.names import ForeignName, check_method, is_known
from chop.ir.nested import named_output, named_tuple
from chop.ir.operators import Overload, Overloads
from chop.ir.ops import StandIn, identify
from chop.ir.pure import FUNCTIONS, PYTHON

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
DOTTED = re.compile(r"\w+(\.\w+)*", re.ASCII)
INPUT = re.compile(r"\*{0,2}[A-Za-z_]\w*", re.ASCII)
RESERVED = frozenset({"self", "torch", "getattr"})  # have a meaning in the code that fx writes

PLAIN_KINDS = (
    *(fx.Node, bool, int, float, complex, type(None), EllipsisType, range),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
ATEN = (Overload, Overloads)

# string arguments of torch's functions: reductions, paddings, interpolations, norms, …
_WORDS = """
    none mean sum batchmean prod amax amin max min add multiply
    zeros border reflection constant reflect replicate circular valid same
    nearest nearest-exact linear bilinear bicubic trilinear area lower higher midpoint
    trunc floor fro nuc forward backward ortho ij xy left right tanh L U reduced complete r
    donot_use_mm_for_euclid_dist use_mm_for_euclid_dist use_mm_for_euclid_dist_if_necessary
"""
WORDS = frozenset(_WORDS.split())
TENSOR_TYPE = re.compile(
    r"torch\.(cuda\.)?(Float|Double|Half|BFloat16|Byte|Char|Short|Int|Long|Bool)Tensor"
)
EQUATION = re.compile(r"[A-Za-z., ]*(->[A-Za-z., ]*)?")
PUBLIC_KEY = re.compile(r"[A-Za-z][\w.\- ]*", re.ASCII)

# attributes of tensors that are plain values, also on other objects
ATTRIBUTES = frozenset(
    ("shape", "dtype", "device", "layout", "ndim", "T", "mT", "H", "mH", "real", "imag", "data")
) | {"is_cuda", "requires_grad"}
# attributes of other nodes' results; some of these names are methods of tensors
OF_ATTRIBUTES = {
    "dtype": frozenset({"is_floating_point", "is_complex", "itemsize"}),
    "device": frozenset({"type", "index"}),
}
LIMITS = frozenset({"min", "max", "eps", "tiny", "smallest_normal", "resolution", "bits"})
PAIR = frozenset({"values", "indices"})
OF_OPS = {"finfo": LIMITS, "iinfo": LIMITS, "aminmax": frozenset({"min", "max"})}
OF_OPS |= dict.fromkeys(("sort", "topk", "kthvalue", "mode", "cummax", "cummin"), PAIR)
PAIR_ALONG_A_DIM = frozenset({"max", "min", "median", "nanmedian"})  # without a dim: one tensor

Check = Callable[[str], bool]


def is_identifier(name: object) -> bool:
    return (
        isinstance(name, str) and bool(IDENTIFIER.fullmatch(name)) and not keyword.iskeyword(name)
    )


def check_node(node: fx.Node, root: nn.Module) -> None:
    """Raise an error for a node that a saved graph may not have; `root` is the node's model.

    `SavedNames` checks that the file may use the function.
    """
    if not is_identifier(node.name) or node.name in RESERVED:
        raise ForeignName(f"a node may not be called {node.name!r:.60}")
    for key in node.kwargs:
        if not is_identifier(key):
            raise ForeignName(f"an argument may not be called {key!r:.60}")
    CHECKS[node.op](node, root)


def _check_input(node: fx.Node, root: nn.Module) -> None:
    name = str(node.target).lstrip("*")
    if not INPUT.fullmatch(str(node.target)) or keyword.iskeyword(name) or name in RESERVED:
        raise ForeignName(f"an input may not be called {node.target!r:.60}")
    if node.kwargs or len(node.args) > 1 or node.all_input_nodes:
        raise ForeignName("an input has at most one default value")
    _check_arguments(node.args, _is_public_key)


def _check_output(node: fx.Node, root: nn.Module) -> None:
    if node.kwargs or len(node.args) != 1:
        raise ForeignName("the output of a graph is one value")
    _check_arguments(node.args, _is_any, dicts=True)  # it goes only to the caller


def _check_constant(node: fx.Node, root: nn.Module) -> None:
    module, last = _owner(node, root)
    if not isinstance(module._parameters.get(last, module._buffers.get(last)), Tensor):
        raise ForeignName(
            f"it reads {node.target!r:.60}, which is not a parameter or a buffer of it"
        )
    if node.args or node.kwargs:
        raise ForeignName(f"it reads {node.target!r:.60}, which takes no arguments")


def _check_layer(node: fx.Node, root: nn.Module) -> None:
    module, last = _owner(node, root)
    layer = module._modules.get(last)
    nested = isinstance(layer, fx.GraphModule)
    if layer is None or nested or type(layer).forward is nn.Module.forward:
        raise ForeignName(f"it calls {node.target!r:.60}, which is not a layer of it")
    users = not is_known(type(layer))
    _check_arguments(
        [*node.args, *node.kwargs.values()], _is_any if users else _is_word, dicts=users
    )


def _owner(node: fx.Node, root: nn.Module) -> tuple[nn.Module, str]:
    """Return the module that holds the target of a node, found in module tables only."""
    target = str(node.target)
    if not DOTTED.fullmatch(target):
        raise ForeignName(f"it uses {target!r:.60}, which is not a name")
    *path, last = target.split(".")
    module: nn.Module | None = root
    for part in path:
        module = module._modules.get(part) if module is not None else None
    if module is None:
        raise ForeignName(f"it uses {target!r:.60}, which is not in the file")
    return module, last


def _check_method(node: fx.Node, root: nn.Module) -> None:
    name = check_method(str(node.target))
    if not node.args or not isinstance(node.args[0], fx.Node):
        raise ForeignName(f"it calls the method {name!r} of something that is not a node")
    keyed = name in ("get", "__getitem__", "__setitem__", "__contains__")
    rest = [*node.args[1:], *node.kwargs.values()]
    _check_arguments(rest, _is_public_key if keyed else _is_word)


def _check_function(node: fx.Node, root: nn.Module) -> None:
    target: Any = node.target
    values = [*node.args, *node.kwargs.values()]
    if target is getattr:
        _check_attribute(node)
    elif isinstance(target, StandIn):
        _check_config(node.kwargs.get("config"))
        rest = [value for key, value in node.kwargs.items() if key != "config"]
        _check_arguments([*node.args, *rest], TEXTS.get(identify(node).name, _is_word))
    elif target in PYTHON and node.kwargs:
        keywords = ", ".join(node.kwargs)
        raise ForeignName(
            f"it calls {target.__name__} with {keywords}, which a saved graph may not give"
        )
    elif target in (named_output, named_tuple):
        private = [key for key in node.kwargs if key.startswith("_")]
        if private:
            raise ForeignName(f"a result may not be called {private[0]!r:.60}")
        _check_arguments(values, _is_public_key, dicts=True)
    elif target in FUNCTIONS or isinstance(target, ATEN):
        _check_arguments(values, TEXTS.get(identify(node).name, _is_word))
    else:
        _check_arguments(values, _is_any, dicts=True)


def _check_config(config: Any) -> None:
    if not isinstance(config, dict):
        raise ForeignName("it calls a quantized function without a config")
    computed: list[fx.Node] = []
    fx.node.map_arg(config, computed.append)
    if computed:
        raise ForeignName("it calls a quantized function with a config that is computed")
    _check_arguments([config], _is_any, dicts=True)


def _check_attribute(node: fx.Node) -> None:
    source, *names = node.args or (None,)
    name = names[0] if len(names) == 1 and not node.kwargs else None
    if not isinstance(source, fx.Node) or not isinstance(name, str):
        raise ForeignName("it reads an attribute by a name that is not a string literal")
    if name not in ATTRIBUTES and name not in _attributes_of(source):
        raise ForeignName(
            f"it reads the attribute {name!r:.60}; saved graphs may read "
            f"{', '.join(sorted(ATTRIBUTES))} of tensors"
        )


def _attributes_of(source: fx.Node) -> frozenset[str]:
    """The attributes that can be read of a node's value, besides those of tensors."""
    if source.target is getattr:
        return OF_ATTRIBUTES.get(str(source.args[1]), frozenset())
    op = identify(source).name if source.op in ("call_function", "call_method") else ""
    if op in PAIR_ALONG_A_DIM:
        dim = source.kwargs.get("dim", source.args[1] if len(source.args) > 1 else None)
        return PAIR if type(dim) is int else frozenset()
    return OF_OPS.get(op, frozenset())


def _check_arguments(values: Iterable[Any], is_text: Check, dicts: bool = False) -> None:
    for value in values:
        if isinstance(value, PLAIN_KINDS):
            continue
        if isinstance(value, str):
            if not is_text(value):
                raise ForeignName(
                    f"it is given the text {value!r:.60}, which is not a word that torch takes"
                )
        elif isinstance(value, list | tuple):
            _check_arguments(value, is_text, dicts)
        elif isinstance(value, slice):
            _check_arguments((value.start, value.stop, value.step), is_text)
        elif dicts and isinstance(value, Mapping):
            _check_arguments([*value.keys(), *value.values()], is_text, dicts)
        else:
            raise ForeignName(f"it is given a {type(value).__name__}, which an argument may not be")


def _is_word(text: str) -> bool:
    return text in WORDS or bool(DEVICE.fullmatch(text) or TENSOR_TYPE.fullmatch(text))


def _is_public_key(text: str) -> bool:
    """Whether a list or dict of results may have this subscript; it reads no attributes."""
    return bool(PUBLIC_KEY.fullmatch(text)) or text == ""


def _is_message(text: str) -> bool:
    return text.replace("\n", "").isprintable()


def _is_any(text: str) -> bool:
    """Accept any text, for functions of the user."""
    return True


TEXTS: dict[str, Check] = {
    "einsum": lambda text: bool(EQUATION.fullmatch(text)),
    "_assert": _is_message,
    "assert_metadata": lambda text: _is_word(text) or _is_message(text),
    "getitem": _is_public_key,
    "setitem": _is_public_key,
}
CHECKS: dict[str, Callable[[fx.Node, nn.Module], None]] = {
    "placeholder": _check_input,
    "get_attr": _check_constant,
    "call_module": _check_layer,
    "call_method": _check_method,
    "call_function": _check_function,
    "output": _check_output,
}
