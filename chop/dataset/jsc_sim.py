"""Simulated jets in the sixteen observables of the JSC data set, shipped with the package.

They come from `scripts/simulate_jets.py`, not from CERN: scores on them are not JSC results.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from chop.dataset.base import Split, dataset
from chop.dataset.jets import CUT, FEATURES, jet_info
from chop.dataset.store import PreparedData
from chop.dataset.tabular import LabelledTable, moments, prepare
from chop.dataset.tensors import TensorSplit

logger = logging.getLogger(__name__)

FILE = Path(__file__).parent / "data" / "jsc-sim.npz"
CLASSES = "gqtwz"  # gluon, light quark, top, W, Z
INFO = replace(jet_info("jsc-sim", CLASSES), simulated=True)


@dataset(INFO)
def jsc_sim(split: Split, *, legacy_val: bool = False) -> TensorSplit:
    """83,168 simulated jets in five classes: 72 % training, 8 % validation, 20 % test.

    They are split and standardised like `jsc`. With `legacy_val`, training and validation both use
    all samples that are not test samples, as in the labs.
    """
    data = _prepared()
    start, stop = data.span(split, legacy_val=legacy_val)
    x, y = data.x[start:stop].clone(), data.y[start:stop].clone()
    return TensorSplit(x, y, scaler=data.scaler)


def scaler() -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and standard deviation with which to standardise other jets like these."""
    x = _jets().x
    order, rows = CUT.order({"train": len(x)})
    return moments(x[order[: len(x) - rows["test"]]])


@functools.cache
def _prepared() -> PreparedData:
    table = _jets()
    order, rows = CUT.order({"train": len(table.y)})
    return prepare(table, order, rows, standardize_by=len(table.y) - rows["test"])  # as in `jsc`


@functools.cache
def _jets() -> LabelledTable:
    """Read the features, in raw units, and the classes."""
    with np.load(FILE) as file:
        x, y = file["X"], file["y"]
    logger.info("%s: %s simulated jets (Pythia 8), not CERN data", INFO.title, f"{len(y):,}")
    return LabelledTable(x, y, tuple(CLASSES), FEATURES)
