"""Simulated jets in the sixteen observables of the JSC data set, shipped with the package.

They come from `scripts/simulate_jets.py`, not from CERN: what a model scores here is no JSC result.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path

import numpy as np
import torch

from chop.dataset.base import MaseDatasetInfo, Split, dataset
from chop.dataset.tensors import TensorSplit

logger = logging.getLogger(__name__)

FILE = Path(__file__).parent / "data" / "jsc-sim.npz"
SPLIT_SEED = 42
TEST_SHARE, VALIDATION_SHARE = 0.2, 0.1  # of all jets; the rest is to train with

INFO = MaseDatasetInfo(
    name="jsc-sim",
    physical_data_point_classification=True,
    simulated=True,
    num_classes=5,
    num_features=16,
    class_names=("g", "q", "t", "w", "z"),
    feature_names=(
        "zlogz",
        "c1_b0_mmdt",
        "c1_b1_mmdt",
        "c1_b2_mmdt",
        "c2_b1_mmdt",
        "c2_b2_mmdt",
        "d2_b1_mmdt",
        "d2_b2_mmdt",
        "d2_a1_b1_mmdt",
        "d2_a1_b2_mmdt",
        "m2_b1_mmdt",
        "m2_b2_mmdt",
        "n2_b1_mmdt",
        "n2_b2_mmdt",
        "mass_mmdt",
        "multiplicity",
    ),
)


@dataset(INFO)
def jsc_sim(split: Split, *, legacy_val: bool = False) -> TensorSplit:
    """83,168 simulated jets: 70 % to train, 10 % to validate, 20 % to test, features standardised.

    `legacy_val` trains on what it validates on, as the labs do: the 80 % that are not tested.
    """
    x, y = _jets()
    mean, scale = scaler()
    rows = split_rows(split, len(y), legacy_val=legacy_val)
    standardized = ((x[rows] - mean) / scale).astype(np.float32)
    return TensorSplit(torch.from_numpy(standardized), torch.from_numpy(y[rows]).long())


def split_rows(split: Split, size: int, *, legacy_val: bool = False) -> np.ndarray:
    """The rows of a split: always the same ones; to predict are those of the test."""
    order = np.random.RandomState(SPLIT_SEED).permutation(size)
    num_test, num_validation = round(size * TEST_SHARE), round(size * VALIDATION_SHARE)
    if split in ("test", "pred"):
        return order[:num_test]
    if legacy_val:
        return order[num_test:]
    validation, train = np.split(order[num_test:], [num_validation])
    return train if split == "train" else validation


@functools.cache
def scaler() -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of the training jets: models are given (raw - mean) / deviation."""
    x, y = _jets()
    train = x[split_rows("train", len(y))].astype(np.float64)
    return train.mean(axis=0), train.std(axis=0)


@functools.cache
def _jets() -> tuple[np.ndarray, np.ndarray]:
    """Features in raw units and classes, as the file has them."""
    with np.load(FILE) as file:
        x, y = file["X"], file["y"]
    logger.info("%s: %s simulated jets (Pythia 8), not the data of CERN", INFO.title, f"{len(y):,}")
    return x, y
