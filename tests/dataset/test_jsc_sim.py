"""The shipped jets are sound, call themselves simulated, and resemble genuine ones."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.dataset import MaseDataModule, get_dataset, get_dataset_info, jsc_sim
from chop.dataset.tensors import TensorLoader

GENUINE = Path(__file__).parents[3] / "shared" / "data" / "jsc-openml-1k.npz"
# what the observables can be at all: ratios of energy correlators, a mass in GeV, a count
LIMITS = {
    "zlogz": (-5.5, 0),
    "c1_b0_mmdt": (0, 0.5),
    "c2_b1_mmdt": (0, 0.5),
    "d2_b1_mmdt": (0, 10),
    "m2_b1_mmdt": (0, 1),
    "n2_b1_mmdt": (0, 1),
    "mass_mmdt": (0, 500),
    "multiplicity": (3, 300),
}


@pytest.fixture(scope="module")
def file():
    with np.load(jsc_sim.FILE) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def genuine():
    """A thousand rows of OpenML 42468, in raw units."""
    if not GENUINE.exists():
        pytest.skip("the genuine jets may not travel with the project: no ../shared/data")
    with np.load(GENUINE) as arrays:
        return dict(arrays)


def test_the_file_has_the_stated_jets(file):
    assert file["X"].shape == (83_168, 16)
    assert file["X"].dtype == np.float32
    assert np.bincount(file["y"]).tolist() == [15_951, 16_669, 16_728, 16_868, 16_952]
    assert tuple(file["classes"]) == jsc_sim.INFO.class_names == ("g", "q", "t", "w", "z")
    assert tuple(file["features"]) == jsc_sim.INFO.feature_names


def test_every_jet_is_possible_and_there_once(file):
    x = dict(zip(file["features"], file["X"].T, strict=True))
    assert np.isfinite(file["X"]).all()
    for name, (low, high) in LIMITS.items():
        assert low <= x[name].min() < x[name].max() <= high, name
    assert np.array_equal(x["multiplicity"], x["multiplicity"].round())
    assert np.array_equal(x["d2_b1_mmdt"], x["d2_a1_b1_mmdt"])
    assert len(np.unique(file["X"], axis=0)) == len(file["X"])


def test_bosons_and_tops_weigh_what_they_should(file):
    mass = file["X"][:, jsc_sim.INFO.feature_names.index("mass_mmdt")]
    for name, gev in {"w": 80.4, "z": 91.2, "t": 173}.items():
        masses = mass[file["y"] == jsc_sim.INFO.class_names.index(name)]
        counts, edges = np.histogram(masses, bins=np.arange(40, 250, 4))
        assert abs(edges[counts.argmax()] + 2 - gev) < 0.05 * gev, name


def test_feature_means_are_within_three_percent_of_the_genuine_ones(file, genuine):
    assert tuple(genuine["features"]) == jsc_sim.INFO.feature_names
    np.testing.assert_allclose(file["X"].mean(axis=0), genuine["scaler_mean"], rtol=0.03)


def test_the_splits_are_disjoint_and_complete(file):
    parts = [get_dataset("jsc-sim", split) for split in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [59_880, 6_654, 16_634]
    rows = [row.tobytes() for part in parts for row in part.x.numpy()]
    assert sorted(rows) == sorted(row.tobytes() for row in standardized(file["X"]))
    assert torch.equal(get_dataset("jsc-sim", "pred").x, parts[2].x)


def test_jets_keep_their_class(file):
    test = get_dataset("jsc-sim", "test")
    classes = {x.tobytes(): y for x, y in zip(standardized(file["X"]), file["y"], strict=True)}
    assert [classes[x.tobytes()] for x in test.x.numpy()] == test.y.tolist()


def test_every_class_is_in_every_split_alike():
    for split in ("train", "validation", "test"):
        share = get_dataset("jsc-sim", split).y.bincount() / len(get_dataset("jsc-sim", split))
        assert share.min() > 0.18
        assert share.max() < 0.22


def test_what_is_not_test_has_mean_zero_and_deviation_one():
    known = get_dataset("jsc-sim", "train", legacy_val=True).x
    assert known.dtype == torch.float32
    assert known.mean(0).abs().max() < 1e-5
    torch.testing.assert_close(known.std(0, correction=0), torch.ones(16))


def test_a_caller_may_change_what_it_was_given():
    before = get_dataset("jsc-sim", "test").x
    get_dataset("jsc-sim", "test").x.zero_()
    assert torch.equal(get_dataset("jsc-sim", "test").x, before)


def test_legacy_val_validates_on_what_it_trains_on():
    module = MaseDataModule("jsc-sim", 256, legacy_val=True)
    module.setup()
    assert len(module.train_dataset) == 59_880 + 6_654
    assert torch.equal(module.train_dataset.x, module.val_dataset.x)
    assert torch.equal(module.test_dataset.x, get_dataset("jsc-sim", "test").x)


def test_it_calls_itself_simulated(caplog):
    info = get_dataset_info("jsc-sim")
    assert info.simulated
    assert info.title == "jsc-sim (simulated)"
    jsc_sim._jets.cache_clear()
    jsc_sim._prepared.cache_clear()
    with caplog.at_level(logging.INFO, "chop"):
        MaseDataModule("jsc-sim", 256).setup()
    assert caplog.messages == [
        "jsc-sim (simulated): 83,168 simulated jets (Pythia 8), not CERN data"
    ]


@pytest.mark.slow
def test_a_network_trained_on_it_knows_genuine_jets(genuine):
    """About 74 % of them, and 70 % of simulated ones; on genuine data alike networks reach 76 %."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(),
        nn.Linear(32, 5),
    )  # fmt: skip
    loader = TensorLoader(get_dataset("jsc-sim", "train"), 512, shuffle=True)
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=8 * len(loader))
    for _ in range(8):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            schedule.step()

    test, x_genuine = get_dataset("jsc-sim", "test"), torch.from_numpy(standardized(genuine["X"]))
    assert 0.68 < accuracy(net, test.x, test.y) < 0.72
    assert 0.72 < accuracy(net, x_genuine, torch.from_numpy(genuine["y"])) < 0.77


def standardized(raw):
    """Jets in raw units as the data set would give them."""
    mean, scale = jsc_sim.scaler()
    return ((raw.astype(np.float64) - mean) / scale).astype(np.float32)


@torch.no_grad()
def accuracy(net, x, y):
    return (net(x).argmax(1) == y).float().mean().item()
