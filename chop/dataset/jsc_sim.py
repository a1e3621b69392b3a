"""Simulated jets in the sixteen observables of the JSC data set, shipped with the package.

They come from `scripts/simulate_jets.py`, not from CERN: what a model scores here is no JSC result.
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
    """83,168 simulated jets in five classes: 72 % to train, 8 % to validate, 20 % to test.

    They are divided and standardised as `jsc` is. `legacy_val` gives the labs' training and
    validation data: both are all that is not test.
    """
    data = _prepared()
    start, stop = data.span(split, legacy_val=legacy_val)
    return TensorSplit(data.x[start:stop].clone(), data.y[start:stop].clone())


def scaler() -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation, by which raw jets from elsewhere come into the units of these."""
    x = _jets().x
    order, rows = CUT.order({"train": len(x)})
    return moments(x[order[: _num_fit(rows)]])


@functools.cache
def _prepared() -> PreparedData:
    table = _jets()
    order, rows = CUT.order({"train": len(table.y)})
    return prepare(table, order, rows, standardize_by=_num_fit(rows))


def _num_fit(rows: dict[str, int]) -> int:
    """How many jets the scaler knows: all but those of the test, as in `jsc`."""
    return rows["train"] + rows["validation"]


@functools.cache
def _jets() -> LabelledTable:
    """Features in raw units and classes, as the file has them."""
    with np.load(FILE) as file:
        x, y = file["X"], file["y"]
    logger.info("%s: %s simulated jets (Pythia 8), not the data of CERN", INFO.title, f"{len(y):,}")
    return LabelledTable(x, y, tuple(CLASSES), FEATURES)
