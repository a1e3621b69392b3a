"""Captures with example inputs: arguments that these leave out, and results by name."""

from collections import OrderedDict
from dataclasses import dataclass, fields

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph


class Masked(nn.Module):
    def forward(self, x, mask=None, scale=2.0):
        return (x if mask is None else x.masked_fill(mask, 0.0)) * scale


def test_an_input_that_the_example_leaves_at_none_is_part_of_the_graph():
    x = torch.randn(2, 3)
    graph = MaseGraph(Masked(), dummy_in={"x": x})
    assert graph.front_end == "fx"
    assert [node.target for node in graph.inputs] == ["x", "scale"]
    assert torch.equal(graph.model(x), 2 * x)
    assert torch.equal(graph.model(x, scale=3.0), 3 * x)


def test_one_that_the_example_gives_stays_an_input():
    x, mask = torch.randn(2, 3), torch.tensor([True, False, True])
    graph = MaseGraph(Masked(), dummy_in={"x": x, "mask": mask})
    assert torch.equal(graph.model(x, mask), Masked()(x, mask))


def test_without_examples_all_are_inputs_as_before():
    graph = MaseGraph(Masked())
    assert [node.target for node in graph.inputs] == ["x", "mask", "scale"]


@dataclass
class Scores:
    scores: torch.Tensor
    hidden: torch.Tensor | None = None


class Result(nn.Module):
    def __init__(self, result):
        super().__init__()
        self.result, self.fc = result, nn.Linear(3, 2)

    def forward(self, x):
        return self.result(self.fc(x))


def test_results_of_a_class_are_saved(tmp_path):
    x = torch.randn(2, 3)
    graph = MaseGraph(Result(Scores), dummy_in={"x": x})
    graph.export(tmp_path / "graph")
    loaded = MaseGraph.from_checkpoint(tmp_path / "graph").model(x)
    assert torch.equal(loaded.scores, graph.model(x).scores)
    assert loaded.hidden is None


@dataclass
class Output(OrderedDict):
    """Results as transformers gives them: a dict of the fields that are not None."""

    logits: torch.Tensor | None = None
    loss: torch.Tensor | None = None

    def __post_init__(self):
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        self.update({key: value for key, value in values.items() if value is not None})


@pytest.mark.parametrize("front_end", ["fx", "export"])
def test_results_by_name_are_read_by_key_and_as_attributes(front_end, tmp_path):
    x = torch.randn(2, 3)
    model = Result(Output)
    graph = MaseGraph(model, dummy_in={"x": x}, front_end=front_end)
    graph.export(tmp_path / "graph")
    loaded = MaseGraph.from_checkpoint(tmp_path / "graph")
    for found in (graph.model(x), loaded.model(x)):
        assert torch.equal(found.logits, model(x).logits)
        assert torch.equal(found["logits"], found[0])
        assert list(found) == ["logits"]
