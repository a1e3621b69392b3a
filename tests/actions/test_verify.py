"""`ch verify`: what a certificate says, the faults that it names, and what is refused."""

import hashlib
import importlib.util
import json
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from chop.actions import verify
from chop.actions.certificate.artefacts import changes
from chop.actions.certificate.machine import machine
from chop.actions.certificate.page import certificate_page
from chop.actions.certificate.vectors import Vectors
from chop.actions.certificate.ways import Difference, compared
from chop.checkpoints import load_graph
from chop.cli import ChopCLI
from chop.integers import ChannelAffine, LinearCodes, QuantizeInput, Requantize
from chop.integers.digest import graph_digest

FORMATS = """
[passes.quantize]
by = "type"
[passes.quantize.default.config]
name = "integer"
data_in_width = 6
data_in_frac_width = 3
data_in_rounding = "even"
weight_width = 5
weight_frac_width = 4
bias_width = 6
bias_frac_width = 4
"""
NAMES = ("jsc-tiny", "jsc-sim")
FEW = ("--samples", 40, "--random-vectors", 24, "--cpu", 0)
SAVED = "software/transform/transformed_ckpt"
ONNX = "software/onnx/integer.onnx"
rtl = pytest.mark.rtl


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A project with a quantised network; copied for each test."""
    folder = tmp_path_factory.mktemp("projects")
    (folder / "formats.toml").write_text(FORMATS)
    words = ["transform", *NAMES, "--config", folder / "formats.toml", "--cpu", 0, "--seed", 3]
    ChopCLI([str(w) for w in (*words, "--project-dir", folder, "--project", "p")]).run()
    return folder / "p"


@pytest.fixture
def project(original, tmp_path):
    return shutil.copytree(original, tmp_path / "runs" / "p")


@pytest.fixture
def with_onnx(project):
    pytest.importorskip("onnxruntime")
    write_onnx(project, integers_of(project))
    return project


def integers_of(project):
    graph = load_graph(project / SAVED)
    graph.model.eval()
    return graph.to_integers()


def write_onnx(project, integers, name="integer", rounding="Round"):
    """Write the network as an ONNX file of codes in float64, which is exact."""
    from chop.onnx import ModelBuilder, save_model

    model = ModelBuilder("network")
    (x,) = integers.inputs
    shape = next(n.op.shape for n in integers.nodes.values() if isinstance(n.op, QuantizeInput))
    given = model.input(x, np.float32, ["batch", *shape])
    for node in integers.nodes.values():
        if isinstance(node.op, QuantizeInput):
            wide = model.add("Cast", given, to=11)
            step = node.op.word.scale.value
            add_rounding(model, node, wide, 1 / step, rounding)
        elif isinstance(node.op, Requantize):
            ratio = integers.codes(node.inputs[0]).scale.value / node.op.word.scale.value
            add_rounding(model, node, node.inputs[0], ratio, rounding)
        elif isinstance(node.op, LinearCodes):
            weight = model.constant(node.op.weight.T.double().numpy(), f"{node.name}.weight")
            product = model.add("MatMul", node.inputs[0], weight)
            scaled = model.add("Mul", product, model.constant(np.float64(2**node.op.shift)))
            bias = model.constant(node.op.bias.double().numpy(), f"{node.name}.bias")
            model.add("Add", scaled, bias, result=node.name)
        else:
            assert isinstance(node.op, ChannelAffine)
            parts = [
                model.constant(t.double().numpy()) for t in (node.op.multiplier, node.op.offset)
            ]
            model.add("Add", model.add("Mul", node.inputs[0], parts[0]), parts[1], result=node.name)
    (out,) = integers.outputs
    codes = model.add("Cast", out, to=7)
    values = model.add("Cast", out, to=1)
    step = model.constant(integers.codes(out).scale.value.float().numpy())
    sizes = ["batch", *integers.codes(out).shape]
    model.output(model.add("Mul", values, step), "output", np.float32, sizes)
    model.output(codes, "output_codes", np.int64, sizes)
    facts = {"mase.format": name, "mase.network": graph_digest(integers)}
    return save_model(model.model(facts), project / "software" / "onnx" / f"{name}.onnx")


def add_rounding(model, node, value, ratio, rounding):
    scaled = model.add("Mul", value, model.constant(np.asarray(ratio, np.float64)))
    word = node.op.word
    ends = [model.constant(np.float64(end)) for end in (word.low, word.high)]
    model.add("Clip", model.add(rounding, scaled), *ends, result=node.name)


def edited_onnx(project, edit):
    import onnx

    file = project / ONNX
    model = onnx.load(file)
    edit(model)
    file.write_bytes(model.SerializeToString())


def edited_weight(project):
    """Change one weight of the saved graph by several steps."""
    file = project / SAVED / "state_dict.safetensors"
    tensors = load_file(file)
    weight = next(t for n, t in tensors.items() if n.endswith("weight") and t.ndim == 2)
    weight[0, 0] = -0.5 if weight[0, 0] > 0 else 0.5
    save_file(tensors, file, metadata={"format": "pt"})


def certificate(project):
    return json.loads((project / "certificate.json").read_text())


def failed(here, project, *more):
    """Return the sentence of a verification that fails."""
    code, out, err = here("verify", project, *FEW, *more)
    assert code == 1, out + err
    return err.splitlines()[-1]


# --- certificates


def test_a_project_is_found_by_its_name_and_gets_a_certificate_and_a_page(here, project):
    code, out, err = here("verify", "p", "--project-dir", project.parent, *FEW)
    assert code == 0, out + err
    assert f"Not compared: there is no circuit in {project / 'hardware'}; run ch emit first" in err
    record = certificate(project)
    assert record["verdict"] == "equal"
    assert [way["way"] for way in record["ways"]] == ["simulation", "integers"]
    vectors = record["vectors"]
    assert (vectors["samples"], vectors["random"], vectors["seed"]) == (40, 24, 0)
    assert vectors["total"] == 64 + vectors["boundary"]
    assert record["network"]["checksum"] == graph_digest(integers_of(project))
    sums = {row["file"]: row["sha256"] for row in record["artefacts"]}
    state = project / SAVED / "state_dict.safetensors"
    assert sums[f"{SAVED}/{state.name}"] == hashlib.sha256(state.read_bytes()).hexdigest()
    page = (project / "certificate.html").read_text()
    assert "All ways give the same codes for all vectors." in page
    assert "http" not in page.replace("http-equiv", "")


def layout(value):
    """The keys of JSON, with lists as their first item."""
    if isinstance(value, dict):
        return {key: layout(item) for key, item in value.items()}
    return [layout(value[0])] if isinstance(value, list) and value else type(value).__name__


def test_the_layout_of_a_certificate_is_as_recorded(here, project, golden):
    assert here("verify", project, *FEW)[0] == 0
    record = certificate(project)
    record["versions"] = dict.fromkeys(record["versions"], "")  # some may not be installed
    record["machine"]["flags"] = []
    golden("certificate.json", json.dumps(layout(record), indent=2) + "\n")


def test_the_same_vectors_and_codes_come_again_and_others_with_another_seed(here, project):
    assert here("verify", project, *FEW)[0] == 0
    first = certificate(project)
    assert here("verify", project, *FEW)[0] == 0
    again = certificate(project)
    assert {**first, "made": ""} == {**again, "made": ""}
    assert here("verify", project, *FEW, "--seed", 1)[0] == 0
    assert certificate(project)["vectors"]["sha256"] != first["vectors"]["sha256"]


def test_model_and_data_set_can_be_named_instead_of_a_project(here, project):
    words = (*NAMES, "--load", project / SAVED, *FEW)
    code, out, err = here("verify", *words, "--against", "simulation")
    assert code == 0, out + err
    assert certificate(project)["options"]["against"] == ["simulation"]


def test_again_takes_the_options_of_the_certificate_and_writes_nothing(here, project):
    assert here("verify", project, *FEW, "--seed", 5)[0] == 0
    before = (project / "certificate.json").read_bytes()
    code, out, err = here("verify", project, "--again", "--cpu", 0)
    assert code == 0, out + err
    assert "holds" in err
    assert (project / "certificate.json").read_bytes() == before


def test_again_names_the_file_that_has_changed_and_fails_until_it_is_verified(here, project):
    assert here("verify", project, *FEW)[0] == 0
    edited_weight(project)
    for _ in range(2):
        code, _, err = here("verify", project, "--again", "--cpu", 0)
        assert code == 1
        assert f"{SAVED}/state_dict.safetensors has changed" in err
        assert "the network computes something else" in err
    code, _, err = here("verify", project, *FEW)
    assert code == 0
    assert f"{SAVED}/state_dict.safetensors has changed" in err
    assert here("verify", project, "--again", "--cpu", 0)[0] == 0


def test_a_certificate_of_a_stranger_sets_no_code_to_run(here, project, tmp_path):
    assert here("verify", project, *FEW)[0] == 0
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    record = certificate(project)
    record["options"] |= {"imports": [str(tmp_path / "evil.py")], "config": "x.toml"}
    (project / "certificate.json").write_text(json.dumps(record))
    assert here("verify", project, "--again", "--cpu", 0)[0] == 0
    assert not (tmp_path / "ran").exists()


def test_a_simulation_that_differs_is_named_by_its_layer(here, project, monkeypatch):
    run = Requantize.run
    monkeypatch.setattr(Requantize, "run", lambda self, x: run(self, x) - 1)
    said = failed(here, project)
    assert said.startswith("ch: the float simulation differs from the integer graph: node 'seq_")
    assert "in sample 0 of the test split" in said


def test_python_gets_the_certificate_or_an_error(project):
    from chop.dataset import MaseDataModule

    data = MaseDataModule(name="jsc-sim", batch_size=64, num_workers=0, model_name="jsc-tiny")
    graph = load_graph(project / SAVED)
    options = {"project_dir": project, "samples": 8, "random_vectors": 0}
    made = verify(graph, data_module=data, **options)
    assert made.record["vectors"]["random"] == 0
    assert certificate(project)["verdict"] == "equal"
    with pytest.raises(FileNotFoundError, match="run ch export first"):
        verify(graph, data_module=data, against=["onnx"], **options)


# --- ONNX


def test_a_right_onnx_file_has_no_mismatch_and_the_score_of_the_integers(here, with_onnx):
    code, out, err = here("verify", with_onnx, *FEW, "--against", "onnx")
    assert code == 0, out + err
    integers, onnx = certificate(with_onnx)["ways"]
    assert (onnx["file"], onnx["mismatches"], onnx["faults"]) == (ONNX, 0, [])
    assert onnx["score"] == integers["score"]
    assert ONNX in [row["file"] for row in certificate(with_onnx)["artefacts"]]


def test_a_corrupted_weight_in_an_onnx_file_is_named_by_its_node(here, with_onnx):
    from onnx import numpy_helper

    def edit(model):
        (tensor,) = (t for t in model.graph.initializer if t.name == f"{node}.weight")
        array = numpy_helper.to_array(tensor).copy()
        array[:, 0] += 3
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    nodes = integers_of(with_onnx).nodes.values()
    node = next(n.name for n in nodes if isinstance(n.op, LinearCodes))
    edited_onnx(with_onnx, edit)
    said = failed(here, with_onnx)
    assert said.startswith(
        f"ch: the ONNX file {ONNX} differs from the integer graph: node {node!r}"
    )
    assert "instead of" in said
    assert "vector" in said
    first = certificate(with_onnx)["ways"][2]["first"]
    assert (first["node"], first["place"]) == (node, [0])
    assert certificate(with_onnx)["verdict"] == "different"
    assert "The ways differ." in (with_onnx / "certificate.html").read_text()


def test_a_flipped_rounding_mode_in_an_onnx_file_is_named_by_its_node(here, with_onnx):
    write_onnx(with_onnx, integers_of(with_onnx), rounding="Floor")
    said = failed(here, with_onnx)
    first = next(iter(integers_of(with_onnx).nodes))
    assert f"the ONNX file {ONNX} differs from the integer graph: node {first!r} is" in said


def test_a_flipped_rounding_mode_in_the_saved_graph_is_caught_by_the_onnx_file(here, with_onnx):
    file = with_onnx / SAVED / "graph.json"
    text = file.read_text()
    assert '"data_in_rounding": "even"' in text
    file.write_text(text.replace('"data_in_rounding": "even"', '"data_in_rounding": "floor"'))
    said = failed(here, with_onnx)
    assert f"the ONNX file {ONNX} differs from the integer graph: node 'x_codes' is" in said
    assert "it was made from another network (checksum" in said


def test_a_corrupted_weight_in_the_saved_graph_is_told_from_a_stale_file(here, with_onnx):
    assert here("verify", with_onnx, *FEW)[0] == 0
    edited_weight(with_onnx)
    said = failed(here, with_onnx)
    assert "it was made from another network (checksum" in said
    assert said.endswith("the other files are of one network, so the saved graph has been changed")


def test_a_stale_onnx_file_is_named_even_if_its_codes_agree(here, with_onnx):
    def edit(model):
        next(p for p in model.metadata_props if p.key == "mase.network").value = "0" * 64

    edited_onnx(with_onnx, edit)
    said = failed(here, with_onnx)
    assert f"the ONNX file {ONNX} was made from another network (checksum 000000000000…" in said
    assert said.endswith("export it again with ch export (its codes agree)")
    assert certificate(with_onnx)["ways"][2]["mismatches"] == 0


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x0a" * 40])
def test_a_file_that_is_no_onnx_is_refused_in_one_sentence(here, with_onnx, content):
    (with_onnx / ONNX).write_bytes(content)
    said = failed(here, with_onnx)
    assert f"{with_onnx / ONNX} is not an ONNX file" in said
    assert not (with_onnx / "certificate.json").exists()


def test_a_missing_runtime_is_refused_with_the_command_that_installs_it(
    here, with_onnx, monkeypatch
):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name == "onnxruntime" else find(name, *a),
    )
    said = failed(here, with_onnx, "--against", "onnx")
    assert "running integer.onnx needs onnxruntime; install it with:" in said
    assert said.endswith('[onnx]"')


def test_a_float_file_is_scored_and_not_compared(here, with_onnx):
    def edit(model):
        del model.metadata_props[:]

    edited_onnx(with_onnx, edit)
    (with_onnx / ONNX).rename(with_onnx / "software" / "onnx" / "onnx.onnx")
    code, out, err = here("verify", with_onnx, *FEW)
    assert code == 0, out + err
    way = certificate(with_onnx)["ways"][2]
    assert way["mismatches"] is None
    assert way["score"] is not None


def test_a_certificate_that_compares_nothing_fails(here, with_onnx):
    edited_onnx(with_onnx, lambda model: model.metadata_props.clear())
    (with_onnx / ONNX).rename(with_onnx / "software" / "onnx" / "onnx.onnx")
    said = failed(here, with_onnx, "--against", "onnx")
    assert said.startswith("ch: nothing was compared: the ONNX file software/onnx/onnx.onnx: it is")
    assert certificate(with_onnx)["verdict"] == "not compared"


def test_a_file_with_floats_is_compared_in_steps(here, with_onnx):
    def edit(model):
        (fact,) = (p for p in model.metadata_props if p.key == "mase.format")
        fact.value = "qdq"
        del model.graph.output[1]

    edited_onnx(with_onnx, edit)
    (with_onnx / ONNX).rename(with_onnx / "software" / "onnx" / "qdq.onnx")
    code, out, err = here("verify", with_onnx, *FEW)
    assert code == 0, out + err
    assert certificate(with_onnx)["ways"][2]["mismatches"] == 0


# --- Verilog


def emitted(here, project, backend):
    words = (*NAMES, "--load", project / SAVED, "--cpu", 0, "--backend", backend)
    code, out, err = here("emit", *words)
    assert code == 0, out + err
    return project / "hardware" / "rtl"


def edit_line(file, pattern, replacement):
    text = file.read_text()
    changed = re.sub(pattern, replacement, text, count=1)
    assert changed != text
    file.write_text(changed)


def test_without_verilator_the_sentence_says_how_to_install_it(here, project, monkeypatch):
    from chop.hardware.simulation import programs

    emitted(here, project, "streaming")
    monkeypatch.setattr(programs, "_packaged", lambda: None)
    monkeypatch.setattr(programs, "find_program", lambda name: None)
    said = failed(here, project)
    assert "simulation needs Verilator; install it with:" in said


@rtl
def test_an_edited_line_of_verilog_is_named_by_file_and_layer(here, with_onnx):
    pytest.importorskip("alkaid")
    folder = emitted(here, with_onnx, "unrolled")
    code, out, err = here("verify", with_onnx, *FEW)
    assert code == 0, out + err
    ways = certificate(with_onnx)["ways"]
    assert [way["way"] for way in ways] == ["simulation", "integers", "onnx", "verilog"]
    assert len({way["score"] for way in ways}) == 1
    assert certificate(with_onnx)["versions"]["verilator"]
    layer = sorted(folder.glob("seq_*.sv"))[0]
    edit_line(layer, r"kept_0 <= given_0;", "kept_0 <= ~given_0;")
    said = failed(here, with_onnx)
    assert "the circuit in hardware/rtl differs from the integer graph: node '" in said
    assert f"(of the module {layer.stem}) is " in said
    assert f"it is not what ch emit wrote: {layer.name} with the layers" in said
    assert "saved graph has been changed" not in said


@rtl
def test_an_edited_comment_of_verilog_is_named_though_the_codes_agree(here, project):
    folder = emitted(here, project, "streaming")
    with (folder / "top.sv").open("a") as file:
        file.write("// mine\n")
    said = failed(here, project)
    assert "the circuit in hardware/rtl is not what ch emit wrote: top.sv was edited" in said
    assert said.endswith("(its codes agree)")


@rtl
def test_a_circuit_of_another_network_is_named(here, project):
    emitted(here, project, "streaming")
    edited_weight(project)
    said = failed(here, project)
    assert "differs from the integer graph: node" in said
    assert "it was emitted from another network (checksum" in said


# --- bad input


def test_what_is_no_project_is_refused(here, project, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "runs" / "empty" / "software").mkdir(parents=True)
    place = ("--project-dir", project.parent)
    for name, said in [
        ("nothing", "there is no project 'nothing' in"),
        ("q", "there is no project 'q' in"),
        (tmp_path / "other", "is not a project: it has neither software nor hardware in it"),
        ("empty", "is empty: it has no saved graph, ONNX file or circuit to compare; run"),
    ]:
        code, _, err = here("verify", name, *place)
        assert code == 2
        assert said in err


def test_a_project_without_a_network_needs_a_checkpoint(here, with_onnx):
    shutil.rmtree(with_onnx / "software" / "transform")
    code, _, err = here("verify", with_onnx, *FEW)
    assert code == 2
    assert "has no saved graph, so the network of its files is not known; give" in err


def test_a_data_set_that_is_not_recorded_or_not_known_is_refused(here, project):
    file = project / SAVED / "graph.json"
    text = file.read_text()
    file.write_text(text.replace('"dataset": "jsc-sim"', '"dataset": ""'))
    code, _, err = here("verify", project, *FEW)
    assert code == 2
    assert "does not say which data set it was made from; call ch verify MODEL DATASET" in err
    file.write_text(text.replace('"dataset": "jsc-sim"', '"dataset": "jsc-gone"'))
    code, _, err = here("verify", project, *FEW)
    assert code == 2
    assert "unknown data set 'jsc-gone'" in err or "unknown dataset 'jsc-gone'" in err


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--against", "onnx"], 1, "there is no ONNX file in"),
        (["--against", "verilog"], 1, "there is no circuit in"),
        (["--against", "integers"], 2, "--against integers compares nothing"),
        (["--against", "vhdl"], 2, "--against"),
        (["--again"], 2, "--again: there is no certificate.json in"),
        (["--samples", "0"], 2, "--samples"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_loaded(here, project, flags, code, said):
    got, _, err = here("verify", project, *flags)
    assert got == code
    assert said in err
    assert "Initialising" not in err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "mase-certificate"}'])
def test_a_damaged_certificate_is_refused(here, project, text):
    (project / "certificate.json").write_text(text)
    code, _, err = here("verify", project, *FEW)
    assert code == 1
    assert "certificate.json" in err.splitlines()[-1]


# --- parts


def test_the_first_difference_is_that_of_the_first_vector():
    own = [torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)]
    got = [x.clone() for x in own]
    got[0][2, 0], got[1][1] = 4, 7
    found = compared(own, got)
    assert (found.mismatches, found.wrong_vectors) == (2, 2)
    assert found.difference("out") == Difference("out", 1, (), 0, 7)
    assert compared(own, own).difference("out") is None


def test_vectors_are_named_by_their_kind():
    vectors = Vectors({"x": torch.zeros(9, 1)}, torch.zeros(4), "test", 3, 0)
    assert vectors.boundary == 2
    assert [vectors.name(i) for i in (0, 4, 8)] == [
        "sample 0 of the test split",
        "random vector 0",
        "boundary vector 1",
    ]


def test_changes_of_files_are_told_apart():
    before = [{"file": n, "sha256": s} for n, s in (("a", "1"), ("b", "1"), ("c", "1"))]
    now = [{"file": n, "sha256": s} for n, s in (("a", "2"), ("c", "1"), ("d", "1"))]
    assert changes(before, now) == ["a has changed", "b is gone", "d is new"]


def test_a_processor_with_vnni_is_told_by_its_flags(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor: 0\nmodel name\t: A CPU\nflags\t\t: fpu avx2 avx512_vnni\n")
    assert machine(file)["cpu"] == "A CPU"
    assert machine(file)["flags"] == ["avx2", "avx512_vnni"]
    assert machine(file)["vnni"] is True
    file.write_text("model name: B\nflags: fpu avx2\n")
    assert machine(file)["vnni"] is False


def test_the_page_escapes_what_is_in_the_record(here, project):
    assert here("verify", project, *FEW)[0] == 0
    record = certificate(project)
    record["command"] = "<script>alert(1)</script>"
    assert "<script>" not in certificate_page(record)
