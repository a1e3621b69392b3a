"""Capture a model with torch.export, as a graph of its layers."""

from __future__ import annotations

import inspect
import io
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim
from torch.overrides import TorchFunctionMode

from chop.ir.graph.arguments import call_arguments, given_arguments
from chop.ir.graph.aten_names import is_check, name_of
from chop.ir.graph.contexts import noticed_contexts, warn_of_contexts
from chop.ir.graph.decisions import (
    Decision,
    changed_for_one,
    noticed_decisions,
    same_size,
    with_ones,
)
from chop.ir.graph.exported_graph import Capture, Input, built_graph
from chop.ir.graph.leaf_calls import LeafCalls
from chop.ir.graph.size_checks import input_shapes, refusal_of_one
from chop.ir.graph.trace_errors import (
    TraceError,
    UnsupportedTorch,
    explained_export,
    is_about_values,
    users_line,
)
from chop.ir.graph.tracer import (
    MaseTracer,
    Mode,
    attributes_restored,
    hide_hooks,
    room_to_recurse,
)
from chop.ir.graph.trial_runs import TrialRuns, are_close, with_noise
from chop.ir.nested import TRACED, Nest, TensorPlace, filled, is_plain, separated
from chop.ir.operators import Overload

logger = logging.getLogger(__name__)

NOISY = (
    "torch._subclasses.fake_tensor",
    "torch.fx.experimental.symbolic_shapes",
    "torch.export",
    "torch._export",
)


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
        self.mode = Mode(model.training)  # one for all attempts, so that it warns once
        self.output: Any = None
        self.decisions: list[Decision] = []
        self.left_out: set[Any] = set()  # results that a graph cannot make
        template, tensors = separated(given)
        self.tensors = _distinct(tensors, model)
        assert isinstance(template, Nest)
        self.template = template
        _check_inputs(template)

    def graph(self) -> fx.Graph:
        with room_to_recurse(self.model):
            try:
                with noticed_contexts() as found:
                    graph = self._captured()
                warn_of_contexts([context for context in found if context.name != "no_grad"])
                return graph
            except (TraceError, UnsupportedTorch):
                raise
            except NotImplementedError as error:
                cls = type(self.model).__name__
                line = users_line(error)
                raise TraceError(f"cannot trace {cls}.forward{line}: {error}") from error
            except Exception as error:
                where = self.leaves.path[-1]
                raise TraceError(explained_export(error, *where)) from error

    def _captured(self) -> fx.Graph:
        """Capture with as many free sizes as the model allows."""
        first: Exception | None = None
        doubled = _of_two(self.tensors)
        ways = ((doubled, _free_sequence), (doubled, _free_batch), (self.tensors, None))
        for tensors, free in ways:
            try:
                capture = self._capture(tensors, free)
            except Exception as error:
                first = first or error
                if is_about_values(error):
                    break
                continue
            capture = self._without_ones(self._with_free_images(capture, tensors), tensors)
            if tensors is not self.tensors and not self._is_for_one(capture):
                continue
            self._warn_of_fixed_sizes(capture)
            _warn_of_excluded_ones(capture)
            return built_graph(capture, self.model)
        assert first is not None
        raise first

    def _capture(self, tensors: list[Tensor], free: Any) -> Capture:
        program = self._exported(tensors, [free(tensor) if free else None for tensor in tensors])
        device = tensors[0].device if tensors else None
        fixed = [
            (place, dim, size)
            for place, shape in enumerate(input_shapes(program))
            for dim, size in enumerate(shape)
            if isinstance(size, int)  # forward() may have decided by any size that is not free
        ]
        facts = (program, list(self.leaves.calls), self._inputs(), self.output, device, fixed)
        return Capture(*facts, decisions=self.decisions)

    def _with_free_images(self, capture: Capture, tensors: list[Tensor]) -> Capture:
        """Capture again with free heights and widths, if the network only has convolutions.

        In others their arithmetic takes torch.export minutes, and most need one size anyway.
        """
        images = any(tensor.dim() == 4 and tensor.is_floating_point() for tensor in tensors)
        if not images or any(name_of(o) in RESHAPES for o in _operators(capture)):
            return capture
        try:
            free = self._capture(tensors, _free_image)
        except Exception:
            return capture
        return free

    def _without_ones(self, capture: Capture, tensors: list[Tensor]) -> Capture:
        """Exclude sizes of one for which forward() takes other branches than in the capture."""
        shapes = input_shapes(capture.program)
        not_one = {}
        for (place, dim), decision in changed_for_one(capture.decisions, shapes).items():
            ones = with_ones(tensors, shapes, shapes[place][dim])
            if not self._is_the_same(capture, tensors, ones, decision):
                not_one[place, dim] = decision
        return replace(capture, not_one=not_one)

    def _is_the_same(
        self, capture: Capture, tensors: list[Tensor], ones: list[Tensor], decision: Decision
    ) -> bool:
        """Whether the graph of `tensors` is also that of `ones`, for which a decision changes.

        Networks of packages decide by sizes of one for speed, and in eager mode to detect several
        sequences in one; there only the functions that take weights must be the same.
        """
        runs, only_of_weights = TrialRuns(self.model, self._run), not decision.is_users
        if runs.is_on_meta(tensors):
            return only_of_weights
        noise = with_noise(ones)  # constants, such as zeros, may hide a difference
        used, one = noise, runs.observed(noise, only_of_weights)
        if one is None:
            used, one = ones, runs.observed(ones, only_of_weights)
        whole = runs.observed(tensors, only_of_weights)
        if one is None or whole is None or one.functions != whole.functions:
            return False
        with attributes_restored(self.model):
            graph = built_graph(capture, self.model)
            return are_close(runs.of_graph(graph, filled(self.template, used)), one.results)

    def _is_for_one(self, capture: Capture) -> bool:
        """Whether a capture of two samples is also for one, as in the example."""
        shapes = input_shapes(capture.program)
        not_one = [shapes[place][dim] for place, dim in capture.not_one]
        batches = [
            shape[0]
            for tensor, shape in zip(self.tensors, shapes, strict=True)
            if tensor.dim() and tensor.shape[0] == 1
        ]
        return not any(
            isinstance(batch, int) or any(same_size(batch, size) for size in not_one)
            for batch in batches
        )

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
            with _KeepsMode(self.leaves), noticed_decisions(self.leaves.is_inside) as decisions:
                output, results = separated(self._run(*values), TRACED)
            self.output, self.decisions = self._plain_output(output), decisions
            return results

        with attributes_restored(self.model), self.leaves.replaced(), _quiet(), _no_partial_graph():
            _make_mode_visible(self.model, self.tracer, self.mode)
            hide_hooks(self.model)  # torch.export would call them with its own inputs and results
            self.model.forward = forward
            return torch.export.export(
                self.model, tuple(tensors), dynamic_shapes=(tuple(specs),), strict=False
            )

    def _plain_output(self, output: Any) -> Any:
        """Leave out results that a graph cannot make, such as a cache of keys and values."""
        if is_plain(output):
            return output
        if not isinstance(output, TensorPlace | Nest):
            raise TypeError(
                f"forward() returns a {type(output).__name__}; "
                f"return tensors, or dicts, lists, tuples or dataclasses of them"
            )
        if not isinstance(output, Nest):
            return output
        kept = {}
        for key, item in output.items.items():
            known = is_plain(item) or isinstance(item, TensorPlace | Nest)
            if not known and key not in self.left_out:
                self.left_out.add(key)
                logger.warning(
                    "the graph leaves out the result %r, which is a %s", key, type(item).__name__
                )
            kept[key] = self._plain_output(item) if known else None
        return Nest(output.sample, kept)

    def _run(self, *values: Any) -> Any:
        arguments = filled(self.template, values) | dict(self.fixed)
        args, kwargs = call_arguments(self.signature, arguments)
        return self.forward(*args, **kwargs)

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
        shapes = dict(zip(capture.tensor_names, input_shapes(capture.program), strict=True))
        fixed = {n: s for n, s in shapes.items() if s and isinstance(s[0], int)}
        if fixed and len(fixed) == len(shapes):
            written = ", ".join(f"{name} {list(shape)}" for name, shape in fixed.items())
            logger.warning(
                "forward() depends on the batch size: this graph is only for inputs of the sizes "
                "%s, as in dummy_in",
                written.replace("Sym(", "").replace(")", ""),
            )


def _warn_of_excluded_ones(capture: Capture) -> None:
    for size, decision in capture.not_one.items():
        logger.warning("%s", refusal_of_one(size, decision, capture.tensor_names))


def _check_inputs(template: Nest, name: str = "") -> None:
    """Refuse inputs that are neither tensors nor plain values."""
    for key, item in template.items.items():
        path = name or str(key)
        if isinstance(item, Nest):
            _check_inputs(item, path)
        elif not isinstance(item, TensorPlace) and not is_plain(item):
            array = type(item).__module__ == "numpy"
            raise TypeError(
                f"dummy_in: the input {path!r} holds a {type(item).__name__}; give "
                + ("torch.from_numpy(array)" if array else "tensors, plain values, or dicts, ")
                + ("" if array else "lists, tuples or dataclasses of them")
            )


def _in_order(inputs: list[Input]) -> list[Input]:
    """Drop defaults that stand before an input without one, as in Python's keyword-only ones."""
    required = [i for i, each in enumerate(inputs) if not each.has_default and "*" not in each.name]
    last = max(required, default=-1)
    return [
        Input(each.name, each.default, each.template, each.has_default and place > last)
        for place, each in enumerate(inputs)
    ]


# --- sizes


# operators that mix height and width with other sizes
_RESHAPES = "view reshape permute transpose unfold im2col roll index as_strided unflatten einsum"
RESHAPES = frozenset(_RESHAPES.split())


def _operators(capture: Capture) -> list[Any]:
    targets = [n.target for n in capture.program.graph.nodes if n.op == "call_function"]
    return [t for t in targets if isinstance(t, Overload) and not is_check(t)]


def _of_two(tensors: list[Tensor]) -> list[Tensor]:
    """Double a batch of one, as torch.export takes a size of one for a constant."""
    if not tensors or not tensors[0].dim() or tensors[0].shape[0] != 1:
        return tensors
    return [
        torch.cat((tensor, tensor)) if tensor.dim() and tensor.shape[0] == 1 else tensor
        for tensor in tensors
    ]


def _distinct(tensors: list[Tensor], model: nn.Module) -> list[Tensor]:
    """Copies of tensors that are given twice, which torch.export would take for one input.

    For a model on the meta device all tensors are on it.
    """
    on_meta = any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    distinct: dict[int, Tensor] = {}
    for place, tensor in enumerate(tensors):
        own = tensor.detach().to("meta") if on_meta else tensor
        again = any(own is other for other in distinct.values())
        distinct[place] = own.clone() if again else own
    return list(distinct.values())


def _free_batch(tensor: Tensor) -> dict[int, Any] | None:
    return {0: Dim.AUTO} if tensor.dim() else None


def _free_sequence(tensor: Tensor) -> dict[int, Any] | None:
    """The batch, and the length of sequences of features or of ids."""
    sequence = tensor.dim() == 3 or (tensor.dim() == 2 and not tensor.is_floating_point())
    return {0: Dim.AUTO, 1: Dim.AUTO} if sequence else _free_batch(tensor)


def _free_image(tensor: Tensor) -> dict[int, Any] | None:
    """The batch, and the heights and widths of images."""
    if tensor.dim() == 4 and tensor.is_floating_point():
        return {0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO}
    return _free_sequence(tensor)


@contextmanager
def _no_partial_graph() -> Iterator[None]:
    """Hide the graph that torch prints when an attempt fails; other text is passed on."""
    printed, partial = io.StringIO(), ""
    try:
        with redirect_stderr(printed):
            yield
    except Exception as error:
        graph = getattr(error, "partial_fx_graph", None)
        partial = "" if graph is None else f"{graph}\n"
        raise
    finally:
        sys.stderr.write(printed.getvalue().replace(partial, ""))


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what torch says of attempts: the errors that matter are raised."""
    loggers = [logging.getLogger(name) for name in NOISY]
    levels = [each.level for each in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in loggers:
            each.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            for each, level in zip(loggers, levels, strict=True):
                each.setLevel(level)


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


def _make_mode_visible(model: nn.Module, tracer: MaseTracer, mode: Mode) -> None:
    """Replace `self.training` by a value that tells its use, in modules that are entered."""
    if tracer.is_leaf_module(model, ""):  # a layer of torch, which gives it to C++
        return
    for name, module in model.named_modules():
        entered = module is model or not tracer.is_leaf_module(module, name)
        script = isinstance(module, torch.jit.ScriptModule)
        if entered and int(module.training) == mode and not script:
            vars(module)["training"] = mode
