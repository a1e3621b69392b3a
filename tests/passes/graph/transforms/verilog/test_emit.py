"""The passes of lab 4 write a whole circuit, and refuse what they cannot write in one sentence."""

import json
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from chop.hardware.circuit import Circuit
from chop.hardware.projects import last_project
from chop.hardware.streaming import COMPONENTS
from chop.integers import LinearCodes, ReluCodes
from chop.ir import MaseGraph
from chop.numerics.integer import Integer
from chop.passes import PassArgsError, Pipeline
from chop.passes.graph import (
    emit_bram_transform_pass,
    emit_cocotb_transform_pass,
    emit_internal_rtl_transform_pass,
    emit_verilog_top_transform_pass,
    emit_vivado_project_transform_pass,
)
from chop.passes.graph.transforms.integers import integer_graph

PARTS = [
    emit_verilog_top_transform_pass,
    emit_internal_rtl_transform_pass,
    emit_bram_transform_pass,
]


def emit(graph, folder, **options):
    """Run all passes that write sources, and return their directory."""
    emit_verilog_top_transform_pass(graph, {"project_dir": folder, **options})
    for part in PARTS[1:]:
        part(graph)
    return folder / "hardware" / "rtl"


def test_each_pass_of_the_lab_adds_its_files(lab, tmp_path):
    graph, rtl = lab(), tmp_path / "hardware" / "rtl"
    emit_verilog_top_transform_pass(graph, {"project_dir": tmp_path})
    assert {file.name for file in rtl.iterdir()} == {"top.sv", "circuit.json"}
    emit_internal_rtl_transform_pass(graph)
    assert {"fixed_linear.sv", "fixed_relu.sv"} < {file.name for file in rtl.iterdir()}
    _, info = emit_bram_transform_pass(graph)
    memories = [
        f"fc1_{name}_{end}" for name in ("bias", "weight") for end in ("rom.dat", "source.sv")
    ]
    assert info["emitted"] == memories
    emit_cocotb_transform_pass(graph)
    assert (tmp_path / "hardware" / "test" / "mase_top_tb" / "test.py").is_file()
    assert (tmp_path / "hardware" / "sim").is_dir()
    assert last_project().folder == tmp_path


def test_the_words_of_a_memory_are_the_codes_of_the_weights(lab, tmp_path):
    """0.268 in 8 bits with 3 after the point is 02, and -1.3 with 4 is eb."""
    model = nn.Sequential(nn.Linear(1, 2, bias=False))
    model[0].weight.data = torch.tensor([[0.268], [-16.0]])
    rtl = emit(lab(model, x=torch.zeros(1, 1)), tmp_path)
    assert (rtl / "n_0_weight_rom.dat").read_text() == "8002\n"


def test_equal_designs_give_equal_bytes(lab, tmp_path):
    one, two = (emit(lab(), tmp_path / name) for name in "ab")
    assert {f.name: f.read_bytes() for f in one.iterdir()} == {
        f.name: f.read_bytes() for f in two.iterdir()
    }


def test_an_emit_replaces_the_whole_circuit_of_an_earlier_one(lab, tmp_path):
    emit(lab(), tmp_path)
    rtl = emit(lab(nn.Sequential(nn.ReLU()), x=torch.zeros(1, 4)), tmp_path)
    names = {file.name for file in rtl.iterdir()}
    assert not [name for name in names if name.startswith("fc1")]
    assert Circuit.read(tmp_path / "hardware").files.keys() == names - {"circuit.json"}


def test_without_a_directory_the_project_is_in_mase_output_and_not_at_home(
    lab, tmp_path, monkeypatch
):
    monkeypatch.setattr("chop.hardware.projects.default_project_dir", lambda: tmp_path / "out")
    _, info = emit_verilog_top_transform_pass(lab(), {"top_name": "mlp"})
    assert info["project_dir"] == str(tmp_path / "out" / "mlp")
    assert (tmp_path / "out" / "mlp" / "hardware" / "rtl" / "mlp.sv").is_file()


def test_max_parallelism_bounds_the_multipliers(lab, tmp_path):
    intervals = []
    for most in (1, 32):
        emit(lab(hardware={"max_parallelism": most}), tmp_path / str(most))
        intervals.append(Circuit.read(tmp_path / str(most) / "hardware").interval)
    assert intervals[0] == 32  # as many as the layer has products
    assert intervals[1] <= 2


def test_the_test_bench_holds_the_codes_of_the_integer_graph(lab, tmp_path):
    graph = lab()
    emit(graph, tmp_path)
    _, info = emit_cocotb_transform_pass(
        graph, {"batch_size": 3, "wait_time": 5, "wait_unit": "us"}
    )
    bench = tmp_path / "hardware" / "test" / "mase_top_tb"
    vectors = json.loads((bench / "vectors.json").read_text())
    assert (vectors["wait_time"], vectors["wait_unit"]) == (5, "us")
    (sent,), (expected,) = vectors["inputs"], vectors["outputs"]
    assert len(sent["beats"]) == len(expected["beats"]) == info["samples"] > 3
    assert (expected["width"], expected["signed"]) == (8, True)

    def codes(port):
        words = [int("".join(reversed(sample)), 16) for sample in port["beats"]]
        rows = [[word >> 8 * i & 255 for i in range(port["size"])] for word in words]
        return torch.tensor(rows).to(torch.int8).long()

    inputs = codes(sent).view(-1, 2, 2) / 8.0
    assert torch.equal(integer_graph(graph, as_noted=True).run(inputs), codes(expected))


def test_the_test_bench_takes_the_users_data(lab, tmp_path):
    graph = lab()
    emit(graph, tmp_path)
    data = [{"x": torch.full((2, 2, 2), 1.5)}, {"x": torch.full((2, 2, 2), -2.0)}]
    emit_cocotb_transform_pass(graph, {"batch_size": 3, "input_generator": iter(data)})
    bench = tmp_path / "hardware" / "test" / "mase_top_tb"
    (port,) = json.loads((bench / "vectors.json").read_text())["inputs"]
    first = ["".join(reversed(sample)) for sample in port["beats"][:3]]
    assert first == ["0c0c0c0c", "0c0c0c0c", "f0f0f0f0"]


def test_the_vivado_project_adds_all_sources_and_the_clock(lab, tmp_path):
    graph = lab()
    rtl = emit(graph, tmp_path, clock_period=2.5)
    _, info = emit_vivado_project_transform_pass(graph, {"part": "xc7a35tcpg236-1"})
    script = (tmp_path / "hardware" / "vivado" / "top.tcl").read_text()
    assert info == {"script": str(tmp_path / "hardware" / "vivado" / "top.tcl")}
    assert all(f'"{file.name}"' in script for file in rtl.glob("*.sv"))
    assert "-part xc7a35tcpg236-1" in script
    clock = (tmp_path / "hardware" / "vivado" / "top.xdc").read_text()
    assert "-period 2.500" in clock


def test_a_missing_vivado_is_one_sentence_and_the_script_is_there(lab, tmp_path, monkeypatch):
    graph = lab()
    emit(graph, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="Vivado is not installed"):
        emit_vivado_project_transform_pass(graph, {"run": True})
    assert (tmp_path / "hardware" / "vivado" / "top.tcl").is_file()


def test_vivado_is_run_where_it_is_installed_and_its_reports_are_named(lab, tmp_path, monkeypatch):
    graph = lab()
    emit(graph, tmp_path / "my project")
    program = tmp_path / "bin" / "vivado"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\ntest -f top.tcl && touch utilization.rpt timing.rpt\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    _, info = emit_vivado_project_transform_pass(graph, {"run": True})
    assert [Path(report).name for report in info["reports"]] == ["utilization.rpt", "timing.rpt"]
    program.write_text("#!/bin/sh\necho ERROR: no licence\nexit 1\n")
    with pytest.raises(OSError, match="Vivado failed: ERROR: no licence; its output is in"):
        emit_vivado_project_transform_pass(graph, {"run": True})


def test_a_part_that_is_no_name_is_refused(lab, tmp_path):
    graph = lab()
    emit(graph, tmp_path)
    with pytest.raises(PassArgsError, match="is not a name of an FPGA"):
        emit_vivado_project_transform_pass(graph, {"part": "xc7a35t; exit"})


# --- what the metadata say of results


def reference(model, x, precision):
    """The lab's network with every result in fixed point."""
    fixed = Integer(*precision)
    layer = model.fc1
    whole = [fixed(tensor.detach()) for tensor in (layer.weight, layer.bias)]
    return fixed(torch.relu(fixed(nn.functional.linear(fixed(x.flatten(1)), *whole))))


@pytest.mark.parametrize("precision", [(8, 3), (10, 3), (6, 4), (4, 0), (12, 8)])
def test_results_are_rounded_to_the_precision_of_the_metadata(lab, precision):
    graph = lab(precision=None)
    for node in graph.nodes:
        for _, tensor in node.meta["mase"].common.results.tensors():
            tensor["type"], tensor["precision"] = "fixed", list(precision)
    x = torch.randn(200, 2, 2) * 4
    integers = integer_graph(graph, as_noted=True)
    given = Integer(*precision)(x)  # the placeholder has a result as well
    layer = graph.model.fc1
    inner = Integer(8, 3)
    weight, bias = (inner(t.detach()) for t in (layer.weight, layer.bias))
    fixed = Integer(*precision)
    hidden = fixed(nn.functional.linear(inner(given.flatten(1)), weight, bias))
    assert torch.equal(integers(x), fixed(torch.relu(hidden)))
    assert integers.codes(integers.outputs[0]).kind == f"s{precision[0]}"


def test_the_labs_network_is_the_same_in_float(lab):
    graph = lab()
    x = torch.randn(300, 2, 2) * 3
    expected = reference(graph.model, x, (8, 3))
    assert torch.equal(integer_graph(graph, as_noted=True)(x), expected)


def test_metadata_in_float_change_nothing(lab):
    graph = lab(precision=None)
    x = torch.randn(100, 2, 2)
    assert torch.equal(integer_graph(graph, as_noted=True)(x), graph.to_integers()(x))
    assert torch.equal(graph.to_integers()(x), graph.model(x))


def test_formats_of_quantised_layers_are_not_applied_twice(lab):
    layers = (nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2), nn.ReLU())
    widths = {f"{operand}_width": 8 for operand in ("data_in", "weight", "data_out")}
    widths |= {f"{operand}_frac_width": 4 for operand in ("data_in", "weight", "data_out")}
    every = {"default": {"config": {"name": "integer", **widths}}}
    graph = lab(nn.Sequential(*layers).eval(), None, torch.zeros(1, 4), **every)
    x = torch.randn(100, 4)
    assert torch.equal(integer_graph(graph, as_noted=True)(x), graph.to_integers()(x))


def test_operands_are_rounded_to_the_precision_of_the_metadata(lab):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            y = self.fc(x)
            return y + torch.relu(y)

    graph = lab(Sum(), None, torch.zeros(1, 4))
    add = next(node for node in graph.nodes if node.name == "add").meta["mase"].common
    add.args["data_in_0"].update(type="fixed", precision=[5, 1])
    x = torch.randn(100, 4)
    hidden = graph.model.fc(x)
    expected = Integer(5, 1)(hidden) + torch.relu(hidden)
    assert torch.equal(integer_graph(graph, as_noted=True)(x), expected)


def test_a_value_that_is_written_in_place_keeps_its_result(lab):
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.relu = nn.Linear(4, 4), nn.ReLU(inplace=True)

        def forward(self, x):
            y = self.fc(x)
            self.relu(y)
            return y

    graph = lab(InPlace(), x=torch.zeros(1, 4))
    x = torch.randn(50, 4)
    fixed = Integer(8, 3)
    with torch.no_grad():
        expected = fixed(torch.relu(fixed(graph.model.fc(x))))
    assert torch.equal(integer_graph(graph, as_noted=True)(x), expected)


# --- refusals


def test_metadata_that_contradict_a_layer_are_refused(lab, tmp_path):
    graph = lab()
    layer = next(node for node in graph.nodes if node.name == "fc1").meta["mase"].common
    layer.args["weight"]["precision"] = [4, 2]
    with pytest.raises(
        PassArgsError, match=r"'fc1' rounds 'weight' to integer \[8, 3\], but .*\[4, 2\]"
    ):
        emit_verilog_top_transform_pass(graph, {"project_dir": tmp_path})
    assert not list(tmp_path.iterdir())


def test_a_network_in_float_is_refused(tmp_path):
    graph = MaseGraph(nn.Sequential(nn.Linear(4, 2)))
    options = {"add_common_metadata": {"dummy_in": {"input": torch.zeros(1, 4)}}}
    Pipeline(["init_metadata", "add_common_metadata", "add_hardware_metadata"])(graph, options)
    with pytest.raises(PassArgsError, match=r"'_0' .*quantise"):
        emit_verilog_top_transform_pass(graph, {"project_dir": tmp_path})
    assert not list(tmp_path.iterdir())


def test_all_ops_without_a_component_are_named(lab, tmp_path, monkeypatch):
    graph = lab()
    for op in (LinearCodes, ReluCodes):
        monkeypatch.delitem(COMPONENTS._items, op)
    with pytest.raises(PassArgsError) as refused:
        emit_verilog_top_transform_pass(graph, {"project_dir": tmp_path})
    assert "'fc1' (Linear w8) has no component, 'relu' (Relu) has no component" in str(
        refused.value
    )
    assert not list(tmp_path.iterdir())


def test_hardware_metadata_are_asked_for(tmp_path):
    graph = MaseGraph(nn.Sequential(nn.Linear(4, 2)))
    options = {"add_common_metadata": {"dummy_in": {"input": torch.zeros(1, 4)}}}
    Pipeline(["init_metadata", "add_common_metadata"])(graph, options)
    for run in PARTS:
        with pytest.raises(PassArgsError, match="run add_hardware_metadata_analysis_pass first"):
            run(graph)


@pytest.mark.parametrize("run", [*PARTS[1:], emit_cocotb_transform_pass])
def test_the_top_module_comes_first(lab, run):
    with pytest.raises(PassArgsError, match="run emit_verilog_top_transform_pass first"):
        run(lab())


def test_a_test_bench_needs_the_whole_circuit(lab, tmp_path):
    graph = lab()
    emit_verilog_top_transform_pass(graph, {"project_dir": tmp_path})
    with pytest.raises(PassArgsError, match="emit_internal_rtl_transform_pass and emit_bram"):
        emit_cocotb_transform_pass(graph)


def test_later_passes_write_beside_the_top_module(lab, tmp_path):
    graph = lab()
    emit_verilog_top_transform_pass(graph, {"project_dir": tmp_path / "a"})
    with pytest.raises(PassArgsError, match=r"was emitted to .*a, not to .*b"):
        emit_bram_transform_pass(graph, {"project_dir": tmp_path / "b"})


def test_a_file_is_no_project(lab, tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(NotADirectoryError, match="is a file; give a directory"):
            emit_verilog_top_transform_pass(lab(), {"project_dir": place})


@pytest.mark.parametrize("name", ["module", "2nd", "my top", "_top", ""])
def test_a_name_that_verilog_does_not_take_is_refused(lab, tmp_path, name):
    with pytest.raises(PassArgsError, match="is not a legal name of a module"):
        emit_verilog_top_transform_pass(lab(), {"project_dir": tmp_path, "top_name": name})


def test_files_of_the_user_beside_the_sources_are_not_lost(lab, tmp_path):
    rtl = emit(lab(), tmp_path)
    (rtl / "mine.sv").write_text("module mine; endmodule\n")
    with pytest.raises(FileExistsError, match=r"'mine\.sv'"):
        emit_verilog_top_transform_pass(lab(), {"project_dir": tmp_path})
    assert (rtl / "top.sv").is_file()


def test_keywords_of_verilog_are_no_obstacle_as_names_of_layers(lab, tmp_path):
    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.module, self.always = nn.Linear(4, 4), nn.ReLU()

        def forward(self, input):
            return self.always(self.module(input))

    rtl = emit(lab(Keywords(), x=torch.zeros(1, 4)), tmp_path)
    text = (rtl / "top.sv").read_text()
    assert ") module_n (" in text
    assert ") always_n (" in text
    assert (rtl / "module_n_weight_source.sv").is_file()


def test_two_emits_at_once_leave_one_whole_circuit(lab, tmp_path):
    graphs = [lab(), lab(nn.Sequential(nn.ReLU()), x=torch.zeros(1, 4))]
    errors = []

    def work(graph):
        try:
            for _ in range(5):
                emit(graph, tmp_path)
        except OSError as error:  # pragma: no cover
            errors.append(error)

    threads = [threading.Thread(target=work, args=(graph,)) for graph in graphs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    rtl = tmp_path / "hardware" / "rtl"
    names = {file.name for file in rtl.iterdir()} - {"circuit.json"}
    assert names == Circuit.read(tmp_path / "hardware").files.keys()
