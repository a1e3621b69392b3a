"""What stands between the options and the action: set-up, checks, seeds, profiles."""

import logging
import pkgutil
import random
import warnings

import numpy as np
import pytest
import torch

import chop.actions
from chop.actions.base import ACTIONS, Action
from chop.actions.config import ConfigError, RunConfig
from chop.actions.run import is_first_process, prepare, seed_everything, set_up_logging
from chop.registry import UnknownName

CALLS = []


def record(config, project):
    """Stands for an action; `Action.function` names it."""
    CALLS.append((config, project))
    if config.seed == 13:
        raise ValueError("bad luck")


FAKE = Action("fake", "Does nothing.", f"{__name__}:record")


@pytest.fixture(autouse=True)
def _no_calls_yet():
    CALLS.clear()


@pytest.fixture
def flags(tmp_path):
    return {"model": "toy", "dataset": "toy_tiny", "project_dir": str(tmp_path)}


def test_an_action_gets_the_options_and_its_project(flags, tmp_path):
    prepared = prepare(FAKE, {**flags, "seed": "5"})
    prepared()
    [(config, project)] = CALLS
    assert config.seed == 5
    assert config.project == project.name
    assert project.folder == tmp_path / config.project
    assert not list(tmp_path.iterdir())


def test_what_an_action_needs_is_checked_before_anything_starts(flags):
    with pytest.raises(ConfigError, match="a checkpoint is required; give one with --load"):
        prepare(ACTIONS["test"], flags)
    assert prepare(ACTIONS["test"], {**flags, "is_pretrained": True}).config.is_pretrained
    for action in ("transform", "search"):
        with pytest.raises(
            ConfigError, match="a configuration file is required; give your own with --config"
        ):
            prepare(ACTIONS[action], flags)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"model": "tooy"}, "unknown model 'tooy'; did you mean 'toy'?"),
        ({"dataset": "toy_tinny"}, "unknown data set 'toy_tinny'; did you mean 'toy_tiny'?"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(flags, wrong, sentence):
    with pytest.raises(UnknownName) as refused:
        prepare(FAKE, flags | wrong)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_names_are_checked_before_all_else_that_an_action_needs(action, flags, tmp_path):
    with pytest.raises(UnknownName, match="unknown model 'tooy'; did you mean 'toy'"):
        prepare(action, {**flags, "model": "tooy"})
    with pytest.raises(UnknownName, match="unknown data set 'toy_tinny'"):
        prepare(action, {**flags, "dataset": "toy_tinny"})


def test_a_file_of_the_user_registers_a_model(flags, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\nfrom chop.models import model\n@model('of-a-test-of-run')\n"
        "def build(info):\n    '''A model.'''\n    return nn.Identity()\n",
        encoding="utf-8",
    )
    mine = {"model": "of-a-test-of-run", "imports": [str(tmp_path / "mine.py")]}
    try:
        assert prepare(FAKE, flags | mine).config.model == "of-a-test-of-run"
    finally:
        from chop.models.base import MODELS

        MODELS._items.pop("of-a-test-of-run", None)


def test_a_broken_file_of_the_user_is_wrong_usage(flags, tmp_path):
    (tmp_path / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"--import: .*broken.py, line 1: ZeroDivisionError"):
        prepare(FAKE, {**flags, "imports": [str(tmp_path / "broken.py")]})


def test_seeds_reach_all_generators():
    def draw():
        return random.random(), np.random.rand(), torch.rand(()).item()

    seed_everything(3)
    first = draw()
    seed_everything(3)
    assert draw() == first


def test_the_seed_of_the_file_counts(flags, tmp_path):
    (tmp_path / "run.toml").write_text("seed = 8", encoding="utf-8")
    prepare(FAKE, {**flags, "config": str(tmp_path / "run.toml")})()
    assert torch.initial_seed() == 8


@pytest.mark.parametrize("variable", ["RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"])
def test_of_several_processes_the_first_prints(monkeypatch, variable):
    assert is_first_process()
    monkeypatch.setenv(variable, "0")
    assert is_first_process()
    monkeypatch.setenv(variable, "1")
    assert not is_first_process()
    set_up_logging(RunConfig())
    assert logging.getLogger("chop").level == logging.WARNING


@pytest.mark.parametrize(
    ("options", "ours", "theirs"),
    [
        ({}, "INFO", "WARNING"),
        ({"log_level": "error"}, "ERROR", "ERROR"),
        ({"log_level": "debug"}, "DEBUG", "DEBUG"),
        ({"to_debug": True}, "DEBUG", "DEBUG"),
    ],
)
def test_log_levels(options, ours, theirs, capsys):
    set_up_logging(RunConfig(**options))
    assert logging.getLevelName(logging.getLogger("chop").level) == ours
    for library in ("transformers", "datasets", "optuna"):
        assert logging.getLevelName(logging.getLogger(library).level) == theirs
    assert ("Enabled debug mode." in capsys.readouterr().err) == ("to_debug" in options)


def test_no_warnings_hides_warnings(flags):
    with warnings.catch_warnings():
        prepare(FAKE, {**flags, "no_warnings": True})()
        assert warnings.filters[0][0] == "ignore"


def test_a_profile_is_printed_even_when_the_action_fails(flags, capsys):
    with pytest.raises(ValueError, match="bad luck"):
        prepare(FAKE, {**flags, "profile": True, "seed": "13"})()
    printed = capsys.readouterr().out
    assert "Ordered by: cumulative time" in printed
    assert "(record)" in printed


@pytest.mark.parametrize(("terminal", "opened"), [(True, 1), (False, 0)])
def test_the_debugger_opens_only_for_somebody_who_is_there(
    flags, monkeypatch, terminal, opened, capsys
):
    sessions = []
    monkeypatch.setattr("pdb.post_mortem", lambda: sessions.append(1))
    monkeypatch.setattr("sys.stdin.isatty", lambda: terminal, raising=False)
    with pytest.raises(ValueError, match="bad luck"):
        prepare(FAKE, {**flags, "to_debug": True, "seed": "13"})()
    assert len(sessions) == opened


def test_every_action_names_functions_that_are_there():
    for action in ACTIONS.values():
        assert callable(pkgutil.resolve_name(action.function))
        assert callable(pkgutil.resolve_name(action.checked_by))


@pytest.mark.parametrize(
    ("name", "file"), [("train", "train"), ("test", "test"), ("validate", "test")]
)
def test_the_labs_import_an_action_as_a_function(name, file):
    assert getattr(chop.actions, name) is pkgutil.resolve_name(f"chop.actions.{file}:{name}")
