"""Trace a model to an fx graph, with clear errors if it cannot be traced."""

from __future__ import annotations

import functools
import logging
import math
import operator
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any

import torch
from torch import fx, nn

from chop.ir.graph.contexts import Context, assignments, numbers_of
from chop.ir.graph.plain_forwards import plain_forward
from chop.ir.graph.trace_errors import ADVICE, TraceError, explained, is_library
from chop.ir.nested import named_output
from chop.ir.ops import TrainingMode, is_named_in_table, is_tensor_constant
from chop.registry import UnknownName

logger = logging.getLogger(__name__)

# fx cannot see these when their arguments are traced values, as they never call a tensor's method
_CONSTRUCTORS = """
    arange as_tensor empty eye finfo full iinfo linspace ones rand randint randn randperm
    scalar_tensor tensor tril_indices triu_indices zeros
"""
CONSTRUCTORS = tuple(getattr(torch, name) for name in _CONSTRUCTORS.split())
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
TABLES = (
    *("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"),
    *("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs"),
)
# both front ends change classes of torch and standard error while they run
CAPTURES = threading.RLock()
FRAMES_PER_LEVEL = 20  # of Python's stack, per level of nested modules, to trace or copy them


class Leaf:
    """Mixin: the tracer keeps modules of this class whole."""


IN_PLACE_OPERATORS = frozenset(
    ("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul")
)
AUGMENTED = "augmented"  # key in a node's meta: the operator of an augmented assignment
_VIEWS = """
    getitem view reshape transpose permute squeeze unsqueeze flatten t narrow select expand chunk
    split unbind diagonal detach contiguous
"""
VIEWS = frozenset(_VIEWS.split())


class Mode(int):
    """`self.training` during tracing, which tells use as an argument from use in a branch.

    A graph that keeps the branch of train mode is not the network that is scored. One object stands
    for the mode of all modules, so that it warns once.
    """

    warned = False

    def __bool__(self) -> bool:
        frame = sys._getframe(1)
        if int(self) and not self.warned and not is_library(frame.f_code.co_filename):
            self.warned = True
            logger.warning(
                "forward() branches on self.training: the graph keeps the branch of train mode "
                "(%s line %d); call model.eval() before MaseGraph(model) to keep that of eval mode",
                frame.f_code.co_filename,
                frame.f_lineno,
            )
        return bool(int(self))

    def __repr__(self) -> str:
        return repr(int(self) == 1)


class Proxy(fx.Proxy):
    """A value in a traced forward() that records whether `a += b` or `a = a + b` was written.

    fx treats the first like the second.
    """


def _augmented(name: str) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    plain, in_place = getattr(operator, name.removeprefix("i")), getattr(operator, name)

    def method(self: fx.Proxy, other: Any) -> fx.Proxy:
        result = self.tracer.create_proxy("call_function", plain, (self, other), {})
        result.node.meta[AUGMENTED] = in_place
        return result

    return method


for _name in IN_PLACE_OPERATORS - {"setitem"}:
    setattr(Proxy, f"__{_name}__", _augmented(_name))


class MaseTracer(fx.Tracer):
    """fx's tracer with custom leaves, frozen arguments that disappear, and clear errors."""

    # buffers are values of the graph, as parameters are: `self.mask[:, :x.size(1)]` can be traced,
    # and tracing `self.steps.add_(1)` does not count a step
    proxy_buffer_attributes = True
    inputs_advice = ADVICE  # what a refusal says about example inputs

    def __init__(
        self,
        custom_leaf_modules: tuple[ModuleType, ...] = (),
        custom_leaf_layers: tuple[type[nn.Module], ...] = (),
        custom_leaf_functions: tuple[Callable[..., Any], ...] = (),
        param_shapes_constant: bool = False,
    ) -> None:
        """Keep calls into Python modules, modules of classes, and calls of functions whole."""
        self.custom_leaf_modules = tuple(dict.fromkeys(custom_leaf_modules))
        self.custom_leaf_layers = tuple(dict.fromkeys(custom_leaf_layers))
        self.custom_leaf_functions = tuple(dict.fromkeys(custom_leaf_functions))
        super().__init__(
            (math, *self.custom_leaf_modules),  # type: ignore[arg-type]
            (*CONSTRUCTORS, *self.custom_leaf_functions),
            param_shapes_constant,
        )
        # private: where models look up torch.arange, as fx takes only what it is given by name
        self._autowrap_search.append(torch)
        # a function is patched by name in the module that calls it, and in its own
        homes = (getattr(fn, "__module__", None) for fn in self.custom_leaf_functions)
        self._autowrap_search += [sys.modules[home] for home in homes if home in sys.modules]
        self._frozen: Mapping[str, Any] = {}
        self._where: list[tuple[str, object]] = []
        self.assignments: list[Context] = []  # in the last forward() that was traced

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is one node: torch's layers are, but not its transformers."""
        if isinstance(m, (Leaf, TrainingMode, *self.custom_leaf_layers)):
            return True
        if plain_forward(m) is not None:
            return False
        return is_named_in_table(type(m)) or super().is_leaf_module(m, module_qualified_name)

    def trace(
        self, root: nn.Module | Callable[..., Any], concrete_args: Mapping[str, Any] | None = None
    ) -> fx.Graph:
        """Return the graph of `root`, with the arguments in `concrete_args` as constants."""
        self._frozen = concrete_args or {}
        self._where = [("", root)]
        try:
            with CAPTURES, room_to_recurse(root), attributes_restored(root):
                _make_mode_traceable(root)
                numbers = numbers_of(root)
                with _plain_class(root):
                    graph = super().trace(root)
                self.assignments = assignments(root, numbers)
        except UnknownName:
            raise
        except Exception as error:
            raise TraceError(explained(error, *self._where[-1], self.inputs_advice)) from error
        for tensor, name in self.tensor_attrs.items():
            if "." not in name:  # a constant, which fx stored on the root for fx.GraphModule
                vars(self.root).setdefault(name, tensor)
        for node in graph.nodes:
            node.type = None  # fx crashes on annotations that it cannot write, such as strings
            # fx would write `wrap("torch.arange")` into the code that it generates, which breaks
            # every later trace in the process: that name has a dot
            if node.meta.get("is_wrapped") and _is_torchs(node.target):
                del node.meta["is_wrapped"]
        _drop_early_defaults(graph)
        insert_mode_nodes(graph, self.root)
        _restore_in_place_writes(graph)
        renew_constants(graph)
        return graph

    def forget(self) -> None:
        """Drop references to the model, as a tracer lives as long as its graph and its copies."""
        self.root, self.tensor_attrs, self.submodule_paths = nn.Module(), {}, None
        self._where, self._frozen = [], {}

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        # fx keeps a frozen argument as an input and asserts its value; here it is removed
        fn, args = super().create_args_for_root(root_fn, is_module, concrete_args)
        inputs = {a.node.target: i for i, a in enumerate(args) if isinstance(a, fx.Proxy)}
        for name, value in self._frozen.items():
            if name not in inputs:
                raise UnknownName("forward argument in cf_args", name, sorted(map(str, inputs)))
            self.graph.erase_node(args[inputs[name]].node)
            args[inputs[name]] = value
        return fn, args

    def create_arg(self, a: Any) -> Any:
        """Keep results by name as transformers gives them: read by key and as attributes."""
        if isinstance(a, dict) and is_dataclass(a):
            values = {key: self.create_arg(value) for key, value in a.items()}
            return self.create_node("call_function", named_output, (), values)
        return super().create_arg(a)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._where.append((self.path_of_module(m), m))
        plain = plain_forward(m)
        forward = forward if plain is None else functools.partial(plain, m)
        result = super().call_module(m, forward, args, kwargs)
        self._where.pop()  # not reached on an error, so that the innermost module is known
        return result


@contextmanager
def _plain_class(root: Any) -> Iterator[None]:
    """Let the root, of which fx traces the forward of the class, compute by its plain forward."""
    plain, cls = plain_forward(root), type(root)
    if plain is None:
        yield
        return
    same = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    root.__class__ = type(cls.__name__, (cls,), {**same, "forward": plain})
    try:
        yield
    finally:
        root.__class__ = cls


@contextmanager
def room_to_recurse(model: object) -> Iterator[None]:
    """Raise Python's recursion limit inside to what deeply nested modules need."""
    names = [name for name, _ in model.named_modules()] if isinstance(model, nn.Module) else []
    depth = max((name.count(".") for name in names), default=0)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + FRAMES_PER_LEVEL * depth)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


@contextmanager
def attributes_restored(model: object) -> Iterator[None]:
    """Restore attributes that forward() assigns inside, in particular fx's proxies."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    plain = [vars(module) for module in modules if not isinstance(module, torch.jit.ScriptModule)]
    # parameters, buffers, submodules and hooks are stored in separate dicts
    tables = [a[table] for a in plain for table in TABLES if table in a]
    snapshots = [(attributes, dict(attributes)) for attributes in (*plain, *tables)]
    try:
        yield
    finally:
        for attributes, snapshot in snapshots:
            attributes.clear()
            attributes.update(snapshot)


def wrapped_functions() -> dict[tuple[int, str], dict[str, Any]]:
    """Return the table of torch.fx.wrap: by the id of globals and a name, these globals.

    It is private; a graph would otherwise lose what the user asked to keep whole.
    """
    return fx._symbolic_trace._wrapped_fns_to_patch


def warn_of_lost_hooks(model: nn.Module) -> None:
    """Warn once of hooks on the model itself, of which a graph captures only the forward()."""
    if any(vars(model)[table] for table in HOOKS):
        logger.warning(
            "the hooks of the model itself (%s) are not part of the graph, as those of its layers "
            "are; register them on graph.model",
            type(model).__name__,
        )


def hide_hooks(model: nn.Module) -> None:
    """Replace the tables of hooks of the model itself by empty ones."""
    vars(model).update({table: OrderedDict() for table in HOOKS})


def _make_mode_traceable(root: object) -> None:
    """Replace `self.training` by a traceable value in modules that share the root's mode."""
    if isinstance(root, nn.Module):
        mode = Mode(root.training)
        for module in root.modules():
            if int(module.training) == mode and not isinstance(module, torch.jit.ScriptModule):
                vars(module)["training"] = mode


def _drop_early_defaults(graph: fx.Graph) -> None:
    """Drop defaults before an input without one, which keyword-only inputs of Python may have."""
    inputs = [n for n in graph.nodes if n.op == "placeholder" and "*" not in str(n.target)]
    required = [place for place, node in enumerate(inputs) if not node.args]
    for node in inputs[: max(required, default=0)]:
        node.args = ()


def insert_mode_nodes(graph: fx.Graph, root: nn.Module) -> None:
    """Insert a node that reads the mode wherever `self.training` was an argument."""
    users = [n for n in graph.nodes if any(isinstance(a, Mode) for a in leaves_of(n))]
    if not users:
        return
    root.training_mode = TrainingMode().train(bool(int(root.training)))
    with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
        mode = graph.call_module("training_mode")
    for node in users:
        node.args, node.kwargs = (
            fx.node.map_aggregate(part, lambda a: mode if isinstance(a, Mode) else a)
            for part in (node.args, node.kwargs)
        )


def leaves_of(node: fx.Node) -> list[Any]:
    """Return the arguments of a node, and what its lists and dicts hold."""
    leaves: list[Any] = []
    fx.node.map_aggregate((node.args, node.kwargs), leaves.append)
    return leaves


def _restore_in_place_writes(graph: fx.Graph) -> None:
    """Turn `a += b` into an in-place op if the tensor is read later under another name.

    Names of one tensor form a tree: a view, or a written value, is below its source.
    """
    order = {node: place for place, node in enumerate(graph.nodes)}
    augmented = {node: node.meta.pop(AUGMENTED) for node in order if AUGMENTED in node.meta}
    if not augmented:
        return
    above: dict[fx.Node, fx.Node] = {}
    for node in order:
        first = node.args[0] if node.args else None
        if isinstance(first, fx.Node) and (node in augmented or _shares_memory(node)):
            above[node] = first
    read = {node: max((order[user] for user in node.users), default=-1) for node in order}
    below = dict(read)  # index of the last read of a name or one below it
    most: dict[fx.Node, list[int]] = {node: [-1, -1] for node in order}  # of names just below
    for node in reversed(order):
        if node in above:
            parent = above[node]
            below[parent] = max(below[parent], below[node])
            most[parent] = sorted((*most[parent], below[node]))[1:]
    elsewhere = dict.fromkeys(order, -1)  # index of the last read of any other name
    for node, parent in above.items():
        second, largest = most[parent]
        beside = second if below[node] == largest else largest
        elsewhere[node] = max(elsewhere[parent], read[parent], beside)
        if node in augmented and elsewhere[node] > order[node]:
            node.target = augmented[node]


def renew_constants(graph: fx.Graph) -> None:
    """Recreate in each run a tensor that forward() creates and changes in place."""
    reads: dict[str, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "get_attr" and is_tensor_constant(str(node.target)):
            reads.setdefault(str(node.target), []).append(node)
    for first, *others in reads.values():
        if not any(_in_place(user) for node in (first, *others) for user in _aliases(node)):
            continue
        with graph.inserting_after(first):
            fresh = graph.call_method("clone", (first,))
        first.replace_all_uses_with(fresh)
        fresh.args = (first,)  # the one that was replaced as well
        for node in others:  # fx reads a constant again at every use
            node.replace_all_uses_with(fresh)
            graph.erase_node(node)


def _aliases(node: fx.Node) -> list[fx.Node]:
    """The users of a node and of possible views of it."""
    queue = list(node.users)
    for user in queue:  # grows during iteration
        if _shares_memory(user):
            queue += [further for further in user.users if further not in queue]
    return queue


def _shares_memory(node: fx.Node) -> bool:
    """Whether a result may be a view of the first argument."""
    return getattr(node.target, "__name__", str(node.target)) in VIEWS or _in_place(node)


def _in_place(node: fx.Node) -> bool:
    name = getattr(node.target, "__name__", str(node.target))
    return node.op in ("call_function", "call_method") and (
        (name.endswith("_") and not name.endswith("__"))
        or name.strip("_") in IN_PLACE_OPERATORS
        or bool(node.kwargs.get("inplace"))
    )


def _is_torchs(fn: object) -> bool:
    module = getattr(fn, "__module__", None) or "torch"  # torch.arange has none
    return module.partition(".")[0] == "torch"
