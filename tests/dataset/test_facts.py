"""What a network assumes of its data is recorded, and data that differ are adapted to it."""

import logging

import numpy as np
import pytest
import torch

from chop.dataset import MaseDataModule, MaseDatasetInfo, TensorSplit, dataset
from chop.dataset.base import DATASETS
from chop.dataset.facts import Adaptation, DataFacts, Scaler


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MASE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def table(tmp_path):
    """Makes a table of three classes, in files whose labels sort differently."""
    random = np.random.default_rng(0)
    x, y = random.normal([5, -3], [2, 0.1], (90, 2)), np.arange(90) % 3

    def make(names, **options):
        file = tmp_path / f"{'-'.join(names)}.npz"
        np.savez(file, x=x, y=np.array(names)[y])
        data = MaseDataModule("npz", batch_size=8, custom_path=file, **options)
        data.setup()
        return data

    make.x, make.y = x, y
    return make


def test_the_facts_of_a_data_set_hold_its_classes_features_and_scaler(table):
    data = table(["ape", "bee", "cat"])
    facts = data.facts()
    assert facts.dataset == "npz"
    assert (facts.classes, facts.features) == (("ape", "bee", "cat"), ("x0", "x1"))
    raw = data.train_dataset.x.double() * torch.tensor(facts.scaler.deviation)
    raw = raw + torch.tensor(facts.scaler.mean)
    assert torch.cdist(raw, torch.from_numpy(table.x)).min(1).values.max() < 1e-5
    assert DataFacts.read(facts.plain()) == facts


def test_unstandardised_tables_have_a_scaler_that_changes_nothing(table):
    assert table(["a", "b", "c"], standardize=False).facts().scaler == Scaler.neutral(2)


def test_the_facts_survive_the_cache(table):
    assert table(["a", "b", "c"]).facts() == table(["a", "b", "c"]).facts()


@pytest.mark.parametrize("name", ["jsc-sim"])
def test_jets_have_a_scaler(name):
    data = MaseDataModule(name, batch_size=64)
    data.setup("test")
    assert len(data.facts().scaler.mean) == 16


def test_images_have_none():
    data = MaseDataModule("digits", batch_size=64)
    data.setup("test")
    assert data.facts().scaler is None
    assert data.facts().classes == tuple("0123456789")


@pytest.mark.parametrize("loaded_first", [True, False])
def test_classes_in_another_order_are_mapped(table, loaded_first, caplog):
    mine, other = table(["ape", "bee", "cat"]), table(["ape", "bee", "cat"])
    order = DataFacts("jungle", ("cat", "ape", "bee"))
    if not loaded_first:
        other._splits.clear()
    with caplog.at_level(logging.INFO):
        other.adapt_to(order)
        other.setup()
    assert other.dataset_info.class_names == order.classes
    assert other.test_dataset.y.tolist() == [(k + 1) % 3 for k in mine.test_dataset.y.tolist()]
    assert "ape, bee, cat" in caplog.text
    assert "cat, ape, bee" in caplog.text
    once = other.test_dataset
    other.adapt_to(order)  # a second time changes nothing
    assert other.test_dataset is once


def test_a_part_of_the_classes_is_mapped_to_all(table):
    data = table(["bee", "cat", "bee"])
    data.adapt_to(DataFacts("jungle", ("cat", "dog", "bee")))
    assert data.dataset_info.num_classes == 3
    assert set(data.train_dataset.y.tolist()) == {0, 2}


def test_numbers_are_taken_for_outputs(table, caplog):
    data = table(["0", "2", "0"])
    with caplog.at_level(logging.INFO):
        data.adapt_to(DataFacts("jungle", ("cat", "dog", "bee")))
    assert set(data.train_dataset.y.tolist()) == {0, 2}
    assert data.dataset_info.class_names == ("cat", "dog", "bee")
    assert "by number" in caplog.text


def test_other_classes_are_refused_with_both_orders(table):
    data = table(["ape", "bee", "cow"])
    other = DataFacts("jungle", ("cat", "ape", "bee"))
    sentence = "has the classes ape, bee, cow, but the network was trained on those of 'jungle', "
    with pytest.raises(ValueError, match=sentence + "cat, ape, bee; use data"):
        data.adapt_to(other)
    before = data.test_dataset
    data.adapt_to(other, strict=False)
    assert data.test_dataset is before


def test_numbers_that_both_sides_have_are_not_mapped_by_position(table):
    with pytest.raises(ValueError, match="0, 1"):
        table(["1", "2", "3"]).adapt_to(DataFacts("counts", ("0", "1", "2")))


def test_unknown_classes_are_left_alone(table):
    data = table(["ape", "bee", "cat"])
    before = data.test_dataset
    data.adapt_to(DataFacts("jungle"))
    assert data.test_dataset is before


@pytest.mark.parametrize("own", [True, False])
def test_the_scaler_of_a_network_is_applied_to_raw_features(table, own, caplog):
    data, raw = table(["a", "b", "c"], standardize=own), table(["a", "b", "c"], standardize=False)
    data.keeps_scaler = False
    scaler = Scaler((1.0, 2.0), (4.0, 0.5))
    with caplog.at_level(logging.INFO):
        data.adapt_to(DataFacts("jungle", scaler=scaler))
    expected = (raw.test_dataset.x - torch.tensor([1.0, 2.0])) / torch.tensor([4.0, 0.5])
    torch.testing.assert_close(data.test_dataset.x, expected, rtol=1e-5, atol=1e-5)
    assert data.facts().scaler == scaler
    assert "scaler" in caplog.text
    same = data.test_dataset
    data.adapt_to(DataFacts("jungle", scaler=scaler))
    assert data.test_dataset is same


def test_a_scaler_that_the_user_chose_stays(table):
    data = table(["a", "b", "c"], standardize=True)
    before = data.test_dataset
    data.adapt_to(DataFacts("jungle", scaler=Scaler((1.0, 2.0), (4.0, 0.5))))
    assert data.test_dataset is before


def test_the_same_scaler_changes_no_bit(table):
    data = table(["a", "b", "c"])
    before = data.train_dataset
    data.adapt_to(data.facts())
    assert data.train_dataset is before


def test_features_in_another_order_are_sorted(table):
    data, before = table(["a", "b", "c"]), table(["a", "b", "c"])
    data.adapt_to(DataFacts("jungle", features=("x1", "x0")))
    assert torch.equal(data.test_dataset.x, before.test_dataset.x[:, [1, 0]])
    assert data.facts().features == ("x1", "x0")
    assert data.facts().scaler.mean == before.facts().scaler.mean[::-1]


def test_a_scaler_for_other_features_is_refused(table):
    data = table(["a", "b", "c"])
    with pytest.raises(ValueError, match=r"scaler of the network is for 3 features, .* has 2"):
        data.adapt_to(DataFacts("jungle", scaler=Scaler((0.0,) * 3, (1.0,) * 3)))


def test_samples_that_are_not_tensors_are_refused_with_both_orders():
    @dataset(MaseDatasetInfo(name="facts-own", class_names=("a", "b"), num_classes=2))
    def own(split):
        return [(torch.zeros(2), 0)]

    try:
        data = MaseDataModule("facts-own")
        data.adapt_to(DataFacts("jungle", ("b", "a")))
        with pytest.raises(ValueError, match=r"classes a, b, but .* b, a; use the same order"):
            data.setup("test")
    finally:
        DATASETS._items.pop("facts-own")


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ([], "is not a table"),
        ({"dataset": 3}, "dataset"),
        ({"dataset": "a", "classes": [1]}, "classes"),
        ({"dataset": "a", "classes": 3}, "classes must be a list"),
        ({"dataset": "a", "features": {"b": 1}}, "features must be a list"),
        ({"dataset": "a", "scaler": 3}, "is not a table"),
        ({"dataset": "a", "scaler": {"mean": 1.0, "deviation": [1.0]}}, "mean must be a list"),
        ({"dataset": "a", "scaler": {"mean": [10**400], "deviation": [1.0]}}, "mean"),
        ({"dataset": "a", "scaler": {"mean": [True], "deviation": [1.0]}}, "mean"),
        ({"dataset": "a", "scaler": {"mean": [1.0]}}, "deviation"),
        ({"dataset": "a", "scaler": {"mean": [1.0], "deviation": [0.0]}}, "deviation"),
        ({"dataset": "a", "scaler": {"mean": [float("nan")], "deviation": [1.0]}}, "mean"),
        ({"dataset": "a", "scaler": {"mean": [1.0, 2.0], "deviation": [1.0]}}, "deviation"),
        ({"dataset": "a", "scalers": [1.0]}, "scalers must be a table"),
        ({"dataset": "a", "scalers": {3: {"mean": [1.0], "deviation": [1.0]}}}, "scalers must be"),
        ({"dataset": "a", "scalers": {"b": 3}}, "is not a table"),
        ({"dataset": "a", "scalers": {"b": {"mean": [1.0], "deviation": [0.0]}}}, "deviation"),
    ],
)
def test_damaged_facts_are_refused(table, sentence):
    with pytest.raises(ValueError, match=sentence):
        DataFacts.read(table)


def test_a_split_keeps_its_scaler_on_another_device():
    scaler = Scaler.neutral(1)
    split = TensorSplit(torch.zeros(1, 1), torch.zeros(1), scaler=scaler)
    assert split.to("meta").scaler == scaler


@pytest.fixture
def inputs(tmp_path):
    """Makes a data set with two tables, and words that are integers."""
    random = np.random.default_rng(0)
    arrays = {
        "jets": random.normal([5, -3], [2, 0.1], (90, 2)),
        "event": random.normal(40, 9, (90, 1)),
        "words": random.integers(0, 7, (90, 4)),
    }

    def make(names=tuple(arrays), *, shift=0.0, **options):
        file = tmp_path / f"{'-'.join(names)}{shift}.npz"
        values = dict(zip(names, arrays.values(), strict=True))
        moved = {n: x + shift if x.dtype.kind == "f" else x for n, x in values.items()}
        np.savez(file, **moved, y=np.arange(90) % 3)
        data = MaseDataModule("npz", batch_size=8, custom_path=file, **options)
        data.setup()
        return data

    return make


def test_each_table_of_several_inputs_has_a_scaler(inputs):
    facts = inputs().facts()
    assert {name: len(one.mean) for name, one in facts.scaler.items()} == {"jets": 2, "event": 1}
    assert facts.scaler["event"].mean[0] == pytest.approx(40, abs=3)
    assert DataFacts.read(facts.plain()) == facts
    assert inputs().facts() == facts  # from the cache
    assert inputs(standardize=False).facts().scaler["jets"] == Scaler.neutral(2)


def test_the_scalers_of_a_network_are_applied_to_each_table(inputs, caplog):
    trained, other = inputs(), inputs(shift=100.0)
    raw = inputs(shift=100.0, standardize=False).test_dataset.x
    with caplog.at_level(logging.INFO):
        other.adapt_to(DataFacts.read(trained.facts().plain()))
    for name, scaler in trained.facts().scaler.items():
        mean, deviation = torch.tensor(scaler.mean), torch.tensor(scaler.deviation)
        expected = (raw[name].double() - mean) / deviation
        torch.testing.assert_close(
            other.test_dataset.x[name].double(), expected, rtol=1e-4, atol=1e-4
        )
    assert torch.equal(other.test_dataset.x["words"], raw["words"])
    assert caplog.text.count("with the scaler of the network") == 1
    assert other.facts().scaler == trained.facts().scaler
    same = other.test_dataset
    other.adapt_to(trained.facts())
    assert other.test_dataset is same


def test_scalers_of_several_inputs_that_the_user_chose_stay(inputs):
    other = inputs(shift=100.0, standardize=True)
    before = other.test_dataset
    other.adapt_to(inputs().facts())
    assert other.test_dataset is before


def test_tables_with_other_names_are_refused_with_both(inputs):
    data = inputs(("jets", "run", "words"))
    with pytest.raises(ValueError, match=r"has the tables jets, run, but .* jets, event; give"):
        data.adapt_to(inputs().facts())
    one = DataFacts("jungle", scaler=Scaler.neutral(2))
    with pytest.raises(ValueError, match=r"the tables jets, run, but .*'jungle', x; "):
        data.adapt_to(one)


def test_a_scaler_for_other_features_of_an_input_is_refused(inputs):
    scalers = {"jets": Scaler.neutral(2), "event": Scaler.neutral(3)}
    with pytest.raises(ValueError, match="for 3 features, but input 'event' of data set 'npz' has"):
        inputs().adapt_to(DataFacts("jungle", scaler=scalers))


def test_a_table_that_is_the_only_one_needs_no_name():
    split = TensorSplit(
        {"jets": torch.ones(1, 1)}, torch.zeros(1), scaler={"jets": Scaler.neutral(1)}
    )
    info = MaseDatasetInfo(name="own")
    adapted = Adaptation(info, DataFacts("a", scaler=Scaler((1.0,), (2.0,))))(split)
    assert adapted.x["jets"].tolist() == [[0.0]]
    assert adapted.scaler == {"jets": Scaler((1.0,), (2.0,))}
