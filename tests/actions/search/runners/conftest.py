"""A small trained-looking network on simulated jets, and trials of it."""

import dataclasses

import pytest
import torch

from chop.actions.search.metrics.base import RunnerContext, Trial
from chop.dataset import MaseDataModule
from chop.ir import MaseGraph
from chop.models import get_model, get_model_info
from chop.passes import Pipeline


def graph_of(model, x):
    """The graph of `model` with metadata, made with the batch `x`."""
    graph = MaseGraph(model)
    given = {"dummy_in": {str(graph.inputs[0].target): x}, "add_value": False}
    graph, _ = Pipeline(["init_metadata", ("add_common_metadata", given)])(graph)
    return graph


def settle(model, x):
    """Give the batch norms statistics that are not those of a new network."""
    with torch.no_grad():
        for _ in range(3):
            model.train()(x)
    return model.eval()


def network_of(name, dataset="jsc-sim", *, seed=3, batch_size=64):
    """An untrained network and its data, as `search` takes them."""
    torch.manual_seed(seed)
    data = MaseDataModule(dataset, batch_size=batch_size)
    data.prepare_data()
    data.setup()
    model = get_model(name, task="cls", dataset_info=data.dataset_info)
    return model, get_model_info(name), "cls", data.dataset_info, data


def make_scene(name="jsc-tiny", dataset="jsc-sim", *, seed=0, device="cpu"):
    model, model_info, task, info, data = network_of(name, dataset, seed=seed)
    x = data.train_dataset[:256][0]
    graph = graph_of(settle(model, x), x[:4])
    graph.model.to(device)
    return RunnerContext(graph, model_info, task, data, info, torch.device(device), seed)


class OtherSplits:
    """A data module in which some splits, such as `val_dataset`, are others."""

    def __init__(self, data_module, splits):
        self.data_module = data_module
        vars(self).update(splits)

    def __getattr__(self, name):
        return getattr(self.data_module, name)


def with_splits(context, **splits):
    """The same search on other data."""
    return dataclasses.replace(context, data_module=OtherSplits(context.data_module, splits))


def make_trial(graph, **facts):
    """A trial of `graph` as it is."""
    facts = {"number": 0, "config": {}, "seed": 1} | facts
    return Trial(make_graph=lambda: graph, model=graph.model, **facts)


@pytest.fixture(scope="session")
def jets():
    """jsc-tiny on jsc-sim; never changed by a test."""
    return make_scene()


@pytest.fixture
def trial(jets):
    """A candidate that equals the parent."""
    return make_trial(jets.graph.clone())
