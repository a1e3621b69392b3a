"""Modules as SystemVerilog."""

from __future__ import annotations

from collections.abc import Sequence

from chop.hardware.unrolled.modules import Module, Signal
from chop.hardware.unrolled.packing import Bits

__all__ = ["module_text"]

TIMESCALE = "`timescale 1ns / 1ps\n"


def module_text(module: Module) -> str:
    """Return the text of a module."""
    signals = module.signals
    ports = [f"    output wire {_declared(s)}" for s in module.outputs]
    ports = [f"    input wire {_declared(s)}" for s in module.inputs] + ports
    lines = [
        "// bits that no result depends on are left unused",
        "// verilator lint_off UNUSEDSIGNAL",
        f"module {module.name} (",
        ",\n".join(ports),
        ");",
        *(f"    wire {_declared(s)};" for s in module.wires),
        "    // verilator lint_on UNUSEDSIGNAL",
        *(f"    reg {_declared(s)};" for s, _ in module.registers),
    ]
    for target, parts in module.assigns:
        lines.append(f"    assign {target} = {_joined(parts, signals)};")
    for target, sources in module.conjunctions:
        lines.append(f"    assign {target} = {' & '.join(sources)};")
    for name, instance, connected in module.instances:
        pairs = ", ".join(f".{port}({signal})" for port, signal in connected.items())
        lines.append(f"    {name} {instance} ({pairs});")
    lines += _clocked(module, signals)
    return "\n".join([*lines, "endmodule", ""])


def _declared(signal: Signal) -> str:
    return signal.name if signal.scalar else f"[{signal.bits - 1}:0] {signal.name}"


def _clocked(module: Module, signals: dict[str, Signal]) -> list[str]:
    if not module.registers:
        return []
    lines = ["    always @(posedge clk) begin"]
    for signal, parts in module.registers:
        taken = f"{signal.name} <= {_joined(parts, signals)};"
        if signal.name in module.resets:
            lines.append(f"        if (rst) {signal.name} <= {signal.bits}'d0;")
            lines.append(f"        else {taken}")
        else:
            lines.append(f"        {taken}")
    return [*lines, "    end"]


def _joined(parts: Sequence[Bits], signals: dict[str, Signal]) -> str:
    """Return a concatenation; the highest bits come first."""
    texts = [_slice(part, signals) for part in reversed(parts)]
    return texts[0] if len(texts) == 1 else "{" + ", ".join(texts) + "}"


def _slice(bits: Bits, signals: dict[str, Signal]) -> str:
    if bits.signal is None:
        return f"{bits.width}'h{bits.start:x}"
    signal = signals[bits.signal]
    if signal.scalar:
        return signal.name
    if bits.repeated:
        return f"{{{bits.width}{{{signal.name}[{bits.start}]}}}}"
    if bits.width == signal.bits:
        return signal.name
    if bits.width == 1:
        return f"{signal.name}[{bits.start}]"
    return f"{signal.name}[{bits.start + bits.width - 1}:{bits.start}]"
