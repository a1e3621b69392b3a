"""Every pass on graphs and modules, importable from this package directly."""

from typing import TYPE_CHECKING, Any

from chop import extensions, lazy
from chop.passes.base import PASSES, PassArgsError, graph_pass, run_pass
from chop.passes.graph.analysis import __all__ as _analysis
from chop.passes.graph.interface import __all__ as _interface
from chop.passes.graph.transforms import __all__ as _transforms

if TYPE_CHECKING:
    from chop.passes import graph, module
    from chop.passes.graph import *  # noqa: F403
    from chop.passes.pipeline import Pipeline

__all__ = [
    "PASSES",
    "PassArgsError",
    "Pipeline",
    "graph",
    "graph_pass",
    "module",
    "run_pass",
    *_analysis,
    *_interface,
    *_transforms,
]

__getattr__ = lazy.importer(__name__, __file__)


def _integer_graph(graph: Any) -> Any:
    from chop.passes.graph.transforms.integers import integer_graph

    return integer_graph(graph)


extensions.register(__name__, transformed=True, integers=_integer_graph)
