"""Quantised networks for tests of circuits."""

from itertools import pairwise

import torch
from torch import nn

from chop.dataset import get_dataset_info
from chop.ir import MaseGraph
from chop.models import get_model
from chop.passes import Pipeline

WIDTHS = {
    "data_in_width": 8,
    "data_in_frac_width": 5,
    "weight_width": 6,
    "weight_frac_width": 5,
    "bias_width": 8,
    "bias_frac_width": 6,
}


def mlp(*sizes):
    """A perceptron with a ReLU after each hidden layer."""
    layers = [[nn.Linear(a, b), nn.ReLU()] for a, b in pairwise(sizes)]
    return nn.Sequential(*[layer for pair in layers for layer in pair][:-1])


def integers_of(model, x, **widths):
    """The network in integers, after all its layers were quantised to fixed point."""
    table = {"config": {"name": "integer", **WIDTHS, **widths}}
    prepare = Pipeline(
        [
            "init_metadata",
            ("add_common_metadata", {"dummy_in": {next(iter(_inputs(model))): x[:2]}}),
            ("quantize", {"by": "type", "default": table}),
        ]
    )
    graph, _ = prepare(MaseGraph(model.eval()))
    return graph.to_integers()


def _inputs(model):
    return [
        str(node.target) for node in MaseGraph(model).fx_graph.nodes if node.op == "placeholder"
    ]


def jsc(name):
    """One of the labs' networks for jets, with batch norms that do something."""
    model = get_model(name, task="cls", dataset_info=get_dataset_info("jsc-sim"))
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm1d):
                layer.running_mean.normal_(0, 0.3)
                layer.running_var.uniform_(0.5, 2)
                layer.weight.uniform_(0.5, 1.5)
                layer.bias.normal_(0, 0.3)
    return model
