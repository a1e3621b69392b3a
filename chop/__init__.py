"""MASE: read a PyTorch model as a graph, analyse it, quantise, prune, train and search it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from chop import aliases
from chop.version import __version__

if TYPE_CHECKING:
    from chop import passes
    from chop.ir.graph.mase_graph import MaseGraph

__all__ = ["MaseGraph", "__version__", "passes"]

# Which modules define layers that passes make, and layers that a saved graph may have, and which
# register what layers carry beside their attributes, and what converts graphs. Told here, as
# `chop.ir` knows nothing of the packages above it.
TRANSFORMED_LAYERS = ("chop.passes.", "chop.nn.", "chop.layers.")
LAYER_PACKAGES = (*TRANSFORMED_LAYERS, "chop.models.", "chop.ir.")
LAYER_EXTRAS = ("chop.passes.graph.interface.pruning",)
INTEGER_GRAPHS = "chop.passes.graph.transforms.integers"  # what makes `MaseGraph.to_integers`

aliases.install()


def __getattr__(name: str) -> Any:
    # torch takes two seconds to import, and `ch --help` does not need it
    if name == "MaseGraph":
        return importlib.import_module("chop.ir.graph.mase_graph").MaseGraph
    if name == "passes":
        return importlib.import_module("chop.passes")
    raise AttributeError(f"module 'chop' has no attribute {name!r}")
