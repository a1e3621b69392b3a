"""ONNX files that are right, wrong, stale, of another kind, or no ONNX."""

import importlib.util

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from chop.integers import LinearCodes
from chop.ir import MaseGraph
from chop.passes import Pipeline, run_pass

from .projects import (
    FEW,
    NAMES,
    ONNX,
    SAVED,
    certificate,
    edited_onnx,
    edited_weight,
    failed,
    integers_of,
    write_onnx,
)

CONFIG = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 5}
CONFIG |= {"weight_width": 8, "weight_frac_width": 6, "bias_width": 8, "bias_frac_width": 6}


def test_a_right_onnx_file_has_no_mismatch_and_the_score_of_the_integers(here, with_onnx):
    code, out, err = here("verify", with_onnx, *FEW, "--against", "onnx")
    assert code == 0, out + err
    integers, *sessions = certificate(with_onnx)["ways"]
    assert [way["session"] for way in sessions] == ["optimised", "not optimised"]
    for way in sessions:
        assert (way["file"], way["mismatches"], way["faults"]) == (ONNX, 0, [])
        assert way["score"] == integers["score"]
    assert "onnx, not optimised" in (with_onnx / "certificate.html").read_text()
    assert ONNX in [row["file"] for row in certificate(with_onnx)["artefacts"]]


def test_what_only_the_optimiser_of_onnxruntime_changes_is_said_to_be_that(
    here, with_onnx, monkeypatch
):
    from chop.actions.certificate import onnx_way

    class Optimised(onnx_way.Runtime):
        def __init__(self, file, *, threads=1, optimize=True):
            super().__init__(file, threads=threads, optimize=optimize)
            self.shift = int(optimize)

        def run(self, inputs):
            return {name: x + x.dtype.type(self.shift) for name, x in super().run(inputs).items()}

    monkeypatch.setattr(onnx_way, "Runtime", Optimised)
    said = failed(here, with_onnx, "--against", "onnx")
    assert said.startswith(f"ch: the ONNX file {ONNX} differs from the integer graph")
    _, deployed, plain = certificate(with_onnx)["ways"]
    assert deployed["mismatches"] > plain["mismatches"] == 0
    assert "its optimiser changes the results" in deployed["notes"][-1]


def test_a_constant_that_is_clipped_is_in_the_certificate(here, project):
    file = project / SAVED / "state_dict.safetensors"
    tensors = load_file(file)
    next(t for n, t in tensors.items() if n.endswith("bias") and t.ndim == 1)[0] = 100.0
    save_file(tensors, file, metadata={"format": "pt"})
    code, out, err = here("verify", project, *FEW)
    assert code == 0, out + err
    finding = next(f for f in certificate(project)["findings"] if "of its bias" in f)
    assert "numbers of its bias are clipped by their format" in finding
    assert finding in err
    assert "are clipped by their format" in (project / "certificate.html").read_text()


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
    assert f"{with_onnx / ONNX} is " in said
    assert said.rstrip().endswith("again with ch export")
    assert not (with_onnx / "certificate.json").exists()


def test_an_earlier_certificate_is_told_from_a_run_that_could_not_read_a_file(here, with_onnx):
    assert here("verify", with_onnx, *FEW)[0] == 0
    (with_onnx / ONNX).write_bytes(b"not a model")
    code, out, err = here("verify", with_onnx, *FEW)
    assert code == 1
    made = certificate(with_onnx)["made"]
    assert f"({made}, 'equal') may be out of date" in out + err


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
    assert "running an ONNX file needs onnxruntime; install it with:" in said
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


def test_codes_beyond_53_bits_that_differ_by_one_are_told_apart():
    """As floats they would be equal, and the certificate wrong."""
    import numpy as np
    import torch

    from chop.actions.certificate.onnx_way import _codes
    from chop.actions.certificate.ways import compared

    own = torch.tensor([[2**53], [2**60]])
    found = _codes(np.array([[2**53 + 1], [2**60]]))
    assert compared([own], [found]).mismatches == 1
    assert compared([own], [_codes(own.numpy())]).mismatches == 0


def test_a_file_with_the_softmax_that_integers_leave_out_is_scored_and_not_compared(
    here, tmp_path, package
):
    package("onnxruntime"), package("onnx")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 5), nn.Softmax(-1)).eval()
    dummy = {"dummy_in": {"input": torch.zeros(2, 16)}}
    table = {"by": "type", "default": {"config": CONFIG}, "softmax": {"config": {"name": "NA"}}}
    steps = ["init_metadata", ("add_common_metadata", dummy), ("quantize", table)]
    graph, _ = Pipeline(steps)(MaseGraph(network))
    project = tmp_path / "p"
    graph.export(project / SAVED)
    for kind in ("qdq", "integer"):
        _, info = run_pass(
            "export_onnx",
            graph,
            {"format": kind, "save_path": project / f"software/onnx/{kind}.onnx"},
        )
        assert any("softmax at the end" in note for note in info["notes"]) == (kind == "integer")
    place = ("--load", project / SAVED, "--project-dir", tmp_path, "--project", "p")
    code, out, err = here("verify", *NAMES, *place, *FEW)
    assert code == 0, out + err
    ways = {way["file"]: way for way in certificate(project)["ways"]}
    assert ways[ONNX]["mismatches"] == 0
    assert ways[ONNX.replace("integer", "qdq")]["mismatches"] is None
    assert "the integers end before" in ways[ONNX.replace("integer", "qdq")]["notes"][0]
