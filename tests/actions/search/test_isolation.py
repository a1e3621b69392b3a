"""The folder that one stands in is not imported from, whatever lies in it."""

import os
import subprocess
import sys

import pytest

from .conftest import PATIENCE, config_text

# modules that anybody may have, ours, those that Python itself looks for, and a name of no module
NAMES = {*sys.stdlib_module_names, "tabulate", "torch", "numpy", "optuna", "chop", "typer", "ray"}
NAMES |= {"sitecustomize", "usercustomize", "cloudpickle", "psutil", "yaml", "lightning_fabric"}


@pytest.fixture
def hostile(tmp_path):
    """A folder with a file of each name, which says that it was run, and raises."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in NAMES:
        file = folder / f"{name}.py"
        file.write_text(
            f"open({str(tmp_path / 'marker')!r}, 'a').write({name!r} + '\\n')\n"
            "raise ImportError('imported from the folder that one stands in')\n"
        )
    return folder


def run(folder, *words):
    """What a command says that is started in `folder`, as `./ch` of a clone starts it."""
    out = folder.parent / "out"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "chop", *map(str, words), "--project-dir", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=PATIENCE,
    )
    marker = folder.parent / "marker"
    assert not marker.exists(), marker.read_text()
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_workers_do_not_import_from_the_present_folder(tmp_path, hostile, checkpoint, engine):
    if engine == "ray":
        pytest.importorskip("ray")
    file = tmp_path / "a.toml"
    file.write_text(config_text("n_trials = 4\ntrial_timeout = 600"))
    words = ("search", "--config", file, "--load", checkpoint, "--load-type", "pt")
    run(hostile, *words, "--workers", 2, "--engine", engine, "--no-progress")


@pytest.mark.slow
def test_processes_that_train_together_do_not_import_from_the_present_folder(hostile):
    words = ("train", "jsc-tiny", "jsc-sim", "--accelerator", "cpu", "--gpu", 2)
    run(hostile, *words, "--max-steps", 2, "--cpu", 0, "--no-progress", "--trainer-precision", 32)


@pytest.mark.slow
def test_a_module_is_run_without_the_present_folder(tmp_path):
    (tmp_path / "random.py").write_text("raise ImportError('the wrong one')\n")
    command = [sys.executable, "-m", "chop", "list"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)


def test_folders_that_the_user_has_named_are_imported_from(tmp_path):
    (tmp_path / "here").mkdir()
    code = "from chop.system.processes import import_path; print(import_path())"
    said = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path / "here",
        env=os.environ | {"PYTHONPATH": str(tmp_path / "named")},
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    ).stdout
    assert repr(str(tmp_path / "named")) in said
    assert repr(str(tmp_path / "here")) not in said
