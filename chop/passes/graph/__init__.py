"""The public list of graph passes; a new pass adds one file and two lines to its kind."""

from typing import TYPE_CHECKING, Any

from chop import lazy
from chop.passes.base import PASSES, graph_pass
from chop.passes.graph import analysis, interface, transforms, utils
from chop.passes.graph.analysis import __all__ as _analysis
from chop.passes.graph.interface import __all__ as _interface
from chop.passes.graph.transforms import __all__ as _transforms

if TYPE_CHECKING:
    from chop.passes.graph.analysis import *  # noqa: F403
    from chop.passes.graph.interface import *  # noqa: F403
    from chop.passes.graph.transforms import *  # noqa: F403

    ANALYSIS_PASSES: list[str]
    TRANSFORM_PASSES: list[str]
    INTERFACE_PASSES: list[str]

__all__ = [
    "ANALYSIS_PASSES",
    "INTERFACE_PASSES",
    "PASSES",
    "TRANSFORM_PASSES",
    "analysis",
    "graph_pass",
    "interface",
    "transforms",
    "utils",
    *_analysis,
    *_interface,
    *_transforms,
]

_imported = lazy.importer(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Names of ANALYSIS_PASSES, TRANSFORM_PASSES or INTERFACE_PASSES, yours included."""
    kind = name.removesuffix("_PASSES").lower()
    if name.endswith("_PASSES") and kind in ("analysis", "transform", "interface"):
        return [short for short, registered in PASSES.items() if registered.kind == kind]
    return _imported(name)
