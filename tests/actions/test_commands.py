"""What `ch` takes as arguments, where it writes, and the commands that it suggests."""

import re
import shlex
import sys

import pytest

import chop
from chop.models.base import MODELS

OWN = """
from torch import nn
from chop.models import model

@model("commands-own")
def build(info, *, hidden: int = 4):
    return nn.Sequential(nn.Linear(info.num_features, hidden), nn.Linear(hidden, info.num_classes))
"""
ROWS = "a,b,kind\n" + "".join(f"{i % 7},{i % 5},{'yes' if i % 2 else 'no'}\n" for i in range(60))
TINY = ("--max-steps", 1, "--batch-size", 16, "--cpu", 0, "--no-progress")


@pytest.fixture
def own_files(here, tmp_path):
    """A model and a table of the user's, as the options that name them."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "rows.csv").write_text(ROWS)
    yield ("--import", tmp_path / "own.py", "--data-path", tmp_path / "rows.csv")
    forget_own_model()


def suggested(text):
    """The command that a message suggests, as words."""
    (line,) = re.findall(r"Test it with: (.*)", text)
    return shlex.split(line)


def forget_own_model():
    """As in a new process, which knows the model only if its file is imported."""
    MODELS._items.pop("commands-own", None)
    for name in [name for name in sys.modules if name.startswith("mase_user_own_")]:
        del sys.modules[name]


def test_a_name_that_is_both_a_model_and_a_data_set_may_be_given_twice(ch):
    done = ch("train", "toy_tiny", "toy_tiny", *TINY)
    assert "Training is completed" in done.stderr


def test_a_data_set_and_a_model_in_the_wrong_order_are_still_told_apart(here):
    code, _, err = here("train", "jsc-sim", "jsc-tiny")
    assert code == 2
    assert "'jsc-sim' is a data set and 'jsc-tiny' is a model; swap the two arguments" in err


def test_the_suggested_test_runs_as_it_stands(here, own_files, tmp_path):
    (tmp_path / "wide.toml").write_text("[model_args]\nhidden = 9\n[dataset_args]\ntest = 0.4\n")
    words = ("commands-own", "csv", *own_files, "--config", tmp_path / "wide.toml")
    code, _, err = here("train", *words, *TINY, "--project-dir", tmp_path / "my runs")
    assert code == 0, err
    called, *line = suggested(err)
    assert called == "ch"
    forget_own_model()
    code, _, err = here(*line)
    assert code == 0, err
    assert "24 samples of csv" in err  # 40 % of 60
    (project,) = (tmp_path / "my runs").iterdir()
    assert (project / "software" / "checkpoints" / "test_metrics.json").is_file()


def test_the_suggested_test_of_a_file_repeats_only_what_the_file_does_not_say(here, own_files):
    imported, own, data, rows = own_files
    own.with_name("all.toml").write_text(
        f'model = "commands-own"\ndataset = "csv"\nimports = ["{own}"]\nproject = "other"\n'
        f"batch_size = 16\nnum_workers = 0\nmax_steps = 1\n"
    )
    flags = ("--config", "all.toml", data, rows, "--project", "mine", "--project-dir", "out")
    code, _, err = here("train", *flags)
    assert code == 0, err
    _, *line = suggested(err)
    assert imported not in line
    assert line[line.index(data) + 1] == str(rows)
    forget_own_model()
    code, _, err = here(*line)
    assert code == 0, err
    assert list(own.parent.glob("out/mine/software/checkpoints/test_metrics.json"))
    assert not list(own.parent.glob("out/other"))


QUANTIZE = """
[passes.quantize]
by = "type"
[passes.quantize.linear.config]
name = "scale_integer"
data_in_width = 8
weight_width = 8
bias_width = 8
"""


@pytest.mark.slow
def test_the_suggested_test_of_a_transform_runs_as_it_stands(here, own_files, tmp_path):
    (tmp_path / "q.toml").write_text(QUANTIZE)
    words = ("commands-own", "csv", *own_files, "--config", "q.toml", "--cpu", 0)
    code, _, err = here("transform", *words, "--project-dir", "out", "--project", "q")
    assert code == 0, err
    _, *line = suggested(err)
    forget_own_model()
    code, _, err = here(*line)
    assert code == 0, err
    assert "transformed_ckpt" in err


def test_a_file_that_resumes_its_training_can_be_tested(here, own_files, tmp_path):
    code, _, err = here("train", "commands-own", "csv", *own_files, *TINY, "--project-dir", "out")
    assert code == 0, err
    (tmp_path / "resume.toml").write_text("resume = true\n")
    _, *line = suggested(err)
    code, _, err = here(*line, "--config", "resume.toml")
    assert code == 0, err


def test_results_of_a_test_lie_below_the_project_dir_that_was_given(
    here, own_files, tmp_path, monkeypatch
):
    """Also below the default one, which was taken for none."""
    monkeypatch.setattr(chop, "__file__", str(tmp_path / "site/chop/__init__.py"))
    code, _, err = here("train", "commands-own", "csv", *own_files, *TINY, "--project-dir", "out")
    assert code == 0, err
    _, *line = suggested(err)
    for folder in (tmp_path / "elsewhere", tmp_path / "mase_output"):
        before = {*folder.glob("*")}
        code, _, err = here(*line, "--project-dir", folder)
        assert code == 0, err
        (project,) = {*folder.glob("*")} - before
        assert (project / "software" / "checkpoints" / "test_metrics.json").is_file()
    assert not list((tmp_path / "out").glob("*/software/checkpoints"))


@pytest.mark.parametrize("wrong", [("mine", "toy_tiny"), ("toy_tiny", "mine")])
def test_an_unknown_name_tells_how_to_add_one(here, wrong):
    code, _, err = here("train", *wrong)
    assert code == 2
    assert "; if it is yours, import the file that registers it, on the command line with" in err


def test_a_directory_with_a_checkpoint_can_be_loaded(here, own_files, tmp_path):
    code, _, err = here("train", "commands-own", "csv", *own_files, *TINY, "--project-dir", "out")
    assert code == 0, err
    (project,) = (tmp_path / "out").iterdir()
    folder = project / "software" / "training_ckpts"
    code, out, err = here("test", "commands-own", "csv", *own_files, "--load", folder)
    assert code == 0, err
    assert (project / "software" / "checkpoints" / "test_metrics.json").is_file()
    assert re.search(r"load_type .* pl ", out)


@pytest.mark.parametrize("option", ["--load", "--data-path", "--import", "--config"])
def test_a_link_that_leads_nowhere_is_called_one(here, tmp_path, option):
    (tmp_path / "link.toml").symlink_to("gone.toml")
    code, _, err = here("train", "toy", "toy_tiny", option, "link.toml")
    assert code == 2
    assert f"{option}: '{tmp_path / 'link.toml'}' is a symbolic link to 'gone.toml', which" in err
