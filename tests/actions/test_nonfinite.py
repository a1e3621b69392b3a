"""`ch test` and `ch search` refuse weights that are nan or infinite, unless told otherwise."""

import pytest
import torch

from chop.dataset import MaseDataModule
from chop.models import get_model

FILE = """
model = "jsc-tiny"
dataset = "jsc-sim"
[search.search_space]
name = "graph/quantize/mixed_precision_ptq"
setup.by = "type"
seed.linear.config = { name = ["integer"], data_in_width = [4, 8], data_in_frac_width = ["NA"], \
weight_width = [4], weight_frac_width = ["NA"], bias_width = [4], bias_frac_width = ["NA"] }
[search.strategy]
hw_runner.average_bitwidth = {}
metrics.average_bitwidth.scale = 1.0
setup.n_trials = 1
"""


@pytest.fixture
def run(here, tmp_path):
    """Runs a command on a network in which one value was replaced."""

    def run(action, place, value, *flags):
        torch.manual_seed(3)
        info = MaseDataModule("jsc-sim", batch_size=64).dataset_info
        state = get_model("jsc-tiny", task="cls", dataset_info=info).state_dict()
        state[place].view(-1)[1] = value
        torch.save(state, tmp_path / "w.pt")
        (tmp_path / "a.toml").write_text(FILE)
        words = {
            "test": ("test", "jsc-tiny", "jsc-sim"),
            "search": ("search", "--config", tmp_path / "a.toml", "--no-progress"),
        }
        load = ("--load", tmp_path / "w.pt", "--load-type", "pt", "--project-dir", tmp_path / "out")
        return here(*words[action], *load, *flags)

    return run


@pytest.mark.parametrize("action", ["test", "search"])
@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("seq_blocks.2.weight", float("nan")),
        ("seq_blocks.2.bias", float("-inf")),
        ("seq_blocks.0.running_var", float("nan")),
    ],
)
def test_they_are_refused_and_named(run, tmp_path, action, place, value):
    code, _, said = run(action, place, value)
    assert code == 1
    sentence = said.splitlines()[-1]
    assert sentence.startswith(f"ch: {tmp_path / 'w.pt'}: {place} has 1 value that is ")
    assert "a lower --learning-rate" in sentence
    assert "--allow-nonfinite" in sentence
    assert not list(tmp_path.glob("out/**/*.journal"))


@pytest.mark.parametrize("action", ["test", "search"])
def test_those_who_want_them_may_have_them(run, action):
    code, _, said = run(action, "seq_blocks.2.weight", float("nan"), "--allow-nonfinite")
    assert code == 0, said
    assert "completed" in said


def test_an_infinite_buffer_is_often_meant(run):
    """As in the masks of attention."""
    code, _, said = run("test", "seq_blocks.0.running_var", float("inf"))
    assert code == 0, said
