"""Lab 2: the notebook's quantisation, and the students' code that looks at what it did."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.numerics.integer import Integer
from chop.passes.graph.utils import get_node_actual_target

Notebook = Callable[..., dict[str, Any]]
GraphOf = Callable[..., MaseGraph]
Golden = Callable[[str, str], None]
Capsys = pytest.CaptureFixture[str]
FILES = Path(__file__).parent / "files"

# The notebook's last cells, for a model and its graph.
QUANTIZE = (FILES / "notebook_quantize.py").read_text(encoding="utf-8")

# Seed 000, question 3: the ReLU option.
RELU = """\
pass_args["relu"] = {
    "config": {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
}
"""

# Seed 003, lab 1 question 4.
JSC_X10 = (FILES / "seed_003_jsc_tiny_x10.py").read_text(encoding="utf-8")

# Seed 001, lab 1 question 4.
JSC_BIG = (FILES / "seed_001_jsc_big.py").read_text(encoding="utf-8")

# Seed 000, question 4; the body of get_data_cfg, which lost its indentation there, is indented.
TRAVERSE_000 = (FILES / "seed_000_compare_nodes.py").read_text(encoding="utf-8")

# Seed 000, question 6.
OUTPUTS = (FILES / "seed_000_outputs.py").read_text(encoding="utf-8")

# Seed 001, question 4.
TRAVERSE_001 = (FILES / "seed_001_compare_nodes.py").read_text(encoding="utf-8")

# Seed 001, question 6.
LINEAR_LAYER = """\
# original linear layer in the MaseGraph
linear_layer = getattr(ori_mg.modules["seq_blocks"], "2") # '2' for the linear layer
print(linear_layer.weight)

# the LinearInteger node quantizes the weights using w_quantizer()
linear_base = getattr(mg.modules["seq_blocks"], "2")
print(linear_base.w_quantizer(linear_layer.weight))
"""

# Seed 003, question 4.
DIFFERENCES = (FILES / "seed_003_differences.py").read_text(encoding="utf-8")

# Seed 003, question 6.
WEIGHTS_003 = (FILES / "seed_003_weights.py").read_text(encoding="utf-8")


@pytest.fixture
def quantized(notebook: Notebook, tmp_path: Any, monkeypatch: Any) -> Callable[..., dict[str, Any]]:
    """Runs the notebook's cells for a model: `mg` is quantized, `ori_mg` is not."""
    monkeypatch.chdir(tmp_path)

    def run(model: nn.Module, relu: bool = False) -> dict[str, Any]:
        names = notebook(
            "from chop.passes.graph import *\n"
            "from chop.ir.graph.mase_graph import MaseGraph\n"
            "mg, _ = init_metadata_analysis_pass(MaseGraph(model=model), None)\n"
            "mg, _ = add_common_metadata_analysis_pass(mg, {'dummy_in': dummy_in})\n",
            model=model,
            dummy_in={"x": torch.randn(8, 16)},
        )
        cell = QUANTIZE.replace("\nfrom chop", f"\n{RELU}\nfrom chop", 1) if relu else QUANTIZE
        return notebook(cell, **names)

    return run


@pytest.fixture
def models(notebook: Notebook, jsc_tiny: nn.Module) -> dict[str, nn.Module]:
    """jsc-tiny and the networks that students made of it."""
    return {
        "jsc_tiny": jsc_tiny,
        "jsc_x10": notebook(JSC_X10, nn=nn)["JSC_Tiny_x10"](info=None),
        "jsc_big": notebook(JSC_BIG, nn=nn)["JSC_Big"](info=None),
    }


@pytest.mark.parametrize("name", ["jsc_tiny", "jsc_x10", "jsc_big"])
@pytest.mark.parametrize("relu", [False, True], ids=["linear", "linear_and_relu"])
def test_the_notebook_logs_the_histogram(
    name: str,
    relu: bool,
    models: dict[str, nn.Module],
    quantized: Any,
    capsys: Capsys,
    golden: Golden,
    tmp_path: Any,
) -> None:
    quantized(models[name], relu)
    logged = capsys.readouterr().err
    logged = logged[logged.index("INFO     Quantized graph histogram:") :]
    golden(f"quantized_histogram_{name}{'_relu' if relu else ''}.txt", logged)
    files = sorted(path.name for path in (tmp_path / "quantize_summary").iterdir())
    assert files == ["quantize_histogram.csv", "quantize_table.csv"]


def test_seed_000_compares_the_nodes_with_relu_and_linear_quantized(
    jsc_tiny: nn.Module, quantized: Any, notebook: Notebook, capsys: Capsys, golden: Golden
) -> None:
    names = quantized(jsc_tiny, relu=True)
    capsys.readouterr()
    notebook(TRAVERSE_000, **names)
    golden("seed_000_compare_nodes_quantized.txt", capsys.readouterr().out)


def test_seed_000_runs_the_layers_of_both_graphs_and_finds_rounded_numbers(
    jsc_tiny: nn.Module, quantized: Any, notebook: Notebook, capsys: Capsys
) -> None:
    names = notebook(TRAVERSE_000, **quantized(jsc_tiny, relu=True))
    data_module = notebook(
        "data_module = MaseDataModule('jsc', 8, 0, 'jsc-tiny')\ndata_module.setup()"
    )["data_module"]
    capsys.readouterr()
    names = notebook(OUTPUTS, **names | {"data_module": data_module})
    printed = capsys.readouterr().out
    labels = [line.split(":")[0] for line in printed.splitlines() if ": tensor(" in line]
    assert labels == ["Ori_ReLU", "ReLU", "Ori Linear", "Linear"]
    xs, fmt = names["xs"], Integer(8, 4)  # both relus are in place, so xs is what relu gave
    assert torch.equal(xs, Integer(8, 4, signed=False)(xs))
    linear = names["linear"]
    expected = nn.functional.linear(fmt(xs), fmt(linear.weight), fmt(linear.bias))
    assert torch.equal(linear(xs), expected)
    assert "grad_fn=<AddmmBackward0>" in printed.split("Linear:")[2]
    assert type(names["relu"]).__name__ == "ReLUInteger"


@pytest.mark.parametrize("name", ["jsc_tiny", "jsc_big"])
def test_seed_001_tabulates_what_changed(
    name: str,
    models: dict[str, nn.Module],
    quantized: Any,
    notebook: Notebook,
    capsys: Capsys,
    golden: Golden,
) -> None:
    names = quantized(models[name])
    capsys.readouterr()
    compare = notebook(TRAVERSE_001, **names)["compare_graph_nodes"]
    compare(names["ori_mg"], names["mg"])
    golden(f"seed_001_summary_{name}_quantized.txt", capsys.readouterr().out)


def test_seed_001_prints_a_weight_and_its_quantized_form(
    jsc_tiny: nn.Module, quantized: Any, notebook: Notebook, capsys: Capsys
) -> None:
    names = quantized(jsc_tiny)
    capsys.readouterr()
    names = notebook(LINEAR_LAYER, **names)
    before, after = names["linear_layer"], names["linear_base"]
    rounded = Integer(8, 4)(before.weight)
    assert after.weight is before.weight
    assert capsys.readouterr().out == f"{before.weight}\n{rounded}\n"
    assert set((rounded * 16 % 1).unique().tolist()) == {0.0}


CLASS = "<class 'chop.passes.graph.transforms.quantize.quantized_modules.linear.LinearInteger'>"


def weights_aside(text: str) -> str:
    """Tensors as `tensor(...)`, whatever their numbers and their lines."""
    return re.sub(
        r"(Parameter containing:\s*)?tensor\(.*?\)(?=\s-->|\n|$)", "tensor(...)", text, flags=re.S
    )


@pytest.mark.parametrize("name", ["jsc_tiny", "jsc_x10"])
def test_seed_003_finds_the_layers_that_differ_and_their_outputs(
    name: str,
    models: dict[str, nn.Module],
    quantized: Any,
    notebook: Notebook,
    capsys: Capsys,
    golden: Golden,
) -> None:
    names = quantized(models[name])
    capsys.readouterr()
    names = notebook(DIFFERENCES, **names)
    printed = capsys.readouterr().out
    assert printed.count(CLASS) == {"jsc_tiny": 1, "jsc_x10": 3}[name]
    golden(f"seed_003_differences_{name}.txt", weights_aside(printed))
    layer, x, fmt = names["quant_module"], names["test_input"], Integer(8, 4)
    expected = nn.functional.linear(fmt(x), fmt(layer.weight), fmt(layer.bias))
    assert torch.equal(layer(x), expected)
    assert printed.endswith(f"Output for quantized module: {expected}\n")


def test_seed_003_prints_the_first_row_of_every_quantized_weight(
    models: dict[str, nn.Module], quantized: Any, notebook: Notebook, capsys: Capsys
) -> None:
    names = quantized(models["jsc_x10"])
    capsys.readouterr()
    notebook(WEIGHTS_003, **names)
    printed = capsys.readouterr().out
    for node in names["mg"].nodes:
        layer = get_node_actual_target(node)
        if not isinstance(layer, nn.Linear):
            continue
        old, new = layer.weight[0:1], Integer(8, 4)(layer.weight)[0:1]
        assert (
            f"Difference found at name: {node.name}, "
            "MASE type: module_related_func, MASE operation: linear\n"
            f"Original module: <class 'torch.nn.modules.linear.Linear'>, "
            f"Old Non Quantized Weights: {old} --> "
            f"New module: {CLASS}, New Quantized Weights: {new}\n"
        ) in printed
        assert "grad_fn=<SliceBackward0>" in f"{new}"


def test_the_cells_can_be_run_again_with_the_same_arguments(
    jsc_tiny: nn.Module, quantized: Any, notebook: Notebook
) -> None:
    names = quantized(jsc_tiny)
    again = notebook(QUANTIZE, **names)  # on a graph that is quantized already
    x: Tensor = torch.randn(4, 16)
    expected = names["mg"].model.eval()(x.clone())
    assert torch.equal(again["mg"].model.eval()(x.clone()), expected)
    assert names["pass_args"]["by"] == "type"


def test_the_original_graph_and_model_stay_in_float(jsc_tiny: nn.Module, quantized: Any) -> None:
    x = torch.randn(4, 16)
    expected = jsc_tiny.eval()(x.clone())
    names = quantized(jsc_tiny, relu=True)
    assert torch.equal(names["ori_mg"].model.eval()(x.clone()), expected)
    assert torch.equal(jsc_tiny(x.clone()), expected)
    assert not torch.equal(names["mg"].model.eval()(x.clone()), expected)
    assert type(jsc_tiny.seq_blocks[2]) is nn.Linear
