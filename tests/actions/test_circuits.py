"""`ch emit` and `ch simulate`: from a quantised network to a circuit that equals it."""

import json
import re
import shlex
import shutil
import subprocess

import pytest
import torch
from torch import nn

from chop.actions import emit, simulate
from chop.hardware.circuit import Circuit
from chop.hardware.waves import read_waves
from chop.ir import MaseGraph
from chop.passes import Pipeline

from .own_network import saved_network

rtl = pytest.mark.rtl


@pytest.fixture
def network(here, tmp_path):
    """A quantised network in a project with a space in its name, as the words of a command."""
    place = {"runs": "my runs", "project": "p 1"}
    with saved_network(here, tmp_path, "circuits-own", **place) as (words, saved):
        yield [*words, "--load", saved]


@pytest.fixture
def hardware(tmp_path):
    return tmp_path / "my runs" / "p 1" / "hardware"


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- emit


def test_a_circuit_lies_in_the_project_of_its_checkpoint_and_is_the_same_again(
    here, network, hardware
):
    code, out, err = here("emit", *network, "--backend", "streaming")
    assert code == 0, out + err
    assert re.search(r"Backend +streaming", err)
    assert re.search(r"data_in_0 +2 codes, signed 6-bit", err)
    first = bytes_of(hardware / "rtl")
    assert {"top.sv", "circuit.json"} <= first.keys()
    assert here("emit", *network, "--backend", "streaming")[0] == 0
    assert bytes_of(hardware / "rtl") == first


def test_other_files_beside_a_circuit_are_refused_before_anything_is_loaded(
    here, network, hardware
):
    assert here("emit", *network, "--backend", "streaming")[0] == 0
    (hardware / "rtl" / "mine.sv").write_text("// mine")
    before = bytes_of(hardware / "rtl")
    code, _, err = here("emit", *network, "--backend", "streaming")
    assert code == 1
    assert "holds other files ('mine.sv'), which would be lost" in err
    assert "Initialising" not in err
    assert bytes_of(hardware / "rtl") == before


def test_the_limit_of_adders_is_refused_for_streaming_circuits(here, network):
    code, _, err = here("emit", *network, "--backend", "streaming", "--max-adders", 10)
    assert code == 2
    assert "--max-adders is a limit of unrolled circuits; omit it" in err


def test_the_suggested_simulation_finds_the_circuit(here, network, tmp_path):
    place = ("--project-dir", tmp_path / "runs", "--project", "other")
    _, _, err = here("emit", *network, "--backend", "streaming", *place)
    (line,) = re.findall(r"Simulate it with: (.*)", err)
    words = shlex.split(line)
    assert words[words.index("--project") + 1] == "other"
    assert str(tmp_path / "own.py") in words
    _, _, err = here("emit", *network, "--backend", "streaming")
    assert "--project" not in re.findall(r"Simulate it with: (.*)", err)[0]


def test_a_table_sets_what_flags_do_not(here, network, hardware, tmp_path):
    file = tmp_path / "emit.toml"
    file.write_text('[emit]\nbackend = "streaming"\nclock = 4\nmax_parallelism = 2\n')
    assert here("emit", *network, "--config", file)[0] == 0
    assert Circuit.read(hardware).clock_period == 4
    assert here("emit", *network, "--config", file, "--clock", "2.5")[0] == 0
    circuit = Circuit.read(hardware)
    assert (circuit.backend, circuit.clock_period) == ("streaming", 2.5)


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("[emit]\nbakend = 'streaming'", "emit has no key 'bakend'; did you mean 'backend'?"),
        ("[emit]\nclock = -1", "emit.clock: should be greater than 0, not -1"),
        ("[emit]\nmax_parallelism = 2", "omit --max-parallelism, or use --backend streaming"),
        ("emit = 3", "emit: should be an object, not 3"),
    ],
)
def test_a_wrong_table_is_refused_before_anything_is_loaded(
    here, network, tmp_path, table, complaint
):
    (tmp_path / "emit.toml").write_text(table)
    code, _, err = here("emit", *network, "--config", tmp_path / "emit.toml")
    assert code == 2
    assert complaint in err


def test_a_network_that_is_not_quantised_is_refused_with_the_fix(here, network, tmp_path):
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    torch.save(model.state_dict(), tmp_path / "float.pt")
    place = ("--project-dir", tmp_path / "my runs", "--project", "float")
    words = (*network[:-2], "--load", tmp_path / "float.pt", "--load-type", "pt")
    code, _, err = here("emit", *words, *place)
    assert code == 1
    assert "the network is not quantised" in err.splitlines()[-1]
    assert "run `ch transform` with [passes.quantize] first" in err.splitlines()[-1]
    assert not (tmp_path / "my runs" / "float" / "hardware" / "rtl").exists()


def test_a_circuit_that_is_too_large_is_refused_with_flags_and_leaves_no_project(
    here, network, tmp_path
):
    place = ("--project-dir", tmp_path / "my runs", "--project", "large")
    code, _, err = here("emit", *network, *place, "--max-adders", 1)
    assert code == 1
    assert err.endswith("use --backend streaming, or raise --max-adders\n")
    assert not (tmp_path / "my runs" / "large").exists()


# --- simulate


def test_without_a_circuit_the_sentence_says_to_emit_one(here, network, hardware):
    code, _, err = here("simulate", *network)
    assert code == 1
    assert f"there is no circuit in {hardware}; run ch emit first" in err


def test_other_options_than_those_of_the_circuit_are_refused(here, network):
    assert here("emit", *network, "--backend", "streaming")[0] == 0
    code, _, err = here("simulate", *network, "--backend", "unrolled")
    assert code == 2
    assert "was emitted with streaming; add --run-emit to emit it again" in err


def test_a_circuit_of_another_checkpoint_is_refused(here, network, tmp_path):
    assert here("emit", *network, "--backend", "streaming")[0] == 0
    config = ("--config", tmp_path / "formats.toml", "--seed", 5)
    place = ("--project-dir", tmp_path / "my runs", "--project", "p 1")
    assert here("transform", *network[:-2], *config, *place)[0] == 0
    code, _, err = here("simulate", *network)
    assert code == 1
    assert f"was not emitted from {network[-1]}; emit it again with --run-emit" in err


def test_a_format_of_waves_needs_waves(here, network):
    code, _, err = here("simulate", *network, "--run-emit", "--wave-format", "fst")
    assert code == 2
    assert "--wave-format is for --waves; add --waves, or omit it" in err


@rtl
def test_fst_waves_are_written_or_refused_with_the_fix(here, network, hardware):
    flags = ("--run-emit", "--waves", "--wave-format", "fst", "--max-samples", 3)
    code, _, err = here("simulate", *network, *flags)
    if code == 0:  # this machine has lz4
        fst = hardware / "sim" / "waves.fst"
        assert fst.stat().st_size > 100
        if converter := shutil.which("fst2vcd"):  # part of GTKWave
            assert here("simulate", *network, *flags[1:2], *flags[4:])[0] == 0
            converted = hardware / "converted.vcd"
            subprocess.run([converter, fst, "-o", converted], check=True)
            vcd = read_waves(hardware / "sim" / "waves.vcd")
            assert read_waves(converted).values == vcd.values
        return
    assert code == 1
    assert "FST waves need the headers of lz4 and zlib, which do not come with Verilator" in err
    assert "use --wave-format vcd, or install them, on Debian and Ubuntu with: sudo apt" in err


@rtl
def test_a_circuit_equals_its_network_until_someone_edits_it(here, network, hardware):
    code, out, err = here("simulate", *network, "--run-emit", "--waves", "--skip-test")
    assert code == 0, out + err
    assert not (hardware / "sim" / "simulation.json").exists()
    code, out, err = here("simulate", *network, "--waves", "--skip-build", "--max-samples", 5)
    assert code == 0, out + err
    assert re.search(r"Samples +5 and", err)
    assert "Waves of samples 0 to 4 are in" in err
    code, out, err = here("simulate", *network, "--skip-build", "--max-samples", 5)
    assert code == 0, out + err
    code, out, err = here("simulate", *network, "--waves")
    assert code == 0, out + err
    assert "was done before" in err
    assert re.search(r"Mismatches +0\n", err)
    assert (hardware / "sim" / "waves.vcd").stat().st_size > 1000
    report = json.loads((hardware / "sim" / "simulation.json").read_text())
    assert report["score"] == report["model_score"]
    assert (report["mismatches"], report["interval_cycles"], report["samples"]) == (0, 1, 12)
    assert report["latency_cycles"] == Circuit.read(hardware).latency
    file = hardware / "rtl" / "top.sv"
    file.write_text(re.sub(r"(assign data_out_0 = \{?)", r"\1~", file.read_text(), count=1))
    code, _, err = here("simulate", *network, "--skip-build")
    assert code == 1
    assert "has no build of this circuit; omit --skip-build" in err
    code, _, err = here("simulate", *network)
    assert code == 1
    assert re.search(
        r"differs from the integer graph: .* the first is in sample 0: data_out_0\[", err
    )


@rtl
def test_a_streaming_circuit_is_simulated_with_stalls_too(here, network, hardware):
    code, _, err = here("simulate", *network, "--run-emit", "--backend", "streaming")
    assert code == 0, err
    assert json.loads((hardware / "sim" / "simulation.json").read_text())["mismatches"] == 0


def test_vhdl_is_not_simulated(here, network):
    code, _, err = here("simulate", *network, "--run-emit", "--language", "vhdl")
    assert code == 2
    assert "emit the circuit with --language verilog to simulate it" in err


def test_another_simulator_is_refused():
    with pytest.raises(ValueError, match="simulator must be 'verilator', not 'questa'"):
        simulate(simulator="questa")


# --- from Python


@pytest.fixture
def graph():
    x = torch.randn(4, 16)
    table = {"config": {"name": "integer", "data_in_width": 6, "data_in_frac_width": 3}}
    table["config"] |= {"weight_width": 5, "weight_frac_width": 4}
    prepare = Pipeline(
        [
            "init_metadata",
            ("add_common_metadata", {"dummy_in": {"input": x}}),
            ("quantize", {"by": "type", "linear": table}),
        ]
    )
    return prepare(MaseGraph(nn.Sequential(nn.Linear(16, 5)).eval()))[0]


def test_a_graph_is_emitted_from_python(graph, tmp_path):
    circuit = emit(graph, project_dir=tmp_path, backend="streaming", max_parallelism=8)
    assert Circuit.read(tmp_path / "hardware") == circuit
    with pytest.raises(ValueError, match="option 'clock' is 0, but it should be greater than 0"):
        emit(graph, project_dir=tmp_path, clock=0)


@rtl
def test_a_graph_is_simulated_from_python(graph, tmp_path):
    from chop.dataset import MaseDataModule

    data = MaseDataModule(name="jsc-sim", batch_size=64, num_workers=0, model_name="jsc-tiny")
    options = {"data_module": data, "task": "cls", "project_dir": tmp_path, "max_samples": 100}
    report = simulate(graph, run_emit=True, **options)
    assert (report.mismatches, report.samples) == (0, 100)
    assert report.score == report.model_score
