"""What can be done to a network: every pass, at the top level too."""

from chop.passes import graph
from chop.passes.base import PASSES, PassArgsError, graph_pass, run_pass
from chop.passes.graph import *  # noqa: F403
from chop.passes.graph.analysis import __all__ as _analysis
from chop.passes.pipeline import Pipeline

__all__ = [
    "PASSES",
    "PassArgsError",
    "Pipeline",
    "graph",
    "graph_pass",
    "run_pass",
    *_analysis,
]
