"""Decisions by a size of one, which torch.export takes to be two or more."""

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.ir.graph.trace_errors import TraceError

from .export_models import layers, same_or_refused


class One(nn.Module):
    def forward(self, x):
        return x.squeeze(0) * 2 if x.shape[0] == 1 else x + 1


class OtherConstant(nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] == 1 else x * 3


class Normed(nn.Module):
    """Has a layer that does nothing before it is trained."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(x) if x.shape[0] > 1 else x


class Elements(nn.Module):
    def forward(self, x):
        return -x if x.numel() <= 4 else x


class Truth(nn.Module):
    def forward(self, x):
        return x.relu() if x.shape[0] - 1 else x


class Shape(nn.Module):
    def forward(self, x):
        return x.sum(0) if x.shape == (1, 4) else x


class Number(nn.Module):
    def forward(self, x):
        return x * int(x.shape[0] > 1)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.inner = nn.Linear(4, 4), OtherConstant()

    def forward(self, x):
        return self.inner(self.layer(x))


class Asserted(nn.Module):
    def forward(self, x):
        assert x.shape[0] > 1, "one sample has no spread"
        return x.std(0)


class Same(nn.Module):
    """Decides by one sample, and does the same."""

    def forward(self, x):
        y = x.reshape(-1, 4) if x.shape[0] > 1 else x.reshape(1, 4)
        return y * 2


DECIDES = [One, OtherConstant, Normed, Elements, Truth, Shape, Number, Inner]
SENTENCE = (
    "this graph is only for inputs with x.shape[0] >= 2, as forward() takes another branch for "
    "x.shape[0] == 1 (test_sizes_of_one.py line {line}); for other sizes, make another graph with "
    "an example of that size in dummy_in"
)


def captured(cls, batch, **options):
    model = cls().eval()
    example = torch.zeros(batch, 4)  # for which many models give the same
    return model, MaseGraph(model, dummy_in={"x": example}, **options)


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("chop")]


def test_one_sample_is_refused_where_it_takes_another_branch(caplog):
    model, graph = captured(OtherConstant, 3)
    x = torch.randn(2, 4)
    assert torch.equal(graph.model(x), model(x))
    sentence = SENTENCE.format(line=OtherConstant.forward.__code__.co_firstlineno + 1)
    with pytest.raises(AssertionError) as refused:
        graph.model(torch.randn(1, 4))
    assert str(refused.value) == sentence
    assert warnings_of(caplog) == [sentence]


def test_more_samples_are_refused_if_the_example_has_one(caplog):
    model, graph = captured(OtherConstant, 1)
    assert "this graph is only for inputs of the sizes x [1, 4]" in caplog.text
    x = torch.randn(1, 4)
    assert torch.equal(graph.model(x), model(x))
    with pytest.raises(AssertionError, match=r"x\.shape\[0\] == 1; for other sizes, make another"):
        graph.model(torch.randn(2, 4))


@pytest.mark.slow
@pytest.mark.parametrize("cls", DECIDES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_every_such_decision_is_noticed(cls, batch):
    model, graph = captured(cls, batch)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(2, 3)
    for count in (1, 2, 5):
        same_or_refused(graph, model, torch.randn(count, 4))
    x = torch.randn(batch, 4)
    assert torch.equal(graph.model(x), model(x))


@pytest.mark.slow
def test_a_model_that_needs_two_samples_refuses_one_as_a_graph_too():
    _, graph = captured(Asserted, 2)
    with pytest.raises(AssertionError, match=r"only for inputs with x\.shape\[0\] >= 2"):
        graph.model(torch.randn(1, 4))


@pytest.mark.slow
def test_a_saved_graph_refuses_too(tmp_path):
    _, graph = captured(One, 2)
    graph.export(tmp_path / "graph")
    loaded = MaseGraph.from_checkpoint(tmp_path / "graph")
    with pytest.raises(AssertionError, match=r"only for inputs with x\.shape\[0\] >= 2"):
        loaded.model(torch.randn(1, 4))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
def test_a_branch_that_does_the_same_limits_nothing(batch, caplog):
    model, graph = captured(Same, batch)
    assert not warnings_of(caplog)
    for count in (1, 2, 5):
        x = torch.randn(count, 4)
        assert torch.equal(graph.model(x), model(x))


@pytest.mark.slow
def test_a_decision_in_a_layer_that_is_kept_whole_limits_nothing():
    whole = {"modules": {OtherConstant: {}}}
    model, graph = captured(Inner, 3, custom_ops=whole, front_end="export")
    assert layers(graph) == ["layer", "inner"]
    x = torch.randn(1, 4)
    assert torch.equal(graph.model(x), model(x))


class Length(nn.Module):
    def forward(self, x):
        return x.squeeze(1) if x.shape[1] == 1 else x.sum(1) + 1


@pytest.mark.slow
def test_a_sequence_of_one_is_refused_likewise():
    graph = MaseGraph(Length(), dummy_in=torch.randn(2, 5, 4))
    with pytest.raises(AssertionError, match=r"only for inputs with x\.shape\[1\] >= 2"):
        graph.model(torch.randn(2, 1, 4))
    x = torch.randn(1, 3, 4)
    assert torch.equal(graph.model(x), Length()(x))


@pytest.mark.slow
def test_a_model_on_the_meta_device_is_refused_one_sample_too():
    with torch.device("meta"):
        model = Inner()
    graph = MaseGraph(model, dummy_in=torch.zeros(3, 4))
    with pytest.raises(AssertionError, match=r"only for inputs with x\.shape\[0\] >= 2"):
        graph.model(torch.zeros(1, 4, device="meta"))


class Counted(nn.Module):
    """`len` of a tensor is a plain number, which fixes the batch size."""

    def forward(self, x):
        return x * 2 if len(x) > 1 else x


@pytest.mark.parametrize("batch", [1, 4])
def test_a_batch_that_len_fixes_is_that_of_the_example_and_warned_of(batch, caplog):
    x = torch.randn(batch, 4)
    graph = MaseGraph(Counted(), front_end="export", dummy_in=(x,))
    assert torch.equal(graph.model(x), Counted()(x))
    assert f"only for inputs of the sizes x [{batch}, 4]" in caplog.text
    with pytest.raises(AssertionError, match=rf"x\.shape\[0\] == {batch}"):
        graph.model(torch.randn(3, 4))


def test_fx_refuses_the_branch():
    with pytest.raises(TraceError, match=r"cannot trace One\.forward, .*`return x\.squeeze"):
        MaseGraph(One(), front_end="fx")


CALLS = []


class Counts(nn.Module):
    def forward(self, x):
        CALLS.append(x.shape)
        return x + 1


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
def test_a_model_without_such_decisions_is_captured_once(batch):
    CALLS.clear()
    MaseGraph(Counts(), front_end="export", dummy_in=torch.zeros(batch, 4))
    assert len(CALLS) == 1
