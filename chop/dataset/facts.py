"""What a network assumes of its data, and data that are adapted to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from chop.dataset.base import MaseDatasetInfo
from chop.dataset.images import Normalize
from chop.dataset.nested import Inputs, map_named
from chop.dataset.tensors import Scaler, Scalers, TensorSplit, are_same, plain_scalers

__all__ = ["Adaptation", "DataFacts", "Scaler"]

logger = logging.getLogger(__name__)
Words = tuple[str, ...]
LARGEST = float(torch.finfo(torch.float64).max)


@dataclass(frozen=True)
class DataFacts:
    """The data set of a network: the class of each output, the features, and their scaler.

    With several inputs, `scaler` has one for each table, by name. `pixels` is how images are
    normalised. Empty names, and a scaler or pixels that are None, are unknown.
    """

    dataset: str
    classes: Words = ()
    features: Words = ()
    scaler: Scalers | None = None
    pixels: Normalize | None = None

    def plain(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        names = {"classes": list(self.classes), "features": list(self.features)}
        pixels = {} if self.pixels is None else {"pixels": asdict(self.pixels)}
        return {"dataset": self.dataset, **names, **plain_scalers(self.scaler), **pixels}

    @classmethod
    def read(cls, table: Any) -> DataFacts:
        """Return the facts that `plain` wrote; refuse anything else."""
        if not isinstance(table, Mapping):
            raise ValueError(f"the description of its data is not a table but {table!r:.40}")
        if not isinstance(table.get("dataset"), str):
            raise ValueError(f"dataset must be a name, not {table.get('dataset')!r:.40}")
        names = {key: _items(table, key) for key in ("classes", "features")}
        for key, values in names.items():
            if not all(isinstance(value, str) for value in values):
                raise ValueError(f"{key} must be names, not {values!r:.60}")
        pixels = None if table.get("pixels") is None else _read_pixels(table["pixels"])
        return cls(table["dataset"], **names, scaler=_read_scalers(table), pixels=pixels)


def _items(table: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    values = table.get(key)
    if not isinstance(values, list | tuple | None):
        raise ValueError(f"{key} must be a list, not {values!r:.40}")
    return tuple(values or ())


def _read_scalers(table: Mapping[str, Any]) -> Scalers | None:
    several = table.get("scalers")
    if several is None:
        one = table.get("scaler")
        return None if one is None else _read_scaler(one)
    if not isinstance(several, Mapping) or not all(isinstance(name, str) for name in several):
        raise ValueError(f"scalers must be a table of inputs, not {several!r:.40}")
    return {name: _read_scaler(one) for name, one in several.items()}


def _read_scaler(table: Any) -> Scaler:
    return Scaler(**_moments(table, "scaler", "deviation", "feature"))


def _read_pixels(table: Any) -> Normalize:
    columns = _moments(table, "pixels", "std", "channel")
    peak = table.get("peak")
    if type(peak) not in (float, int) or not 0 < peak <= LARGEST:
        raise ValueError(f"peak of the pixels must be a positive number, not {peak!r:.40}")
    return Normalize(**columns, peak=peak)


def _moments(table: Any, of: str, deviation: str, column: str) -> dict[str, tuple[Any, ...]]:
    """Return the means and deviations in a table, one of each per column."""
    if not isinstance(table, Mapping):
        raise ValueError(f"the {of} of its data is not a table but {table!r:.40}")
    columns = {key: _items(table, key) for key in ("mean", deviation)}
    for key, values in columns.items():
        numbers = all(type(v) in (float, int) and abs(v) <= LARGEST for v in values)
        if not numbers or len(values) != len(columns["mean"]) or not values:
            raise ValueError(f"{key} of the {of} must be one finite number per {column}")
    if not all(value > 0 for value in columns[deviation]):
        raise ValueError(f"{deviation} of the {of} must be positive")
    return columns


class Adaptation:
    """The change of a data set that a network trained on other data needs."""

    def __init__(
        self, info: MaseDatasetInfo, facts: DataFacts, *, rescale: bool = True, strict: bool = True
    ) -> None:
        self.facts, self.owner = facts, f"data set {info.name!r}"
        self.scaler = facts.scaler if rescale else None
        mine, theirs = tuple(info.class_names), facts.classes
        self.labels = _label_map(mine, theirs)
        if mine and theirs and self.labels is None and strict:
            raise ValueError(
                f"{self._classes_differ(mine)}; use data with these classes, or give the classes "
                f"the same names"
            )
        self.order = _column_order(tuple(info.feature_names), facts.features)
        self._mine, self._is_rescaling_logged = mine, False
        self._log_classes(mine)

    def _classes_differ(self, mine: Words) -> str:
        return (
            f"{self.owner} has the classes {', '.join(mine)}, but the network was trained on those "
            f"of {self.facts.dataset!r}, {', '.join(self.facts.classes)}"
        )

    def _log_classes(self, mine: Words) -> None:
        if self.labels is None or mine == self.facts.classes:
            return
        by = "by number" if not set(mine) <= set(self.facts.classes) else "by name"
        logger.info(
            "The classes %s of %s are mapped %s to those of the network, %s",
            *(", ".join(mine), self.owner, by, ", ".join(self.facts.classes)),
        )

    def described(self, info: MaseDatasetInfo) -> MaseDatasetInfo:
        """Return the description of the adapted data set."""
        if self.labels is not None:
            classes = self.facts.classes
            info = replace(info, class_names=classes, num_classes=len(classes))
        return replace(info, feature_names=self.facts.features) if self.order else info

    def __call__(self, split: Any) -> Any:
        """Return an adapted split, or `split` itself if nothing changes."""
        labels = None if self.labels == list(range(len(self.labels or ()))) else self.labels
        if not isinstance(split, TensorSplit):
            if labels is not None:
                raise ValueError(
                    f"{self._classes_differ(self._mine)}; use the same order, or return a "
                    f"TensorSplit, so that the labels can be mapped"
                )
            return split
        x, y, scaler = split.x, split.y, split.scaler
        if self.order is not None and isinstance(x, Tensor) and x.dim() == 2:
            x = x[:, self.order]
            scaler = scaler.reordered(self.order) if isinstance(scaler, Scaler) else scaler
        if self.scaler is not None and scaler is not None and self.scaler != scaler:
            x, scaler = self._rescaled(x, scaler)
        if labels is not None:
            y = _mapped(y, labels)
        if are_same(x, split.x) and y is split.y:
            return split
        return TensorSplit(x, y, prepare=split.prepare, augment=split.augment, scaler=scaler)

    def _rescaled(self, inputs: Inputs, present: Scalers) -> tuple[Inputs, Scalers]:
        """Return the inputs as the scalers of the network standardise them, and those scalers."""
        mine, theirs = _by_input(present), self._scalers_for(present)

        def rescaled(name: str, x: Tensor) -> Tensor:
            is_other = name in mine and mine[name] != theirs[name]
            return self._table(name, x, mine[name], theirs[name]) if is_other else x

        result = map_named(rescaled, inputs)
        return result, theirs if isinstance(present, Mapping) else theirs[""]

    def _scalers_for(self, present: Scalers) -> dict[str, Scaler]:
        """Return the scaler of the network for each input of the data set that has one."""
        assert self.scaler is not None
        mine, theirs = _by_input(present), _by_input(self.scaler)
        if len(mine) == len(theirs) == 1:  # the only table, whatever its name
            return dict(zip(mine, theirs.values(), strict=True))
        if not mine.keys() <= theirs.keys():
            raise ValueError(
                f"{self.owner} has the tables {_inputs(mine)}, but the network was trained with "
                f"scalers for those of {self.facts.dataset!r}, {_inputs(theirs)}; give the inputs "
                f"the same names, or choose `standardize`"
            )
        return {name: theirs[name] for name in mine}

    def _table(self, name: str, x: Tensor, present: Scaler, wanted: Scaler) -> Tensor:
        """Return standardised features as another scaler would standardise the raw ones."""
        if x.dim() != 2:
            return x
        if len(present.mean) != len(wanted.mean):
            of = f"input {name!r} of {self.owner}" if name else self.owner
            raise ValueError(
                f"the scaler of the network is for {len(wanted.mean)} features, but {of} "
                f"has {len(present.mean)}; use data with the features of {self.facts.dataset!r}"
            )
        self._log_rescaling()
        mean, deviation, other_mean, other_deviation = (
            torch.tensor(values, dtype=torch.float64, device=x.device)
            for values in (present.mean, present.deviation, wanted.mean, wanted.deviation)
        )
        raw = x.double() * deviation + mean
        return ((raw - other_mean) / other_deviation).to(x.dtype)

    def _log_rescaling(self) -> None:
        if not self._is_rescaling_logged:
            logger.info(
                "The features of %s are standardised with the scaler of the network, which was "
                "trained on %r (change this with `standardize`)",
                *(self.owner, self.facts.dataset),
            )
            self._is_rescaling_logged = True


def _by_input(scaler: Scalers) -> dict[str, Scaler]:
    """Return scalers by the names of their inputs; one input has none."""
    return {"": scaler} if isinstance(scaler, Scaler) else dict(scaler)


def _inputs(scalers: Mapping[str, Scaler]) -> str:
    return ", ".join(name or "x" for name in scalers)


def _mapped(y: Tensor, labels: list[int]) -> Tensor:
    """Return labels with other numbers; labels outside the classes, as in parts of maps, stay."""
    table = torch.tensor(labels, dtype=y.dtype, device=y.device)
    is_class = (y >= 0) & (y < len(labels))
    return torch.where(is_class, table[y.clamp(0, len(labels) - 1)], y)


def _label_map(mine: Words, theirs: Words) -> list[int] | None:
    """Return the output of the network for each class of a data set; None if that is not known.

    Classes that are numbers from 0 are those of the outputs, whatever their names.
    """
    if not mine or not theirs:
        return None
    if set(mine) <= set(theirs):
        return [theirs.index(name) for name in mine]
    if all(name.isdecimal() and int(name) < len(theirs) for name in mine):
        return [int(name) for name in mine]
    are_numbers = theirs == tuple(str(number) for number in range(len(mine)))
    return list(range(len(mine))) if are_numbers and not set(mine) & set(theirs) else None


def _column_order(mine: Words, theirs: Words) -> list[int] | None:
    """Return the columns in the order of the network; None if it is the same or not known."""
    if mine == theirs or len(set(mine)) < len(mine) or sorted(mine) != sorted(theirs):
        return None
    return [mine.index(name) for name in theirs]
