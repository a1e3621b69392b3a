"""The modules of streaming circuits: files of SystemVerilog that Verilator accepts one by one."""

import re

import pytest

from chop.hardware.simulation.programs import verilator
from chop.hardware.streaming import COMPONENTS, Pointwise, component
from chop.hardware.streaming.emit import module_library
from chop.hardware.streaming.modules import RTL
from chop.hardware.tools import run_tool
from chop.integers import ReluCodes

FILES = sorted(RTL.glob("*.sv"))


def test_every_module_has_a_file_of_its_name_and_nothing_else_is_there():
    assert {file.stem for file in FILES} == {*module_library()}
    for name, text in module_library().items():
        assert re.findall(r"^module (\w+)", text, re.MULTILINE) == [name]


@pytest.mark.rtl
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_module_lints(file, tmp_path):
    for name, text in module_library().items():
        (tmp_path / f"{name}.sv").write_text(text)
    tool, _ = verilator(tmp_path)
    arguments = ["--lint-only", "-Wall", "--no-timing", "-y", str(tmp_path)]
    arguments += ["--top-module", file.stem, str(tmp_path / file.name)]
    run_tool(tool, arguments, log=tmp_path / "lint.log", folder=tmp_path)


def test_a_component_without_text_for_its_module_is_refused(monkeypatch):
    class Bare(Pointwise):
        module = "fixed_nothing"

    monkeypatch.setattr(COMPONENTS, "_items", dict(COMPONENTS.items()))
    component(ReluCodes, replace=True)(Bare)
    with pytest.raises(ValueError, match="'fixed_nothing' has no text; give its component a `te"):
        module_library()
