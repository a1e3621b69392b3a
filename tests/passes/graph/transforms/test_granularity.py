"""Many nodes of a module become one."""

import logging

import pytest
import torch
from torch import nn

from chop.dataset import get_dataset_info
from chop.models import get_model
from chop.passes import raise_granularity_transform_pass, verify_metadata_analysis_pass


class Block(nn.Module):
    def __init__(self, features=4):
        super().__init__()
        self.fc, self.scale = nn.Linear(features, features), nn.Parameter(torch.randn(features))

    def forward(self, x):
        return torch.relu(self.fc(x)) * self.scale + x


class Two(nn.Module):
    def forward(self, x):
        y = x * 2
        return y, y + 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.again, self.two = nn.Sequential(Block(), Block()), Block(), Two()

    def forward(self, x):
        a, b = self.two(self.again(self.again(self.body(x))))
        return a - b


def names(graph):
    return [node.name for node in graph.nodes]


def test_the_innermost_modules_become_nodes(ready):
    x, model = torch.randn(2, 4), Net()
    graph = ready(model, x)
    _, info = raise_granularity_transform_pass(graph)
    assert list(info["raised"]) == ["body.0", "body.1", "again", "two"]
    called = [n.target for n in graph.nodes if n.op == "call_module"]
    assert called == ["body.0", "body.1", "again", "again", "two"]
    assert torch.equal(graph.model(x), model(x))
    assert verify_metadata_analysis_pass(graph)[1] == {}
    assert set(graph.model.state_dict()) == set(model.state_dict())
    node = list(graph.nodes)[1]
    assert node.meta["mase"]["common"]["mase_op"] == "user_defined_module"
    assert node.meta["mase"]["common"]["args"]["fc.weight"]["shape"] == [4, 4]


def test_outer_modules_can_be_named_and_raised_later(ready):
    x, model = torch.randn(2, 4), Net()
    graph = ready(model, x)
    raise_granularity_transform_pass(graph, modules=["body.0", "body.1"])
    raise_granularity_transform_pass(graph, modules=["body"])
    assert next(n.target for n in graph.nodes if n.op == "call_module") == "body"
    assert torch.equal(graph.model(x), model(x))
    assert torch.equal(graph.clone().model(x), model(x))
    assert verify_metadata_analysis_pass(graph)[1] == {}


def test_blocks_of_a_resnet(ready):
    model = get_model("resnet18", task="cls", dataset_info=get_dataset_info("cifar10")).eval()
    x = torch.randn(1, 3, 32, 32)
    graph = ready(model, x, add_value=False)
    blocks = [f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1)]
    raise_granularity_transform_pass(graph, modules=blocks)
    assert torch.equal(graph.model(x), model(x))
    assert verify_metadata_analysis_pass(graph)[1] == {}


def test_nodes_train_inside_a_raised_module(ready):
    graph = ready(Net())
    raise_granularity_transform_pass(graph)
    graph.model(torch.randn(2, 4)).sum().backward()
    assert all(p.grad is not None for p in graph.model.parameters())


class Borrower(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = [block]  # not its own child

    def forward(self, x):
        return self.block[0].fc(x) + x


class Borrowing(nn.Module):
    def __init__(self):
        super().__init__()
        self.owner = Block()
        self.borrower = Borrower(self.owner)

    def forward(self, x):
        return self.borrower(self.owner(x))


def test_a_module_that_lends_or_borrows_layers_is_left(ready, caplog):
    logging.getLogger("chop").propagate = True
    graph = ready(Borrowing())
    before = names(graph)
    assert raise_granularity_transform_pass(graph)[1] == {"raised": {}}
    assert "'borrower' uses layers of another module. Skipped!" in caplog.text
    assert "'owner' has layers or parameters that other modules use. Skipped!" in caplog.text
    assert names(graph) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modules": ["bdy"]}, "unknown module of several nodes 'bdy'; did you mean 'body'"),
        ({"modules": ["body", "body.0"]}, "'body.0' is inside 'body'"),
        ({"inherit": True}, "inherit = True is not supported"),
    ],
)
def test_bad_options_are_refused(ready, options, message):
    graph = ready(Net())
    before = names(graph)
    with pytest.raises((TypeError, KeyError), match=message):
        raise_granularity_transform_pass(graph, options)
    assert names(graph) == before
