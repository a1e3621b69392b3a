"""Curves on disk: complete, in the labs' places, and without doubles after a resume."""

import subprocess
import sys
import threading
from unittest.mock import MagicMock, call

import pytest

from chop.training.scalars import (
    COLUMNS,
    CsvCurves,
    ResumedAt,
    TensorBoardCurves,
    WandbCurves,
    read_curves,
)


def logged(curves, steps):
    for step in steps:
        curves.log_metrics({"train_loss_step": 1 / step, "lr": 0.1, "epoch": 0}, step)
    curves.finalize("success")


def test_rows_are_on_disk_at_once(tmp_path):
    curves = CsvCurves(tmp_path / "metrics.csv")
    curves.log_metrics({"val_acc_epoch": 0.5, "epoch": 1}, 7)
    (row,) = read_curves(tmp_path / "metrics.csv")
    assert (row["step"], row["epoch"], row["val_acc_epoch"], row["lr"]) == ("7", "1", "0.5", "")
    assert tuple(row) == COLUMNS
    curves.finalize("success")


def test_a_resumed_run_keeps_the_rows_of_the_steps_it_keeps(tmp_path):
    file = tmp_path / "metrics.csv"
    logged(CsvCurves(file), [5, 10, 15, 20])
    with open(file, "a") as out:
        out.write("0,25,0.1")  # the process was killed while it wrote
    logged(CsvCurves(file, resumed_at=ResumedAt(10, validated=True)), [15, 20])
    assert [row["step"] for row in read_curves(file)] == ["5", "10", "15", "20"]


@pytest.mark.parametrize(("validated", "kept"), [(True, ["10", "10"]), (False, ["10"])])
def test_a_score_that_was_not_saved_comes_again(tmp_path, validated, kept):
    file = tmp_path / "metrics.csv"
    curves = CsvCurves(file)
    curves.log_metrics({"train_loss_step": 1.0}, 10)
    curves.log_metrics({"val_loss_epoch": 1.0}, 10)
    curves.finalize("success")
    CsvCurves(file, resumed_at=ResumedAt(10, validated)).finalize("success")
    assert [row["step"] for row in read_curves(file)] == kept


@pytest.mark.parametrize("kind", [CsvCurves, TensorBoardCurves])
def test_a_full_disk_is_one_sentence_that_names_the_curves(small_disk, kind, capfd):
    curves = kind(small_disk(16) / "curves")
    named = r"cannot write .*curves.*; free some space, then `resume`"
    with pytest.raises(OSError, match=named):
        logged(curves, range(1, 2000))
    with pytest.raises(OSError, match=named):
        curves.finalize("failed")
    assert "Traceback" not in capfd.readouterr().err
    assert threading.excepthook is not getattr(curves, "_note_failure", None)


def test_a_new_run_begins_anew(tmp_path):
    file = tmp_path / "metrics.csv"
    logged(CsvCurves(file), [5, 10])
    logged(CsvCurves(file), [3])
    assert [row["step"] for row in read_curves(file)] == ["3"]


def test_tensorboard_finds_the_scalars_where_the_labs_look(tmp_path):
    curves = TensorBoardCurves(tmp_path, rate="lr-Adam")
    curves.log_hyperparams({"batch_size": 256, "model": "jsc-tiny"})
    logged(curves, [1, 2])
    logged(TensorBoardCurves(tmp_path), [1])
    first, second = sorted((tmp_path / "lightning_logs").iterdir())
    assert (first.name, second.name) == ("version_0", "version_1")
    assert (first / "hparams.yaml").read_text() == 'batch_size: 256\nmodel: "jsc-tiny"\n'
    script = (
        "import sys; from tensorboard.backend.event_processing.event_accumulator import "
        "EventAccumulator as E; e = E(sys.argv[1]).Reload(); "
        "print([(s.step, s.value) for s in e.Scalars('train_loss_step')], e.Tags()['scalars'])"
    )
    read = [sys.executable, "-W", "ignore", "-c", script, str(first)]
    done = subprocess.run(read, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[(1, 1.0), (2, 0.5)] ['train_loss_step', 'lr-Adam', 'epoch']"


def test_a_resumed_run_goes_on_in_its_own_events(tmp_path):
    logged(TensorBoardCurves(tmp_path), [1, 2])
    again = TensorBoardCurves(tmp_path, resumed_at=ResumedAt(1, validated=True))
    assert again.folder.name == "version_0"
    logged(again, [2])
    assert len(list(again.folder.glob("events.*"))) == 2


def test_wandb_that_is_not_installed_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="needs the package wandb: pip install wandb, or use"):
        WandbCurves(tmp_path, "project")


def test_wandb_receives_metrics_and_options(tmp_path, monkeypatch):
    wandb = MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    curves = WandbCurves(tmp_path, "mine")
    curves.log_hyperparams({"seed": 1})
    curves.log_metrics({"lr": 0.1}, 3)
    curves.finalize("success")
    assert wandb.mock_calls == [
        call.init(project="mine", dir=str(tmp_path)),
        call.init().config.update({"seed": 1}),
        call.init().log({"lr": 0.1}, step=3),
        call.init().finish(),
    ]
