"""After the search: circuits that are emitted, simulated and synthesised, and shown."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from chop.actions import search
from chop.actions.circuit_test import CircuitTest
from chop.actions.config import ConfigError
from chop.actions.search.results import circuits as module
from chop.actions.search.results.page.circuits import circuits_section
from chop.actions.search.results.page.page import write_report
from chop.actions.search.results.page.record import SearchRecord
from chop.actions.search.spec.settings import settings_of
from chop.dataset import MaseDataModule
from chop.hardware.circuit import Circuit
from chop.hardware.estimate import estimate
from chop.hardware.tools import ToolError
from chop.models import get_model, get_model_info
from tests.hardware.unrolled.graphs import quantised

from .conftest import tables

WIDTHS = {"data_in_width": [4], "weight_width": [4, 5], "bias_width": [4]}
FRACTIONS = {"data_in_frac_width": [2], "weight_frac_width": [4], "bias_frac_width": [3]}
SEARCH = {
    "search_space": {
        "name": "graph/quantize/mixed_precision_ptq",
        "setup": {"by": "type"},
        "seed": {
            "default": {"config": {"name": [None]}},
            "linear": {"config": {"name": ["integer"], **WIDTHS, **FRACTIONS}},
        },
    },
    "strategy": {
        "sw_runner": {"basic_evaluation": {"num_samples": 64, "allow_untrained": True}},
        "hw_runner": {"lut": {}, "latency_cycles": {}},
        "setup": {"n_trials": 3, "sampler": "random"},
        "metrics": {"accuracy": {}, "lut": {}},
    },
}
SYNTHESIS = {
    "packed_luts": 90,
    "luts": 100,
    "ffs": 40,
    "depth": 5,
    "target": "xilinx",
    "tool": "yosys 0.70",
    "layers": {"fc<1>": {"packed_luts": 60, "ffs": 30}, "fc2": {"packed_luts": 30, "ffs": 10}},
}
FACTS = {
    "clock_period": 5.0,
    "latency_cycles": 3,
    "latency_ns": 15.0,
    "estimate": {"lut": 95.2},
    "sources": "../../hardware/rtl",
    "top": "../../hardware/rtl/top.sv",
    "simulation": {"samples": 100, "boundary_vectors": 9, "mismatches": 0, "accuracy": 0.75},
    "synthesis": SYNTHESIS,
}


@pytest.fixture(scope="module")
def network():
    data = MaseDataModule("jsc-sim", batch_size=1024)
    data.prepare_data()
    data.setup()
    torch.manual_seed(0)
    info = data.dataset_info
    model = get_model("mlp", task="cls", dataset_info=info, hidden=(4,))
    return model, get_model_info("mlp"), "cls", info, data


def run(network, folder, **more):
    return search(*network, SEARCH | more, folder, accelerator="cpu")


def record(**more):
    trial = {"number": 0, "state": "COMPLETE", "values": [0.7], "software_metrics": {"a": 0.7}}
    goals = [{"name": "a", "direction": "maximize"}]
    return SearchRecord(version=1, objectives=goals, trials=[trial], front=[0], chosen=0, **more)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"synthesize": {"designs": "all"}}, "designs must be 'front', 'best' or a number"),
        ({"synthesize": {"target": "ice40"}}, "target: should be 'xilinx' or 'ecp5'"),
        ({"synthesize": {"clock": 5}}, "search.synthesize has no key 'clock'"),
        ({"emit": {"num_samples": 0}}, "num_samples"),
        ({"emit": {"backend": "vhdl"}}, "search.emit has no key 'backend'"),
        ({"emit": 3}, "search.emit"),
    ],
)
def test_wrong_tables_are_refused_in_one_sentence(table, message):
    with pytest.raises(ConfigError, match=message) as refused:
        settings_of(tables() | table)
    assert "\n" not in str(refused.value)


def test_without_their_tables_no_circuit_is_made():
    settings = settings_of(tables())
    assert settings.synthesize is None
    assert settings.emit is None


@pytest.mark.parametrize(
    ("emit", "synthesize", "clocks"),
    [
        ({}, {}, (5, 5)),
        ({"clock_period": 4.0}, {}, (4, 4)),
        ({}, {"clock_period": 3.0}, (3, 3)),
        ({"clock_period": 4.0}, {"clock_period": 3.0}, (4, 3)),
    ],
)
def test_both_tables_have_one_clock_unless_told(emit, synthesize, clocks):
    settings = settings_of(tables() | {"emit": emit, "synthesize": synthesize})
    assert (settings.emit.clock_period, settings.synthesize.clock_period) == clocks


def test_circuits_go_into_the_files_and_the_page(network, tmp_path, monkeypatch):
    pytest.importorskip("alkaid")
    seen = []

    def synthesised(circuit, *, folder, target, timeout):
        seen.append((circuit, target, timeout))
        raise ToolError("synthesis needs yosys, which is not installed; run: pip install …")

    monkeypatch.setattr(module, "synthesize_circuit", synthesised)
    how = {"designs": "best", "timeout": 60.0}
    emit = {"simulate": False, "clock_period": 4.0}
    results = run(network, tmp_path, emit=emit, synthesize=how)
    best = results.chosen.number
    facts = json.loads((tmp_path / "search.json").read_text())["circuits"]
    assert list(facts) == [str(best)]
    assert "needs yosys" in facts[str(best)]["error"]
    written = Circuit.read(tmp_path / "search.circuits" / f"trial_{best}")
    assert written.clock_period == 4.0
    assert [(circuit.clock_period, *rest) for circuit, *rest in seen] == [(4.0, "xilinx", 60.0)]
    page = write_report(tmp_path / "search.json").read_text()
    assert "needs yosys" in page
    assert f"search.circuits/trial_{best}/rtl/top.sv" in page


def test_the_circuit_of_another_network_is_refused(network, tmp_path):
    pytest.importorskip("alkaid")
    results = run(network, tmp_path, emit={"simulate": False})
    folder = tmp_path / "search.circuits" / f"trial_{results.chosen.number}"
    other = quantised(nn.Sequential(nn.Linear(16, 5)), (16,))
    source = SimpleNamespace(load_name="stale.ckpt")
    test = CircuitTest(source=source, graph=None, integers=other, hardware=folder)
    with pytest.raises(ValueError, match=r"was not emitted from stale\.ckpt; emit it again"):
        test.run()


@pytest.mark.parametrize("trainer", ["basic_train", "population_train"])
def test_costs_are_those_of_the_trained_weights(network, tmp_path, monkeypatch, trainer):
    graphs, original = [], module.emit_circuit

    def noting(graph, *given, **options):
        graphs.append(graph)
        return original(graph, *given, **options)

    pytest.importorskip("alkaid")
    monkeypatch.setattr(module, "emit_circuit", noting)
    training = {"max_steps": 20, "learning_rate": 0.05, "num_val_samples": 256}
    strategy = SEARCH["strategy"] | {"sw_runner": {trainer: training}}
    results = run(network, tmp_path, strategy=strategy, emit={"simulate": False})
    trained, found = graphs[0], results.outcomes[results.chosen.number].hardware
    assert found["lut"] == pytest.approx(estimate(trained, fidelity="formula").lut, rel=1e-12)
    untrained = run(network, tmp_path / "untrained").outcomes
    assert found["lut"] not in [outcome.hardware["lut"] for outcome in untrained.values()]


def test_a_missing_tool_is_told_before_the_search(network, tmp_path, monkeypatch):
    def missing(name, what):
        raise ToolError(f"{what} needs {name}; install it with: pip install …")

    monkeypatch.setattr("chop.hardware.tools.need_package", missing)
    with pytest.raises(ToolError, match=r"search.emit needs alkaid; install it with"):
        run(network, tmp_path, emit={})
    assert not list(tmp_path.iterdir())


def test_the_page_shows_costs_verdict_layers_and_files():
    html = circuits_section(record(circuits={"0": FACTS}))
    for text in ("0.7000", "95", "90", "5 ns, 200 MHz", "3 cycles, 15 ns", "0 mismatches in 109"):
        assert text in html
    assert 'href="../../hardware/rtl/top.sv"' in html
    assert "fc&lt;1&gt;" in html
    assert "67 %" in html


def test_the_page_labels_two_clocks():
    made = SYNTHESIS | {"clock_period": 4.0, "latency_cycles": 5, "latency_ns": 20.0}
    made["estimate"] = {"lut": 97.3}
    html = circuits_section(record(circuits={"0": FACTS | {"synthesis": made}}))
    assert "emitted: 5 ns, 200 MHz; synthesised: 4 ns, 250 MHz" in html
    assert "emitted: 3 cycles, 15 ns; synthesised: 5 cycles, 20 ns" in html
    assert ">97<" in html  # what was expected of the circuit that was synthesised


def test_the_table_of_circuits_labels_two_clocks(network, tmp_path, monkeypatch):
    pytest.importorskip("alkaid")
    counts = {"layers": {}, "other": dict.fromkeys(module.COUNTS, 0)}
    monkeypatch.setattr(module, "described_synthesis", lambda made: {"packed_luts": 7, **counts})
    monkeypatch.setattr(module, "synthesize_circuit", lambda circuit, **options: None)
    emit, synthesize = {"simulate": False, "clock_period": 5.0}, {"clock_period": 2.0}
    results = run(network, tmp_path, emit=emit, synthesize=synthesize | {"designs": "best"})
    facts = json.loads((tmp_path / "search.json").read_text())["circuits"]
    (row,) = facts.values()
    assert (row["clock_period"], row["synthesis"]["clock_period"]) == (5.0, 2.0)
    assert row["synthesis"]["latency_cycles"] > row["latency_cycles"]
    table = module.circuits_table(facts, results)
    assert "clock of synthesis" in table
    row["synthesis"]["clock_period"] = 5.0
    assert "clock of synthesis" not in module.circuits_table(facts, results)


def test_the_page_shows_why_a_design_has_no_circuit():
    html = circuits_section(record(circuits={"0": {"error": "node 'x' is <float>"}}))
    assert "is &lt;float&gt;" in html


def test_a_search_without_circuits_has_no_section():
    assert circuits_section(record()) is None
    assert circuits_section(record(circuits={})) is None


@pytest.mark.rtl
def test_the_best_design_is_emitted_simulated_and_synthesised(network, tmp_path):
    table = {"designs": 1}
    results = run(network, tmp_path, emit={"num_samples": 200}, synthesize=table)
    facts = json.loads((tmp_path / "search.json").read_text())["circuits"]
    found = facts[str(results.chosen.number)]
    assert found["simulation"]["mismatches"] == 0
    assert found["simulation"]["latency_cycles"] == found["latency_cycles"]
    assert found["synthesis"]["packed_luts"] > 50
    assert found["synthesis"]["packed_luts"] == pytest.approx(found["estimate"]["lut"], rel=0.25)
    assert found["synthesis"]["ffs"] == pytest.approx(found["estimate"]["ff"], rel=0.25)
    assert (tmp_path / found["top"]).is_file()
