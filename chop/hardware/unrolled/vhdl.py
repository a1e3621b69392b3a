"""Modules as VHDL."""

from __future__ import annotations

from collections.abc import Sequence

from chop.hardware.unrolled.modules import Module, Signal
from chop.hardware.unrolled.packing import Bits

__all__ = ["module_text"]

LIBRARIES = "library ieee;\nuse ieee.std_logic_1164.all;\n"


def module_text(module: Module) -> str:
    """Return the text of an entity and its architecture."""
    signals = module.signals
    ports = [f"        {s.name} : in {_type(s)}" for s in module.inputs]
    ports += [f"        {s.name} : out {_type(s)}" for s in module.outputs]
    inner = [*module.wires, *(signal for signal, _ in module.registers)]
    lines = [
        LIBRARIES,
        f"entity {module.name} is",
        "    port (",
        ";\n".join(ports),
        "    );",
        f"end entity {module.name};",
        "",
        f"architecture rtl of {module.name} is",
        *(f"    signal {s.name} : {_type(s)};" for s in inner),
        "begin",
    ]
    for target, parts in module.assigns:
        bit = signals[target].scalar
        lines.append(f"    {target} <= {_joined(parts, signals, bit=bit)};")
    for target, sources in module.conjunctions:
        lines.append(f"    {target} <= {' and '.join(sources)};")
    for name, instance, connected in module.instances:
        pairs = ", ".join(f"{port} => {signal}" for port, signal in connected.items())
        lines.append(f"    {instance} : entity work.{name} port map ({pairs});")
    lines += _clocked(module, signals)
    return "\n".join([*lines, "end architecture rtl;", ""])


def _type(signal: Signal) -> str:
    return "std_logic" if signal.scalar else f"std_logic_vector({signal.bits - 1} downto 0)"


def _clocked(module: Module, signals: dict[str, Signal]) -> list[str]:
    if not module.registers:
        return []
    lines = ["    process (clk)", "    begin", "        if rising_edge(clk) then"]
    for signal, parts in module.registers:
        taken = f"{signal.name} <= {_joined(parts, signals)};"
        if signal.name in module.resets:
            lines += [
                "            if rst = '1' then",
                f"                {signal.name} <= (others => '0');",
                "            else",
                f"                {taken}",
                "            end if;",
            ]
        else:
            lines.append(f"            {taken}")
    return [*lines, "        end if;", "    end process;"]


def _joined(parts: Sequence[Bits], signals: dict[str, Signal], *, bit: bool = False) -> str:
    """Return a concatenation, the highest bits first; or one bit that is not a vector."""
    return " & ".join(_slice(part, signals, bit=bit) for part in reversed(parts))


def _slice(bits: Bits, signals: dict[str, Signal], *, bit: bool) -> str:
    if bits.signal is None:
        return f'"{bits.start:0{bits.width}b}"'
    signal = signals[bits.signal]
    if signal.scalar:
        return signal.name
    if bits.repeated:
        return f"({bits.width - 1} downto 0 => {signal.name}({bits.start}))"
    if bit:
        return f"{signal.name}({bits.start})"
    if bits.width == signal.bits:
        return signal.name
    return f"{signal.name}({bits.start + bits.width - 1} downto {bits.start})"
