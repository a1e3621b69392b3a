"""What the actions on circuits have in common: options, and the network in integers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from chop.actions.config import ConfigError, RunConfig
from chop.actions.suggestion import command_for
from chop.actions.transform.source import Source
from chop.hardware.emit import EmitOptions
from chop.options import Options, WrongOptions, options_of

if TYPE_CHECKING:
    from torch import nn

    from chop.actions.project import Project
    from chop.hardware.circuit import Circuit
    from chop.integers import IntegerGraph
    from chop.ir.graph.mase_graph import MaseGraph

__all__ = [
    "check_same_circuit",
    "command_on_circuit",
    "emit_options",
    "emit_options_of",
    "given_source",
    "graph_of",
    "network",
    "source_of",
    "table_options",
]

OptionsT = TypeVar("OptionsT")


def emit_options(config: RunConfig) -> EmitOptions:
    """Return the options of the table `[emit]` and of the command line, which go first."""
    return table_options(config, "emit", EmitOptions)


def table_options(config: RunConfig, name: str, cls: type[OptionsT]) -> OptionsT:
    """Return the options of a table by its name and of the command line, which go first."""
    where = f"{config.config}: " if config.config is not None else ""
    options = options_of(cls)
    try:
        table = Options(name, options, "key", finite=True).check(getattr(config, name))
    except WrongOptions as error:
        raise ConfigError(*(where + problem for problem in error.problems)) from error
    flags = {option: getattr(config, option) for option in options}
    given = {option: value for option, value in flags.items() if value not in (None, False)}
    try:
        return cls(**{**table, **given})
    except ValueError as error:
        raise ConfigError(str(error)) from error


def emit_options_of(values: Mapping[str, Any]) -> EmitOptions:
    """Return the options that a caller in Python gave."""
    return EmitOptions(**Options("emit", options_of(EmitOptions)).check(values))


def check_same_circuit(config: RunConfig, circuit: Circuit, project: Project) -> None:
    """Refuse options that the circuit of a project was not emitted with."""
    for name in ("backend", "language", "clock"):
        have = circuit.clock_period if name == "clock" else getattr(circuit, name)
        wanted = getattr(config, name)
        if wanted is not None and wanted != have:
            raise ConfigError(
                f"--{name} {wanted}: the circuit in {project.hardware} was emitted with "
                f"{have}; add --run-emit to emit it again"
            )
    # a circuit does not say what these were
    for name in ("max_parallelism", "max_adders", "argmax"):
        if getattr(config, name):
            raise ConfigError(
                f"--{name.replace('_', '-')} is for the emission of a circuit, and the one in "
                f"{project.hardware} was emitted before; add --run-emit to emit it again"
            )


def source_of(config: RunConfig, model: Any, info: Any, data_module: Any) -> Source:
    """Return the model of a run with its data and its checkpoint."""
    checkpoint = (config.load_name, config.load_type)
    name, task = str(config.model), config.task
    return Source(model, info, name, data_module, task, *checkpoint, config.front_end)


def given_source(
    model: nn.Module | MaseGraph,
    model_info: Any,
    data_module: Any,
    task: str,
    load_name: str | None,
    load_type: str | None,
) -> Source:
    """Return what a caller in Python gave, as the source of a network."""
    checkpoint = (load_name, load_type or "mz")
    return Source(model, model_info, "", data_module, task, *checkpoint)  # type: ignore[arg-type]


def network(source: Source) -> tuple[MaseGraph, IntegerGraph]:
    """Return the quantised graph of a source, and the same in integers."""
    from chop.passes.graph.describe.formats import is_float_network

    graph = graph_of(source)
    if is_float_network(graph):
        raise ValueError(
            "the network is not quantised, and a circuit needs integers; run `ch transform` with "
            "[passes.quantize] first"
        )
    return graph, graph.to_integers()


def graph_of(source: Source) -> MaseGraph:
    """Return the graph of a source in eval mode, with metadata."""
    from chop.ir.graph.mase_graph import MaseGraph
    from chop.ir.graph.saved_files import is_saved_graph

    if isinstance(source.model, MaseGraph) and source.load_name is None:
        graph = source.model
    else:
        name, data = source.load_name, source.data_module
        is_saved = source.load_type == "mz" and name is not None and is_saved_graph(name)
        if not is_saved and data.train_dataset is None:  # the metadata need a batch
            data.prepare_data()
            data.setup("fit")
        graph = source.graph_on("cpu", {})
    graph.model.eval()
    return graph


def command_on_circuit(action: str, config: RunConfig, project: Project) -> str:
    """Return the command that runs an action on the circuit of a project."""
    load_name = None if config.load_name is None else Path(config.load_name)
    return command_for(action, config, load_name, config.load_type, project.folder)
