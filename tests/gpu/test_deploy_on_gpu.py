"""Deployed layers on a GPU: the numbers of the simulation, and faster than bfloat16."""

import statistics

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.methods.deploy.convert import deployed_layer
from chop.methods.deploy.kernels import why_not_on
from chop.passes import Pipeline
from chop.passes.graph import deploy_transform_pass, quantize_transform_pass
from chop.passes.graph.transforms.quantize.quantize import quantized_layer

pytestmark = pytest.mark.gpu

FIXED = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
FIXED |= {"weight_width": 8, "weight_frac_width": 8, "bias_width": 8, "bias_frac_width": 8}
AFFINE = {"name": "affine", "data_in_width": 8, "data_in_scale": 0.03, "weight_width": 8}
SHIFTED = AFFINE | {"data_in_zero_point": 7, "weight_zero_point": "calibrated", "weight_axis": 0}
ROWS = {"name": "scale_integer", "data_in_width": 8, "weight_width": 8}
FP8 = {"name": "fp8", "data_in_exponent_width": 4, "data_in_frac_width": 3}
FP8 |= {"weight_exponent_width": 4, "weight_frac_width": 3, "saturate": True}
CONFIGS = {"integer": FIXED, "zero points": SHIFTED, "scale_integer": ROWS, "fp8": FP8}
SHAPES = [(1, 20, 7), (16, 64, 32), (17, 33, 9), (200, 256, 100), (0, 16, 16)]


def target_of(config):
    target = "cuda-fp8" if config["name"] == "fp8" else "cuda-int8"
    if (reason := why_not_on(torch.device("cuda", 0), target)) is not None:
        pytest.skip(reason)
    return target


def layers(config, inputs, outputs, output=None):
    target = target_of(config)
    torch.manual_seed(0)
    simulated = quantized_layer(nn.Linear(inputs, outputs).eval(), config)
    return simulated, deployed_layer(simulated, target, output)


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("output", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_results_are_those_of_the_simulation(name, output, shape):
    rows, inputs, outputs = shape
    simulated, deployed = layers(CONFIGS[name], inputs, outputs, output)
    x = torch.randn(rows, inputs)
    want = simulated.double()(x.double()) if name == "fp8" else simulated(x)
    operands = [t.double() for t in simulated.q_operands(x.to(simulated.weight.dtype))]
    sums = operands[0].abs() @ operands[1].abs().T + operands[2].abs()
    # tensor cores add products of fp8 in fewer bits than float32
    share = 2.0**-10 if name == "fp8" else (inputs + 12) * 2.0**-24
    share += 2.0**-7 if output == "bfloat16" else 0.0
    got = deployed.cuda()(x.cuda()).cpu()
    assert got.dtype == getattr(torch, output)
    assert bool(((got.double() - want.double()).abs() <= share * sums).all())


@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["integer", "zero points", "scale_integer"])
def test_integers_have_the_sums_of_the_cpu(name, shape):
    rows, inputs, outputs = shape
    _, deployed = layers(CONFIGS[name], inputs, outputs)
    x = torch.randn(rows, inputs)
    codes = deployed._input.codes(x)[0]
    want = deployed(x)
    deployed.cuda()
    assert torch.equal(deployed._input.codes(x.cuda())[0].cpu(), codes)
    torch.testing.assert_close(deployed(x.cuda()).cpu(), want, rtol=1e-6, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGS)
def test_a_forward_pass_is_captured_in_a_graph(name):
    _, deployed = layers(CONFIGS[name], 64, 32)
    deployed.cuda()
    x = torch.randn(40, 64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            deployed(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = deployed(x)
    x.copy_(torch.randn(40, 64))
    graph.replay()
    assert torch.equal(y, deployed(x))


@torch.no_grad()
def test_a_deployed_graph_moves_to_the_gpu_and_back(tmp_path):
    target = target_of(FIXED)
    x = torch.randn(40, 64)
    graph = MaseGraph(nn.Sequential(nn.Linear(64, 33), nn.ReLU(), nn.Linear(33, 10)).eval())
    describe = ("add_common_metadata", {"dummy_in": {"input": x}})
    graph, _ = Pipeline(["init_metadata", describe])(graph)
    quantize_transform_pass(graph, {"by": "type", "linear": {"config": FIXED}})
    graph.model.cuda()
    want = graph.model(x.cuda())
    deploy_transform_pass(graph, {"target": target})
    assert torch.equal(graph.model(x.cuda()), want)
    graph.export(tmp_path / "graph")
    again = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert torch.equal(again.model(x), want.cpu())


def milliseconds(work, repeats=20, in_a_row=10):
    """The median time of one call, by the clock of the device."""
    times = []
    for _ in range(repeats + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(in_a_row):
            work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / in_a_row)
    return statistics.median(times[3:])


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of inductor
@pytest.mark.parametrize("config", [FIXED, FP8], ids=["int8", "fp8"])
@pytest.mark.parametrize("rows", [1024, 4096])
def test_a_wide_layer_is_faster_than_in_bfloat16(config, rows):
    """A ratio of two compiled layers on the same inputs, not a time."""
    _, deployed = layers(config, 4096, 4096, "bfloat16")
    plain = nn.Linear(4096, 4096).bfloat16().cuda().eval()
    x = torch.randn(rows, 4096, device="cuda").bfloat16()
    works = [torch.compile(layer.cuda(), fullgraph=True) for layer in (deployed, plain)]
    ours, theirs = (milliseconds(lambda run=run: run(x)) for run in works)
    assert ours < theirs
