"""The graph or model to transform: loaded, or traced and run once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chop.actions.trained_on import adapt_data, facts_in, log_assumed_classes, names_in

if TYPE_CHECKING:
    from torch import nn

    from chop.ir.graph.mase_graph import MaseGraph


MODULE_STYLE = 'set style = "module" in [transform] or [search.search_space]'
# advice of messages to users of Python -> the same for files and flags
IN_FILES = {
    "use module passes, which work on the model itself": MODULE_STYLE,
    "use front_end='auto' or 'export'": "use `front_end='auto'`",
}


@dataclass(frozen=True)
class Source:
    """A model, its data, and the checkpoint of its weights."""

    model: nn.Module
    model_info: Any
    model_name: str
    data_module: Any
    task: str
    load_name: str | None
    load_type: str
    front_end: str = "auto"  # that makes a graph of the model

    def model_on(self, device: Any) -> nn.Module:
        """Return the model with its weights."""
        from chop.checkpoints import load_model

        model = self.model
        if self.load_name is not None:
            is_recorded = adapt_data(self.data_module, self.load_name, self.load_type)
            model = load_model(self.load_name, self.load_type, model)
            if not is_recorded:
                log_assumed_classes(self.data_module, self.load_name)
        return model.to(device)

    def graph_on(self, device: Any, cf_args: dict[str, Any]) -> MaseGraph:
        """Return the graph with metadata, from a batch of training data if they are missing."""
        from chop.passes import Pipeline
        from chop.passes.base import has_metadata

        graph = self._bare_graph(device, cf_args)
        graph.meta |= self.notes()
        if all(has_metadata(node, "common") for node in graph.nodes):
            return graph
        additional = getattr(graph.model, "additional_inputs", {})
        dummy_in = self.batch_on(device, graph.model) | additional
        # values of a whole batch would make the saved metadata larger than the model
        options = {"dummy_in": dummy_in, "add_value": False}
        steps = ["init_metadata", ("add_common_metadata", options), "add_software_metadata"]
        return Pipeline(steps)(graph)[0]  # type: ignore[arg-type]

    def notes(self) -> dict[str, dict[str, Any]]:
        """Return what the network was made from and trained on, as its checkpoint or this run."""
        from chop.dataset.data_module import facts_of

        names = {"model": self.model_name, "dataset": self.data_module.name}
        facts = facts_in(self.load_name, self.load_type)
        return {
            "made_from": names_in(self.load_name, self.load_type) or names,
            "trained_on": facts.plain() if facts is not None else facts_of(self.data_module) or {},
        }

    def batch_on(self, device: Any, model: nn.Module) -> dict[str, Any]:
        """Return a batch of inputs for `model`, by name."""
        from chop.tools.get_input import get_dummy_input

        return get_dummy_input(self.model_info, self.data_module, self.task, device, model=model)

    def batches(self, split: str, model: nn.Module) -> Any:
        """Return a generator of batches of inputs for `model`, by name."""
        from chop.tools.get_input import InputGenerator

        return InputGenerator(self.model_info, self.data_module, self.task, split, model=model)

    def _bare_graph(self, device: Any, cf_args: dict[str, Any]) -> MaseGraph:
        from chop.checkpoints import load_graph
        from chop.ir.graph.mase_graph import MaseGraph
        from chop.ir.graph.saved_files import is_saved_graph
        from chop.ir.graph.trace_errors import TraceError
        from chop.tools.get_input import get_cf_args

        if self.load_type == "mz" and self.load_name and is_saved_graph(self.load_name):
            is_recorded = adapt_data(self.data_module, self.load_name, self.load_type)
            graph = load_graph(self.load_name, device)
            if not is_recorded:
                log_assumed_classes(self.data_module, self.load_name)
            return graph
        model = self.model_on(device)
        fixed = get_cf_args(self.model_info, self.task, model) | cf_args
        try:
            with _eval_mode(
                model
            ) as restore:  # `if self.training:` keeps the branch that is scored
                graph = MaseGraph(
                    model, cf_args=fixed, front_end=self.front_end, dummy_in=self._examples(device)
                )
            restore(graph.model)
            return graph
        except TraceError as error:
            raise ValueError(_for_files(str(error))) from error

    def _examples(self, device: Any) -> dict[str, Any]:
        """Return example inputs: a batch, and what the model says that it needs besides."""
        additional = (getattr(self.model, "patched_nodes", None) or {}).get("additional_inputs")
        return self.batch_on(device, self.model) | dict(additional or {})


def _for_files(message: str) -> str:
    """Return advice for Python code as that for files and flags; the module style once."""
    for code, file in IN_FILES.items():
        message = message.replace(code, file)
    return message if MODULE_STYLE in message else f"{message}, or {MODULE_STYLE}"


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[Callable[[nn.Module], None]]:
    """Put a model into eval mode inside; yield what gives its former modes to another model."""
    modes = {name: module.training for name, module in model.named_modules(remove_duplicate=False)}

    def restore(other: nn.Module) -> None:
        for name, module in other.named_modules(remove_duplicate=False):
            module.training = modes.get(name, modes[""])

    model.eval()
    try:
        yield restore
    finally:
        restore(model)


def model_of(subject: Any) -> Any:
    """Return the model of a graph; in the module style, `subject` is the model."""
    from chop.ir.graph.mase_graph import MaseGraph

    return subject.model if isinstance(subject, MaseGraph) else subject
