"""Decisions by size: a graph gives what the model gives, or refuses in one sentence."""

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph

from .export_models import captured, same_or_refused


class Loss(nn.Module):
    def forward(self, x):
        return nn.functional.binary_cross_entropy_with_logits(x, (x > 0).float())


class Half(nn.Module):
    def forward(self, x):
        return x[:, : int(x.shape[1] * 0.5)].sum(1)


class Least(nn.Module):
    def forward(self, x):
        n = min(x.shape[1], 6)
        return x[:, :n].sum(1) * 2 if n < x.shape[1] else x.sum(1)


class Longer(nn.Module):
    def forward(self, x, y):
        return x.sum(1) if x.shape[1] > y.shape[1] else y.sum(1)


class Elu(nn.Module):
    def forward(self, x):
        return nn.functional.elu(x) if x.shape[-1] == 4 else x


class Sums(nn.Module):
    def forward(self, *xs):
        return sum(xs)


@pytest.mark.slow
class TestSizes:
    def test_sizes_that_forward_treats_differently_are_refused(self):
        _, graph, _ = captured("tied")
        graph.model(torch.zeros(2, 20, dtype=torch.long))
        with pytest.raises(AssertionError, match=r"only for inputs with ids\.shape\[1\] <= 20"):
            graph.model(torch.zeros(2, 21, dtype=torch.long))


@pytest.mark.slow
class TestSilentlyWrong:
    """A graph gives what the model gives, or refuses in one sentence."""

    def test_a_loss_is_reduced_as_torch_does(self):
        x = torch.randn(3, 8)
        graph = MaseGraph(Loss(), front_end="export", dummy_in=(x,))
        assert torch.allclose(graph.model(x), Loss()(x))

    @pytest.mark.parametrize("model", [Half(), Least()], ids=lambda model: type(model).__name__)
    @pytest.mark.parametrize("length", [3, 5, 6, 7, 8, 12])
    def test_a_size_that_would_take_another_branch_is_refused(self, model, length):
        graph = MaseGraph(model, front_end="export", dummy_in=(torch.randn(2, 8, 4),))
        same_or_refused(graph, model, torch.randn(2, length, 4))

    @pytest.mark.parametrize("lengths", [(8, 5), (5, 8), (5, 5)])
    def test_so_are_relations_of_two_inputs(self, lengths):
        example = (torch.randn(2, 8), torch.randn(2, 6))
        graph = MaseGraph(Longer(), front_end="export", dummy_in=example)
        same_or_refused(graph, Longer(), *(torch.randn(2, n) for n in lengths))

    def test_elu_keeps_its_arguments(self):
        x = torch.randn(3, 4)
        graph = MaseGraph(Elu(), front_end="export", dummy_in=(x,))
        assert torch.allclose(graph.model(x), Elu()(x))

    def test_another_number_of_inputs_is_refused(self):
        x = torch.randn(3, 4)
        graph = MaseGraph(Sums(), front_end="export", dummy_in=(x, x))
        same_or_refused(graph, Sums(), x, x, x)
