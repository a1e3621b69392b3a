import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.passes import Pipeline

WIDTHS = {
    f"{operand}_{key}": bits
    for operand in ("data_in", "weight", "bias")
    for key, bits in (("width", 8), ("frac_width", 3))
}


class MLP(nn.Module):
    """The network of lab 4."""

    def __init__(self, activation=torch.nn.functional.relu):
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.activation = activation

    def forward(self, x):
        x = torch.flatten(x, start_dim=1, end_dim=-1)
        return self.activation(self.fc1(x))


def note_fixed(graph, precision=(8, 3)):
    """Step 4 of the lab: every tensor in fixed point."""
    for node in graph.fx_graph.nodes:
        common = node.meta["mase"].parameters["common"]
        for part in ("args", "results"):
            for entry in common[part].values():
                if isinstance(entry, dict):
                    entry["type"], entry["precision"] = "fixed", list(precision)


@pytest.fixture
def lab():
    """`lab(model)`: the graph of the lab after step 5; `precision=None` leaves out step 4."""

    def build(model=None, precision=(8, 3), x=None, hardware=None, **by_type):
        torch.manual_seed(0)
        graph = MaseGraph(MLP() if model is None else model)
        names = [str(node.target) for node in graph.inputs]
        dummy_in = {names[0]: torch.randn(1, 2, 2) if x is None else x}
        tables = {"linear": {"config": {"name": "integer", **WIDTHS}}, **by_type}
        quantize = {"by": "type", "default": {"config": {"name": None}}, **tables}
        Pipeline(
            [
                "init_metadata",
                ("add_common_metadata", {"dummy_in": dummy_in, "add_value": False}),
                ("quantize", quantize),
            ]
        )(graph)
        if precision is not None:
            note_fixed(graph, precision)
        return Pipeline([("add_hardware_metadata", hardware)])(graph)[0]

    return build
