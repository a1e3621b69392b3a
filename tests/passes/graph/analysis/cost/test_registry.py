"""For every model of the registry, the rules and a count of what runs agree."""

import pytest
import torch

from chop.dataset import MaseDatasetInfo
from chop.methods.edge_tables import EdgeTable
from chop.models import MODELS, get_model, get_model_info
from chop.passes import run_pass
from chop.passes.graph.analysis.cost import call_of, cost_of
from chop.testing.audit import MacCounter

FEATURES = MaseDatasetInfo(name="rows", num_features=16, num_classes=5)
IMAGES = MaseDatasetInfo(name="pictures", image_size=(3, 32, 32), num_classes=4)
BIG = ("deit", "mobilenetv2", "mobilenetv3_large", "resnet", "wide")
TABLES = ("jsc-table", "mlp-table")  # counted as look-ups; what runs is a simulation of them
NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if name.startswith(BIG) else name
    for name, spec in MODELS.items()
    if spec.build.__module__.startswith(("chop.models.", "chop.methods.")) and name not in TABLES
]


def difference(node):
    """Where the rules do not count what runs: a function without a rule, the scale of scores."""
    call = call_of(node)
    if call.op == "user_defined_function":
        return -6 * call.out[0] * call.out[1]  # x · sigmoid(2 x), of toy_custom_fn
    if call.op == "scaled_dot_product_attention":
        query, key = (torch.Size(shape).numel() for shape in call.data[:2])
        scores = query // call.data[0][-1] * call.data[1][-2]
        return scores - query - key  # torch scales queries and keys, by a root each
    return 0


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_rules_and_execution_agree(name, make):
    rows = get_model_info(name).physical_data_point_classification
    x = torch.randn(2, 16) if rows else torch.randn(2, 3, 32, 32)
    model = get_model(name, dataset_info=FEATURES if rows else IMAGES).eval()
    with torch.no_grad(), MacCounter() as counter:
        model(x)
    graph = make.graph(model, x)
    total = cost_of(graph)["total"]
    assert total["macs"] == counter.macs > 0
    assert not counter.uncounted
    assert total["flops"] - counter.flops == sum(difference(node) for node in graph.nodes)
    unused = ("l2.",) if name == "toy_tiny" else ()  # it has a layer that it never calls
    held = sum(p.numel() for n, p in model.named_parameters() if not n.startswith(unused))
    assert total["parameters"] == held


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_looked_up_and_added(name, make):
    model = get_model(name, dataset_info=FEATURES).eval()
    total = cost_of(make.graph(model, torch.randn(2, 16)))["total"]
    edges = [m.n_in * m.n_out for m in model.modules() if isinstance(m, EdgeTable)]
    assert len(edges) > 1
    assert (total["macs"], total["flops"]) == (0, 2 * sum(edges))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["jsc-tiny", "mobilenetv3_small", "vit_tiny_patch4_32"])
def test_rounding_changes_the_bits_and_not_the_products(name, make):
    rows = get_model_info(name).physical_data_point_classification
    x = torch.randn(2, 16) if rows else torch.randn(2, 3, 32, 32)
    graph = make.graph(get_model(name, dataset_info=FEATURES if rows else IMAGES).eval(), x)
    exact = cost_of(graph)["total"]
    config = {"name": "integer"}
    for operand in ("data_in", "weight", "bias"):
        config |= {f"{operand}_width": 8, f"{operand}_frac_width": 4}
    run_pass("quantize", graph, {"by": "type", "default": {"config": config}})
    rounded = cost_of(graph)["total"]
    with torch.no_grad(), MacCounter() as counter:
        graph.model(x)
    assert exact["macs"] == rounded["macs"] == counter.macs
    assert exact["flops"] == rounded["flops"]
    assert exact["bit_ops_multiply"] == 16 * rounded["bit_ops_multiply"]
    assert exact["weight_bits"] > 3.9 * rounded["weight_bits"]
