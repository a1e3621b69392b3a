"""MASE: read a PyTorch model as a graph, analyse it, quantise, prune, train and search it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chop import aliases, extensions
from chop.version import __version__

if TYPE_CHECKING:
    from chop import passes
    from chop.ir.graph.mase_graph import MaseGraph

__all__ = ["MaseGraph", "__version__", "passes"]


def _import_extensions() -> None:
    import chop.models
    import chop.nn
    import chop.passes
    import chop.passes.graph.transforms.pruning  # noqa: F401  each registers itself


aliases.install()
extensions.IMPORTERS.append(_import_extensions)
extensions.add_methods(f"{__name__}.methods")


def __getattr__(name: str) -> Any:
    # torch takes two seconds to import, and `ch --help` does not need it
    if name == "MaseGraph":
        from chop.ir.graph.mase_graph import MaseGraph

        return MaseGraph
    if name == "passes":
        import chop.passes

        return chop.passes
    raise AttributeError(f"module 'chop' has no attribute {name!r}")
