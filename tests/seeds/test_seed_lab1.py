"""Lab 1 as the students did it: their commands and their network, on files as they had them."""

import json
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
FILES = Path(__file__).parent / "files"
LAYOUTS = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "dataset" / "layouts.py")))


def scores(tmp_path: Path) -> dict:
    (file,) = tmp_path.glob("out/*/software/checkpoints/test_metrics.json")
    return json.loads(file.read_text())["metrics"]


def test_the_commands_of_the_lab_sheet_run_as_written(shell, tmp_path):
    text = shell("./ch train jsc-tiny jsc --max-epochs 10 --batch-size 256").both
    assert "Config. File" not in text  # the column appears with a config only
    assert "117 trainable parameters" in text
    (best,) = tmp_path.glob("out/jsc-tiny_classification_jsc_*/software/training_ckpts/best.ckpt")
    text = shell(f"./ch test jsc-tiny jsc --load {best} --load-type pl").both
    assert "test_acc_epoch" in text
    assert "simulated" not in text
    assert scores(tmp_path).keys() == {"test_acc_epoch", "test_loss_epoch"}


@pytest.mark.slow
def test_a_network_of_ten_times_the_size_is_one_entry_of_a_dictionary(shell_process, tmp_path):
    """Seed 001's JSC_Big, registered as the lab sheet says, in a file of the student's own."""
    shutil.copy(FILES / "seed_001_my_models.py", tmp_path / "my_models.py")
    text = shell_process(
        "./ch train jsc-big jsc --import my_models.py --max-epochs 2 --batch-size 256"
    ).stderr
    assert "1,397 trainable parameters" in text
    (last,) = tmp_path.glob("out/jsc-big_*/software/training_ckpts/last.ckpt")
    shell_process(f"./ch test jsc-big jsc --import my_models.py --load {last} --load-type pl")
    assert 0 <= scores(tmp_path)["test_acc_epoch"] <= 1


def test_the_network_of_lab_4_is_there_under_its_name(shell):
    said = shell("./ch train jsc-d jsc --max-epochs 1 --batch-size 256").stderr
    assert "Training is completed" in said


@pytest.mark.parametrize("ending", ["arff", "csv", "parquet"])
def test_openmls_file_is_read_from_where_the_user_has_it(shell, tmp_path, ending):
    write = getattr(LAYOUTS, f"write_{ending}")
    write(tmp_path / f"jets.{ending}", LAYOUTS.jets())
    said = shell(f"./ch train jsc-tiny jsc-openml --max-epochs 1 --data-path jets.{ending}").stderr
    assert "Training is completed" in said
