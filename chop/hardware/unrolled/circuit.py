"""From an integer graph to a fully unrolled, pipelined circuit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import get_args

from tqdm import tqdm

from chop.hardware.circuit import Circuit, Language, Port
from chop.hardware.emit import EmitOptions
from chop.hardware.names import legal_name
from chop.hardware.unrolled import symbols
from chop.hardware.unrolled.layers import Layer, layers_of
from chop.hardware.unrolled.limits import adder_estimate, check_limits
from chop.hardware.unrolled.logic import layer_logic
from chop.hardware.unrolled.modules import LayerModule, layer_module, top_module
from chop.hardware.unrolled.progress import on_adders
from chop.hardware.unrolled.sources import SHARED, source_files
from chop.integers import IntegerGraph
from chop.integers.codes import bits_for
from chop.integers.ops.requantize import QuantizeInput

__all__ = ["unrolled_circuit"]

ROUNDING = 1e-6  # ns, of sums of delays


def unrolled_circuit(
    graph: IntegerGraph,
    *,
    clock_period: float = EmitOptions.clock,
    language: Language = "verilog",
    top: str = "top",
    max_adders: int = EmitOptions.max_adders,
    progress: bool = True,
) -> Circuit:
    """Return the circuit that takes a sample and returns a result with every clock.

    Every addition of the network is an adder of its own. Registers stand after each layer, and
    within a layer wherever the delay would exceed `clock_period` ns. Networks of more than about
    `max_adders` adders are refused. With `progress`, a bar on a terminal shows the layers.
    """
    _check_options(clock_period, language, top)
    layers = layers_of(graph)
    check_limits(graph, layers, max_adders)
    symbols.need_alkaid()
    taken = [top, *SHARED]
    made: list[tuple[Layer, LayerModule]] = []
    notes = list(graph.notes)
    for layer, shows in _shown(graph, layers, progress):
        name = legal_name(layer.name, taken)
        with on_adders(shows):
            logic = layer_logic(graph, layer)
        part = layer_module(graph, layer, logic, name, clock_period)
        if (longest := logic.schedule(clock_period).longest) > clock_period + ROUNDING:
            notes.append(
                f"{layer.name} has an operation of about {longest:.3g} ns, which does not fit into "
                f"a clock period of {clock_period:g} ns; use a longer period"
            )
        made.append((layer, part))
        taken += [name, *part.stages]
    inputs = _ports(graph, "data_in", _input_values(graph))
    outputs = _ports(graph, "data_out", graph.outputs)
    module, latency = top_module(graph, top, made, inputs, outputs)
    return Circuit(
        top,
        "unrolled",
        language,
        source_files(module, [part for _, part in made], language),
        inputs,
        outputs,
        clock_period,
        latency,
        layers=_modules(graph, made),
        notes=tuple(notes),
    )


def _shown(
    graph: IntegerGraph, layers: Sequence[Layer], progress: bool
) -> Iterator[tuple[Layer, Callable[[int], None]]]:
    """Yield the layers behind a progress bar, each with a function that adds adders to it."""
    counts = [adder_estimate(graph, layer) for layer in layers]
    hidden = None if progress else True  # None: unless it is a terminal
    total = sum(counts)
    with tqdm(total=total, desc="Emitting", unit=" adders", unit_scale=True, disable=hidden) as bar:
        ends = accumulate(counts)
        for number, (layer, end) in enumerate(zip(layers, ends, strict=True), 1):

            def add(adders: int, end: int = end) -> None:
                bar.update(min(adders, end - bar.n))

            bar.set_postfix_str(f"{layer.name}, layer {number} of {len(layers)}")
            yield layer, add
            add(total)


def _check_options(clock_period: float, language: str, top: str) -> None:
    if not clock_period > 0:
        raise ValueError(f"clock_period is a time in ns above 0, not {clock_period}")
    if language not in get_args(Language):
        names = " or ".join(get_args(Language))
        raise ValueError(f"the language of a circuit is {names}, not {language!r}")
    if legal_name(top, SHARED) != top:
        raise ValueError(
            f"top is the name of a module that Verilog and VHDL accept, not {top!r}; use "
            f"{legal_name(top, SHARED)!r}"
        )


def _input_values(graph: IntegerGraph) -> list[str]:
    return [name for name in graph.nodes if _is_input(graph, name)]


def _ports(graph: IntegerGraph, kind: str, values: Sequence[str]) -> tuple[Port, ...]:
    ports = []
    for number, value in enumerate(values):
        codes = graph.codes(value)
        width = bits_for(codes.lowest, codes.highest)
        lanes = codes.bounds()[0].numel()
        signed = codes.lowest < 0
        ports.append(Port(f"{kind}_{number}", value, codes.shape, width, signed, lanes))
    return tuple(ports)


def _modules(graph: IntegerGraph, made: Sequence[tuple[Layer, LayerModule]]) -> dict[str, str]:
    """Return the module of each node of the model: the one in which its value is computed."""
    homes = {node.name: part.module.name for layer, part in made for node in layer.nodes}
    for name, node in reversed(graph.nodes.items()):
        for before in node.inputs:  # a node that was fused with this one has no place of its own
            if name in homes and before in graph.nodes and not _is_input(graph, before):
                homes.setdefault(before, homes[name])
    return {n.source: homes[name] for name, n in graph.nodes.items() if name in homes}


def _is_input(graph: IntegerGraph, name: str) -> bool:
    return isinstance(graph.nodes[name].op, QuantizeInput)
