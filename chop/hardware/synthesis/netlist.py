"""The netlist that yosys writes, as one flat list of cells."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from chop.hardware.names import legal_name

__all__ = ["Cell", "Net", "flat_cells", "layer_of"]

Net = int | str  # a number that is unique in the design, or a constant: "0", "1", "x"
Pins = Mapping[str, tuple[Net, ...]]


@dataclass(frozen=True)
class Cell:
    """A cell of the FPGA, the layer that it belongs to, and the nets at its pins."""

    kind: str
    layer: str | None
    pins: Pins
    outputs: frozenset[str]  # names of pins

    def nets(self, *pins: str) -> list[Net]:
        """Return the nets at some pins, as far as the cell has them."""
        return [net for pin in pins for net in self.pins.get(pin, ())]

    @property
    def inputs(self) -> list[Net]:
        """The nets at all inputs."""
        return self.nets(*(pin for pin in self.pins if pin not in self.outputs))


def layer_of(module: str, layers: Mapping[str, str], instance: str = "") -> str:
    """Return the layer that an instance of a module counts as: by its name, that of its module."""
    same = {
        legal_name(layer): layer for layer, name in reversed([*layers.items()]) if name == module
    }
    return same.get(instance) or same.get(module) or [*same.values()][-1]


def flat_cells(design: Mapping[str, Any], top: str, layers: Mapping[str, str]) -> list[Cell]:
    """Return the cells of all instances in yosys' JSON netlist.

    `layers` names the module of each layer. Several layers may be one instance, which counts as
    the layer with the name of the module, or as the first of them; or they share a module, and
    instances have the names of layers. Other instances belong to the layer that their name begins
    with, as `fc1_weight` does to `fc1`.
    """
    flattening = _Flattening(design["modules"], layers)
    flattening.visit(top, None, {})
    return [
        Cell(cell.kind, cell.layer, flattening.resolved(cell.pins), cell.outputs)
        for cell in flattening.cells
    ]


@dataclass
class _Flattening:
    modules: Mapping[str, Any]
    layers: Mapping[str, str]
    cells: list[Cell] = field(default_factory=list)
    aliases: dict[Net, Net] = field(default_factory=dict)  # nets that a module only passes on
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def visit(self, module: str, layer: str | None, nets: dict[Net, Net]) -> None:
        """Add the cells of a module; `nets` gives the outer nets of those at its ports."""
        for name, cell in self.modules[module]["cells"].items():
            pins: dict[str, tuple[Net, ...]] = {
                pin: tuple(self._outer(net, nets) for net in bits)
                for pin, bits in cell["connections"].items()
            }
            inner = self.modules.get(cell["type"])
            if inner is None or _is_primitive(inner):
                directions = cell.get("port_directions", {})
                outputs = frozenset(pin for pin, way in directions.items() if way != "input")
                self.cells.append(Cell(cell["type"], layer, pins, outputs))
            else:
                below = layer or self._layer(name, cell["type"], inner)
                self.visit(cell["type"], below, self._ports(inner, pins))

    def _layer(self, instance: str, module: str, content: Mapping[str, Any]) -> str | None:
        """Return the layer of an instance; yosys renames modules with parameters."""
        written = content.get("attributes", {}).get("hdlname", module).removeprefix("\\")
        if written in self.layers.values():
            return layer_of(written, self.layers, instance)
        owners = [layer for layer in self.layers if instance.startswith(f"{legal_name(layer)}_")]
        return max(owners, key=len, default=None)

    def _outer(self, net: Net, nets: dict[Net, Net]) -> Net:
        if isinstance(net, str):
            return net
        if net not in nets:
            nets[net] = next(self.numbers)
        return nets[net]

    def _ports(self, content: Mapping[str, Any], pins: Pins) -> dict[Net, Net]:
        nets: dict[Net, Net] = {}
        for name, port in content["ports"].items():
            for inner, outer in zip(port["bits"], pins.get(name, ()), strict=False):
                known = nets.setdefault(inner, outer) if isinstance(inner, int) else inner
                if known != outer:  # an output that is an input or a constant
                    source, target = (known, outer) if isinstance(outer, int) else (outer, known)
                    self.aliases[target] = source
        return nets

    def resolved(self, pins: Pins) -> Pins:
        """Return the pins with the nets that drive them."""
        return {pin: tuple(map(self._source, nets)) for pin, nets in pins.items()}

    def _source(self, net: Net) -> Net:
        while net in self.aliases:
            net = self.aliases[net]
        return net


def _is_primitive(module: Mapping[str, Any]) -> bool:
    """Return whether a module is a cell of the FPGA, of which yosys knows a model."""
    return bool({"blackbox", "whitebox"} & module.get("attributes", {}).keys())
