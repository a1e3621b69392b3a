"""ONNX files run with fixed options, and bad files and inputs are refused in one sentence."""

import inspect

import numpy as np
import pytest
import torch

pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from chop.onnx import ModelBuilder, save_model
from chop.onnx.runtime import Runtime, saturates_products, session_options
from chop.onnx.runtime_module import RuntimeModule


def doubled():
    builder = ModelBuilder("doubled")
    x = builder.input("x", np.float32, ["batch", 3])
    builder.output(builder.add("Add", x, x), "y", np.float32, ["batch", 3])
    return builder.model({"mase.accuracy": "0.5"})


def test_a_file_and_a_model_give_the_same_results(tmp_path):
    file = save_model(doubled(), tmp_path / "model.onnx")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for source in (file, str(file), doubled()):
        runtime = Runtime(source, threads=2, optimize=False)
        assert np.array_equal(runtime.run({"x": x})["y"], 2 * x)
        assert runtime.metadata == {"mase.accuracy": "0.5"}


def test_sessions_have_fixed_threads_and_exact_products():
    options = session_options(threads=2)
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 1)
    with pytest.raises(ValueError, match="threads must be at least 1, not 0"):
        session_options(threads=0)


@pytest.mark.parametrize(
    ("machine", "flags", "saturates"),
    [
        ("x86_64", "fma avx2 avx512f avx512_vnni", False),
        ("AMD64", "fma avx2 avx_vnni", False),
        ("x86_64", "fma avx2 avx512f", True),
        ("x86_64", None, True),
        ("aarch64", "asimddp", False),
    ],
)
def test_wide_products_are_asked_for_on_x86_without_vnni_alone(
    machine, flags, saturates, monkeypatch, tmp_path
):
    monkeypatch.setattr("platform.machine", lambda: machine)
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
    assert saturates_products(tmp_path / "cpuinfo") == saturates
    monkeypatch.setattr("chop.onnx.runtime.saturates_products", lambda: saturates)
    entry = "session.x64quantprecision"
    if saturates:
        assert session_options().get_session_config_entry(entry) == "1"
    else:
        with pytest.raises(Exception, match=entry):
            session_options().get_session_config_entry(entry)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, "the model has the inputs x; 'x' is missing"),
        ({"x": np.ones((2, 3), np.float32), "z": 1}, "the inputs x; 'z' is not one of them"),
        ({"x": np.ones((2, 3))}, "the input 'x' has the dtype float32, not float64"),
        ({"x": np.ones((2, 4), np.float32)}, r"has the shape \['batch', 3\], not \[2, 4\]"),
        ({"x": np.ones(3, np.float32)}, r"has the shape \['batch', 3\], not \[3\]"),
    ],
)
def test_wrong_inputs_are_refused(inputs, said):
    with pytest.raises((ValueError, TypeError), match=said):
        Runtime(doubled()).run(inputs)


def test_what_is_no_model_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no ONNX file '.*none.onnx'"):
        Runtime(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(ValueError, match=r"text.onnx is damaged, truncated or not") as refused:
        Runtime(tmp_path / "text.onnx")
    assert "\n" not in str(refused.value)


def test_a_module_takes_the_inputs_by_name_and_leaves_codes_out():
    b = ModelBuilder("two")
    one, other = (b.input(name, np.float32, ["batch", 2]) for name in ("one", "other"))
    b.output(b.add("Sub", one, other), "output", np.float32, ["batch", 2])
    b.output(b.add("Cast", one, to=7), "output_codes", np.int64, ["batch", 2])
    module = RuntimeModule(Runtime(b.model()))
    assert list(inspect.signature(module.forward).parameters) == ["one", "other"]
    x, y = torch.ones(3, 2), torch.full((3, 2), 3.0, dtype=torch.float64)
    assert torch.equal(module(x, y), torch.full((3, 2), -2.0))
    assert torch.equal(module(other=x, one=y), torch.full((3, 2), 2.0))


def test_a_module_returns_several_outputs_by_name():
    b = ModelBuilder("two")
    x = b.input("x", np.float32, ["batch", 2])
    b.output(b.add("Neg", x), "first", np.float32, ["batch", 2])
    b.output(b.add("Abs", x), "bar_codes", np.float32, ["batch", 2])
    results = RuntimeModule(Runtime(b.model()))(torch.ones(3, 2))
    assert list(results) == ["first", "bar_codes"]  # no codes of another output


def quantised_products(shared):
    """A convolution and a product of codes, which read the same scale and zero point, or copies."""
    import onnx

    rng, helper = np.random.default_rng(0), onnx.helper
    constants = {
        "xs": np.float32(2**-4),
        "xz": np.uint8(0),
        "w": rng.integers(-100, 100, (4, 1, 3, 3)).astype(np.int8),
        "ws": np.float32(2**-7),
        "wz": np.int8(0),
        "ys": np.float32(2**-3),
        "yz": np.uint8(0),
        "v": rng.integers(-100, 100, (4 * 36, 10)).astype(np.int8),
        "zs": np.float32(2**-2),
        "zz": np.uint8(128),
    }
    scale, zero = ("ws", "wz") if shared else ("ws2", "wz2")
    constants |= {scale: constants["ws"], zero: constants["wz"]}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        helper.make_node("QLinearConv", ["q", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"]),
        helper.make_node("Flatten", ["y"], ["f"]),
        helper.make_node("QLinearMatMul", ["f", "ys", "yz", "v", scale, zero, "zs", "zz"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("z", onnx.TensorProto.UINT8, ["batch", 10])],
        [onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()],
    )
    opset = [helper.make_opsetid("", 13)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


@pytest.mark.parametrize("as_file", [True, False])
def test_quantised_products_may_share_their_constants(as_file, tmp_path):
    model = quantised_products(shared=True)
    file = save_model(model, tmp_path / "shared.onnx")
    x = {"x": np.random.default_rng(1).random((5, 1, 8, 8), np.float32) * 15}
    found = Runtime(file if as_file else model).run(x)["z"]
    expected = Runtime(quantised_products(shared=False)).run(x)["z"]
    assert np.array_equal(found, expected)
    assert len(np.unique(expected)) > 2
