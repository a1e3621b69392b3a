"""An integer graph as a streaming circuit."""

from __future__ import annotations

from chop.hardware.circuit import Circuit, Port
from chop.hardware.emit import DEFAULT_PARALLELISM, EmitOptions
from chop.hardware.names import legal_name
from chop.hardware.streaming.component import COMPONENTS, StreamComponent
from chop.hardware.streaming.components.reorder import ReorderComponent
from chop.hardware.streaming.modules import PLUMBING, module_text, needed_modules
from chop.hardware.streaming.plan import StreamPlan, make_plan
from chop.hardware.streaming.top import Top, write_top
from chop.integers import IntegerGraph, IntegerNode, MixedWord, QuantizeInput, Requantize
from chop.integers.ops.weighted import WeightedOp

__all__ = ["streaming_circuit"]

MAX_MEMORY_BITS = 256 << 20  # of weights; the largest FPGAs have about 500 Mbit


def streaming_circuit(
    graph: IntegerGraph,
    *,
    max_parallelism: int = DEFAULT_PARALLELISM,
    clock_period: float = EmitOptions.clock,
    top: str = "top",
) -> Circuit:
    """Return a circuit of components with handshakes: one instance per node, weights in ROMs.

    No layer has more than `max_parallelism` multipliers; with fewer, a sample takes longer.
    `clock_period` in ns is what the circuit will run with; it changes nothing in the sources.
    """
    if max_parallelism < 1:
        raise ValueError(f"max_parallelism must be at least 1, not {max_parallelism}")
    if legal_name(top) != top:
        raise ValueError(f"{top!r} is not a legal name of a module; use {legal_name(top)!r}")
    check_supported(graph)
    check_outputs(graph)
    check_memory(graph)
    plan = make_plan(graph, max_parallelism)
    inputs = tuple(_port(plan, f"data_in_{i}", name, name) for i, name in enumerate(plan.sources))
    outputs = tuple(
        _port(plan, f"data_out_{i}", name, value)
        for i, (name, value) in enumerate(zip(plan.outputs, graph.outputs, strict=True))
    )
    library = module_library()
    if top in library:
        raise ValueError(f"{top!r} is the name of a component; choose another name for the top")
    writer = Top(top, {"clk", "rst", top.lower(), *(name.lower() for name in library)})
    write_top(writer, plan, inputs, outputs)
    files = {f"{top}.sv": writer.text(inputs, outputs)}
    files |= {f"{n}.sv": text for n, text in needed_modules(writer.modules, library).items()}
    for module, memory in writer.memories.items():
        files[f"{module}.sv"] = memory.source(module)
        files[f"{module.removesuffix('_source')}_rom.dat"] = memory.data()
    layers = {
        graph.nodes[name].source: box.component.module
        for name, box in plan.boxes.items()
        if box.component.module and name in graph.nodes
    }
    return Circuit(
        top=top,
        backend="streaming",
        language="verilog",
        files=files,
        inputs=inputs,
        outputs=outputs,
        clock_period=clock_period,
        latency=plan.latency(),
        interval=plan.interval,
        layers=layers,
        notes=(*graph.notes, _summary(plan)),
    )


def _summary(plan: StreamPlan) -> str:
    total = plan.total
    return (
        f"{total.multipliers:,} multipliers, at most {plan.multipliers:,} per layer, and "
        f"{total.memory_bits / 1000:,.0f} kbit of memory"
    )


def _port(plan: StreamPlan, name: str, stream: str, value: str) -> Port:
    port = plan.streams[stream].port(name, value)
    assert port is not None
    return port


def module_library() -> dict[str, str]:
    """Return the text of every module: those of components, and what they are made of."""
    library = {name: module_text(name) for name in PLUMBING}
    components: list[type[StreamComponent]] = [ReorderComponent, *COMPONENTS.values()]
    for cls in components:
        if not cls.module:
            continue
        text = cls.template or module_text(cls.module)
        if library.setdefault(cls.module, text) != text:
            raise ValueError(
                f"two components define the module {cls.module!r}, and their texts differ; "
                f"rename that of {cls.__name__}"
            )
    return library


def check_supported(graph: IntegerGraph) -> None:
    """Refuse a graph with nodes that have no component, and name all of them."""
    found = [(node, reason) for node in graph.nodes.values() if (reason := unsupported(node))]
    if not found:
        return
    listed = ", ".join(f"{node.name!r} {reason}" for node, reason in found)
    raise ValueError(
        f"the streaming backend cannot build {listed}; use the backend 'unrolled', or register a "
        f"component (docs/add_a_component.md)"
    )


def check_outputs(graph: IntegerGraph) -> None:
    """Refuse outputs that are the same for every sample: nothing would end their streams."""
    changing: set[str] = set()
    for node in graph.nodes.values():
        if isinstance(node.op, QuantizeInput) or changing & {*node.inputs}:
            changing.add(node.name)
    if constant := [name for name in graph.outputs if name not in changing]:
        raise ValueError(
            f"the output {constant[0]!r} is the same for every sample, and a streaming circuit "
            f"sends results of samples; leave it out of the outputs"
        )


def check_memory(graph: IntegerGraph) -> None:
    """Refuse weights that no FPGA has memory for, before anything is built."""
    ops = (node.op for node in graph.nodes.values())
    bits = sum(op.weight.numel() * op.weight_width for op in ops if isinstance(op, WeightedOp))
    if bits > MAX_MEMORY_BITS:
        raise ValueError(
            f"the weights need {bits / 2**20:,.0f} Mbit of memory, and at most "
            f"{MAX_MEMORY_BITS >> 20:,} are supported; use a smaller network or fewer bits"
        )


def unsupported(node: IntegerNode) -> str | None:
    """Return why a node cannot be built, or None."""
    if isinstance(node.op, QuantizeInput | Requantize) and isinstance(node.op.word, MixedWord):
        return f"({node.op.label}) rounds to bits that differ by element"
    if isinstance(node.op, QuantizeInput):
        return None
    if type(node.op) not in COMPONENTS:
        return f"({node.op.label}) has no component"
    reason = COMPONENTS[type(node.op)].refusal(node)
    return None if reason is None else f"({node.op.label}) {reason}"
