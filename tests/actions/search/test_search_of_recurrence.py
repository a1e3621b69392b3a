"""A search of a network with an LSTM, a transformer, and a layer that stays in float."""

import json

import pytest

from chop.ir import MaseGraph

from .conftest import METRICS

MODEL = '''
from torch import nn
from chop.models import model


class Reader(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.lstm = nn.LSTM(4, 8, batch_first=True)
        self.mix = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.both, self.last = nn.Bilinear(8, 8, 8), nn.Linear(8, classes)

    def forward(self, x):
        y = self.mix(self.lstm(x.reshape(-1, 4, 4))[0]).mean(1)
        return self.last(self.both(y, y))


@model("reader")
def reader(info):
    """Reads a jet as four steps."""
    return Reader(info.num_classes)
'''
FORMATS = """
name = ["integer"]
data_in_width = [8]
data_in_frac_width = ["NA"]
weight_width = [4, 8]
weight_frac_width = ["NA"]
bias_width = [4]
bias_frac_width = ["NA"]
"""
CONFIG = f"""
model = "reader"
dataset = "jsc-sim"
task = "cls"
batch_size = 1024
max_epochs = 1
project = "p"
[search]
train_parent = true
[search.search_space]
name = "graph/quantize/mixed_precision_ptq"
[search.search_space.setup]
by = "type"
[search.search_space.seed.default.config]
name = ["NA"]
[search.search_space.seed.lstm.config]{FORMATS}
[search.search_space.seed.attention.config]{FORMATS}
[search.strategy.sw_runner.basic_evaluation]
data_loader = "val_dataloader"
num_samples = 64
[search.strategy.hw_runner.average_bitwidth]
[search.strategy.setup]
n_trials = 5
sampler = "brute-force"
{METRICS}
"""


@pytest.mark.slow
def test_it_counts_everything_warns_once_and_its_designs_are_built(ch, tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "s.toml").write_text(CONFIG)
    words = ["search", "--config", "s.toml", "--import", "mine.py"]
    done = ch(*words)
    said = done.stdout + done.stderr
    assert said.count("both (Bilinear) cannot be quantised and stays in float") == 1
    folder = tmp_path / "out" / "p" / "software" / "search_ckpts"
    rows = json.loads((folder / "log.json").read_text()).values()
    found = {row["user_attrs_hardware_metrics"]["average_bitwidth"] for row in rows}
    lstm, attention = (4 * 8 * (4 + 8), 2 * 4 * 8), (4 * 64, 4 * 8)
    rest = (
        2 * 8 * 16 + 16 + 8 + 2 * 16 + 8 * 64 + 8 + 8 * 5 + 5
    )  # feed-forward, norms, the last two
    total = sum(lstm) + sum(attention) + rest
    expected = {
        (lstm[0] * a + attention[0] * b + 4 * (lstm[1] + attention[1]) + 32 * rest) / total
        for a in (4, 8)
        for b in (4, 8)
    }
    assert sorted(found) == pytest.approx(sorted(expected))
    ch(*words, "--apply", "0")
    graph = MaseGraph.from_checkpoint(folder / "trial_0")
    assert type(graph.modules["lstm"]).__name__ == "LSTMInteger"
    assert type(graph.modules["mix.self_attn"]).__name__ == "MultiheadAttentionInteger"
