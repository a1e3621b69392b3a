"""Every pass on graphs and modules, importable from this package directly."""

from chop import extensions
from chop.passes import graph, module
from chop.passes.base import PASSES, PassArgsError, graph_pass, run_pass
from chop.passes.graph import *  # noqa: F403
from chop.passes.graph.analysis import __all__ as _analysis
from chop.passes.graph.interface import __all__ as _interface
from chop.passes.graph.transforms import __all__ as _transforms
from chop.passes.graph.transforms.integers import integer_graph
from chop.passes.pipeline import Pipeline

extensions.register(__name__, transformed=True, integers=integer_graph)

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
