"""Models of users with any inputs and outputs, and every task, through all commands."""

import json
from pathlib import Path

import pytest
import torch

from chop.actions import search
from chop.actions.user_code import import_user_file
from chop.dataset import DATASETS, MaseDataModule
from chop.models import get_model, get_model_info
from chop.models.base import MODELS

EXAMPLE = Path(__file__).parents[2] / "configs" / "examples" / "friedman_regression_search.toml"
OWN = '''
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import Dataset

from chop.dataset import MaseDatasetInfo, TensorSplit, dataset
from chop.models import model

SHAPES = {"image": (1, 4, 4), "table": (3,)}
SPLITS = ["train", "validation", "test", "pred"]


def made(split, samples=120):
    rng = torch.Generator().manual_seed(SPLITS.index(split))
    image = torch.randn(samples, 1, 4, 4, generator=rng)
    table = torch.randn(samples, 3, generator=rng)
    return image, table, image.sum((1, 2, 3)) + table.sum(1)


@dataset(MaseDatasetInfo(name="dict", num_classes=2, input_shapes=SHAPES))
def dictionary(split):
    """Two inputs by name, held in memory."""
    image, table, total = made(split)
    return TensorSplit({"table": table, "image": image}, (total > 0).long())


class Pairs(Dataset):
    def __init__(self, split):
        self.image, self.table, self.total = made(split)

    def __len__(self):
        return len(self.total)

    def __getitem__(self, i):
        return (self.image[i], self.table[i]), int(self.total[i] > 0)


@dataset(MaseDatasetInfo(name="pairs", num_classes=2, input_shapes=SHAPES))
def pairs(split):
    """Two inputs in their order, loaded one by one."""
    return Pairs(split)


@dataset(MaseDatasetInfo(name="sums", num_targets=1, input_shapes=SHAPES))
def sums(split):
    """A regression with two inputs."""
    image, table, total = made(split)
    return TensorSplit((image, table), total)


@dataset(MaseDatasetInfo(name="pixels", task="dense", num_classes=2, image_size=(1, 4, 4)))
def pixels(split):
    """A class for each pixel."""
    image, _, _ = made(split)
    return TensorSplit(image, (image[:, 0] > 0).long())


class Both(nn.Module):
    def __init__(self, info):
        super().__init__()
        self.a, self.b = nn.Linear(16, 8), nn.Linear(3, 8)
        self.out = nn.Linear(8, info.num_outputs)

    def run(self, image, table):
        return self.out(torch.relu(self.a(image.flatten(1)) + self.b(table)))


class Positional(Both):
    def forward(self, image, table):
        return self.run(image, table)


class Keyword(Both):
    def forward(self, *, image, table):
        return self.run(image, table), image


class Whole(Both):
    def forward(self, inputs):
        return {"logits": self.run(inputs["image"], inputs["table"])}


for cls in (Positional, Keyword, Whole):
    flags = {"physical_data_point_classification": True, "regression": True}
    model(cls.__name__.lower(), **flags)(cls)


@model("segment", task_type="vision", image_segmentation=True)
def segment(info):
    """Scores of each pixel."""
    last = nn.Conv2d(4, info.num_outputs, 1)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), last)
'''
FORMAT = (
    "{ name = NAME, data_in_width = WIDTH, data_in_frac_width = FRAC, weight_width = WIDTH, "
    "weight_frac_width = FRAC, bias_width = WIDTH, bias_frac_width = FRAC }"
)
FIXED = FORMAT.replace("NAME", '"integer"').replace("WIDTH", "8").replace("FRAC", "4")
CHOICE = FORMAT.replace("NAME", '["integer"]').replace("WIDTH", "[4, 8]").replace("FRAC", "[3]")
PASSES = f"""
[passes.profile_statistics]
by = "type"
target_activation_nodes = ["LAYER"]
activation_statistics.range_min_max = {{}}
num_samples = 50
[passes.prune]
weight = {{ sparsity = 0.5, scope = "local", granularity = "elementwise", method = "l1-norm" }}
[passes.quantize]
by = "type"
[passes.quantize.LAYER]
config = {FIXED}
"""
SEARCH = f"""
[search.search_space]
name = "graph/quantize/mixed_precision_ptq"
setup.by = "type"
seed.LAYER.config = {CHOICE}
[search.strategy]
sw_runner.basic_train = {{ max_epochs = 1, distill = 0.5 }}
sw_runner.basic_evaluation = {{ num_samples = 64 }}
sw_runner.sqnr = {{}}
sw_runner.snip = {{}}
sw_runner.grad_norm = {{}}
sw_runner.synflow = {{}}
sw_runner.naswot = {{}}
sw_runner.jacob_cov = {{}}
hw_runner.bitops = {{}}
hw_runner.latency = {{ repeats = 2 }}
setup = {{ sampler = "random", n_trials = 2 }}
metrics = {{ METRIC.scale = 1.0, bitops.scale = 1.0 }}
[search.retrain]
max_epochs = 1
"""
CASES = [
    ("positional", "dict", "cls", "linear", "accuracy"),
    ("positional", "pairs", "cls", "linear", "accuracy"),
    ("keyword", "dict", "cls", "linear", "loss"),
    ("keyword", "pairs", "cls", "linear", "accuracy"),
    ("whole", "dict", "cls", "linear", "accuracy"),
    ("keyword", "sums", "regression", "linear", "r2"),
    ("positional", "sums", "reg", "linear", "mae"),
    ("segment", "pixels", "dense", "conv2d", "mean_iou"),
]
METRICS = {
    "cls": ["accuracy", "loss"],
    "regression": ["r2", "mse", "mae", "loss"],
    "reg": ["r2", "mse", "mae", "loss"],
    "dense": ["mean_iou", "pixel_accuracy", "loss"],
}


@pytest.fixture(autouse=True)
def _registered_as_found(monkeypatch):
    for registry in (MODELS, DATASETS):
        assert "mlp" in MODELS, "they are imported when the first one is asked for"
        assert "jsc-sim" in DATASETS
        monkeypatch.setattr(registry, "_items", dict(registry._items))


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


@pytest.mark.slow
@pytest.mark.parametrize(("model", "data", "task", "layer", "metric"), CASES)
def test_every_command_takes_it(ch, own, tmp_path, model, data, task, layer, metric):
    (tmp_path / "passes.toml").write_text(PASSES.replace("LAYER", layer))
    (tmp_path / "search.toml").write_text(SEARCH.replace("LAYER", layer).replace("METRIC", metric))
    names = (model, data, "--task", task, "--import", own, "--no-progress")
    done = ch("train", *names, "--max-epochs", 2, "--learning-rate", 0.01, "--project", "p")
    assert f"--task {task[:3]}" in done.stderr or task in ("cls", "dense")
    folder = tmp_path / "out" / "p" / "software"
    best = folder / "training_ckpts" / "best.ckpt"
    loaded = (*names, "--load", best, "--load-type", "pl")
    ch("test", *loaded)
    tested = json.loads((folder / "checkpoints" / "test_metrics.json").read_text())
    assert len(tested["metrics"]) == len(METRICS[task])
    done = ch(
        "transform", *loaded, "--config", tmp_path / "passes.toml", "--test", "--project", "t"
    )
    transformed = tmp_path / "out" / "t" / "software" / "transform"
    scores = json.loads((transformed / "transform.json").read_text())["scores"]
    assert [row["Metric"] for row in scores] == METRICS[task]
    ch("test", *names, "--load", transformed / "transformed_ckpt", "--load-type", "mz")
    ch("search", *loaded, "--config", tmp_path / "search.toml", "--project", "s")
    ckpts = tmp_path / "out" / "s" / "software" / "search_ckpts"
    rows = json.loads((ckpts / "log.json").read_text()).values()
    assert [row["state"] for row in rows] == ["COMPLETE", "COMPLETE"]
    assert metric in (ckpts / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["positional", "keyword", "whole"])
def test_the_other_front_end_takes_several_inputs_too(ch, own, tmp_path, model):
    (tmp_path / "passes.toml").write_text(PASSES.replace("LAYER", "linear"))
    words = (model, "dict", "--import", own, "--config", tmp_path / "passes.toml", "--test")
    ch("transform", *words, "--front-end", "export", "--project", "t", "--no-progress")
    saved = tmp_path / "out" / "t" / "software" / "transform"
    after = [row["After"] for row in json.loads((saved / "transform.json").read_text())["scores"]]
    assert all(value > 0 for value in after)


WIDTHS = {"name": ["integer"], "data_in_width": [4, 8], "data_in_frac_width": [2]} | {
    f"{operand}_{part}": [number]
    for operand in ("weight", "bias")
    for part, number in (("width", 8), ("frac_width", 4))
}


def searched(own, folder, model, data, task, metrics, runner, **more):
    """Two trials of a search in Python."""
    import_user_file(own)
    torch.manual_seed(0)
    module = MaseDataModule(data, batch_size=32)
    network = get_model(model, task=task, dataset_info=module.dataset_info)
    tables = {
        "search_space": {
            "name": "graph/quantize/mixed_precision_ptq",
            "setup": {"by": "type"},
            "seed": {"linear": {"config": WIDTHS}},
        },
        "strategy": {
            "sw_runner": runner,
            "hw_runner": {"average_bitwidth": {}},
            "metrics": {name: {} for name in metrics},
            "setup": {"n_trials": 2, "sampler": "random"},
        },
    }
    info = get_model_info(model)
    return search(network, info, task, module.dataset_info, module, tables, folder, "cpu", **more)


EVALUATION = {"basic_evaluation": {"num_samples": 50, "allow_untrained": True}}


def test_directions_follow_from_the_task(own, tmp_path):
    names = ["r2", "mse", "mae", "average_bitwidth"]
    results = searched(own, tmp_path, "positional", "sums", "reg", names, EVALUATION)
    better = dict(zip(names, ("maximize", "minimize", "minimize", "minimize"), strict=True))
    assert {o.name: o.direction for o in results.objectives.members} == better


@pytest.mark.parametrize(
    ("task", "data", "metric", "runner", "sentence"),
    [
        ("reg", "sums", "accuracy", EVALUATION, "accuracy is not a metric of the task regression"),
        ("cls", "dict", "r2", EVALUATION, "r2 is not a metric .*; use accuracy, loss, or another"),
        (
            *("reg", "sums", "r2"),
            {"basic_evaluation": {"num_samples": 5, "per_class": True, "allow_untrained": True}},
            "regression has no classes; omit per_class",
        ),
        (
            *("reg", "sums", "r2"),
            {"basic_evaluation": {"num_samples": 5, "average": "macro"}},
            "average = 'macro' is for the accuracy of classification",
        ),
    ],
)
def test_metrics_and_options_of_another_task_are_refused(
    own, tmp_path, task, data, metric, runner, sentence
):
    with pytest.raises(ValueError, match=sentence):
        searched(own, tmp_path, "positional", data, task, [metric], runner)


@pytest.mark.parametrize(
    ("data", "task", "why"),
    [
        ("dict", "cls", "trained one by one: the data set has several inputs"),
        ("sums", "reg", "trained one by one: populations support classification, not regression"),
    ],
)
def test_populations_fall_back_to_one_by_one(own, tmp_path, capsys, data, task, why):
    runner = {"population_train": {"max_epochs": 1, "population": 2}}
    results = searched(own, tmp_path, "positional", data, task, ["loss"], runner)
    assert why in capsys.readouterr().err
    assert [out.state for out in results.outcomes.values()] == ["COMPLETE", "COMPLETE"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("positional", "sums"), "has real numbers as labels, .* use --task reg"),
        (("positional", "dict", "--task", "dense"), "supports cls, reg, not dense; if it is yours"),
        (("mlp", "jsc-sim", "--task", "reg"), "has classes as labels, .* use --task cls"),
        (("jsc-tiny", "sums", "--task", "reg"), "model 'jsc-tiny' supports cls, not reg"),
        (("positional", "jsc-sim"), "gives one input, but forward of Positional takes"),
    ],
)
def test_the_wrong_task_or_data_are_one_sentence(here, own, tmp_path, words, sentence):
    import re

    code, _, said = here("train", *words, "--import", own, "--project-dir", tmp_path / "out")
    assert code in (1, 2), said
    assert re.search(sentence, said.splitlines()[-1])
    assert "Traceback" not in said


HOUSES = ("mlp", "csv", "--task", "reg", "--no-progress", "--project", "p", "--data-path")


@pytest.fixture
def houses(tmp_path):
    """A table with a price that is linear in its other columns."""
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + 3
    rows = zip(x.tolist(), y.tolist(), strict=True)
    lines = ["a,b,c,d,price", *(",".join(map(repr, [*row, price])) for row, price in rows)]
    (tmp_path / "houses.csv").write_text("\n".join(lines))
    return tmp_path / "houses.csv"


def test_a_regression_on_a_table_has_its_own_metrics_everywhere(ch, houses, tmp_path):
    done = ch("train", *HOUSES, houses, "--max-epochs", 2)
    assert "no better than always guessing the mean (0); the learning rate 1e-05" in done.stderr
    assert "try --learning-rate 1e-3" in done.stderr
    folder = tmp_path / "out" / "p" / "software"
    summary = json.loads((folder / "summary.json").read_text())["metrics"]
    assert {"val_r2_epoch", "val_mse_epoch", "val_mae_epoch", "val_loss_epoch"} <= summary.keys()
    assert "val_acc_epoch" not in summary
    header = (folder / "metrics.csv").read_text().splitlines()[0]
    assert "train_mae_step,val_loss_epoch,val_r2_epoch,val_mse_epoch,val_mae_epoch" in header
    assert "mean absolute error" in (folder / "curves.svg").read_text()


@pytest.mark.slow
def test_a_regression_is_resumed_learnt_and_tested(ch, houses, tmp_path):
    ch("train", *HOUSES, houses, "--max-epochs", 2, "--learning-rate", 0.01)
    done = ch("train", *HOUSES, houses, "--max-epochs", 20, "--learning-rate", 0.01, "--resume")
    assert "Resumed" in done.stderr
    assert "no better than" not in done.stderr
    folder = tmp_path / "out" / "p" / "software"
    best = ("--load", folder / "training_ckpts" / "best.ckpt", "--load-type", "pl")
    assert "test_r2_epoch" in ch("test", *HOUSES, houses, *best).stderr
    ch("search", *HOUSES, houses, *best, "--config", EXAMPLE)
    front = json.loads((folder / "search_ckpts" / "best.json").read_text())
    assert all(row["software_metrics"]["r2"] < 1 for row in front.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "data", "task", "metric"),
    [
        ("positional", "sums", "reg", "val_r2_epoch"),
        ("segment", "pixels", "dense", "val_mean_iou_epoch"),
    ],
)
def test_two_processes_score_as_one(ch_process, own, tmp_path, model, data, task, metric):
    two = ("--accelerator", "cpu", "--gpu", 2)
    names = (model, data, "--task", task, "--import", own, "--no-progress")
    ch_process("train", *names, "--max-epochs", 1, "--learning-rate", 0.01, "--project", "p", *two)
    folder = tmp_path / "out" / "p" / "software"
    last = ("--load", folder / "training_ckpts" / "last.ckpt", "--load-type", "pl")
    tested = []
    for number, where in enumerate((("--accelerator", "cpu"), two)):
        ch_process("test", *names, *last, *where)
        file = f"test_metrics{'-v1' if number else ''}.json"
        tested.append(json.loads((folder / "checkpoints" / file).read_text()))
    assert tested[0]["samples"] == tested[1]["samples"] == 120
    assert tested[1]["metrics"] == pytest.approx(tested[0]["metrics"], rel=1e-5)
    assert metric in json.loads((folder / "summary.json").read_text())["metrics"]
