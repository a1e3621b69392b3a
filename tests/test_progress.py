"""Progress bars of passes are shown, or hidden by a run."""

import torch
from torch import nn

from chop.ir import MaseGraph
from chop.passes import Pipeline
from chop.system.progress import hidden_progress, progress_bar


def calibrated():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU()).eval()
    x = torch.randn(8, 4)
    options = {"input_generator": iter([{"input": x}]), "silent": True}
    before = ["init_metadata", ("add_common_metadata", {"dummy_in": {"input": x}})]
    before.append("add_software_metadata")
    Pipeline([*before, "fold_batch_norm", ("calibrate", options)])(MaseGraph(model))


def test_bars_of_passes_are_shown_unless_a_run_hides_them(capsys):
    with hidden_progress():
        calibrated()
    hidden = capsys.readouterr().err
    assert "Calibrating" not in hidden
    assert "Folding" not in hidden
    with hidden_progress(False):
        calibrated()
    shown = capsys.readouterr().err
    assert "Calibrating" in shown
    assert "Folding batch norms" in shown


def test_bars_are_shown_again_after_an_error(capsys):
    try:
        with hidden_progress():
            raise KeyError("x")
    except KeyError:
        pass
    list(progress_bar(range(3), desc="Counting"))
    assert "Counting: 100%" in capsys.readouterr().err


def test_the_flag_hides_the_bars_of_a_transform(here, tmp_path):
    (tmp_path / "c.toml").write_text(
        '[passes.profile_statistics]\nby = "type"\ntarget_weight_nodes = ["linear"]\n'
        "weight_statistics.range_min_max = {}\n"
        "num_samples = 8\n"
    )
    words = ("transform", "jsc-tiny", "jsc-sim", "--config", tmp_path / "c.toml", "--cpu", 0)
    place = ("--project-dir", tmp_path / "runs", "--project", "p")
    code, out, err = here(*words, *place)
    assert code == 0, out + err
    assert "Profiling weight statistics: 100%" in err
    code, out, err = here(*words, *place, "--no-progress")
    assert code == 0, out + err
    assert "Profiling" not in err
