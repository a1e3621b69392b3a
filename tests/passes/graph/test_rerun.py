"""A graph that runs node by node gives what the model gives."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir import MaseGraph
from chop.passes import Pipeline
from chop.passes.graph.describe.rerun import Rerun
from chop.passes.graph.transforms import quantize_transform_pass

INTEGER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
INTEGER |= {"weight_width": 8, "weight_frac_width": 4}


class InPlace(nn.Module):
    """Functions in place as statements, whose results nothing reads."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x)
        y.add_(1.0)
        F.relu(y, inplace=True).mul_(2.0)
        return self.second(y) + y


@pytest.mark.parametrize("rounded", [False, True])
def test_later_nodes_read_what_was_written_in_place(rounded):
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    steps = ["init_metadata", ("add_common_metadata", {"dummy_in": {"x": x}})]
    graph, _ = Pipeline(steps)(MaseGraph(InPlace().eval()))
    if rounded:
        graph, _ = quantize_transform_pass(graph, {"by": "type", "default": {"config": INTEGER}})
    rerun = Rerun(graph.clone())
    values = rerun.all([x])
    assert torch.equal(values["output"], graph.model(x))

    other = values["first"] + 0.5
    graph.model.first.register_forward_hook(lambda layer, args, y: y + 0.5)
    result, _ = rerun.after("first", other, values)
    assert torch.equal(result, graph.model(x))
