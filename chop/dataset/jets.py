"""Code that the jet data sets share: features, splits, standardisation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chop.dataset.base import MaseDatasetInfo
from chop.dataset.store import PreparedData, prepared
from chop.dataset.tabular import (
    Cut,
    LabelledTable,
    check_classes,
    check_finite,
    first_of_each,
    prepare,
)

VERSION = 1  # of the preparation; raise it when the result changes
CUT = Cut(test=0.2, validation=0.1, seed=42)
FEATURES = (
    *("zlogz", "c1_b0_mmdt", "c1_b1_mmdt", "c1_b2_mmdt", "c2_b1_mmdt", "c2_b2_mmdt"),
    *("d2_b1_mmdt", "d2_b2_mmdt", "d2_a1_b1_mmdt", "d2_a1_b2_mmdt", "m2_b1_mmdt", "m2_b2_mmdt"),
    *("n2_b1_mmdt", "n2_b2_mmdt", "mass_mmdt", "multiplicity"),
)


def jet_info(name: str, classes: str, features: tuple[str, ...] = FEATURES) -> MaseDatasetInfo:
    """Return the description of a jet data set: 16 features, 5 classes of original particle."""
    return MaseDatasetInfo(
        name=name,
        physical_data_point_classification=True,
        num_classes=len(classes),
        class_names=tuple(classes),
        num_features=len(features),
        feature_names=features,
    )


def prepared_jets(
    folder: Path,
    source: Path,
    read: Callable[[Path], LabelledTable],
    *,
    drop_duplicates: bool = False,
    renew: bool = False,
) -> PreparedData:
    """Return the jets in `source`, checked, split and standardised, from the cache if possible."""

    def build() -> PreparedData:
        table = read(source)
        check_finite(source, table.x, table.features)
        check_classes(source, table.y, table.classes)
        if drop_duplicates:
            table = table.rows(first_of_each(table.x, table.y))
        order, rows = CUT.order({"train": len(table.y)})
        # as in the labs, the scaler is fitted to training and validation samples, not test samples
        fit = rows["train"] + rows["validation"]
        return prepare(table, order, rows, standardize_by=fit)

    return prepared(folder, source, build, version=VERSION, renew=renew)
