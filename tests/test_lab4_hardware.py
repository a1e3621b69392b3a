"""Lab 4's hardware page runs from top to bottom, and shows what it draws."""

import re
from pathlib import Path

import pytest

from chop.hardware.simulation import lint_circuit
from chop.hardware.streaming import COMPONENTS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "labs" / "lab4_hardware.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(kind):
    return [text for k, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if k == kind]


def run(blocks, folder, monkeypatch):
    """Run Python blocks in a directory, and return their names."""
    monkeypatch.chdir(folder)
    known = {name: COMPONENTS[name] for name in COMPONENTS}  # step 9 adds one
    monkeypatch.setattr(COMPONENTS, "_items", known)
    names = {"__name__": "lab4_hardware"}
    exec(compile("\n".join(blocks), PAGE.name, "exec"), names)
    return names


def test_the_page_shows_the_top_module_that_it_emits(tmp_path, monkeypatch):
    code = blocks("python")
    emits = next(i for i, block in enumerate(code) if "emit_verilog_top_transform_pass(" in block)
    run(code[: emits + 1], tmp_path, monkeypatch)
    (emitted,) = tmp_path.glob("mase_output/*/hardware/rtl/top.sv")
    lines = iter(emitted.read_text().splitlines())
    (shown,) = blocks("systemverilog")
    wanted = [line for line in shown.splitlines() if line.strip() not in ("…", "")]
    assert not [line for line in wanted if line not in lines]  # each after the one before


@pytest.mark.rtl
def test_the_page_runs_and_its_pictures_are_those_of_its_circuits(tmp_path, monkeypatch, package):
    package("cocotb")
    names = run(blocks("python"), tmp_path, monkeypatch)
    assert names["result"].passed
    for name in ("lab4_waves.svg", "lab4_leaky_waves.svg"):
        drawn = (tmp_path / "mase_output" / name).read_bytes()
        kept = (ROOT / "docs" / "images" / name).read_bytes()
        assert drawn == kept, f"{name}: run python scripts/make_waves.py"

    lint_circuit(names["circuit"], tmp_path / "lint")

    # step 9: a fault in the module of the user is found
    module = next(tmp_path.glob("mase_output/*/hardware/rtl/my_leaky_relu.sv"))
    module.write_text(module.read_text().replace("negative ? x", "!negative ? x"))
    with pytest.raises(Exception, match=r"data_out_0, sample \d+, beat 0: \["):
        names["simulate"](skip_build=False, skip_test=False)
