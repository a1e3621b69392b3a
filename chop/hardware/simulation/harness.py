"""The C++ that drives a circuit: `harness.cpp`, and a header with the circuit's ports."""

from __future__ import annotations

from pathlib import Path

from chop.hardware.circuit import Circuit, Port

__all__ = ["HARNESS", "PORTS_HEADER", "ports_header"]

HARNESS = Path(__file__).with_name("harness.cpp")
PORTS_HEADER = "ports.h"


def ports_header(circuit: Circuit) -> str:
    """Return the header that tells the harness which ports the circuit has."""
    inputs = "\n".join(_input(port, circuit.handshakes) for port in circuit.inputs)
    outputs = "\n".join(_output(port, circuit.handshakes) for port in circuit.outputs)
    return f"""\
constexpr bool HANDSHAKES = {str(circuit.handshakes).lower()};
const Input INPUTS[] = {{
{inputs}
}};
const Output OUTPUTS[] = {{
{outputs}
}};
"""


def _input(port: Port, handshakes: bool) -> str:
    name = port.name
    ready = f"top.{name}_ready != 0" if handshakes else "true"
    return f"""\
    {{{port.beats}, {port.words},
     [](Top& top, const uint32_t* words) {{ put<{port.words}>(top.{name}, words); }},
     [](Top& top, bool is_valid) {{ top.{name}_valid = is_valid; }},
     [](const Top& top) {{ (void)top; return {ready}; }}}},"""


def _output(port: Port, handshakes: bool) -> str:
    name = port.name
    ready = f"top.{name}_ready = is_ready;" if handshakes else "(void)top; (void)is_ready;"
    return f"""\
    {{{port.beats}, {port.words},
     [](const Top& top, uint32_t* words) {{ get<{port.words}>(top.{name}, words); }},
     [](const Top& top) {{ return top.{name}_valid != 0; }},
     [](Top& top, bool is_ready) {{ {ready} }}}},"""
