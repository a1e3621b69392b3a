"""`ch` in an empty folder: in this process, or in one of its own where that is the promise."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """The variables of this process and of those that it starts, with a cache of the test's own."""
    monkeypatch.setenv("MASE_CACHE", str(tmp_path / "cache"))
    return dict(os.environ)


@pytest.fixture
def ch(here, tmp_path, environment):
    """`ch("train", …)` runs the command to its end; its project folders are in `tmp_path/out`."""

    def run(*arguments, check=0):
        code, out, err = here(*arguments, "--project-dir", tmp_path / "out")
        assert code == check, out + err
        return SimpleNamespace(stdout=out, stderr=err)

    return run


@pytest.fixture
def ch_process(tmp_path, environment):
    """Like `ch`, in a process of its own."""

    def run(*arguments):
        command = [sys.executable, "-m", "chop", *map(str, arguments)]
        command += ["--project-dir", str(tmp_path / "out")]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def transformed(tmp_path):
    """Transforms jsc-tiny by a dict; what is written is in `tmp_path/transform`."""
    import torch

    from chop.actions import transform
    from chop.dataset import MaseDataModule
    from chop.models import get_model, get_model_info

    torch.manual_seed(0)
    data = MaseDataModule(name="jsc-sim", batch_size=64, num_workers=0, model_name="jsc-tiny")
    info = get_model_info("jsc-tiny")
    model = get_model("jsc-tiny", task="cls", dataset_info=data.dataset_info)

    def run(config, **more):
        folder = tmp_path / "transform"
        return transform(model, info, "jsc-tiny", data, "cls", config, save_dir=folder, **more)

    return run
