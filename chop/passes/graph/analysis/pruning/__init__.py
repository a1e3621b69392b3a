"""How much of a graph is pruned, and how much is zero without pruning."""

from chop.passes.graph.analysis.pruning.add_movement_metadata import (
    add_movement_metadata_analysis_pass,
)
from chop.passes.graph.analysis.pruning.add_natural_sparsity import (
    add_natural_sparsity_metadata_analysis_pass,
)
from chop.passes.graph.analysis.pruning.add_pruning_metadata import (
    add_pruning_metadata_analysis_pass,
)

__all__ = [
    "add_movement_metadata_analysis_pass",
    "add_natural_sparsity_metadata_analysis_pass",
    "add_pruning_metadata_analysis_pass",
]
