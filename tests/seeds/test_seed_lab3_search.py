"""Lab 3: the search of the notebook, the command of the lab sheet, and a student's own parts."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chop.dataset import MaseDataModule
from chop.models import get_model

ROOT = Path(__file__).parents[2]
FILES = Path(__file__).parent / "files"
SHEET = ["search", "--config", "configs/examples/jsc_toy_by_type.toml", "--load"]

# The manual search: pairs of widths, one pass_args for each, all on one graph.
MANUAL = (FILES / "notebook_manual_search.py").read_text(encoding="utf-8")


class MulticlassAccuracy:
    """What the notebook takes from another package: the mean of the classes' accuracies."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes

    def __call__(self, scores: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        right = scores.argmax(-1) == classes
        there = [classes == c for c in range(self.num_classes) if (classes == c).any()]
        return torch.stack([right[mask].float().mean() for mask in there]).mean()


def test_the_manual_search_of_the_notebook_runs_unchanged(notebook, graph_of, jsc_tiny):
    batches = [(torch.randn(8, 16), torch.randint(5, (8,))) for _ in range(10)]
    at_hand = {
        "data_module": SimpleNamespace(train_dataloader=lambda: batches),
        "MulticlassAccuracy": MulticlassAccuracy,
    }
    twin = copy.deepcopy(jsc_tiny.eval())
    names = notebook(MANUAL, mg=graph_of(jsc_tiny), **at_hand)
    assert len(names["recorded_accs"]) == 16
    assert names["search_spaces"] == names["before"], "pass_args are the caller's"
    losses = torch.stack(names["recorded_losses"])
    assert losses.isfinite().all()
    assert losses.unique().numel() > 4, "designs differ"
    last = MANUAL.replace("[(16, 8), (8, 6), (8, 4), (4, 2)]", "[(4, 2)]")
    alone = notebook(last, mg=graph_of(twin), **at_hand)
    assert torch.equal(losses[-1], alone["recorded_losses"][0]), "a design before has left traces"


# --- the command of the lab sheet


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A Lightning checkpoint of jsc-tiny, as `ch train` writes it."""
    torch.manual_seed(3)
    info = MaseDataModule("jsc-sim", batch_size=64).dataset_info
    state = get_model("jsc-tiny", task="cls", dataset_info=info).state_dict()
    path = tmp_path / "best.ckpt"
    torch.save({"state_dict": {f"model.{key}": value for key, value in state.items()}}, path)
    return path


def log(tmp_path: Path, project: str = "jsc-tiny") -> list[dict[str, Any]]:
    file = tmp_path / "out" / project / "software" / "search_ckpts" / "log.json"
    return list(json.loads(file.read_text()).values())


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="as written"),
        pytest.param(("--load-type", "pl"), marks=pytest.mark.slow),
        pytest.param(("--load-type", "mz"), marks=pytest.mark.slow),  # which its content corrects
    ],
)
def test_the_search_of_the_lab_sheet_runs_as_written(ch, checkpoint, tmp_path, flags):
    said = ch(*SHEET, checkpoint, *flags)
    assert "3 keys with a choice, 18 designs" in said
    assert "Best trial(s):" in said
    rows = log(tmp_path)
    assert len(rows) == 20
    widths = {row["user_attrs_hardware_metrics"]["average_bitwidth"] for row in rows}
    assert widths == {2, 4, 8}, "seeds by type vary"


def test_without_a_checkpoint_the_search_says_what_to_do(ch):
    said = ch(*SHEET[:-1], check=2)
    assert "give a checkpoint by --load" in said
    assert "search.train_parent = true" in said


def best_so_far(rows: list[dict[str, Any]]) -> list[float]:
    """The accuracy less the scaled bits that a search had reached after each trial."""
    reached, best = [], float("-inf")
    for row in rows:
        best = max(best, row["values_0"] - row["values_1"])
        reached.append(best)
    return reached


@pytest.mark.slow
def test_tpe_and_brute_force_can_be_compared_from_their_logs(ch, checkpoint, tmp_path):
    example = (ROOT / "configs" / "examples" / "jsc_toy_by_type.toml").read_text()
    (tmp_path / "brute.toml").write_text(example.replace('"tpe"  ', '"brute"'))
    ch(*SHEET, checkpoint, "--project", "tpe")
    ch("search", "--config", "brute.toml", "--load", checkpoint, "--project", "brute")
    tpe, brute = (best_so_far(log(tmp_path, name)) for name in ("tpe", "brute"))
    assert (len(tpe), len(brute)) == (20, 18), "brute force ends when nothing is left"
    assert tpe[-1] <= brute[-1], "nothing is better than the best of all"


# --- a student's own strategy, metric and space, in a file of their own

MINE = (FILES / "student_search.py").read_text(encoding="utf-8")
CONFIG = """
model = "jsc-tiny"
dataset = "jsc"
task = "cls"
project = "mine"
[search.search_space]
{space}
[search.strategy.sw_runner.basic_evaluation]
num_samples = 64
[search.strategy.hw_runner.weight_bits]
bits = 16
[search.strategy.setup]
n_trials = 20
sampler = "countdown"
[search.strategy.metrics]
accuracy.scale = 1.0
weight_bits.scale = 0.001
"""
QUANTIZE = """\
name = "graph/quantize/mixed_precision_ptq"
setup.by = "type"
seed.default.config.name = ["NA"]
seed.linear.config = {name = ["integer"], data_in_width = [4, 8], data_in_frac_width = [2], \
weight_width = [4, 8], weight_frac_width = [2], bias_width = [8], bias_frac_width = [4]}
"""
OWN = 'name = "mine/activation"\nseed.last = ["ReLU", "Tanh", "Identity"]\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("space", "size", "workers"),
    [
        pytest.param(OWN, 3, 1, id="their own"),
        pytest.param(OWN, 3, 2, id="their own in two processes"),
        pytest.param(QUANTIZE, 4, 2, id="ours in two processes"),
    ],
)
def test_what_a_student_wrote_is_searched_with(
    shell_process, checkpoint, tmp_path, space, size, workers
):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "mine.toml").write_text(CONFIG.format(space=space))
    flags = f"--load {checkpoint} --load-type pl --workers {workers} --accelerator cpu"
    shell_process(f"./ch search --config mine.toml --import mine.py {flags}")
    rows = log(tmp_path, "mine")
    assert [row["state"] for row in rows] == ["COMPLETE"] * size, "mine ends by itself"
    assert {row["user_attrs_hardware_metrics"]["weight_bits"] for row in rows} == {16 * 117}
    last = [row["user_attrs_sampled_config"].get("last") for row in rows]
    assert last == (["Identity", "Tanh", "ReLU"] if space is OWN else [None] * size)
