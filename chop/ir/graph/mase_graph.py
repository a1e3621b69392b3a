"""A model as a graph that can be read and changed."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import fx, nn

from chop import extensions
from chop.ir.common import MASE_IMPLICIT_FUNCS
from chop.ir.graph.contexts import KEPT_BY_NEITHER, noticed_by_fx, warn_of_contexts
from chop.ir.graph.layer_names import check_called_names, warn_of_unsaved_names
from chop.ir.graph.mase_graph_metadata import MaseGraphMetadata
from chop.ir.graph.model_checks import (
    WANTED,
    check_model,
    checked_custom_ops,
    checked_patched_nodes,
    defaults_of_others,
)
from chop.ir.graph.trace_errors import TraceError, names_a_line
from chop.ir.graph.tracer import (
    CAPTURES,
    MaseTracer,
    attributes_restored,
    room_to_recurse,
    warn_of_lost_hooks,
)
from chop.ir.ops import is_tensor_constant
from chop.ir.parametrized import copies_of_results
from chop.registry import UnknownName, unknown
from chop.system.files import write_whole

if TYPE_CHECKING:
    from chop.integers import IntegerGraph


# attributes of the GraphModule that passes read; fx drops them in a copy
MODEL_ATTRIBUTES: dict[str, type] = {"patched_op_names": list, "patched_custom_layers": list}
MODEL_ATTRIBUTES |= {"additional_inputs": dict, "custom_ops": dict, "original_architecture": dict}
SAVE_FORMATS = ("full_model", "state_dict")
WARNED = "warned"  # key of a graph's meta: the warnings that it and its copies have given
FRONT_ENDS = ("auto", "fx", "export")


class Modules(Mapping[str, nn.Module]):
    """Dotted name -> module, looked up in the model on each access; "" is the root."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __getitem__(self, name: str) -> nn.Module:
        try:
            return self._model.get_submodule(name)
        except AttributeError:
            raise UnknownName("module", name, list(self)) from None

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):  # a function node's target is not a module
            return False
        try:
            self._model.get_submodule(name)
        except AttributeError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        # a module with two names is listed under both, as both can be looked up
        return (name for name, _ in self._model.named_modules(remove_duplicate=False))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))


class MaseGraph:
    """A model, its fx graph, and its metadata.

    Two graphs made from one model share its leaf modules, and so its parameters, but not the
    containers: replacing a layer in one leaves the other as it was.
    """

    implicit_nodes = MASE_IMPLICIT_FUNCS

    def __init__(
        self,
        model: nn.Module | fx.GraphModule,
        cf_args: Mapping[str, Any] | None = None,
        custom_ops: Mapping[str, Mapping[Any, Any]] | None = None,
        hf_input_names: list[str] | None = None,
        skip_init_metadata: bool = False,
        add_metadata_args: Mapping[str, Any] | None = None,
        *,
        front_end: str = "auto",
        dummy_in: Any = None,
    ) -> None:
        """Capture `model`; an fx.GraphModule is used as it is.

        `cf_args` freezes forward arguments at the given values, by name, so that Python control
        flow on them can be traced. `custom_ops = {"modules": {Cls: {…}}, "functions": {fn: {…}}}`
        keeps those modules and functions whole. `hf_input_names` lists the inputs to keep: all
        others are frozen at their defaults. `front_end` is `"fx"` (torch.fx), `"export"`
        (torch.export, which needs example inputs in `dummy_in`: a dict by name, a tuple, or a
        tensor), or `"auto"`: torch.fx where it works, else torch.export. Example inputs of a
        network of transformers are made from its config.
        `skip_init_metadata` and `add_metadata_args` exist for older scripts.
        """
        if isinstance(model, MaseGraph):
            raise TypeError(
                f"MaseGraph takes {WANTED}; this is already a MaseGraph: use it, or copy it with "
                f"clone()"
            )
        check_model(model)
        for name, value in (("cf_args", cf_args), ("custom_ops", custom_ops)):
            if value is not None and not isinstance(value, Mapping):
                raise TypeError(f"{name} must be a dict, not {type(value).__name__} {value!r:.40}")
        del skip_init_metadata, add_metadata_args
        if front_end not in FRONT_ENDS:
            raise UnknownName("front end", front_end, FRONT_ENDS)
        self.front_end = "fx"
        self.cf_args = dict(cf_args or {})
        self.custom_ops = checked_custom_ops(custom_ops)
        self.example_inputs: dict[str, Any] = {}  # of the capture, by the names of forward()
        # what passes have warned of is shared with copies, so that each warns once
        self.meta: dict[str, Any] = {"mase": MaseGraphMetadata(self), WARNED: set()}
        if isinstance(model, fx.GraphModule):
            if cf_args or hf_input_names:
                raise ValueError(
                    "cf_args and hf_input_names are for tracing; this model is already traced"
                )
            self.tracer: MaseTracer | None = None
            self.model = model
            _rehome_metadata(model.graph)
            if custom_ops:
                set_model_attributes(model, {"custom_ops": self.custom_ops})
        else:
            if hf_input_names is not None:
                self.cf_args = defaults_of_others(model, hf_input_names) | self.cf_args
            self._capture_on_examples(model, front_end, dummy_in, hf_input_names)

    def _capture_on_examples(
        self, model: nn.Module, front_end: str, dummy_in: Any, names: list[str] | None
    ) -> None:
        """Capture on the inputs that are given, or made from the config of transformers."""
        from chop.ir.graph.arguments import given_arguments
        from chop.ir.graph.transformers_inputs import (
            is_of_transformers,
            made_inputs,
            without_cache,
        )

        if dummy_in is None and front_end != "fx" and is_of_transformers(model):
            self.cf_args = without_cache(model, self.cf_args)
            dummy_in = made_inputs(model, names, self.cf_args)
            try:
                self._capture(model, front_end, dummy_in)
            except TraceError as error:
                advice = "if the inputs made from the config are at fault, give dummy_in="
                raise TraceError(f"{error}; {advice}{{name: tensor}}") from error
        else:
            self._capture(model, front_end, dummy_in)
        if dummy_in is not None:
            self.example_inputs = given_arguments(model, dummy_in, self.cf_args)

    def _capture(self, model: nn.Module, front_end: str, dummy_in: Any) -> None:
        patched = checked_patched_nodes(model)
        layers = tuple(patched.get("layers", ()))
        functions = tuple(patched.get("functions", ()))
        self.tracer = MaseTracer(
            custom_leaf_modules=tuple(patched.get("modules", ())),
            custom_leaf_layers=(*layers, *self.custom_ops["modules"]),
            custom_leaf_functions=(*functions, *self.custom_ops["functions"]),
        )
        # fx stores the constants of the graph on the model
        with CAPTURES, attributes_restored(model):
            graph = self._traced_or_explained(model, front_end, dummy_in)
            check_called_names(graph, model)
            self.model = fx.GraphModule(model, graph)
        warn_of_unsaved_names(self.model)
        warn_of_lost_hooks(model)
        _copy_container_state(self.model, model)
        if self.front_end == "export":
            _add_other_tensors(self.model, model, {})
        self.tracer.forget()
        set_model_attributes(
            self.model,
            {
                "patched_op_names": [op.__name__.lower() for op in (*layers, *functions)],
                "patched_custom_layers": list(layers),
                "additional_inputs": dict(patched.get("additional_inputs", {})),
                "custom_ops": self.custom_ops,
            },
        )

    def _traced_or_explained(self, model: nn.Module, front_end: str, dummy_in: Any) -> fx.Graph:
        """Return the graph; inputs that the model itself fails on are not blamed on capture."""
        from chop.ir.graph.eager_check import failure_on_inputs

        try:
            return self._traced(model, front_end, dummy_in)
        except TraceError as error:
            said = failure_on_inputs(model, dummy_in, self.cf_args) if dummy_in is not None else ""
            if not said:
                raise
            raise TraceError(said) from error

    def _traced(self, model: nn.Module, front_end: str, dummy_in: Any) -> fx.Graph:
        """Return the graph by the front end that is asked for, or by the first that can."""
        from chop.ir.graph.arguments import frozen_arguments
        from chop.ir.graph.eager_check import misreads_inputs

        assert self.tracer is not None
        if front_end == "export" and dummy_in is None:
            raise ValueError(
                "torch.export needs example inputs; give MaseGraph(model, dummy_in={name: tensor})"
            )
        by_fx: TraceError | None = None
        if front_end != "export":
            alone = front_end == "fx" or dummy_in is None
            if dummy_in is not None:
                other = "use front_end='auto' or 'export', "
                self.tracer.inputs_advice = other if alone else ""
            try:
                with noticed_by_fx() as found:
                    graph = self.tracer.trace(
                        model, frozen_arguments(model, dummy_in, self.cf_args) or None
                    )
                if dummy_in is not None and misreads_inputs(graph, model, dummy_in, self.cf_args):
                    raise TraceError(
                        f"torch.fx takes every value for a tensor, even None or a dict, and its "
                        f"graph of {type(model).__name__} gives other results for dummy_in than "
                        f"the model; use front_end='auto' or 'export'"
                    )
            except TraceError as error:
                if alone:
                    raise
                by_fx = error
            else:
                # torch.export keeps no_grad, draws and buffers, and neither keeps autocast; a class
                # that a graph calls for its results could not be saved
                found += self.tracer.assignments
                kept = all(context.name in KEPT_BY_NEITHER for context in found)
                if alone or (kept and not any(isinstance(n.target, type) for n in graph.nodes)):
                    warn_of_contexts(found, "; use front_end='export' with dummy_in to keep it")
                    return graph
        from chop.ir.graph.export_front_end import exported

        self.front_end = "export"
        try:
            return exported(model, self.tracer, dummy_in, self.cf_args)
        except TraceError as error:
            if by_fx is not None and names_a_line(by_fx) and not names_a_line(error):
                raise by_fx from error
            raise

    @classmethod
    def from_module(
        cls,
        model: nn.Module,
        cf_args: Mapping[str, Any] | None = None,
        custom_ops: Mapping[str, Mapping[Any, Any]] | None = None,
        **options: Any,
    ) -> MaseGraph:
        """Return the graph of a model; `options` are those of the constructor."""
        return cls(model, cf_args=cf_args, custom_ops=custom_ops, **options)

    @property
    def fx_graph(self) -> fx.Graph:
        return self.model.graph

    @fx_graph.setter
    def fx_graph(self, graph: fx.Graph) -> None:
        self.model.graph = graph
        _rehome_metadata(self.model.graph)
        self.meta["mase"] = self.meta["mase"].clone_for(self)

    @property
    def nodes(self) -> Any:
        return self.model.graph.nodes

    @property
    def modules(self) -> Modules:
        return Modules(self.model)

    @property
    def nodes_in(self) -> list[fx.Node]:
        """The first nodes that compute; set by add_common_metadata."""
        return list(self.meta["mase"].common.get("nodes_in", []))

    @property
    def nodes_out(self) -> list[fx.Node]:
        """The last nodes that compute; set by add_common_metadata."""
        return list(self.meta["mase"].common.get("nodes_out", []))

    @property
    def inputs(self) -> list[fx.Node]:
        return [node for node in self.nodes if node.op == "placeholder"]

    def clone(self) -> MaseGraph:
        """Return an independent copy of model, graph and metadata."""
        new = copy.copy(self)
        new.cf_args = dict(self.cf_args)
        memo = copies_of_results(self.model)
        with room_to_recurse(self.model):
            new.model = copy.deepcopy(self.model, memo)
        _copy_container_state(new.model, self.model)
        _add_other_tensors(new.model, self.model, memo)
        set_model_attributes(new.model, vars(self.model))
        _rehome_metadata(new.fx_graph)
        new.meta = {
            key: value.clone_for(new) if isinstance(value, MaseGraphMetadata) else value
            for key, value in self.meta.items()
        }
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> MaseGraph:
        memo[id(self)] = new = self.clone()
        return new

    def export(
        self,
        path: str | Path = "masegraph",
        save_format: Literal["full_model", "state_dict"] = "full_model",
    ) -> Path:
        """Save to the directory `path`, replacing it as a whole; `from_checkpoint` reads it.

        The format "state_dict" saves only the weights, to the file `path` with the suffix .pt, for
        `torch.load` and `load_model`. Returns what was written.
        """
        from chop.ir.graph.saving import save_graph, write_state_dict

        if save_format not in SAVE_FORMATS:
            raise ValueError(unknown("save_format", save_format, SAVE_FORMATS))
        return (
            write_state_dict(self, path) if save_format == "state_dict" else save_graph(self, path)
        )

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path,
        map_location: str | torch.device = "cpu",
        custom_ops: Mapping[str, Mapping[Any, Any]] | None = None,
    ) -> MaseGraph:
        """Load the graph, its model and metadata from the directory `path`; no code in it is run.

        `custom_ops` adds your classes and functions that are not in an imported file.
        """
        from chop.ir.graph.saving import load_graph

        return load_graph(path, map_location, custom_ops)

    def to_integers(self) -> IntegerGraph:
        """Return this quantised network in integers, as codes with known widths and scales."""
        integers: IntegerGraph = extensions.convert(self, "integers")
        return integers

    def draw(self, file: str | Path = "mase_graph.svg") -> Path:
        """Draw the graph to an SVG file, which any browser shows."""
        from chop.ir.graph.draw import draw_svg

        if Path(file).suffix != ".svg":
            raise ValueError(f"draw writes SVG: name the file {Path(file).stem}.svg, not {file}")
        return write_whole(file, draw_svg(self.fx_graph))

    def __repr__(self) -> str:
        return f"MaseGraph({len(self.nodes)} nodes, {len(self.modules) - 1} modules)"


def _copy_container_state(traced: fx.GraphModule, model: nn.Module) -> None:
    """Give containers that fx created the mode and the persistent buffers of the model's."""
    originals = dict(model.named_modules(remove_duplicate=False))
    for name, container in traced.named_modules():
        original = originals.get(name)
        if original is None:  # one of the graph, which reports its mode
            continue
        container.training = original.training
        saved = original._buffers.keys() - original._non_persistent_buffers_set
        container._non_persistent_buffers_set |= container._buffers.keys() - saved


def _add_other_tensors(traced: fx.GraphModule, model: nn.Module, copies: Mapping[int, Any]) -> None:
    """Give a graph the parameters and buffers that it does not call, such as tied ones.

    fx drops them. `copies` has the copies of tensors by the id of the original.
    """
    known = {name for name, _ in _all_tensors(traced)}
    for name, tensor in _all_tensors(model):
        path, _, key = name.rpartition(".")
        if name in known or is_tensor_constant(key):
            continue
        holder: nn.Module = traced
        for part in path.split(".") if path else ():
            if part not in holder._modules:
                holder.add_module(part, nn.Module().train(holder.training))
            holder = holder.get_submodule(part)
        own: Any = copies.get(id(tensor), tensor)
        if isinstance(own, nn.Parameter):
            holder.register_parameter(key, own)
        else:
            original = model.get_submodule(path)
            holder.register_buffer(key, own, key not in original._non_persistent_buffers_set)


def _all_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _rehome_metadata(graph: fx.Graph) -> None:
    """Give each node its own metadata, as fx copies node.meta shallowly with a graph."""
    for node in graph.nodes:
        meta = node.meta.get("mase")
        if meta is not None and meta.node is not node:
            node.meta["mase"] = meta.clone_for(node)


def set_model_attributes(model: fx.GraphModule, values: Mapping[str, Any]) -> None:
    """Copy the values of `MODEL_ATTRIBUTES` that `values` contains to attributes of `model`."""
    for name in MODEL_ATTRIBUTES:
        if name in values:
            setattr(model, name, values[name])
