"""Capture a model with torch.export, as a graph of its layers."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim
from torch.export.graph_signature import InputKind
from torch.overrides import TorchFunctionMode

from chop.ir.graph.aten_names import is_check
from chop.ir.graph.contexts import noticed_contexts, warn_of_contexts
from chop.ir.graph.exported_graph import Capture, Input, built_graph
from chop.ir.graph.leaf_calls import LeafCalls
from chop.ir.graph.trace_errors import TraceError, explained_export, is_about_values
from chop.ir.graph.tracer import MaseTracer, Mode, attributes_restored, room_to_recurse
from chop.ir.nested import TRACED, Nest, filled, separated
from chop.registry import UnknownName

logger = logging.getLogger(__name__)


def exported(
    model: nn.Module, tracer: MaseTracer, dummy_in: Any, cf_args: Mapping[str, Any]
) -> fx.Graph:
    """Return the graph of `model`; constants that it reads are set on `model`.

    `dummy_in` has example inputs, and `cf_args` arguments that become part of the graph.
    """
    given = given_arguments(model, dummy_in, cf_args)
    return _Export(model, tracer, given, cf_args).graph()


class _Export:
    def __init__(
        self, model: nn.Module, tracer: MaseTracer, given: dict[str, Any], fixed: Mapping[str, Any]
    ) -> None:
        self.model, self.tracer, self.given, self.fixed = model, tracer, given, fixed
        self.leaves = LeafCalls(model, tracer)
        self.forward = model.forward
        self.signature = inspect.signature(model.forward)
        self.output: Any = None
        template, self.tensors = separated(given)
        assert isinstance(template, Nest)
        self.template = template

    def graph(self) -> fx.Graph:
        with room_to_recurse(self.model):
            try:
                with noticed_contexts() as found:
                    graph = self._captured()
                warn_of_contexts([context for context in found if context.name != "no_grad"])
                return graph
            except TraceError:
                raise
            except NotImplementedError as error:
                cls = type(self.model).__name__
                raise TraceError(f"cannot trace {cls}.forward: {error}") from error
            except Exception as error:
                where = self.leaves.path[-1]
                raise TraceError(explained_export(error, *where)) from error

    def _captured(self) -> fx.Graph:
        """Capture with as many free sizes as the model allows."""
        first: Exception | None = None
        doubled = _of_two(self.tensors)
        for tensors, free in ((doubled, _free_sizes), (doubled, _free_batch), (self.tensors, None)):
            try:
                capture = self._capture(tensors, free)
            except Exception as error:
                first = first or error
                if is_about_values(error):
                    break
                continue
            if tensors is not self.tensors and not self._is_the_same(capture):
                continue
            self._warn_of_fixed_sizes(capture)
            return built_graph(capture, self.model)
        assert first is not None
        raise first

    def _capture(self, tensors: list[Tensor], free: Any) -> Capture:
        program = self._exported(tensors, [free(tensor) if free else None for tensor in tensors])
        device = tensors[0].device if tensors else None
        return Capture(program, self.leaves.calls, self._inputs(), self.output, device)

    def _is_the_same(self, doubled: Capture) -> bool:
        """Whether forward() does the same for one sample as for the two of a capture."""
        try:
            return _operations(self._capture(self.tensors, None)) == _operations(doubled)
        except Exception:  # a batch of one may be too small, as for statistics of BatchNorm
            return True

    def _exported(self, tensors: list[Tensor], specs: list[Any]) -> Any:
        while True:
            try:
                return self._exported_once(tensors, specs)
            except Exception:
                if not self.leaves.failed:
                    raise
                # a leaf that decides by values, which are known in a real run only
                self.leaves.record_examples(lambda: self._run(*tensors))

    def _exported_once(self, tensors: list[Tensor], specs: list[Any]) -> Any:
        def forward(*values: Any) -> Any:
            with _KeepsMode(self.leaves):
                self.output, results = separated(self._run(*values), TRACED)
            return results

        with attributes_restored(self.model), self.leaves.replaced(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of attributes that fake tensors are assigned to
            _make_mode_visible(self.model, self.tracer)
            self.model.forward = forward
            return torch.export.export(
                self.model, tuple(tensors), dynamic_shapes=(tuple(specs),), strict=False
            )

    def _run(self, *values: Any) -> Any:
        arguments = filled(self.template, values) | dict(self.fixed)
        bound = inspect.BoundArguments(self.signature, OrderedDict())
        for name in self.signature.parameters:
            if name in arguments:
                bound.arguments[name] = arguments[name]
        bound.apply_defaults()
        return self.forward(*bound.args, **bound.kwargs)

    def _inputs(self) -> list[Input]:
        params = self.signature.parameters
        stars: dict[Any, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
        inputs: list[Input] = []
        for name, template in self.template.items.items():
            param = params[name]
            written = stars.get(param.kind, "") + name
            has_default = param.default is not param.empty
            inputs.append(Input(written, param.default, template, has_default))
        return _in_order(inputs)

    def _warn_of_fixed_sizes(self, capture: Capture) -> None:
        """Warn of a batch size that the graph is limited to, and note other sizes."""
        shapes = dict(zip(capture.tensor_names, _shapes(capture.program), strict=True))
        fixed = {n: s for n, s in shapes.items() if s and isinstance(s[0], int)}
        if fixed and len(fixed) == len(shapes):
            written = ", ".join(f"{name} {list(shape)}" for name, shape in fixed.items())
            logger.warning(
                "forward() depends on the batch size: this graph is only for inputs of the sizes "
                "%s, as in dummy_in",
                written.replace("Sym(", "").replace(")", ""),
            )


def _in_order(inputs: list[Input]) -> list[Input]:
    """Drop defaults that stand before an input without one, as in Python's keyword-only ones."""
    required = [i for i, each in enumerate(inputs) if not each.has_default and "*" not in each.name]
    last = max(required, default=-1)
    return [
        Input(each.name, each.default, each.template, each.has_default and place > last)
        for place, each in enumerate(inputs)
    ]


def given_arguments(
    model: nn.Module, dummy_in: Any, fixed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return example inputs by the names of forward(), in its order; those in `fixed` are not."""
    signature = inspect.signature(model.forward)
    named: dict[str, Any]
    if isinstance(dummy_in, Mapping):
        named = _by_name(signature, dict(dummy_in.items()))
    elif isinstance(dummy_in, list | tuple | Tensor):
        values = [dummy_in] if isinstance(dummy_in, Tensor) else list(dummy_in)
        try:
            named = signature.bind_partial(*values).arguments
        except TypeError:
            count = len(signature.parameters)
            raise TypeError(
                f"dummy_in has {len(values)} inputs, and forward() takes {count}"
            ) from None
    else:
        raise TypeError(
            f"dummy_in is a dict of inputs by name, a tuple of them, or a tensor, "
            f"not {type(dummy_in).__name__} {dummy_in!r:.40}"
        )
    for name in fixed or {}:
        if name not in signature.parameters:
            names = list(signature.parameters)
            raise UnknownName("forward argument in cf_args", name, sorted(names))
        named.pop(name, None)
    required = [
        name
        for name, param in signature.parameters.items()
        if param.default is param.empty and "VAR" not in param.kind.name
    ]
    for name in required:
        if name not in named and name not in (fixed or {}):
            wanted = ", ".join(f"{each!r}: tensor" for each in required)
            raise TypeError(
                f"dummy_in has no value for the model's input {name!r}; give {{{wanted}}}"
            )
    return {name: named[name] for name in signature.parameters if name in named}


def _by_name(signature: inspect.Signature, values: dict[str, Any]) -> dict[str, Any]:
    params = signature.parameters
    unknown = [name for name in values if name not in params]
    rest = next((n for n, p in params.items() if p.kind is p.VAR_KEYWORD), None)
    if unknown and rest is None:
        raise UnknownName("input in dummy_in", unknown[0], list(params))
    if rest is not None:
        further = {name: values.pop(name) for name in unknown}
        values[rest] = {**values.get(rest, {}), **further}
        if not values[rest]:
            del values[rest]
    return values


# --- sizes


def _shapes(program: torch.export.ExportedProgram) -> list[Any]:
    """The shapes of the inputs; sizes that are free are symbols."""
    specs = program.graph_signature.input_specs
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    pairs = zip(specs, nodes, strict=True)
    return [n.meta["val"].shape for spec, n in pairs if spec.kind is InputKind.USER_INPUT]


def _operations(capture: Capture) -> list[Any]:
    """What a model does, without arithmetic on sizes."""
    nodes = [node for node in capture.program.graph.nodes if node.op == "call_function"]
    operations = [n for n in nodes if isinstance(n.target, torch._ops.OpOverload)]
    bare = [n.target for n in operations if not is_check(n.target) and "sym_" not in str(n.target)]
    return [*bare, *(call.target for call in capture.calls)]


def _of_two(tensors: list[Tensor]) -> list[Tensor]:
    """Double a batch of one, as torch.export takes a size of one for a constant."""
    if not any(tensor.dim() and tensor.shape[0] == 1 for tensor in tensors):
        return tensors
    return [
        torch.cat((tensor, tensor)) if tensor.dim() and tensor.shape[0] == 1 else tensor
        for tensor in tensors
    ]


def _free_batch(tensor: Tensor) -> dict[int, Any] | None:
    return {0: Dim.AUTO} if tensor.dim() else None


def _free_sizes(tensor: Tensor) -> dict[int, Any] | None:
    """The sizes that may differ between runs: the batch, the sequence, height and width."""
    if tensor.dim() == 4 and tensor.is_floating_point():
        return {0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO}
    sequence = tensor.dim() == 3 or (tensor.dim() == 2 and not tensor.is_floating_point())
    return {0: Dim.AUTO, 1: Dim.AUTO} if sequence else _free_batch(tensor)


# --- the mode


class _KeepsMode(TorchFunctionMode):
    """Keeps calls of functions that are given `self.training` whole, so that it stays a value."""

    def __init__(self, leaves: LeafCalls) -> None:
        super().__init__()
        self.leaves = leaves

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(isinstance(value, Mode) for value in (*args, *kwargs.values())):
            return func(*args, **kwargs)

        def run(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = fx.node.map_aggregate((args, kwargs), _plain_mode)
            return func(*args, **kwargs)

        return self.leaves.recorded(func, run)(*args, **kwargs)


def _plain_mode(value: Any) -> Any:
    return int(value) == 1 if isinstance(value, Mode) else value


def _make_mode_visible(model: nn.Module, tracer: MaseTracer) -> None:
    """Replace `self.training` by a value that tells its use, in modules that are entered."""
    mode = Mode(model.training)
    for name, module in model.named_modules():
        entered = module is model or not tracer.is_leaf_module(module, name)
        script = isinstance(module, torch.jit.ScriptModule)
        if entered and int(module.training) == mode and not script:
            vars(module)["training"] = mode
