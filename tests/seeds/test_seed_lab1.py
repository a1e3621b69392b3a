"""Lab 1 as the students did it: their commands and their network, on files as they had them."""

import json
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from chop.dataset.jsc import FILE

ROOT = Path(__file__).parents[2]
LAYOUTS = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "dataset" / "layouts.py")))


@pytest.fixture
def shell(tmp_path):
    """Runs a command line of the labs; `./ch` is the installed command, results go to `out`."""
    (tmp_path / "cache" / "jsc").mkdir(parents=True)
    LAYOUTS.write_cernbox(tmp_path / "cache" / "jsc" / FILE, LAYOUTS.jets())
    environment = os.environ | {"MASE_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}

    def run(line: str) -> str:
        words = shlex.split(line.replace("./ch", f"{shlex.quote(sys.executable)} -m chop"))
        done = subprocess.run(
            [*words, "--project-dir", str(tmp_path / "out")],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return run


def scores(tmp_path: Path) -> dict:
    (file,) = tmp_path.glob("out/*/software/checkpoints/test_metrics.json")
    return json.loads(file.read_text())["metrics"]


def test_the_commands_of_the_lab_sheet_run_as_written(shell, tmp_path):
    text = shell("./ch train jsc-tiny jsc --max-epochs 10 --batch-size 256")
    assert "Config. File" not in text  # the column appears with a config only
    assert "117 trainable parameters" in text
    (best,) = tmp_path.glob("out/jsc-tiny_classification_jsc_*/software/training_ckpts/best.ckpt")
    text = shell(f"./ch test jsc-tiny jsc --load {best} --load-type pl")
    assert "test_acc_epoch" in text
    assert "simulated" not in text
    assert scores(tmp_path).keys() == {"test_acc_epoch", "test_loss_epoch"}


def test_a_network_of_ten_times_the_size_is_one_entry_of_a_dictionary(shell, tmp_path):
    """Seed 001's JSC_Big, registered as the lab sheet says, in a file of the student's own."""
    (tmp_path / "my_models.py").write_text("""
import torch.nn as nn
from chop.models import MaseModelInfo
from chop.models.physical import PHYSICAL_MODELS


class JSC_Big(nn.Module):
    def __init__(self, info):
        super(JSC_Big, self).__init__()
        self.seq_blocks = nn.Sequential(
            nn.BatchNorm1d(16), nn.ReLU(16), nn.Linear(16, 32),
            nn.BatchNorm1d(32), nn.ReLU(32), nn.Linear(32, 16),
            nn.BatchNorm1d(16), nn.ReLU(16), nn.Linear(16, 8),
            nn.BatchNorm1d(8), nn.ReLU(8), nn.Linear(8, 5),
            nn.ReLU(5),
        )

    def forward(self, x):
        return self.seq_blocks(x)


def get_jsc_big(info):
    return JSC_Big(info)


PHYSICAL_MODELS["jsc-big"] = {
    "model": get_jsc_big,
    "info": MaseModelInfo(
        "jsc-s",
        model_source="physical",
        task_type="physical",
        physical_data_point_classification=True,
        is_fx_traceable=True,
    ),
}
""")
    text = shell("./ch train jsc-big jsc --import my_models.py --max-epochs 2 --batch-size 256")
    assert "1,397 trainable parameters" in text
    (last,) = tmp_path.glob("out/jsc-big_*/software/training_ckpts/last.ckpt")
    shell(f"./ch test jsc-big jsc --import my_models.py --load {last} --load-type pl")
    assert 0 <= scores(tmp_path)["test_acc_epoch"] <= 1


def test_the_network_of_lab_4_is_there_under_its_name(shell):
    assert "Training is completed" in shell("./ch train jsc-d jsc --max-epochs 1 --batch-size 256")


@pytest.mark.parametrize("ending", ["arff", "csv", "parquet"])
def test_openmls_file_is_read_from_where_the_user_has_it(shell, tmp_path, ending):
    write = getattr(LAYOUTS, f"write_{ending}")
    write(tmp_path / f"jets.{ending}", LAYOUTS.jets())
    text = shell(f"./ch train jsc-tiny jsc-openml --max-epochs 1 --data-path jets.{ending}")
    assert "Training is completed" in text
