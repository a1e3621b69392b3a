"""Checkpoints and saved graphs know their classes and scaler, and other data are adapted."""

import json
import re
import sys

import numpy as np
import pytest
import torch

from chop.actions import train
from chop.actions.config import RunConfig
from chop.actions.prepare import data_module_for
from chop.dataset import MaseDataModule, MaseDatasetInfo, TensorSplit, dataset
from chop.dataset.base import DATASETS
from chop.dataset.facts import Scaler
from chop.ir import MaseGraph
from chop.models import get_model

# the jungle of `own` has the same samples as the table, in another order of the classes
OWN = """
import numpy as np, torch
from chop.dataset import MaseDatasetInfo, TensorSplit, dataset

@dataset(MaseDatasetInfo(name="jungle", physical_data_point_classification=True, num_classes=3,
                         num_features=2, class_names=("cat", "ape", "bee")))
def jungle(split):
    with np.load({file!r}) as file:
        x, y = file["x_test"], file["y_test"]
    mean, deviation = file_moments()
    codes = [("cat", "ape", "bee").index(name) for name in y]
    x = (x - mean) / deviation
    return TensorSplit(torch.from_numpy(x).float(), torch.tensor(codes))

def file_moments():
    with np.load({file!r}) as file:
        x = file["x_train"]
    return x.mean(0), x.std(0)
"""
CENTRES = np.array([[5.0, 100.0], [9.0, 300.0], [1.0, 200.0]])
NAMES = np.array(["ape", "bee", "cat"])
TRAIN = ("--batch-size", 16, "--max-epochs", 6, "--learning-rate", 0.1, "--cpu", 0)
QUANTIZE = """
[passes.quantize]
by = "type"
[passes.quantize.linear.config]
name = "integer"
data_in_width = 16
data_in_frac_width = 10
weight_width = 16
weight_frac_width = 10
bias_width = 16
bias_frac_width = 10
"""


def samples(seed, classes=range(3), count=60):
    random, y = np.random.default_rng(seed), np.arange(count) % len(classes)
    y = np.array(classes)[y]
    return CENTRES[y] + random.normal(0, 0.3, (count, 2)) * [1, 20], NAMES[y]


def write(file, classes=range(3)):
    """A table of which only `classes` occur in the test split, or in all of it."""
    x, y = samples(0, classes)
    x_test, y_test = samples(1, classes)
    np.savez(file, x_train=x, y_train=y, x_val=x, y_val=y, x_test=x_test, y_test=y_test)
    return file


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The weights of a run on a table of three classes."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASE_CACHE", str(folder / "cache"))
        file = write(folder / "all.npz")
        data = MaseDataModule("npz", batch_size=16, custom_path=file)
        torch.manual_seed(0)
        model = get_model("jsc-toy", task="cls", dataset_info=data.dataset_info)
        how = {"plt_trainer_args": {"max_epochs": 6, "accelerator": "cpu"}, "save_path": folder}
        train(model, None, data, data.dataset_info, "cls", "adam", 0.1, 0, **how)
    return folder / "best.ckpt"


@pytest.fixture
def trained(checkpoint, tmp_path, environment):
    write(tmp_path / "all.npz")
    return checkpoint


@pytest.fixture
def scored(here, tmp_path):
    """Tests a checkpoint on a data set; returns the accuracy and what was said."""

    def test(checkpoint, *words, load_type="pl"):
        load = ("--load", checkpoint, "--load-type", load_type, "--cpu", 0)
        code, _, err = here("test", "jsc-toy", *words, *load, "--project-dir", tmp_path / "tests")
        assert code == 0, err
        return float(re.findall(r"test_acc_epoch\D+([\d.]+)", err)[0]), err

    return test


@pytest.fixture
def jungle(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN.format(file=str(tmp_path / "all.npz")))
    yield ("jungle", "--import", file)
    DATASETS._items.pop("jungle", None)
    for name in [name for name in sys.modules if name.startswith("mase_user_own_")]:
        del sys.modules[name]


def test_classes_in_another_order_score_the_same(trained, scored, jungle, tmp_path):
    """Of which a third was right before, without a word."""
    accuracy, _ = scored(trained, "npz", "--data-path", tmp_path / "all.npz")
    assert accuracy > 0.9
    other, said = scored(trained, *jungle)
    assert other == accuracy
    assert "The classes cat, ape, bee of data set 'jungle' are mapped by name to those" in said
    (result,) = (tmp_path / "tests").glob("*jungle*/software/checkpoints/test_metrics.json")
    assert set(json.loads(result.read_text())["class_accuracy"]) == set(NAMES)


def test_a_table_with_some_of_the_classes_scores_as_well(trained, scored, tmp_path):
    some = write(tmp_path / "some.npz", classes=(0, 2))
    accuracy, said = scored(trained, "npz", "--data-path", some)
    assert accuracy > 0.9
    assert "The features of data set 'npz' are standardised with the scaler of the network" in said


def test_a_run_may_be_told_to_standardise_otherwise(trained, scored, tmp_path):
    some = ("npz", "--data-path", write(tmp_path / "some.npz", classes=(0, 2)))
    _, by_network = scored(trained, *some)
    _, own = scored(trained, *some, "--standardize", "own")
    _, raw = scored(trained, *some, "--standardize", "off")
    assert "with the scaler of the network" not in own
    assert "standardised" not in raw
    losses = [re.findall(r"test_loss_epoch\D+([\d.]+)", said) for said in (by_network, own, raw)]
    assert len({loss for (loss,) in losses}) == 3


@pytest.mark.slow
def test_other_classes_are_refused_with_both_orders_unless_they_are_learned(
    trained, here, tmp_path
):
    x, _ = samples(1)
    np.savez(tmp_path / "other.npz", x=x, y=np.array(["ant", "bee", "cow"])[np.arange(60) % 3])
    words = ("--data-path", tmp_path / "other.npz", "--load", trained, "--load-type", "pl")
    code, _, err = here("test", "jsc-toy", "npz", *words)
    assert code == 2
    assert "has the classes ant, bee, cow, but the network was trained on those of" in err
    assert "ape, bee, cat" in err
    code, _, err = here("train", "jsc-toy", "npz", *words, *TRAIN, "--project-dir", tmp_path / "o")
    assert code == 0, err  # a network may be trained further on other classes


@pytest.mark.slow
def test_saved_graphs_know_them_too(trained, here, scored, jungle, tmp_path):
    (tmp_path / "q.toml").write_text(QUANTIZE)
    words = ("--data-path", tmp_path / "all.npz", "--load", trained, "--load-type", "pl")
    code, _, err = here(
        *("transform", "jsc-toy", "npz", *words, "--config", tmp_path / "q.toml", "--cpu", 0),
        *("--project-dir", tmp_path / "out", "--project", "t"),
    )
    assert code == 0, err
    folder = tmp_path / "out/t/software/transform/transformed_ckpt"
    accuracy, _ = scored(folder, "npz", "--data-path", tmp_path / "all.npz", load_type="mz")
    assert scored(folder, *jungle, load_type="mz")[0] == accuracy > 0.9
    facts = MaseGraph.from_checkpoint(folder).meta["trained_on"]
    assert facts["classes"] == ["ape", "bee", "cat"]
    assert len(facts["scaler"]["mean"]) == 2
    load = ("--load", folder, "--load-type", "mz", "--project-dir", tmp_path / "out")
    code, _, err = here("train", "jsc-toy", *jungle, *TRAIN, *load, "--project", "again")
    assert code == 0, err
    again = tmp_path / "out/again/software/training_ckpts/transformed_ckpt"
    assert MaseGraph.from_checkpoint(again).meta["trained_on"]["classes"] == facts["classes"]


@pytest.mark.slow
def test_a_resumed_run_keeps_the_scaler_that_it_began_with(trained, here, tmp_path):
    some = write(tmp_path / "some.npz", classes=(0, 2))
    run = ("train", "jsc-toy", "npz", "--data-path", some, "--batch-size", 16, "--cpu", 0)
    run += ("--project-dir", tmp_path / "out", "--project", "r")
    code, _, err = here(*run, "--max-epochs", 1, "--load", trained, "--load-type", "pl")
    assert code == 0, err
    code, _, err = here(*run, "--max-epochs", 2, "--resume")
    assert code == 0, err
    saved = torch.load(tmp_path / "out/r/software/training_ckpts/last.ckpt", weights_only=True)
    first = torch.load(trained, weights_only=True)
    assert saved["mase"]["trained_on"]["scaler"] == first["mase"]["trained_on"]["scaler"]
    assert saved["epoch"] == 2


TWO_INPUTS = """
from torch import nn
from chop.models import model

@model("two-tables")
class TwoTables(nn.Module):
    def __init__(self, info):
        super().__init__()
        self.left, self.right = nn.Linear(1, 8), nn.Linear(1, 8)
        self.out = nn.Linear(8, info.num_classes)

    def forward(self, left, right):
        return self.out((self.left(left) + self.right(right)).relu())
"""


def write_inputs(file, classes=range(3)):
    arrays = {}
    for part, seed in (("train", 0), ("val", 1), ("test", 2)):
        x, y = samples(seed, classes)
        arrays |= {f"left_{part}": x[:, :1], f"right_{part}": x[:, 1:], f"y_{part}": y}
    np.savez(file, **arrays)
    return file


@pytest.mark.slow
def test_several_inputs_are_standardised_as_the_network_was_trained(here, environment, tmp_path):
    (tmp_path / "q.toml").write_text(QUANTIZE)
    (tmp_path / "two.py").write_text(TWO_INPUTS)
    own = ("two-tables", "npz", "--import", tmp_path / "two.py", "--cpu", 0)
    out = ("--project-dir", tmp_path / "out")
    every = ("--data-path", write_inputs(tmp_path / "all.npz"))
    some = ("--data-path", write_inputs(tmp_path / "some.npz", classes=(0, 2)))
    code, _, err = here("train", *own, *every, *TRAIN[:-2], *out, "--project", "t")
    assert code == 0, err
    checkpoint = tmp_path / "out/t/software/training_ckpts/best.ckpt"
    load = ("--load", checkpoint, "--load-type", "pl")
    convert = ("--config", tmp_path / "q.toml", "--project", "q", *out)
    code, _, err = here("transform", *own, *every, *load, *convert)
    assert code == 0, err
    folder = tmp_path / "out/q/software/transform/transformed_ckpt"
    assert set(MaseGraph.from_checkpoint(folder).meta["trained_on"]["scalers"]) == {"left", "right"}
    for given in (load, ("--load", folder, "--load-type", "mz")):
        code, _, err = here("test", *own, *some, *given, *out, "--project", "s")
        assert code == 0, err
        assert float(re.findall(r"test_acc_epoch\D+([\d.]+)", err)[0]) > 0.9
        assert "are standardised with the scaler of the network" in err


def test_a_checkpoint_without_a_record_says_what_is_assumed(trained, scored, tmp_path):
    content = torch.load(trained, weights_only=True)
    del content["mase"]["trained_on"]
    torch.save(content, tmp_path / "old.ckpt")
    _, said = scored(tmp_path / "old.ckpt", "npz", "--data-path", tmp_path / "all.npz")
    assert "does not record its classes; its outputs are taken for ape, bee, cat" in said


def test_a_checkpoint_without_its_type_has_the_record_of_its_data(trained, scored, tmp_path):
    words = ("npz", "--data-path", tmp_path / "all.npz")
    by_type, _ = scored(trained, *words)
    by_content, said = scored(trained, *words, load_type="mz")
    assert by_content == by_type
    assert "does not record its classes" not in said


@pytest.mark.usefixtures("trained")
def test_nothing_is_assumed_of_a_file_that_is_refused(here, tmp_path):
    (tmp_path / "text.txt").write_text("not a checkpoint")
    (tmp_path / "empty").mkdir()
    for name in (tmp_path / "text.txt", tmp_path / "empty"):
        words = ("--data-path", tmp_path / "all.npz", "--load", name, "--cpu", 0)
        code, _, err = here("test", "jsc-toy", "npz", *words, "--project-dir", tmp_path / "out")
        assert code == 1, err
        assert "does not record its classes" not in err


def test_a_damaged_record_is_refused(trained, here, tmp_path):
    content = torch.load(trained, weights_only=True)
    facts = content["mase"]["trained_on"]
    words = ("--data-path", tmp_path / "all.npz", "--load", tmp_path / "bad.ckpt")
    for wrong, said in ((facts | {"classes": [3]}, "classes must be"), (torch.ones(2), "its data")):
        content["mase"]["trained_on"] = wrong
        torch.save(content, tmp_path / "bad.ckpt")
        code, _, err = here("test", "jsc-toy", "npz", *words, "--load-type", "pl")
        assert code == 2
        assert re.search(f"bad.ckpt is damaged: .*{said}", err)


@pytest.mark.parametrize("dataset", ["toy_tiny", "digits"])
def test_images_cannot_be_standardised(dataset, here):
    code, _, err = here("train", "cnv", dataset, "--standardize", "off")
    assert code == 2
    assert "has no features to standardise; omit --standardize" in err


@pytest.mark.parametrize(("standardize", "expected"), [("off", [3.0]), ("own", [1.0])])
def test_several_inputs_of_a_data_set_without_the_option_may_stay_raw(standardize, expected):
    shapes = {"jets": (1,), "words": (2,), "image": (1, 2, 2)}

    @dataset(MaseDatasetInfo(name="raw-inputs", num_classes=2, input_shapes=shapes))
    def inputs(split):
        x = {name: torch.ones(1, *shape) for name, shape in shapes.items()}
        return TensorSplit(x, torch.zeros(1).long(), scaler={"jets": Scaler((1.0,), (2.0,))})

    try:
        config = RunConfig(model="mine", dataset="raw-inputs", standardize=standardize)
        data = data_module_for(config)
        data.setup("test")
        assert data.test_dataset.x["jets"].tolist() == [expected]
        assert data.test_dataset.x["words"].tolist() == [[1.0, 1.0]]
    finally:
        DATASETS._items.pop("raw-inputs")
