"""Integer graphs, ONNX files and circuits of a zoo keep their bytes.

Whoever changes one on purpose writes the digests again with `pytest --update-golden`, and says in
the commit or the ADR why they changed.
"""

import hashlib
import zlib
from random import Random

import pytest
import torch

from chop.dataset import get_dataset_info
from chop.hardware.streaming import streaming_circuit
from chop.hardware.tools import ToolError
from chop.hardware.unrolled import unrolled_circuit
from chop.integers.digest import graph_digest
from chop.ir import MaseGraph
from chop.models import get_model
from chop.passes import Pipeline
from chop.passes.graph.interface.export_onnx import onnx_model
from chop.system.progress import hidden_progress

from .network_drawing import Network, Step, has_format, quantised
from .network_steps import KINDS
from .network_ways import MAX_ADDERS, REFUSALS
from .test_found_by_random_networks import FOUND, affine, integer

DIGITS = 8
FORMATS = {
    "fixed point": integer(8, 5, (6, 5), bias_width=8, bias_frac_width=6),
    "scales": affine(8, 0.0625, weight_width=8),
    "zero points": affine(8, 0.037, data_in_zero_point=3, weight_width=8, weight_axis=0),
}
SHAPES = {1: (6,), 2: (4, 6), 3: (3, 5, 6), 4: (2, 3, 4, 3)}
DATA = {  # of models of the zoo
    "jsc-tiny": "jsc-sim",
    "jsc-s": "jsc-sim",
    "jsc-table": "jsc-sim",
    "lenet": "mnist",
    "vgg7": "cifar10",
    "resnet18": "cifar10",
    "mobilenetv2": "cifar10",
}


def networks():
    """Yield a network of each kind of layer in each format, and those that once differed."""
    for (name, kind), rank in ((pair, rank) for pair in KINDS.items() for rank in pair[1].ranks):
        for title, format in FORMATS.items():
            random, shape = Random(zlib.crc32(f"{name} {rank}".encode())), SHAPES[rank]
            rounds = format if has_format(name, rank) else None
            options = kind.draw(random, shape)
            steps = [Step("relu", (0,), {}, format), Step(name, (1,) * kind.takes, options, rounds)]
            if not kind.ends:
                steps += [Step("flatten", (2,)), Step("linear", (3,), {"out_features": 2}, format)]
            yield f"{name} {rank}, {title}", Network(shape, tuple(steps))
    yield from ((cause, network) for cause, (_, network) in FOUND.items())


def of_file(graph, kind):
    return hashlib.sha256(onnx_model(graph, kind).SerializeToString(deterministic=True)).hexdigest()


def digests(graph, parallelism, max_adders):
    """Yield what is made of a network with its digest; without adders, no unrolled circuit."""
    made = {
        "integers": lambda: graph_digest(graph.to_integers()),
        **{k: lambda k=k: of_file(graph, k) for k in ("integer", "qdq", "qcdq", "qonnx")},
        "streaming": lambda: (
            streaming_circuit(graph.to_integers(), max_parallelism=parallelism).digest
        ),
    }
    if max_adders:
        made["unrolled"] = lambda: (
            unrolled_circuit(graph.to_integers(), max_adders=max_adders, progress=False).digest
        )
    for name, make in made.items():
        try:
            yield f"{name} {make()[:DIGITS]}"
        except (*REFUSALS, ToolError):
            yield f"{name} refused"


def line(name, graph, parallelism, max_adders=MAX_ADDERS):
    return f"{name}: {', '.join(digests(graph, parallelism, max_adders))}\n"


@pytest.fixture
def extras(package):
    for name in ("onnx", "alkaid"):
        package(name)


@pytest.mark.rtl
def test_small_networks_of_all_layers_keep_their_bytes(golden, extras):
    lines = []
    for name, network in networks():
        try:
            lines.append(line(name, quantised(network), network.parallelism))
        except (*REFUSALS, RuntimeError):  # of torch: options that do not fit
            lines.append(f"{name}: refused\n")
    golden("digests_of_layers.txt", "".join(lines))


@pytest.mark.rtl
@pytest.mark.parametrize("name", DATA)
def test_models_keep_their_bytes(name, golden, extras):
    info = get_dataset_info(DATA[name])
    model = get_model(name, dataset_info=info).eval()
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for own, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point():  # uniform, which every machine draws alike
                reach = 1.7 / tensor[0].numel() ** 0.5 if tensor.ndim > 1 else 0.5
                low = 0.25 if own.endswith("running_var") else -reach
                tensor.copy_(low + 2 * reach * torch.rand(tensor.shape, generator=source))
    sizes = info.image_size or (info.num_features,)
    dummy = {"dummy_in": {"x": torch.zeros(2, *sizes)}, "add_value": False}
    table = {"by": "type", "default": {"config": FORMATS["fixed point"]}}
    with hidden_progress():
        steps = ["init_metadata", ("add_common_metadata", dummy), ("quantize", table)]
        graph, _ = Pipeline(steps)(MaseGraph(model))
    golden(f"digests_of_{name}.txt", line(name, graph, 64, 10**5 if name.startswith("jsc") else 0))
