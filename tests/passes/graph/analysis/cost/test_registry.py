"""For every model of the registry, the rules and a count of what runs agree to the last product."""

import pytest
import torch

from chop.dataset import MaseDatasetInfo
from chop.models import MODELS, get_model, get_model_info
from chop.passes.graph.analysis.cost import MacCounter, cost_of

FEATURES = MaseDatasetInfo(name="rows", num_features=16, num_classes=5)
IMAGES = MaseDatasetInfo(name="pictures", image_size=(3, 32, 32), num_classes=4)
BIG = ("deit", "mobilenetv2", "mobilenetv3_large", "resnet34", "resnet50", "resnet101", "wide")
NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if name.startswith(BIG) else name
    for name, spec in MODELS.items()
    if spec.build.__module__.startswith("chop.models.")
]


@pytest.mark.parametrize("name", NAMES)
def test_rules_and_execution_agree(name, make):
    rows = get_model_info(name).physical_data_point_classification
    x = torch.randn(2, 16) if rows else torch.randn(2, 3, 32, 32)
    model = get_model(name, dataset_info=FEATURES if rows else IMAGES).eval()
    with torch.no_grad(), MacCounter() as counter:
        model(x)
    total = cost_of(make.graph(model, x))["total"]
    assert total["macs"] == counter.macs > 0
    assert not counter.uncounted
    unused = ("l2.",) if name == "toy_tiny" else ()  # it has a layer that it never calls
    held = sum(p.numel() for n, p in model.named_parameters() if not n.startswith(unused))
    assert total["parameters"] == held
