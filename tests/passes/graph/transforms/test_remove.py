"""Dropouts and identities go; everything else stays."""

import torch
import torch.nn.functional as F
from torch import nn

from chop.passes import (
    remove_dropout_transform_pass,
    remove_identity_transform_pass,
    verify_metadata_analysis_pass,
)


class Drops(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.drop = nn.Linear(4, 4), nn.Dropout(0.9)
        self.last = nn.AlphaDropout(0.9)

    def forward(self, x):
        x = self.drop(self.fc(x))
        x = F.dropout(input=x, p=0.9, training=self.training) + self.drop(x)
        return self.last(x)


def test_dropouts_of_all_kinds_go(ready):
    x, model = torch.randn(2, 4), Drops()
    graph = ready(model, x)
    _, info = remove_dropout_transform_pass(graph)
    assert len(info["removed"]) == 4
    assert [node.op for node in graph.nodes].count("call_module") == 1
    assert verify_metadata_analysis_pass(graph)[1] == {}
    assert set(dict(graph.model.named_children())) == {"fc"}
    expected = model.eval()(x)
    assert torch.equal(graph.model.train()(x), expected)


def test_the_ends_of_the_graph_may_be_what_goes(ready, row):
    x = torch.randn(2, 4)
    graph = ready(row(nn.Identity(), nn.Dropout(), nn.Identity()), x)
    assert remove_identity_transform_pass(graph)[1] == {"removed": ["layers_0", "layers_2"]}
    assert remove_dropout_transform_pass(graph)[1] == {"removed": ["layers_1"]}
    assert [node.op for node in graph.nodes] == ["placeholder", "output"]
    assert torch.equal(graph.model(x), x)
    assert verify_metadata_analysis_pass(graph)[1] == {}


def test_an_identity_that_is_called_elsewhere_too_is_gone_everywhere(ready, row):
    same = nn.Identity()
    graph = ready(row(same, nn.Linear(4, 4), same))
    assert len(remove_identity_transform_pass(graph)[1]["removed"]) == 2
    assert list(graph.model.state_dict()) == ["layers.1.weight", "layers.1.bias"]


def test_nothing_to_remove_changes_nothing(ready, row):
    graph = ready(row(nn.Linear(4, 4)))
    before = graph.model.code
    assert remove_dropout_transform_pass(graph)[1] == {"removed": []}
    assert graph.model.code == before
