"""Captures in several threads at the same time."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph

THREADS = 2
X = torch.randn(3, 4)


class Noted(nn.Module):
    """Notes each run of forward(), as the thread that captures it."""

    def __init__(self, runs):
        super().__init__()
        self.layer, self.runs = nn.Linear(4, 4), runs

    def forward(self, x):
        self.runs.append(threading.get_ident())
        for _ in range(20):
            x = torch.relu(self.layer(x))
        self.runs.append(threading.get_ident())
        return x


@pytest.fixture
def frequent_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("front_end", ["fx", pytest.param("export", marks=pytest.mark.slow)])
def test_captures_in_two_threads_run_one_after_the_other(front_end, frequent_switches):
    runs, start, stderr = [], threading.Barrier(THREADS), sys.stderr
    models = [Noted(runs) for _ in range(THREADS)]

    def captured(model):
        start.wait()
        return MaseGraph(model, front_end=front_end, dummy_in={"x": X})

    with ThreadPoolExecutor(THREADS) as pool:
        graphs = list(pool.map(captured, models))
    assert sys.stderr is stderr
    assert runs[::2] == runs[1::2]  # each run ends before the next begins
    for model, graph in zip(models, graphs, strict=True):
        assert [node.op for node in graph.nodes].count("call_module") == 20
        assert torch.equal(graph.model(X), model(X))
