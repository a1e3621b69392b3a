"""Additional state of layers in a saved graph, which other packages register."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Extra:
    """Additional state of layers besides their attributes, such as masks: values by name."""

    read: Callable[[nn.Module], Mapping[str, Any]]  # {} for a layer without
    attach: Callable[[nn.Module, Mapping[str, Any]], None]
    hooks: tuple[str, ...] = ()  # functions that `attach` registers on the layer again


EXTRAS: dict[str, Extra] = {}
