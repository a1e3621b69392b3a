"""Modules that connect logic: layers made of stages, and the top made of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chop.hardware.circuit import Port
from chop.hardware.names import legal_name
from chop.hardware.unrolled.layers import Layer
from chop.hardware.unrolled.logic import LayerLogic
from chop.hardware.unrolled.packing import Bits, Field, Packing, merged, resized
from chop.hardware.unrolled.stages import Logic
from chop.integers import IntegerGraph

__all__ = ["LayerModule", "Module", "Signal", "layer_module", "top_module"]


@dataclass(frozen=True)
class Signal:
    """A vector of bits, or one bit that is not a vector."""

    name: str
    bits: int
    scalar: bool = False


@dataclass
class Module:
    """A module that only has wires, registers and instances of other modules."""

    name: str
    inputs: list[Signal] = field(default_factory=list)
    outputs: list[Signal] = field(default_factory=list)
    wires: list[Signal] = field(default_factory=list)
    assigns: list[tuple[str, list[Bits]]] = field(default_factory=list)
    conjunctions: list[tuple[str, list[str]]] = field(default_factory=list)
    registers: list[tuple[Signal, list[Bits]]] = field(default_factory=list)
    resets: set[str] = field(default_factory=set)  # registers that `rst` clears
    instances: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    taken: set[str] = field(default_factory=lambda: {"clk", "rst"})

    def named(self, text: str) -> str:
        """Return a legal name like `text` that nothing else in the module has."""
        name = legal_name(text, {*self.taken, self.name})
        self.taken.add(name)
        return name

    def wire(self, name: str, bits: int, parts: Sequence[Bits] | None = None) -> str:
        """Add a wire, with the bits that drive it if no instance does; return its name."""
        name = self.named(name)
        self.wires.append(Signal(name, bits))
        if parts is not None:
            self.assigns.append((name, merged(parts)))
        return name

    def register(self, name: str, bits: int, parts: Sequence[Bits]) -> str:
        """Add a register that takes the bits with every clock; return its name."""
        name = self.named(name)
        self.registers.append((Signal(name, bits), merged(parts)))
        return name

    @property
    def signals(self) -> dict[str, Signal]:
        """All signals by name."""
        registers = [signal for signal, _ in self.registers]
        return {s.name: s for s in (*self.inputs, *self.outputs, *self.wires, *registers)}


def whole(name: str, bits: int) -> list[Bits]:
    """Return all bits of a signal."""
    return [Bits(name, 0, bits)]


@dataclass(frozen=True)
class LayerModule:
    """The module of a layer, its stages, and the names of its ports."""

    module: Module
    stages: Mapping[str, Logic]
    ports: Mapping[str, str]  # value of the integer graph -> port
    latency: int


def layer_module(
    graph: IntegerGraph, layer: Layer, logic: LayerLogic, name: str, period: float
) -> LayerModule:
    """Return the module of a layer: its stages of logic, with a register after each."""
    module = Module(name)
    ports = {value: module.named(value) for value in (*layer.inputs, *layer.outputs)}
    packings = {value: Packing.of(graph.codes(value)) for value in ports}
    latency = logic.latency(period)
    if latency:
        module.inputs.append(Signal("clk", 1, scalar=True))
    for value in layer.inputs:
        if packings[value].bits:
            module.inputs.append(Signal(ports[value], packings[value].bits))
    row = [
        (Bits(ports[value], start, f.width), f)
        for value in layer.inputs
        for start, f in zip(packings[value].starts(), packings[value].fields, strict=True)
    ]
    made = {}
    for number, stage in enumerate(logic.stages(period)):
        stage_name = module.named(f"{name}_stage_{number}")
        made[stage_name] = stage
        row = _add_stage(module, stage, stage_name, number, row, registered=latency > 0)
    _add_outputs(module, layer, logic, packings, ports, row)
    return LayerModule(module, made, ports, latency)


Row = list[tuple[Bits, Field]]


def _add_stage(
    module: Module, stage: Logic, name: str, number: int, row: Row, *, registered: bool
) -> Row:
    """Add one stage that takes the numbers of `row`, and return the numbers that it gives."""
    taken, given = Packing.into(stage), Packing.out_of(stage)
    pieces = [
        piece
        for (bits, kind), to in zip(row, taken.fields, strict=True)
        for piece in resized(bits, kind, to)
    ]
    source = module.wire(f"taken_{number}", taken.bits, pieces)
    result = module.wire(f"given_{number}", given.bits)
    instance = module.named(f"stage_{number}")
    module.instances.append((name, instance, {"model_inp": source, "model_out": result}))
    if registered:
        result = module.register(f"kept_{number}", given.bits, whole(result, given.bits))
    return [
        (Bits(result, start, kind.width), kind)
        for start, kind in zip(given.starts(), given.fields, strict=True)
    ]


def _add_outputs(
    module: Module,
    layer: Layer,
    logic: LayerLogic,
    packings: Mapping[str, Packing],
    ports: Mapping[str, str],
    row: Row,
) -> None:
    """Add the ports of results, in as few bits as their bounds need."""
    varying = iter(row)
    place = 0
    for value in layer.outputs:
        packing = packings[value]
        pieces: list[Bits] = []
        for to in packing.fields:
            if place in logic.constants:
                pieces += _literal(logic.constants[place], to.width)
            else:
                pieces += resized(*next(varying), to)
            place += 1
        if packing.bits:
            module.outputs.append(Signal(ports[value], packing.bits))
            module.assigns.append((ports[value], merged(pieces)))


def _literal(value: int, width: int) -> list[Bits]:
    return [Bits(None, value & ((1 << width) - 1), width)] if width else []


def top_module(
    graph: IntegerGraph,
    name: str,
    layers: Sequence[tuple[Layer, LayerModule]],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
) -> tuple[Module, int]:
    """Return the module that chains all layers, and its latency in clock cycles.

    A value that a layer takes later than it is there waits in registers.
    """
    top = _Top(graph, Module(name))
    top.add_ports(inputs, outputs)
    for layer, made in layers:
        top.add_layer(layer, made)
    return top.module, top.add_outputs(inputs, outputs)


class _Top:
    """A top module that grows layer by layer."""

    def __init__(self, graph: IntegerGraph, module: Module) -> None:
        self.graph, self.module = graph, module
        self.kept: dict[tuple[str, int], str] = {}  # value and cycle -> signal
        self.cycle: dict[str, int] = {}  # when a value is there first
        self.packings: dict[str, Packing] = {}

    def add_ports(self, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
        """Declare the ports, whose names are fixed, before anything else takes a name."""
        module = self.module
        module.inputs += [Signal(n, 1, scalar=True) for n in ("clk", "rst")]
        for ports, side in ((inputs, module.inputs), (outputs, module.outputs)):
            for port in ports:
                valid = f"{port.name}_valid"
                side += [Signal(port.name, port.bits), Signal(valid, 1, scalar=True)]
                module.taken |= {port.name, valid}
        for port in inputs:
            self._define(port.value, 0, self._narrowed(port))

    def _narrowed(self, port: Port) -> str:
        """Return the signal of an input in which each number has as few bits as it needs."""
        packing = Packing.of(self.graph.codes(port.value))
        lane = Field(port.signed, port.width)
        if all(field.width == port.width for field in packing.fields) or not packing.bits:
            return port.name
        starts = range(0, len(packing.fields) * port.width, port.width)
        pieces = [
            piece
            for start, field in zip(starts, packing.fields, strict=True)
            for piece in resized(Bits(port.name, start, port.width), lane, field)
        ]
        return self.module.wire(f"{port.value}_narrowed", packing.bits, pieces)

    def _define(self, value: str, cycle: int, signal: str) -> None:
        self.packings[value] = Packing.of(self.graph.codes(value))
        self.cycle[value] = cycle
        self.kept[value, cycle] = signal

    def at(self, value: str, cycle: int) -> str:
        """Return the signal of a value in a later cycle, with registers in between."""
        if (value, cycle) in self.kept:
            return self.kept[value, cycle]
        before = self.at(value, cycle - 1)
        bits = self.packings[value].bits
        name = f"{value}_after_{cycle}"
        self.kept[value, cycle] = self.module.register(name, bits, whole(before, bits))
        return self.kept[value, cycle]

    def add_layer(self, layer: Layer, made: LayerModule) -> None:
        start = max((self.cycle[value] for value in layer.inputs), default=0)
        connected = {"clk": "clk"} if made.latency else {}
        declared = made.module.signals
        for value in layer.inputs:
            if made.ports[value] in declared:
                connected[made.ports[value]] = self.at(value, start)
        for value in layer.outputs:
            bits = Packing.of(self.graph.codes(value)).bits
            name = self.module.wire(value, bits) if bits else ""
            self._define(value, start + made.latency, name)
            if bits:
                connected[made.ports[value]] = name
        instance = self.module.named(f"{made.module.name}_layer")
        if made.module.outputs:
            self.module.instances.append((made.module.name, instance, connected))

    def add_outputs(self, inputs: Sequence[Port], outputs: Sequence[Port]) -> int:
        """Add the output ports and the valid bits; return the latency."""
        module = self.module
        # at least one register between the ports
        latency = max(1, *(self.cycle[port.value] for port in outputs))
        for port in outputs:
            module.assigns.append((port.name, merged(self._result(port, latency))))
        start = module.named("start")
        module.wires.append(Signal(start, 1, scalar=True))
        module.conjunctions.append((start, [f"{port.name}_valid" for port in inputs]))
        valid = module.register("valid", latency, [])
        chain = [Bits(start, 0, 1), *([Bits(valid, 0, latency - 1)] if latency > 1 else [])]
        module.registers[-1][1].extend(chain)
        module.resets.add(valid)
        for port in outputs:
            module.assigns.append((f"{port.name}_valid", [Bits(valid, latency - 1, 1)]))
        return latency

    def _result(self, port: Port, latency: int) -> list[Bits]:
        packing = self.packings[port.value]
        fixed = self.graph.codes(port.value).bounds()[0].flatten().tolist()
        source = self.at(port.value, latency) if packing.bits else ""
        to = Field(port.signed, port.width)
        pieces: list[Bits] = []
        rows = zip(packing.starts(), packing.fields, fixed, strict=True)
        for start, kind, value in rows:
            if kind.width:
                pieces += resized(Bits(source, start, kind.width), kind, to)
            else:
                pieces += _literal(value, to.width)
        return pieces
