"""Learned bit widths on a GPU: the bits of the CPU, and fronts whose steps are captured."""

import itertools

import pytest
import torch
from torch import nn

from chop.dataset import TensorSplit
from chop.methods.edge_tables import EdgeTable
from chop.numerics.learned import learned_fixed
from chop.training.interruption import Interrupted
from chop.training.learned import FrontOptions, phase, train_front

pytestmark = pytest.mark.gpu
RULES = list(itertools.product((True, False), ("even", "up", "floor"), ("saturate", "wrap")))


def rows(size, seed):
    x = torch.randn(size, 8, generator=torch.Generator().manual_seed(seed))
    weight = torch.randn(8, 4, generator=torch.Generator().manual_seed(99))
    return TensorSplit(x, (x @ weight).argmax(1))


def network():
    torch.manual_seed(0)
    return nn.Sequential(EdgeTable(8, 6), EdgeTable(6, 4))


def options(**changes):
    usual = {"way": "population", "members": 3, "steps": 60, "batch_size": 256, "checkpoints": 3}
    return FrontOptions(**(usual | {"price": [1e-5, 1e-2]} | changes))


@pytest.mark.parametrize(("signed", "rounding", "overflow"), RULES)
@pytest.mark.parametrize("networks", [None, 3])
def test_numbers_have_the_bits_and_gradients_of_the_cpu(signed, rounding, overflow, networks):
    torch.manual_seed(0)
    lead = () if networks is None else (networks,)
    start = [4 * torch.randn(*lead, 64, 9), *(torch.randn(2, *lead, 9) * 2 + 2)]
    grad, results = torch.randn(start[0].shape), []

    def rounded(x, i, f):
        return learned_fixed(x, i, f, signed=signed, rounding=rounding, overflow=overflow)

    for device in ("cpu", "cuda"):
        tensors = [t.detach().to(device).requires_grad_() for t in start]
        y = rounded(*tensors) if networks is None else torch.vmap(rounded)(*tensors)
        y.backward(grad.to(device))
        results.append([y.detach().cpu(), *(t.grad.cpu() for t in tensors)])
    assert all(map(torch.equal, results[0][:2], results[1][:2]))
    for got, wanted in zip(*(result[2:] for result in results), strict=True):
        assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-4)  # another order of sums


@pytest.mark.parametrize("way", ["population", "ramp", "target"])
def test_a_front_is_trained_with_captured_steps(way, monkeypatch):
    taken = []
    update = phase.TrainingPhase._update
    monkeypatch.setattr(
        phase.TrainingPhase, "_update", lambda self: (taken.append(self.step), update(self))
    )
    target = {"target": 60.0} if way == "target" else {}
    splits = rows(2000, 1), rows(500, 2)
    front = train_front(network(), splits, options(way=way, **target), accelerator="gpu")
    assert front.designs
    assert len(taken) < 10  # the others are replayed


def test_a_front_that_is_stopped_continues_to_the_same_bits(tmp_path):
    splits, chosen = (rows(2000, 1), rows(500, 2)), options()
    whole = train_front(network(), splits, chosen, accelerator="gpu", folder=tmp_path / "whole")
    calls = iter(range(1000))
    with pytest.raises(Interrupted):
        train_front(
            *(network(), splits, chosen),
            accelerator="gpu",
            folder=tmp_path / "cut",
            interrupted=lambda: 15 if next(calls) == 30 else None,
        )
    again = train_front(network(), splits, chosen, accelerator="gpu", folder=tmp_path / "cut")
    assert [d.facts for d in again.designs] == [d.facts for d in whole.designs]
    for one, other in zip(again.designs, whole.designs, strict=True):
        assert all(torch.equal(t, other.state[name]) for name, t in one.state.items())
