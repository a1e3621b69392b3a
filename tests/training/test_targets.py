"""Networks of tables learn targets that are not scaled."""

import pytest
import torch
from torch import nn

from chop.dataset import MaseDataModule, TensorSplit
from chop.methods.edge_tables import EdgeTable
from chop.models import get_model
from chop.training.learned import FrontOptions, train_front
from chop.training.loop import Training
from chop.training.options import TrainOptions
from chop.training.targets import start_at_targets
from chop.training.tasks import CLASSIFICATION, REGRESSION


@pytest.fixture(scope="module")
def friedman():
    data = MaseDataModule("friedman", batch_size=256, num_workers=0)
    data.prepare_data()
    data.setup("fit")
    return data


def table_network(data):
    torch.manual_seed(0)
    return get_model("mlp-table", task="reg", dataset_info=data.dataset_info, hidden=[8])


def test_a_network_of_tables_learns_a_regression_without_scaled_targets(friedman):
    options = TrainOptions(max_epochs=2, learning_rate=5e-3, progress=False, accelerator="cpu")
    fitted = Training(table_network(friedman), friedman, options, task=REGRESSION).fit()
    assert fitted.validation.metrics["r2"] > 0.4


def test_a_front_of_it_begins_in_the_range_of_the_targets_too(friedman):
    model = table_network(friedman)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    how = {"steps": 40, "members": 1, "checkpoints": 1, "learning_rate": 5e-3, "batch_size": 256}
    options = FrontOptions(**how, price=[1e-9, 1e-9])
    front = train_front(model, friedman, options, task="reg", accelerator="cpu")
    assert front.designs[-1].metrics["r2"] > 0
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


@pytest.mark.parametrize("case", ["classes", "scaled", "trained", "no tables"])
def test_other_networks_and_targets_begin_as_they_are(case):
    torch.manual_seed(0)
    model = nn.Sequential(EdgeTable(3, 2, hidden=2), *([nn.Linear(2, 2)] * (case == "no tables")))
    if case == "trained":
        model[0].running_mean += 1
    y = torch.randn(50, 2) * (1 if case == "scaled" else 40)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    task = CLASSIFICATION if case == "classes" else REGRESSION
    start_at_targets(model, TensorSplit(torch.randn(50, 3), y), task)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
