"""Lab 2: the notebook's quantisation, and the students' code that looks at what it did."""

from __future__ import annotations

import re
from collections.abc import Callable
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

# The notebook's last cells, for a model and its graph.
QUANTIZE = """\
pass_args = {
    "by": "type",
    "default": {"config": {"name": None}},
    "linear": {
        "config": {
            "name": "integer",
            # data
            "data_in_width": 8,
            "data_in_frac_width": 4,
            # weight
            "weight_width": 8,
            "weight_frac_width": 4,
            # bias
            "bias_width": 8,
            "bias_frac_width": 4,
        }
    },
}

from chop.passes.graph.transforms import (
    quantize_transform_pass,
    summarize_quantization_analysis_pass,
)
from chop.ir.graph.mase_graph import MaseGraph

ori_mg = MaseGraph(model=model)
ori_mg, _ = init_metadata_analysis_pass(ori_mg, None)
ori_mg, _ = add_common_metadata_analysis_pass(ori_mg, {"dummy_in": dummy_in})

mg, _ = quantize_transform_pass(mg, pass_args)
summarize_quantization_analysis_pass(ori_mg, mg, save_dir="quantize_summary")
"""

# Seed 000, question 3: the ReLU option.
RELU = """\
pass_args["relu"] = {
    "config": {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
}
"""

# Seed 003, lab 1 question 4.
JSC_X10 = """\
class JSC_Tiny_x10(nn.Module):
    def __init__(self, info):
        super(JSC_Tiny_x10, self).__init__()
        self.seq_blocks = nn.Sequential(
            # 1st Layer
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Linear(16, 40),  # Increased number of output features

            # Additional Layers
            nn.BatchNorm1d(40),
            nn.ReLU(),
            nn.Linear(40, 25),  # New layer

            # Final Layer
            nn.BatchNorm1d(25),
            nn.ReLU(),
            nn.Linear(25, 5),  # Output layer with 5 features as in the original model
        )

    def forward(self, x):
        return self.seq_blocks(x)
"""

# Seed 001, lab 1 question 4.
JSC_BIG = """\
class JSC_Big(nn.Module):
    def __init__(self, info):
        super(JSC_Big, self).__init__()
        self.seq_blocks = nn.Sequential(
            # 1st LogicNets Layer
            nn.BatchNorm1d(16),  # input_quant       # 0
            nn.ReLU(16),  # 1
            nn.Linear(16, 32),  # linear              # 2

            # 2nd LogicNets Layer
            nn.BatchNorm1d(32),  # output_quant       # 3
            nn.ReLU(32), # 4
            nn.Linear(32, 16),  # linear              # 5

            # 3th LogicNets Layer
            nn.BatchNorm1d(16),  # output_quant       # 6
            nn.ReLU(16),  # 7
            nn.Linear(16, 8),  # linear              # 8

            # 4th LogicNets Layer
            nn.BatchNorm1d(8),  # output_quant       # 9
            nn.ReLU(8),  # 10
            nn.Linear(8, 5),  # linear              # 11

            nn.ReLU(5),  # 12
        )

    def forward(self, x):
        return self.seq_blocks(x)
"""

# Seed 000, question 4; the body of get_data_cfg, which lost its indentation there, is indented.
TRAVERSE_000 = r"""
from chop.passes.graph.utils import get_mase_op, get_mase_type, get_node_actual_target
import pandas as pd
from tabulate import tabulate


def get_data_cfg(node, kw):
    try:
        result = node.meta['mase'].parameters['common']['args'][kw]
    except:
        result = {'type':'NA', 'precision':'NA', 'shape':'NA'}
    return result

headers = ['Node', 'MASE OP', 'Ori Data Type & Prec', 'Quan Data Type & Prec', 'Ori Module', 'Quan Module']
rows = []

for ori_n, n in zip(ori_mg.fx_graph.nodes, mg.fx_graph.nodes):
    rows.append(
        [
            ori_n.name,
            get_mase_op(ori_n),
            get_data_cfg(ori_n, 'data_in_0')['type'] + ': ' + get_data_cfg(ori_n, 'data_in_0')['precision'].__str__(),
            get_data_cfg(n, 'data_in_0')['type'] + ': ' + get_data_cfg(n, 'data_in_0')['precision'].__str__(),
            get_node_actual_target(ori_n).__class__.__name__,
            get_node_actual_target(n).__class__.__name__
        ]
    )
print("Compare nodes:")
print("\n" + tabulate(rows, headers=headers, tablefmt="orgtbl"))
"""  # noqa: E501

# Seed 000, question 6.
OUTPUTS = """\
# Get input data
test_x = iter(data_module.val_dataloader())
xs, ys = next(test_x)

# Find quantized relu module
for ori_n, n in zip(ori_mg.fx_graph.nodes, mg.fx_graph.nodes):
    if (get_mase_op(n) == 'relu'):
        ori_relu = get_node_actual_target(ori_n)
        relu = get_node_actual_target(n)
    if (get_mase_op(n) == 'linear'):
        ori_linear = get_node_actual_target(ori_n)
        linear = get_node_actual_target(n)
print('Ori_ReLU:', ori_relu(xs))
print('ReLU:', relu(xs))
print('Ori Linear:', ori_linear(xs))
print('Linear:', linear(xs))
"""

# Seed 001, question 4.
TRAVERSE_001 = r"""
from chop.passes.graph.transforms.quantize.summary import graph_iterator_compare_nodes
from chop.passes.graph.utils import get_mase_op, get_mase_type, get_node_actual_target
import pandas as pd

import pandas as pd
from chop.passes.graph.utils import get_mase_op, get_mase_type, get_node_actual_target

def extract_node_type(node):
    target = get_node_actual_target(node)
    if node.op == "call_module" or get_mase_type(node) in ["builtin_func", "module_related_func", "patched_func", "implicit_func"]:
        return target.__name__ if hasattr(target, '__name__') else str(target)
    return node.target

def compare_graph_nodes(original_graph, quantized_graph):
    data = {
        "Node Name": [],
        "Operation Type": [],
        "Operation": [],
        "Type Before": [],
        "Type After": [],
        "Is Changed": [],
    }
    
    for ori_node, quant_node in zip(original_graph.fx_graph.nodes, quantized_graph.fx_graph.nodes):
        ori_type = extract_node_type(ori_node)
        quant_type = extract_node_type(quant_node)
        data["Node Name"].append(quant_node.name)
        data["Operation Type"].append(get_mase_type(quant_node))
        data["Operation"].append(get_mase_op(quant_node))
        data["Type Before"].append(ori_type)
        data["Type After"].append(quant_type)
        data["Is Changed"].append(ori_type != quant_type)
        
    summary_df = pd.DataFrame(data)
    print(f"Quantization Summary:\n{summary_df.to_markdown(index=False)}")
"""  # noqa: E501, W293

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
DIFFERENCES = r"""
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph.utils import get_mase_op, get_mase_type, get_node_actual_target
import torch

# Iterate over pairs of nodes from the original and modified graphs
for ori_n, n in zip(ori_mg.fx_graph.nodes, mg.fx_graph.nodes):
    # Check if the node's target module has changed type after modification
    if type(get_node_actual_target(n)) != type(get_node_actual_target(ori_n)):
        
        # Retrieve the original and quantized modules from the nodes
        ori_module = get_node_actual_target(ori_n)
        quant_module = get_node_actual_target(n)
        
        # Print the difference information
        print(f'Difference found at name: {n.name}, '
              f'MASE type: {get_mase_type(n)}, MASE operation: {get_mase_op(n)}\n'
              f'Original module: {type(ori_module)} --> '
              f'New module: {type(quant_module)}')

        # Print the weights of the original and quantized modules
        print(f'Weight of original module: {ori_module.weight}')
        print(f'Weights of quantized module: {quant_module.get_quantized_weight()}')

        # Generate a random input tensor based on the input feature size of the quantized module
        test_input = torch.randn(quant_module.in_features)
        print(f'Random generated test input: {test_input}')
        # Apply the original and quantized modules to the test input and print the outputs
        print(f'Output for original module: {ori_module(test_input)}')
        print(f'Output for quantized module: {quant_module(test_input)}')

"""  # noqa: W293

# Seed 003, question 6.
WEIGHTS_003 = r"""
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph.utils import get_mase_op, get_mase_type, get_node_actual_target
import torch

# Iterate over pairs of nodes from the original and modified graphs
for ori_n, n in zip(ori_mg.fx_graph.nodes, mg.fx_graph.nodes):
    # Check if the node's target module has changed type after modification
    if type(get_node_actual_target(n)) != type(get_node_actual_target(ori_n)):
        
        # Retrieve the original and quantized modules from the nodes
        ori_module = get_node_actual_target(ori_n)
        quant_module = get_node_actual_target(n)
        
        # Print the difference information and print the first weights of each module
        print(f'Difference found at name: {n.name}, '
              f'MASE type: {get_mase_type(n)}, MASE operation: {get_mase_op(n)}\n'
              f'Original module: {type(ori_module)}, Old Non Quantized Weights: {ori_module.weight[0:1]} --> '
              f'New module: {type(quant_module)}, New Quantized Weights: {quant_module.get_quantized_weight()[0:1]}')
        
        ### NOTE: Can print complete weights by removing the [0:1] from the print statements above ###
        # # Print the weights of the original and quantized modules
        # print(f'Weight of original module: {ori_module.weight}')
        # print(f'Weights of quantized module: {quant_module.get_quantized_weight()}')
        
        ### NOTE: Can compare output of original and quantised module ###
        # # Generate a random input tensor based on the input feature size of the quantized module
        # test_input = torch.randn(quant_module.in_features)
        # print(f'Random generated test input: {test_input}')
        # # Apply the original and quantized modules to the test input and print the outputs
        # print(f'Output for original module: {ori_module(test_input)}')
        # print(f'Output for quantized module: {quant_module(test_input)}')
"""  # noqa: E501, W293


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
