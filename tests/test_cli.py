"""`ch` as users type it: exit codes, one-sentence errors, and what only a process can show."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from chop import cli
from chop.actions.base import ACTIONS
from chop.actions.command import command_function
from chop.actions.config import OPTIONS, ConfigError, HelpPanel
from chop.catalogue import KINDS
from chop.numerics import FORMATS
from chop.version import __version__


def python(*arguments, **options):
    """Run a process of Python to its end."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)


def test_version_is_one_line():
    run = python("-m", "chop", "--version")
    assert (run.returncode, run.stdout) == (0, f"mase {__version__}\n")


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["list", "--help"]])
def test_help_teaches_and_succeeds(here, args):
    code, out, _ = here(*args)
    assert code == 0
    assert "list" in out


def test_list_counts_every_kind(here):
    _, out, _ = here("list", "--json")
    counts = {row["kind"]: row["count"] for row in json.loads(out)}
    assert counts.keys() == KINDS.keys()
    assert counts["ops"] > 300
    assert counts["passes"] >= 15
    assert counts["formats"] == len(set(FORMATS.values()))


def test_another_name_of_a_thing_stands_in_its_row(here):
    rows = {row["name"]: row for row in json.loads(here("list", "formats", "--json")[1])}
    assert rows["integer"]["aliases"] == ["fixed"]
    assert "fixed" not in rows
    assert len(rows) == len(set(FORMATS.values()))
    _, out, _ = here("list", "samplers")
    assert "brute  (also brute-force, bruteforce, grid)" in out


def test_a_kind_is_listed_as_a_table_with_every_name(here):
    code, out, _ = here("list", "passes")
    assert code == 0
    for row in KINDS["passes"].rows():
        assert row["name"] in out
    assert "    by: Literal['type', 'name', 'regex_name']" in out


@pytest.mark.slow
def test_a_pipe_that_closes_early_is_no_error_message():
    run = subprocess.run(
        f"{sys.executable} -m chop list ops | head -1", shell=True, capture_output=True, text=True
    )
    assert run.stderr == ""


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_json_has_the_rows_of_the_registry(here, kind):
    _, out, _ = here("list", kind, "--json")
    assert json.loads(out) == json.loads(json.dumps(KINDS[kind].rows()))


def test_every_row_says_what_it_is():
    for kind in ("formats", "passes", "statistics"):
        for row in KINDS[kind].rows():
            assert row["about"], f"{kind} {row['name']} has no docstring"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("closed", ["1", "2", "1 2", "0 1 2"])
def test_closed_streams_are_no_error_and_nothing_is_written_elsewhere(tmp_path, closed):
    streams = " ".join(f"{number}>&-" for number in closed.split())
    words = ["train", "toy", "toy_tiny", "--max-epochs=1", "--cpu=0", "--project-dir=out"]
    command = [sys.executable, "-m", "chop", *words, "--project=p", "--accelerator=cpu"]
    run = subprocess.run(
        ["sh", "-c", f'"$@" {streams}', "sh", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_no_command_shows_the_help(here):
    _, out, err = here()
    assert "Usage: ch" in out + err


# ------------------------------------------------------------------ actions, in this process


@pytest.fixture
def trained(monkeypatch):
    """What `ch train` was called with; it raises what is put into `error`."""
    calls = {"error": None}

    def run_train(config, project, options):
        calls.update(config=config, project=project)
        if calls["error"]:
            raise calls["error"]

    monkeypatch.setattr(importlib.import_module("chop.actions.train"), "run_train", run_train)
    return calls


TOY = ("train", "toy", "toy_tiny")


def test_a_run_prints_its_seed_and_the_table_and_acts(here, trained):
    code, out, _ = here(*TOY, "--max-epochs", "3", "--cpu=0", "--max-steps", "-1", "--seed", "4")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "Seed set to 4"
    assert lines[2].split("|")[1:-1] != []
    assert "Manual Override" in lines[2]
    config = trained["config"]
    assert (config.max_epochs, config.num_workers, config.max_steps) == (3, 0, -1)
    assert trained["project"].name == config.project


def test_words_and_options_mix(here, trained):
    assert here("train", "--max-epochs", "3", "toy", "--debug", "toy_tiny")[0] == 0
    config = trained["config"]
    assert (config.model, config.dataset, config.max_epochs) == ("toy", "toy_tiny", 3)
    assert config.to_debug


def test_a_flag_that_equals_the_default_still_overrides_the_file(here, trained, tmp_path):
    (tmp_path / "run.toml").write_text("max_epochs = 5\nlegacy_val = true\n", encoding="utf-8")
    assert here(*TOY, "--config", "run.toml", "--max-epochs", "20")[0] == 0
    assert trained["config"].max_epochs == 20
    assert trained["config"].legacy_val


def test_import_may_be_repeated(here, trained, tmp_path):
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()
    assert here(*TOY, "--import", "a.py", "--import", "b.py")[0] == 0
    assert [path.name for path in trained["config"].imports] == ["a.py", "b.py"]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["train"], "ch: a model and a data set are required; give MODEL and"),
        (["train", "tooy", "toy_tiny"], "ch: unknown model 'tooy'; did you mean 'toy'?"),
        ([*TOY, "--learning-rate", "-1"], "ch: --learning-rate: should be greater than 0, not"),
        ([*TOY, "--load", "gone"], "ch: --load: there is no file or folder "),
        ([*TOY, "--config", "bad.toml"], "ch: bad.toml is not valid TOML: "),
        ([*TOY, "--config", "key.toml"], "ch: key.toml: unknown key 'sed'; did you mean 'seed'?"),
        ([*TOY, "--import", "bad.toml"], "ch: --import: "),
        ([*TOY, "--project-dir", "bad.toml"], "bad.toml is not a directory"),
        (["test", "toy", "toy_tiny"], "ch: a checkpoint is required; give one with --load"),
        ([*TOY, "--info=modl"], "ch: unknown kind 'modl'; did you mean 'model'?"),
        ([*TOY, "--batch-sise", "3"], "ch: unknown option '--batch-sise'; did you mean '--batch-"),
        (["search", "--n-trails", "3"], "ch: unknown option '--n-trails'; did you mean '--n-tri"),
        ([*TOY, "--frobnicate"], "ch: unknown option '--frobnicate'; see 'ch train --help'"),
        ([*TOY, "-z"], "ch: unknown option '-z'; see 'ch train --help'"),
        (
            [*TOY, "--workers", "2"],
            "ch: '--workers' is an option of 'ch search', not of 'ch train'",
        ),
        (["train", "--dataset", "toy"], "ch: unknown option '--dataset'; model and data set are g"),
        ([*TOY, "--batch-size"], "ch: option '--batch-size' needs a value"),
        ([*TOY, "--debug=3"], "ch: option '--debug' does not take a value"),
        ([*TOY, "more"], "ch: unexpected argument 'more'; see 'ch train --help'"),
        (["report"], "ch: missing argument 'PROJECT'; see 'ch report --help'"),
        (
            [*TOY, "--schedule", "liner"],
            "ch: --schedule: should be 'cosine', 'constant' or 'linear'",
        ),
        (["--bogus"], "ch: unknown option '--bogus'; see 'ch --help'"),
        (["list", "pases"], "ch: unknown kind 'pases'; did you mean 'passes'?"),
        (["lst"], "ch: unknown command 'lst'; did you mean 'list'?"),
        (["frobnicate"], "ch: unknown command 'frobnicate'; see 'ch --help'"),
        (["list", "--jsn"], "ch: unknown option '--jsn'; did you mean '--json'?"),
    ],
)
def test_wrong_usage_is_one_sentence(here, trained, tmp_path, args, sentence):
    (tmp_path / "bad.toml").write_text("seed 3", encoding="utf-8")
    (tmp_path / "key.toml").write_text("sed = 3", encoding="utf-8")
    code, out, err = here(*args)
    assert (code, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err
    assert "config" not in trained, "nothing may start"
    if sentence.startswith("ch: "):
        assert err.startswith(sentence)
    assert err.count("\n") == 1, "one sentence"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("the loss is nan"), 1, "the loss is nan"),
        (FileNotFoundError("no such thing"), 1, "no such thing"),
        (ImportError("needs the extra onnx"), 1, "needs the extra onnx"),
        (FloatingPointError("the loss is nan"), 1, "the loss is nan"),
        (ConfigError("model_args: no such keyword"), 2, "model_args: no such keyword"),
        (ValueError("a.h5:\n(bad header\n); fetch it"), 1, "a.h5: (bad header ); fetch it"),
        (ValueError("no layer 'a\x1b[31m\r'"), 1, "no layer 'a\\x1b[31m\\r'"),
        (ConfigError("x: 1\n2", "y: 3"), 2, "2 problems:\n  x: 1 2\n  y: 3"),
    ],
)  # fmt: skip
def test_a_failure_is_a_sentence_without_a_traceback(here, trained, error, code, said):
    trained["error"] = error
    got, _, err = here(*TOY)
    assert (got, err) == (code, f"ch: {said}\n")


@pytest.mark.parametrize("option", [["--debug"], ["--log-level", "debug"]])
def test_those_who_debug_see_where_it_failed(here, trained, option):
    trained["error"] = ValueError("bad luck")
    code, _, err = here(*TOY, *option)
    assert code == 1
    assert "Traceback" in err
    assert err.endswith("ch: bad luck\n")


@pytest.mark.parametrize(
    "words",
    [
        ("search", "jsc-tiny", "jsc-sim", "postgresql://me:PW@host/db"),
        ("search", "jsc-tiny", "jsc-sim", "--workers", "postgresql://me:PW@host/db"),
        ("train", "postgresql://me:PW@host/db", "jsc-sim"),
        ("train", "jsc-tiny", "jsc-sim", "--load", "postgresql://me:PW@host/db"),
    ],
)
def test_what_is_refused_is_quoted_without_passwords(here, words):
    code, out, said = here(*words)
    assert code == 2
    assert "***" in said
    assert "PW" not in out + said


def test_a_bug_keeps_its_traceback(here, trained):
    trained["error"] = AssertionError("ours")
    with pytest.raises(AssertionError, match="ours"):
        here(*TOY)


def test_interruptions_have_the_exit_codes_of_shells(here, trained):
    from chop.training.interruption import Interrupted

    trained["error"] = KeyboardInterrupt()
    assert here(*TOY)[0] == 130
    trained["error"] = Interrupted(signal.SIGTERM)
    code, _, err = here(*TOY)
    assert (code, err) == (143, "ch: stopped by SIGTERM; --resume continues from here\n")


def test_the_class_of_scripts_runs_the_command(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cli.ChopCLI([*TOY, "--seed", "2"]).run()
    assert trained["config"].seed == 2
    with pytest.raises(SystemExit, match="2"):
        cli.ChopCLI(["train"]).run()


# ------------------------------------------------------------------ help and information


def test_the_help_of_train(golden):
    env = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    run = python("-m", "chop", "train", "--help", env=env)
    golden("help_train.txt", re.sub(r" +$", "", run.stdout, flags=re.MULTILINE))


def test_ch_help_lists_the_commands_first_and_no_options_of_theirs(here):
    code, out, _ = here("--help")
    assert code == 0
    assert out.index("Commands") < out.index("Options")
    for command in [*ACTIONS, "list", "report"]:
        assert re.search(rf"^│ {command} +\w", out, re.MULTILINE), command
    assert "ch COMMAND --help" in " ".join(out.split())
    assert set(re.findall(r"^│ (--[\w-]+)", out, re.MULTILINE)) == {"--info", "--version", "--help"}
    assert len(out.splitlines()) < 40


@pytest.mark.parametrize("action", ACTIONS)
def test_the_help_of_an_action_has_all_its_options_in_groups(here, action):
    code, out, _ = here(action, "--help")
    assert code == 0
    own = [o for o in OPTIONS.values() if o.flags and action in (o.opt.only or [action])]
    groups = {o.opt.group for o in own} | {HelpPanel.MAIN, HelpPanel.INFORMATION}
    found = re.findall(r"─ ([A-Z][\w ]+?) ─", out)
    assert found == [group for group in vars(HelpPanel).values() if group in groups]
    for option in own:
        assert all(flag in out for flag in option.flags), option.name


def test_a_flag_of_some_actions_is_no_flag_of_others():
    def flags(action):
        return command_function(action, print).__signature__.parameters.keys()

    assert "workers" in flags("search")
    assert "workers" not in flags("train")


@pytest.mark.parametrize("before", [[], ["train"], [*TOY]])
@pytest.mark.parametrize(
    ("kind", "titles"),
    [
        ([], ["Supported Models", "Supported Datasets"]),
        (["all"], ["Supported Models", "Supported Datasets"]),
        (["model"], ["Supported Models"]),
        (["dataset"], ["Supported Datasets"]),
    ],
)
def test_info_lists_the_registries(here, before, kind, titles):
    code, out, err = here(*before, "--info", *kind)
    assert (code, err) == (0, "")
    assert re.findall("Supported .*", out) == titles
    assert "toy_tiny" in out


def test_info_fills_columns_downwards():
    from chop.actions.info import _titled

    assert _titled("Supported Models", "abcd", columns=3) == (
        "Supported Models\n+---+---+--+\n| a | c |  |\n| b | d |  |\n+---+---+--+"
    )


def test_info_lists_what_a_file_of_the_user_adds(here, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from chop.models.base import MODELS\nMODELS.register('of-a-test-of-info')(None)\n",
        encoding="utf-8",
    )
    try:
        assert "of-a-test-of-info" in here("train", "--import", "mine.py", "--info", "model")[1]
    finally:
        from chop.models.base import MODELS

        MODELS._items.pop("of-a-test-of-info")


# ------------------------------------------------------------------ real processes


@pytest.mark.slow
def test_a_new_action_is_a_function_and_a_line(tmp_path):
    """As an action would be added: a file with a function, a line in the table."""
    (tmp_path / "my_action.py").write_text(
        "def run(config, project):\n    print('acted on', config.model)\n", encoding="utf-8"
    )
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from chop.actions.base import ACTIONS, Action\n"
        "ACTIONS['act'] = Action('act', 'Act.', 'my_action:run')\n"
        "from chop.cli import main\n"
        "main(['act', 'toy', 'toy_tiny'])\n"
    )
    run = python("-c", code, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("acted on toy\n")


def test_sigterm_before_training_ends_with_143(tmp_path):
    (tmp_path / "wait.py").write_text(
        "import time\nprint('waiting', flush=True)\ntime.sleep(60)\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "chop", *TOY, "--import", "wait.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143


def test_a_refusal_does_not_wait_for_torch():
    code = (
        "import sys, chop.cli\n"
        "try: chop.cli.main(['train', 'toy', 'toy_tiny', '--batch-size', '0'])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)\n"
    )
    assert python("-c", code).stdout == "2 False\n"


def test_one_of_several_processes_ends_without_pythons_clean_up(tmp_path):
    """Threads of torch.distributed that outlive the work would abort the process there."""
    code = (
        "import atexit, logging, sys\n"
        "from chop.processes import end_process, note_joined\n"
        "atexit.register(lambda: print('cleaned up'))\n"
        "end_process(5)\n"
        "print('alone, it goes on')\n"
        "note_joined()\n"
        "end_process(5)\n"
    )
    ended = python("-c", code)
    assert (ended.returncode, ended.stdout) == (5, "alone, it goes on\n")


def test_lists_are_in_the_words_of_users():
    """Seeds are reports that tests are made from: users do not know their numbers."""
    for kind, listed in KINDS.items():
        assert not re.search(r"\bseed 0\d\d\b", json.dumps(listed.rows())), kind
