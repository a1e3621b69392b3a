"""Commands on a model that torch.fx cannot trace, with the front end of torch.export."""

import json

import pytest

from chop.models.base import MODELS

MODEL = '''
from torch import nn
from chop.models import model


@model("by-shape")
class ByShape(nn.Module):
    """Takes several rows at once, and decides by shape."""

    def __init__(self, info):
        super().__init__()
        self.fc1, self.act = nn.Linear(info.num_features, 8), nn.ReLU()
        self.fc2 = nn.Linear(8, info.num_classes)

    def forward(self, jets, *, several=False):
        if jets.shape[-1] != self.fc1.in_features:
            raise ValueError("another number of features")
        for layer in (self.fc1, self.act)[: jets.dim()]:
            jets = layer(jets)
        return self.fc2(jets)
'''
CONFIG = '{ name = ["integer"], data_in_width = [4, 8], data_in_frac_width = [3], \
weight_width = [4], weight_frac_width = [3], bias_width = [4], bias_frac_width = [3] }'
TABLES = f"""
[passes.quantize]
by = "regex_name"
"fc.*".config = {{ name = "integer", data_in_width = 8, data_in_frac_width = 4, \
weight_width = 8, weight_frac_width = 4, bias_width = 8, bias_frac_width = 4 }}
[search.search_space]
name = "graph/quantize/mixed_precision_ptq"
setup.by = "name"
seed.fc1.config = {CONFIG}
[search.strategy]
sw_runner.basic_evaluation = {{ num_samples = 64, allow_untrained = true }}
hw_runner.average_bitwidth = {{}}
setup = {{ sampler = "brute", n_trials = 2 }}
metrics = {{ accuracy.scale = 1.0, average_bitwidth.scale = 1.0 }}
"""


@pytest.fixture(autouse=True)
def _models_as_found(monkeypatch):
    assert "jsc-tiny" in MODELS, "they are imported when the first one is asked for"
    monkeypatch.setattr(MODELS, "_items", dict(MODELS._items))


@pytest.fixture
def run(here, tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "a.toml").write_text(TABLES)

    def of(action, *further):
        words = [action, "by-shape", "jsc-sim", "--import", tmp_path / "mine.py", "--no-progress"]
        words += ["--batch-size", 256, "--project", "p", "--project-dir", tmp_path / "out"]
        return here(*words, "--config", tmp_path / "a.toml", *further)

    return of


@pytest.mark.slow
def test_it_is_transformed_searched_and_applied(run, tmp_path):
    software = tmp_path / "out" / "p" / "software"
    code, _, said = run("transform")
    assert code == 0, said
    saved = json.loads((software / "transform" / "transformed_ckpt" / "graph.json").read_text())
    assert saved["front_end"] == "export"
    assert "LinearInteger" in json.dumps(saved["modules"])
    code, _, said = run("search", "--front-end", "export")
    assert code == 0, said
    log = json.loads((software / "search_ckpts" / "log.json").read_text())
    assert [row["state"] for row in log.values()] == ["COMPLETE", "COMPLETE"], said
    code, _, said = run("search", "--apply", "best")  # with the front end of the study
    assert code == 0, said
    code, _, said = run("search", "--apply", "best", "--front-end", "fx")
    assert code == 1
    assert "cannot trace ByShape.forward" in said


@pytest.mark.slow
def test_the_fx_front_end_alone_refuses_it(run):
    code, _, said = run("transform", "--front-end", "fx")
    assert code == 1
    assert "cannot trace ByShape.forward" in said
    assert "--front-end" in said


def test_a_front_end_that_does_not_exist(run):
    code, _, said = run("transform", "--front-end", "dynamo")
    assert code == 2
    assert "dynamo" in said
