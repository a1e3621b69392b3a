"""What a project stands for once its search has designs: the delivered one, not its parent."""

import json

import pytest
import torch

from chop.checkpoints import load_graph

from .conftest import config_text, search_words

RETRAIN = """
[search.retrain]
designs = "best"
max_epochs = 1
learning_rate = 0.01
"""
NUMBERS = 'n_trials = 3\nsampler = "random"\n'


@pytest.fixture
def searched(here, tmp_path, checkpoint):
    """`searched(retrain, *flags)` searches, or applies a design; the folder of its files."""
    config = tmp_path / "a.toml"

    def run(retrain, *flags):
        config.write_text(config_text(NUMBERS) + (RETRAIN if retrain else ""))
        code, out, err = here(*search_words(config, checkpoint, *flags))
        assert code == 0, out + err
        return tmp_path / "out" / "p" / "software" / "search_ckpts"

    return run


def weights(folder):
    return load_graph(folder).model.state_dict()


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_apply_saves_the_network_that_was_retrained(searched):
    folder = searched(True)
    [retrained] = folder.glob("search.retrained/trial_*/transformed_ckpt")
    searched(True, "--apply", "best")
    [applied] = folder.glob("trial_*")
    assert applied.name == retrained.parent.name
    assert same(weights(applied), weights(retrained))
    note = json.loads((folder / "network.json").read_text())
    assert note == {"network": applied.name, "how": "applied"}


@pytest.mark.slow
def test_a_design_whose_retraining_was_cut_is_applied_as_it_was_measured(searched):
    folder = searched(True)
    [result] = folder.glob("search.retrained/trial_*/result.json")
    retrained = weights(result.parent / "transformed_ckpt")
    result.unlink()
    searched(True, "--apply", "best")
    [applied] = folder.glob("trial_*")
    assert not same(weights(applied), retrained)


def test_a_project_stands_for_its_retrained_or_applied_design(searched, here, tmp_path):
    folder = searched(True)
    [retrained] = folder.glob("search.retrained/trial_*/transformed_ckpt")
    project = tmp_path / "out" / "p"
    words = ("test", "jsc-tiny", "jsc-sim", "--load", project, "--batch-size", 8192)

    def taken():
        code, out, err = here(*words, "--no-progress")
        assert code == 0, out + err
        lines = [line for line in (out + err).splitlines() if "--load takes" in line]
        return "".join(lines) + "".join((out + err).split())

    said = taken()
    assert "thedesignthatwasretrainedlast" in said
    assert str(retrained) in said
    searched(True, "--apply", "0")
    said = taken()
    assert "thedesignthatwasappliedlast" in said
    assert str(folder / "trial_0") in said
