"""Placement: the device that fits, registers at the ports, a clock rate; nextpnr is a stand-in."""

import json

import pytest

from chop.hardware.synthesis import Resources, synthesize_circuit
from chop.hardware.synthesis.place import place_netlist
from chop.hardware.synthesis.programs import find_nextpnr
from chop.hardware.tools import ToolError

from .netlists import cell

SMALL = Resources(luts=1)
REPORT = {
    "fmax": {"clk": {"achieved": 122.534, "constraint": 200.0}},
    "utilization": {
        "TRELLIS_FF": {"used": 3, "available": 24288},
        "DP16KD": {"used": 0, "available": 56},
    },
}


def bits(*nets, way="input"):
    return {"direction": way, "bits": list(nets)}


def module():
    """A register from `a` to `y`."""
    return {
        "ports": {"clk": bits(2), "a": bits(3), "y": bits(4, "0", way="output")},
        "netnames": {"unused": {"bits": [9]}},
        "cells": {"f": cell("TRELLIS_FF", "Q", CLK=[2], DI=[3], Q=[4])},
    }


@pytest.fixture
def placed(fake_yosys, tmp_path):
    """Return a function that places a netlist and gives the result, and what nextpnr read."""

    def place(needed=SMALL, report=REPORT):
        (tmp_path / "report").write_text(json.dumps(report))
        kept = tmp_path / "kept"
        does = f"cp registered.json '{kept}'; cp '{tmp_path / 'report'}' place.json; echo $@"
        fake_yosys(does, name="nextpnr-ecp5")
        netlist = tmp_path / "netlist.json"
        netlist.write_text(json.dumps({"modules": {"top": module()}}))
        log = tmp_path / "place.log"
        result = place_netlist(find_nextpnr(), netlist, "top", needed, 200.0, log, 60)
        return result, json.loads(kept.read_text())["modules"]["top"], log.read_text()

    return place


def test_a_placed_circuit_has_a_clock_rate(placed):
    result, _, printed = placed()
    assert (result.clock_mhz, result.device) == (122.53, "LFE5U-25F")
    assert result.utilization == {"TRELLIS_FF": (3, 24288)}
    assert "--freq 200 --out-of-context" in printed


def test_every_bit_of_a_port_gets_a_register_of_its_own(placed):
    _, top, _ = placed()
    ports = {name: port["bits"] for name, port in top["ports"].items()}
    assert ports == {"clk": [2], "a": [10], "y": [11, 12]}
    ends = {
        name: (row["connections"]["DI"], row["connections"]["Q"], row["connections"]["CLK"])
        for name, row in top["cells"].items()
    }
    assert ends == {
        "f": ([3], [4], [2]),
        "a_register_0": ([10], [3], [2]),
        "y_register_0": ([4], [11], [2]),
        "y_register_1": (["0"], [12], [2]),
    }


@pytest.mark.parametrize(
    ("needed", "device"),
    [
        (Resources(luts=19_000), "LFE5U-25F"),
        (Resources(luts=20_000), "LFE5U-45F"),
        (Resources(ffs=60_000), "LFE5U-85F"),
        (Resources(dsps=29), "LFE5U-45F"),
        (Resources(brams=109), "LFE5U-85F"),
    ],
)
def test_the_smallest_device_that_fits_is_chosen(placed, needed, device):
    assert placed(needed)[0].device == device


def test_a_circuit_that_no_device_holds_is_refused(placed):
    with pytest.raises(ValueError, match=r"has 70,000 LUTs, .*, which no ECP5 holds; emit a sma"):
        placed(Resources(luts=70_000))


def test_without_a_path_between_registers_there_is_no_clock_rate(placed):
    with pytest.raises(ToolError, match="no path between registers, so there is no clock rate"):
        placed(report={**REPORT, "fmax": {}})


def test_a_circuit_is_placed_after_its_synthesis_and_kept(adder, fake_yosys, tmp_path):
    (tmp_path / "report").write_text(json.dumps(REPORT))
    fake_yosys()
    runs = fake_yosys(f"cp '{tmp_path / 'report'}' place.json", name="nextpnr-ecp5")
    options = {"folder": tmp_path / "synth", "target": "ecp5", "place": True}
    first = synthesize_circuit(adder, **options)
    assert first.placement is not None
    assert first.placement.tool == "nextpnr-ecp5 0.99"
    assert synthesize_circuit(adder, **options) == first
    assert len(runs.read_text().split()) == 2  # both tools once
