"""Tables and files of a synthesis."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from chop.hardware.synthesis import Resources, Synthesis
from chop.hardware.synthesis.resources import Placement
from chop.hardware.synthesis.show import (
    clock_warning,
    comparison_table,
    layer_table,
    write_synthesis,
)
from chop.hardware.synthesis.vendors import read_report

from .netlists import circuit

REPORTS = Path(__file__).parent / "reports"
LAYERS = {
    "fc1": Resources(luts=1599, packed_luts=523, ffs=268, carries=156, depth=8),
    "fc2": Resources(luts=202, packed_luts=185, ffs=123, carries=60, brams=0.5, depth=7),
}
OTHER = Resources(ffs=5)
SYNTHESIS = Synthesis(
    **vars(Resources.total([*LAYERS.values(), OTHER])),
    target="xilinx",
    digest="0",
    tool="yosys 0.70",
    seconds=1.0,
    layers=LAYERS,
    other=OTHER,
)
CIRCUIT = circuit({"top.sv": ""}, layers={"fc1": "fc1", "relu": "fc1", "fc2": "fc2"})


def test_the_table_says_where_the_luts_are():
    assert layer_table(SYNTHESIS) == (
        "Layer               LUT    Packed    Share    FF    Carry    DSP    BRAM    Depth\n"
        "----------------  -----  --------  -------  ----  -------  -----  ------  -------\n"
        "fc1               1,599       523    73.9%   268      156      0       0        8\n"
        "fc2                 202       185    26.1%   123       60      0     0.5        7\n"
        "(between layers)      0         0     0.0%     5        0      0       0        0\n"
        "total             1,801       708   100.0%   396      216      0     0.5        8"
    )


def test_a_circuit_without_logic_has_a_table():
    empty = replace(SYNTHESIS, luts=0, packed_luts=0, layers={}, other=Resources())
    assert layer_table(empty).splitlines()[-1].split()[:4] == ["total", "0", "0", "0.0%"]


def test_vendors_counts_stand_beside_ours():
    report = read_report(REPORTS / "vivado_hierarchy.rpt")
    timing = read_report(REPORTS / "vivado_timing.rpt")
    rows = comparison_table(SYNTHESIS, CIRCUIT, [report.with_more(timing)]).splitlines()
    cells = {row[:13].strip(): row[13:].split() for row in rows[2:]}
    assert cells["LUT, packed"] == ["708", "718"]
    assert cells["LUT, raw"] == ["1,801"]
    assert cells["LUT of fc1"] == ["523", "530"]
    assert cells["Clock (MHz)"] == ["250"]


def test_the_unit_of_another_chip_is_told():
    rows = comparison_table(SYNTHESIS, CIRCUIT, [read_report(REPORTS / "quartus.fit.rpt")])
    assert "1,012 ALMs" in rows
    assert "LUT of" not in rows


def test_the_result_is_written_as_json_table_and_picture(tmp_path):
    report = read_report(REPORTS / "vivado_hierarchy.rpt")
    names = [path.name for path in write_synthesis(SYNTHESIS, CIRCUIT, [report], tmp_path)]
    assert names == ["synthesis.json", "synthesis.md", "synthesis.svg"]
    told = json.loads((tmp_path / "synthesis.json").read_text())
    assert told["packed_luts"] == 708
    assert told["layers"]["fc2"]["brams"] == 0.5
    assert told["reports"][0]["luts"] == 718
    picture = "".join(ElementTree.parse(tmp_path / "synthesis.svg").getroot().itertext())
    assert "LUTs (packed)fc1523" in picture
    assert "| fc1 " in (tmp_path / "synthesis.md").read_text()


@pytest.mark.parametrize(("rate", "misses"), [(122.53, True), (199.9, True), (200.0, False)])
def test_a_placed_clock_that_misses_the_period_is_told(tmp_path, rate, misses):
    placed = Placement(device="LFE5U-25F", clock_mhz=rate, utilization={}, tool="n", seconds=1.0)
    made, circuit = replace(SYNTHESIS, placement=placed), replace(CIRCUIT, clock_period=5.0)
    write_synthesis(made, circuit, [], tmp_path)
    table = (tmp_path / "synthesis.md").read_text()
    told = json.loads((tmp_path / "synthesis.json").read_text())["warnings"]
    assert ("misses its clock period of 5 ns (200 MHz)" in table) is misses
    assert len(told) == misses
    assert f"Clock rate on LFE5U-25F: {rate:.4g} MHz" in table


def test_a_circuit_that_is_not_placed_has_no_warning():
    assert clock_warning(SYNTHESIS, CIRCUIT) is None
