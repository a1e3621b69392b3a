"""Projects to verify: a quantised network, its ONNX file, and faults in them."""

import json

import numpy as np
from safetensors.torch import load_file, save_file

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


def made_project(folder, *names):
    """A project with a quantised network."""
    (folder / "formats.toml").write_text(FORMATS)
    words = ["transform", *names, "--config", folder / "formats.toml", "--cpu", 0, "--seed", 3]
    ChopCLI([str(w) for w in (*words, "--project-dir", folder, "--project", "p")]).run()
    return folder / "p"


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
