"""What every node would be as hardware."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.hardware.streaming import COMPONENTS, streaming_circuit
from chop.hardware.streaming.emit import module_library
from chop.hardware.streaming.modules import needed_modules
from chop.integers import LinearCodes, ReluCodes
from chop.ir import MaseGraph
from chop.passes import (
    PassArgsError,
    Pipeline,
    add_hardware_metadata_analysis_pass,
    verify_hardware_metadata_analysis_pass,
)

PREPARE = Pipeline(["init_metadata", "add_common_metadata"])


def files_of(op):
    """The files of a component of the streaming backend, and of what it is made of."""
    return [f"{name}.sv" for name in needed_modules([COMPONENTS[op].module], module_library())]


def lowered(model, precision=None, custom_ops=None, **dummy_in):
    graph = MaseGraph(model, custom_ops=custom_ops)
    PREPARE(graph, {"add_common_metadata": {"dummy_in": dummy_in}})
    for node in graph.nodes:
        for part in ("args", "results"):
            for _, tensor in node.meta["mase"].common[part].tensors():
                if precision:
                    tensor["type"], tensor["precision"] = "integer", list(precision)
    add_hardware_metadata_analysis_pass(graph)
    assert verify_hardware_metadata_analysis_pass(graph)[1] == {}
    return graph


def hardware(graph, name):
    return next(node for node in graph.nodes if node.name == name).meta["mase"]["hardware"]


def verilog(prefix, *dims):
    """Parameters of a tensor in the precision [8, 3]; `dims` are (size, parallelism)."""
    params = {f"{prefix}_PRECISION_0": 8, f"{prefix}_PRECISION_1": 3}
    for i, (size, parallelism) in enumerate(dims):
        params[f"{prefix}_TENSOR_SIZE_DIM_{i}"] = size
        params[f"{prefix}_PARALLELISM_DIM_{i}"] = parallelism
    return params


def test_a_linear_layer_is_as_in_mase():
    graph = lowered(nn.Sequential(nn.Linear(4, 2)), [8, 3], input=torch.zeros(1, 4))
    params = {
        **verilog("DATA_IN_0", (4, 4), (1, 1)),
        **verilog("WEIGHT", (4, 4), (2, 1)),
        **verilog("BIAS", (2, 2), (1, 1)),
        **verilog("DATA_OUT_0", (2, 2), (1, 1)),
    }
    assert hardware(graph, "_0") == {
        "is_implicit": False,
        "device_id": -1,
        "interface": {key: {"storage": "BRAM", "transpose": False} for key in ("weight", "bias")},
        "toolchain": "INTERNAL_RTL",
        "module": "fixed_linear",
        "dependence_files": files_of(LinearCodes),
        "parallelism": [1, 4],
        "max_parallelism": 16,
        "verilog_param": params,
    }
    assert list(hardware(graph, "_0")["verilog_param"]) == list(params)


def test_the_ends_are_implicit():
    graph = lowered(nn.Sequential(nn.ReLU()), input=torch.zeros(1, 4))
    implicit = {"is_implicit": True, "device_id": 0, "parallelism": [1, 4], "max_parallelism": 16}
    assert hardware(graph, "input_1") == hardware(graph, "output") == implicit


def test_the_graph_knows_its_sources_once_each_and_its_ends():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4))
    graph = lowered(model, input=torch.zeros(1, 4))
    assert graph.meta["mase"]["hardware"]["verilog_sources"] == [
        *files_of(LinearCodes),
        *(file for file in files_of(ReluCodes) if file not in files_of(LinearCodes)),
    ]
    assert [node.name for node in graph.nodes_in] == ["_0"]
    assert [node.name for node in graph.nodes_out] == ["_4"]


def test_what_has_no_component_is_left_to_hls():
    graph = lowered(nn.Sequential(nn.LayerNorm(4)), input=torch.zeros(1, 4))
    found = hardware(graph, "_0")
    assert (found["toolchain"], found["module"], found["dependence_files"]) == ("HLS", None, [])


class Exponential(nn.Module):
    """A network with a table of a function that is no layer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.last(F.relu(self.first(x)).exp())


def test_the_metadata_name_the_components_of_the_circuit():
    graph = MaseGraph(Exponential())
    widths = {"data_in_width": 6, "data_in_frac_width": 3}
    widths |= {"weight_width": 6, "weight_frac_width": 3}
    steps = [("quantize", {"by": "type", "linear": {"config": {"name": "integer", **widths}}})]
    options = {"add_common_metadata": {"dummy_in": {"x": torch.zeros(1, 4)}}}
    Pipeline([*PREPARE.steps, *steps, "add_hardware_metadata"])(graph, options)
    circuit = streaming_circuit(graph.to_integers())
    for name in ("first", "relu", "exp", "last"):
        assert hardware(graph, name)["module"] == circuit.layers[name]
        assert set(hardware(graph, name)["dependence_files"]) <= circuit.files.keys()


class Flexible(nn.Module):
    def forward(self, x):
        return F.elu(x.flatten(1), alpha=0.5, inplace=False) * 2


def test_other_arguments_are_parameters_in_capitals_with_an_empty_interface():
    graph = lowered(Flexible(), x=torch.zeros(1, 2, 2))
    elu, mul = hardware(graph, "elu"), hardware(graph, "mul")
    assert elu["interface"] == {"alpha": {}, "inplace": {}}
    assert (elu["verilog_param"]["ALPHA"], elu["verilog_param"]["INPLACE"]) == (0.5, 0)
    assert type(elu["verilog_param"]["INPLACE"]) is int
    assert mul["verilog_param"]["OTHER"] == 2
    assert hardware(graph, "flatten")["is_implicit"]
    assert [node.name for node in graph.nodes_in] == ["elu"]


def test_more_dimensions_are_numbered_from_the_last():
    graph = lowered(nn.Sequential(nn.Conv2d(3, 8, 3)), input=torch.zeros(2, 3, 10, 12))
    params = hardware(graph, "_0")["verilog_param"]
    sizes = [params[f"DATA_IN_0_TENSOR_SIZE_DIM_{d}"] for d in range(4)]
    parallel = [params[f"DATA_IN_0_PARALLELISM_DIM_{d}"] for d in range(4)]
    assert sizes == [12, 10, 3, 2]
    assert parallel == [4, 1, 1, 1]


@pytest.mark.parametrize(("size", "expected"), [(4, 4), (6, 3), (5, 1), (2, 2), (1, 1), (7, 1)])
def test_a_size_that_the_parallelism_does_not_divide_takes_the_next_smaller_divisor(size, expected):
    graph = lowered(nn.Sequential(nn.ReLU()), input=torch.zeros(1, size))
    params = hardware(graph, "_0")["verilog_param"]
    assert params["DATA_IN_0_PARALLELISM_DIM_0"] == expected


@pytest.mark.parametrize("shape", [(), (3,), (0, 4)])
def test_scalars_vectors_and_empty_batches_have_two_dimensions(shape):
    graph = lowered(nn.Sequential(nn.ReLU()), input=torch.zeros(shape))
    params = hardware(graph, "_0")["verilog_param"]
    padded = [*reversed(shape), 1, 1][:2]
    assert [params[f"DATA_IN_0_TENSOR_SIZE_DIM_{d}"] for d in (0, 1)] == padded


def test_the_parallelism_is_an_option():
    graph = lowered(nn.Sequential(nn.ReLU()), input=torch.zeros(4, 8))
    add_hardware_metadata_analysis_pass(graph, {"parallelism": [2, 8]})
    assert hardware(graph, "_0")["parallelism"] == [2, 8]
    params = hardware(graph, "_0")["verilog_param"]
    assert [params[f"DATA_IN_0_PARALLELISM_DIM_{d}"] for d in (0, 1)] == [8, 2]


@pytest.mark.parametrize(("given", "noted"), [(4, 4), ([2, 4], 8), ([2] * 4, 16)])
def test_the_most_multiplications_per_clock_are_an_option(given, noted):
    graph = lowered(nn.Sequential(nn.Linear(4, 2)), input=torch.zeros(1, 4))
    add_hardware_metadata_analysis_pass(graph, {"max_parallelism": given})
    assert {hardware(graph, name)["max_parallelism"] for name in ("input_1", "_0")} == {noted}
    assert verify_hardware_metadata_analysis_pass(graph)[1] == {}


@pytest.mark.parametrize("given", [0, [], [2, 0], 1.5])
def test_a_max_parallelism_below_one_is_refused(given):
    graph = lowered(nn.Sequential(nn.ReLU()), input=torch.zeros(1, 4))
    with pytest.raises(PassArgsError, match="max_parallelism"):
        add_hardware_metadata_analysis_pass(graph, {"max_parallelism": given})


@pytest.mark.parametrize("parallelism", [[], [0, 4], [-1]])
def test_a_parallelism_below_one_is_refused(parallelism):
    graph = lowered(nn.Sequential(nn.ReLU()), input=torch.zeros(1, 4))
    with pytest.raises(PassArgsError, match=r"list of numbers from 1|'parallelism\.0' is"):
        add_hardware_metadata_analysis_pass(graph, {"parallelism": parallelism})


class Own(nn.Module):
    def forward(self, x):
        return x * 2


def own(x):
    return x * 2


class UsesOwn(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Own()

    def forward(self, x):
        return own(self.layer(x))


def test_custom_ops_bring_their_own_hardware():
    about = {"module": "my_block", "dependence_files": ["my_block.sv"]}
    custom = {"modules": {Own: about}, "functions": {own: about | {"toolchain": "HLS"}}}
    graph = lowered(UsesOwn(), custom_ops=custom, x=torch.zeros(1, 4))
    layer, function = hardware(graph, "layer"), hardware(graph, "own")
    assert (layer["toolchain"], layer["module"]) == ("EXTERNAL_RTL", "my_block")
    assert (function["toolchain"], function["dependence_files"]) == ("HLS", ["my_block.sv"])
    assert graph.meta["mase"]["hardware"]["verilog_sources"] == ["my_block.sv"]
