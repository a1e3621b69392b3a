"""A model may call its input what it likes: every command names it as `forward` does."""

import json
import re
from pathlib import Path

import pytest

from chop.models.base import MODELS

ROOT = Path(__file__).parents[2]
OTHERS = '''
import torch
from torch import nn
from chop.models import model


class Net(nn.Module):
    """Two layers, and a norm whose statistics can be counted anew."""

    def __init__(self, info):
        super().__init__()
        self.fc1, self.norm = nn.Linear(info.num_features, 8), nn.BatchNorm1d(8)
        self.fc2 = nn.Linear(8, info.num_classes)

    def run(self, rows):
        return self.fc2(torch.relu(self.norm(self.fc1(rows))))


class Features(Net):
    def forward(self, features):
        return self.run(features)


class Scaled(Net):
    def forward(self, jets, scale=1.0):
        return self.run(jets * scale)


class Keyword(Net):
    def forward(self, x, /):
        return self.run(x)


for cls in (Features, Scaled, Keyword):
    model(cls.__name__.lower())(cls)
'''
PASSES = """
[passes.profile_statistics]
by = "type"
target_weight_nodes = ["linear"]
target_activation_nodes = ["linear"]
weight_statistics.range_min_max = {}
activation_statistics.range_min_max = {}
[passes.prune]
activation = { sparsity = 0.5, scope = "local", granularity = "elementwise", method = "l1-norm" }
[passes.quantize]
by = "type"
default.config.name = "NA"
[passes.quantize.linear]
config = { name = "integer", data_in_width = 8, data_in_frac_width = 4, \
weight_width = 8, weight_frac_width = 4, bias_width = 8, bias_frac_width = 4 }
"""
SEARCH = """
[search.search_space]
name = "graph/joint"
[search.search_space.passes.redefine]
setup.by = "name"
weights = "inherit"
seed.NODE.config = { name = ["both"], channel_multiplier = [1, 2] }
[search.search_space.passes.quantize]
setup.by = "type"
seed.linear.config = { name = ["integer"], data_in_width = [4, 8], data_in_frac_width = [3], \
weight_width = [4], weight_frac_width = [3], bias_width = [4], bias_frac_width = [3] }
[search.strategy]
sw_runner.basic_evaluation = { num_samples = 64, allow_untrained = true }
hw_runner.bitops = {}
setup = { sampler = "brute", n_trials = 2 }
metrics = { accuracy.scale = 1.0, bitops.scale = 1.0 }
"""
NODES = {"two-layers": "_0", "features": "fc1", "scaled": "fc1", "keyword": "fc1"}


def write_models(folder):
    """The first example of the page about models, and others."""
    page = (ROOT / "docs" / "add_a_model.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", page, re.S)[1]
    (folder / "my_models.py").write_text(example + OTHERS)
    return folder / "my_models.py"


@pytest.fixture(autouse=True)
def _models_as_found(monkeypatch):
    assert "jsc-tiny" in MODELS, "they are imported when the first one is asked for"
    monkeypatch.setattr(MODELS, "_items", dict(MODELS._items))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize(("action", "tables"), [("transform", PASSES), ("search", SEARCH)])
def test_every_command_takes_it(here, tmp_path, name, action, tables):
    (tmp_path / "a.toml").write_text(tables.replace("NODE", NODES[name]))
    words = (action, name, "jsc-sim", "--import", write_models(tmp_path), "--no-progress")
    words += ("--config", tmp_path / "a.toml", "--batch-size", 256, "--project", "p")
    code, _, said = here(*words, "--project-dir", tmp_path / "out")
    assert code == 0, said
    if action == "search":
        file = tmp_path / "out" / "p" / "software" / "search_ckpts" / "log.json"
        states = [row["state"] for row in json.loads(file.read_text()).values()]
        assert states == ["COMPLETE", "COMPLETE"], said


def test_the_example_of_the_docs_is_trained_transformed_and_searched(here, tmp_path):
    (tmp_path / "passes.toml").write_text(PASSES)
    (tmp_path / "search.toml").write_text(SEARCH.replace("NODE", NODES["two-layers"]))
    words = ("two-layers", "jsc-sim", "--import", write_models(tmp_path), "--no-progress")
    words += ("--batch-size", 4096, "--project", "p", "--project-dir", tmp_path / "out")
    code, _, said = here("train", *words, "--max-epochs", 1, "--learning-rate", 0.01)
    assert code == 0, said
    best = tmp_path / "out" / "p" / "software" / "training_ckpts" / "best.ckpt"
    for action, file in (("transform", "passes.toml"), ("search", "search.toml")):
        loaded = ("--load", best, "--load-type", "pl", "--config", tmp_path / file)
        code, _, said = here(action, *words, *loaded)
        assert code == 0, said
