"""Passes that read a graph and leave it unchanged; each module or package lists its own."""

from chop.passes.graph.analysis.add_metadata import *  # noqa: F403
from chop.passes.graph.analysis.calibrate import *  # noqa: F403
from chop.passes.graph.analysis.cost import *  # noqa: F403
from chop.passes.graph.analysis.hook_inspection import *  # noqa: F403
from chop.passes.graph.analysis.pruning import *  # noqa: F403
from chop.passes.graph.analysis.quantization import *  # noqa: F403
from chop.passes.graph.analysis.report import *  # noqa: F403
from chop.passes.graph.analysis.sensitivity import *  # noqa: F403
from chop.passes.graph.analysis.statistical_profiler import *  # noqa: F403
from chop.passes.graph.analysis.verify import *  # noqa: F403
from chop.passes.graph.analysis.verify_integers import *  # noqa: F403

__all__ = [name for name in globals() if name.endswith("_analysis_pass")]
