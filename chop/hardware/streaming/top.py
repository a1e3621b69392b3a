"""The text of top.sv: one instance per component, and the streams between them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from chop.hardware.circuit import Port
from chop.hardware.names import legal_name
from chop.hardware.streaming.component import Long, Natural
from chop.hardware.streaming.memory import Memory, address_bits
from chop.hardware.streaming.plan import PlannedComponent, StreamPlan

__all__ = ["Top", "write_top"]

ENDS = ("", "_valid", "_ready")


@dataclass(eq=False)
class Top:
    """The text of the top module while it is written, and what it instantiates."""

    name: str
    taken: set[str]
    declarations: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    modules: set[str] = field(default_factory=set)
    memories: dict[str, Memory] = field(default_factory=dict)  # module -> contents
    instances: dict[str, str] = field(default_factory=dict)  # box -> instance

    def fresh(self, name: str, ends: Collection[str]) -> str:
        """Return a legal name that is free together with all of its ends."""
        base, number = legal_name(name), 0
        new = base
        while any(f"{new}{end}".lower() in self.taken for end in ends) or legal_name(new) != new:
            number += 1
            new = f"{base}_{number}"
        self.taken |= {f"{new}{end}".lower() for end in ends}
        return new

    def stream(self, name: str, bits: int) -> str:
        """Declare the signals of a stream."""
        self.declarations += [
            f"    logic [{bits - 1}:0] {name};",
            f"    logic {name}_valid;",
            f"    logic {name}_ready;",
        ]
        return name

    def instance(
        self, module: str, name: str, parameters: dict[str, int], ports: Iterable[str]
    ) -> None:
        """Add an instance of a module."""
        self.modules.add(module)
        values = ",\n".join(
            f"        .{key}({literal(value)})" for key, value in parameters.items()
        )
        wires = ",\n".join(f"        {line}" for line in (".clk(clk), .rst(rst)", *ports))
        self.body.append(f"    {module} #(\n{values}\n    ) {name} (\n{wires}\n    );\n")

    def text(self, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> str:
        """Return the text of the module."""
        ports = ["    input  logic clk", "    input  logic rst"]
        for direction, back, group in (("input ", "output", inputs), ("output", "input ", outputs)):
            for port in group:
                ports += [
                    f"    {direction} logic [{port.bits - 1}:0] {port.name}",
                    f"    {direction} logic {port.name}_valid",
                    f"    {back} logic {port.name}_ready",
                ]
        parts = [",\n".join(ports), "\n".join(self.declarations), "\n".join(self.body)]
        return "module {} (\n{}\n);\n{}\n\n{}endmodule\n".format(self.name, *parts)


def literal(value: int) -> str:
    """Return a number as Verilog reads it.

    >>> literal(-3), literal(Long(-3))
    ('-3', "-64'sd3")
    """
    if isinstance(value, Natural):
        return f"128'd{value}"
    if not isinstance(value, Long):
        return str(value)
    return f"{'-' if value < 0 else ''}64'sd{abs(value)}"


def wires(port: str, signal: str) -> str:
    """Return the connection of a stream to the port of an instance."""
    return ", ".join(f".{port}{end}({signal}{end})" for end in ENDS)


def write_top(
    top: Top, plan: StreamPlan, inputs: tuple[Port, ...], outputs: tuple[Port, ...]
) -> None:
    """Write the instances of all components into `top`."""
    for port in (*inputs, *outputs):
        top.taken |= {f"{port.name}{end}" for end in ENDS}
    signals = {port.value: port.name for port in inputs}
    queues = plan.queues()
    received: dict[tuple[str, int], str] = {}  # box and input -> signal
    for name, users in plan.consumers().items():
        if name in plan.boxes:
            given = [received[name, i] for i in range(len(plan.boxes[name].inputs))]
            signals[name] = _box(top, plan.boxes[name], given)
        bits = plan.streams[name].bits
        sent = _forked(top, name, signals[name], bits, len(users))
        for user, signal in zip(users, sent, strict=True):
            box, index = user
            if not box:
                top.body.append(_to_output(outputs[index].name, signal))
                continue
            depth = queues.get(user)
            queued = depth and _queue(top, f"{box}_queue_{index}", signal, bits, depth)
            received[user] = queued or signal


def _to_output(port: str, signal: str) -> str:
    return (
        f"    assign {port} = {signal};\n"
        f"    assign {port}_valid = {signal}_valid;\n"
        f"    assign {signal}_ready = {port}_ready;\n"
    )


def _box(top: Top, box: PlannedComponent, given: list[str]) -> str:
    """Write the instances of a component and return the signal of its result."""
    component = box.component
    stages = component.stages()
    names = [memory.name for stage in stages for memory in stage.memories]
    ends = ["", *(f"_out{end}" for end in ENDS), *(stage.suffix for stage in stages)]
    ends += [f"{stage.suffix}_out{end}" for stage in stages for end in ENDS]
    ends += [f"_{n}{end}" for n in names for end in ("", "_enable", "_address", "_data", "_source")]
    base = top.instances[box.name] = top.fresh(box.name, ends)
    for stage in stages:
        name = f"{base}{stage.suffix}"
        bits = component.output.bits if stage.bits is None else stage.bits
        result = top.stream(f"{name}_out", bits)
        ports = [wires(f"data_in_{i}", signal) for i, signal in enumerate(given)]
        ports += [_memory(top, base, memory) for memory in stage.memories]
        ports += [
            _absent(top, base, absent, stage.parameters[f"{absent.upper()}_ADDRESS"])
            for absent in stage.without
        ]
        top.instance(
            stage.module, name, dict(stage.parameters), [*ports, wires("data_out_0", result)]
        )
        given = [result]
    return given[0]


def _memory(top: Top, base: str, memory: Memory) -> str:
    """Write the memory of a component and return its connection."""
    name = f"{base}_{memory.name}"
    top.declarations += [
        f"    logic {name}_enable;",
        f"    logic [{memory.ports * memory.address_bits - 1}:0] {name}_address;",
        f"    logic [{memory.ports * memory.word_bits - 1}:0] {name}_data;",
    ]
    top.memories[f"{name}_source"] = memory
    top.body.append(
        f"    {name}_source {name} (\n"
        f"        .clk(clk), .enable({name}_enable),\n"
        f"        .address({name}_address), .data({name}_data)\n"
        f"    );\n"
    )
    port = memory.name
    return f".{port}_enable({name}_enable), .{port}_address({name}_address), .{port}({name}_data)"


def _absent(top: Top, base: str, name: str, address_width: int) -> str:
    """Return the connection of a memory that a component does without."""
    unused = top.fresh(f"unused_{base}_{name}", ["_enable", "_address"])
    top.declarations += [
        f"    logic {unused}_enable;",
        f"    logic [{address_width - 1}:0] {unused}_address;",
    ]
    return f".{name}_enable({unused}_enable), .{name}_address({unused}_address), .{name}('0)"


def _forked(top: Top, name: str, signal: str, bits: int, count: int) -> list[str]:
    """Return one signal per receiver of a stream."""
    if count == 0:
        unused = top.fresh(f"unused_{name}", [""])
        top.declarations.append(f"    logic {unused};")
        top.body.append(
            f"    assign {unused} = &{{{signal}, {signal}_valid}};\n"
            f"    assign {signal}_ready = 1'b1;\n"
        )
        return []
    if count == 1:
        return [signal]
    numbers = range(count)
    ends = ["", *(f"_{i}{end}" for i in numbers for end in ENDS)]
    fork = top.fresh(f"{name}_fork", ends)
    sent = [top.stream(f"{fork}_{i}", bits) for i in numbers]
    buses = (", ".join(f"{one}{end}" for one in reversed(sent)) for end in ENDS)
    together = [f".data_out_0{end}({{{bus}}})" for end, bus in zip(ENDS, buses, strict=True)]
    ports = [wires("data_in_0", signal), *together]
    top.instance("stream_fork", fork, {"WIDTH": bits, "COUNT": count}, ports)
    return sent


def _queue(top: Top, name: str, signal: str, bits: int, depth: int) -> str:
    """Write a queue and return the signal of its result."""
    queue = top.fresh(name, ["", *(f"_out{end}" for end in ENDS)])
    result = top.stream(f"{queue}_out", bits)
    parameters = {"WIDTH": bits, "DEPTH": depth, "ADDRESS_WIDTH": address_bits(depth)}
    ports = [wires("data_in_0", signal), wires("data_out_0", result)]
    top.instance("stream_fifo", queue, parameters, ports)
    return result
