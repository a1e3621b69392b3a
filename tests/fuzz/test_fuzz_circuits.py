"""Circuits of strangers: odd manifests, names that lead elsewhere, sources with ways out."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from random import Random

import pytest

from chop.hardware.circuit import MANIFEST, Circuit, Port
from chop.hardware.source_check import check_sources

from .commands import MODEL, OPTIONS
from .harness import Sandbox, inputs
from .mutations import ESCAPE, changed, changed_json, damaged, foreign

TOP = "module top(input logic clk); endmodule\n"
PLACES = (ESCAPE, "/etc/passwd", "~/.netrc", "a b.sv", "x;shell touch pwned", "-o", "rtl/top.sv")
NAMES = (*PLACES, "", "1top", "top\nshell touch pwned", 'top); system("touch pwned"); //', "ä")
WAYS_OUT = (
    '`include "/etc/passwd"',
    "`define s ystem",
    'initial $system("touch pwned");',
    'initial $readmemh("/etc/passwd", memory);',
    'initial $readmemh("../../top.dat", memory);',
    "initial $readmemb(NAME, memory);",
    'initial $readmemh("top.dat" == "" ? "top.dat" : "/etc/passwd", memory);',
    'initial $c("system(\\"touch pwned\\")");',
    'integer f = $fopen("pwned", "w");',
    'import "DPI-C" function int system(string command);',
    'import /* a comment */ "DPI-C" function int system(string command);',
    'export "DPI-C" task run;',
    '"//" ; initial $system("touch pwned");',
    '\\// ; initial $dumpfile("pwned");',
    '`systemc_header\n#include "/etc/passwd"\n`verilog',
)


def circuit() -> Circuit:
    """A circuit with all that a manifest can describe."""
    return Circuit(
        "top",
        "streaming",
        "verilog",
        {"top.sv": TOP, "layer.sv": TOP.replace("top", "layer"), "rom.dat": "00\n"},
        (Port("data_in_0", "x", (2, 3), 4, True, 2, (1, 0)),),
        (Port("data_out_0", "y", (3,), 5, False, 3),),
        5.0,
        7,
        3,
        {"fc1": "layer"},
        ("softmax was left out",),
        "0" * 64,
    )


def write_odd(random: Random, rtl: Path) -> None:
    """Change the manifest of a circuit, or one of its sources."""
    manifest = rtl / MANIFEST
    told = json.loads(manifest.read_text())
    way = random.randrange(8)
    if way == 0:
        manifest.write_bytes(foreign(random))
    elif way == 1:
        manifest.write_bytes(damaged(random, manifest.read_bytes()))
    elif way == 2:
        sums = {random.choice(PLACES): "0" * 64, **told["files"]}
        manifest.write_text(json.dumps({**told, "files": sums}))
    elif way == 3:
        where = random.choice((told, *told["inputs"], *told["outputs"]))
        where["top" if where is told else "name"] = random.choice(NAMES)
        manifest.write_text(json.dumps(told))
    elif way == 4:
        source = rtl / random.choice(("top.sv", "layer.sv"))
        source.write_text(source.read_text().replace(";", f"; {random.choice(WAYS_OUT)}", 1))
    elif way == 5:
        (rtl / "top.sv").unlink()
        os.symlink("/etc/passwd", rtl / "top.sv")
    elif way == 6:
        part = random.choice(("inputs", "outputs"))
        manifest.write_text(json.dumps({**told, part: changed(random, told[part])}))
    else:
        manifest.write_bytes(changed_json(random, manifest.read_text()))


@inputs("circuit")
def test_a_circuit_is_read_or_refused(sandbox: Sandbox, random: Random, index: int) -> None:
    hardware = sandbox.project / "hardware"
    rtl = circuit().write(hardware)
    write_odd(random, rtl)
    try:
        read = Circuit.read(hardware)
    except (ValueError, OSError):
        sandbox.check("synth", *MODEL, *OPTIONS)
        return
    for port in (*read.inputs, *read.outputs):
        assert re.fullmatch(r"\w+", port.name, re.ASCII)
        assert min(port.size, port.lanes, port.width, port.beats, port.words) > 0
    assert all((rtl / name).resolve().parent == rtl.resolve() for name in read.files)
    assert "/etc/passwd" not in "".join(read.files.values())
    assert Circuit.read(read.write(sandbox.project / "again").parent) == read


@pytest.mark.parametrize("text", WAYS_OUT)
def test_every_way_out_of_a_source_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^top\.sv contains .* take it out"):
        check_sources({"top.sv": TOP + text, "top.dat": ""})
