"""The source files of an unrolled circuit: ours connect, alkaid's compute."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from importlib.resources import files

from chop.hardware.circuit import Language
from chop.hardware.unrolled import verilog, vhdl
from chop.hardware.unrolled.modules import LayerModule, Module
from chop.hardware.unrolled.stages import Logic

__all__ = ["SHARED", "source_files"]

TABLES = "tables"
# modules of alkaid that its text has instances of, and the file of all tables
SHARED = ("binop", "multiplier", "mux", "negative", "shift_adder", "ternary_adder", TABLES)
LAYER_HEADER = """\
// A layer and its pipeline stages, the first of which comes first.
/* verilator lint_off DECLFILENAME */
"""


def source_files(top: Module, layers: Sequence[LayerModule], language: Language) -> dict[str, str]:
    """Return all files, each after those that it depends on."""
    used = [part for part in layers if part.module.outputs]
    text = verilog if language == "verilog" else vhdl
    suffix = "sv" if language == "verilog" else "vhd"
    sources = {f"{part.module.name}.{suffix}": _layer_text(part, language) for part in used}
    logic = [stage for part in used for stage in part.stages.values()]
    shared = _shared_files("".join(sources.values()), logic, language)
    header = verilog.TIMESCALE if language == "verilog" else ""
    return {**shared, **sources, f"{top.name}.{suffix}": header + text.module_text(top)}


def _layer_text(part: LayerModule, language: Language) -> str:
    rtl = import_module(f"alkaid.codegen.rtl.{language}")
    stages = [rtl.comb_logic_gen(logic, name) for name, logic in part.stages.items()]
    if language == "vhdl":
        return "\n".join([*stages, vhdl.module_text(part.module)])
    header = verilog.TIMESCALE + LAYER_HEADER
    return "\n".join([header, *stages, verilog.module_text(part.module)])


def _shared_files(text: str, logic: Sequence[Logic], language: Language) -> dict[str, str]:
    """Return the modules that a text has instances of, and the tables of all layers."""
    folder = files(f"alkaid.codegen.rtl.{language}") / "source"
    suffix = "v" if language == "verilog" else "vhd"
    shared = {
        f"{name}.{suffix}": (folder / f"{name}.{suffix}").read_text("utf-8")
        for name in SHARED
        if name != TABLES and re.search(rf"\b{name}\b", text)
    }
    lookup = import_module(f"alkaid.codegen.rtl.{language}.lookup")
    if not (tables := lookup.lookup_source(list(logic))):
        return shared
    name = f"{TABLES}.sv" if language == "verilog" else f"{TABLES}.vhd"
    header = verilog.TIMESCALE if language == "verilog" else ""
    return {**shared, name: header + tables}
