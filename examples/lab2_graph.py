"""Lab 2: trace a network into a graph, add metadata, and collect statistics of its tensors."""

import torch
from torch import nn

from chop.ir import MaseGraph
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
    profile_statistics_analysis_pass,
    report_graph_analysis_pass,
    report_node_meta_param_analysis_pass,
)
from chop.tools.logger import set_logging_verbosity


class JetTagger(nn.Module):
    """Classifies jets: sixteen features in, five classes out."""

    def __init__(self) -> None:
        super().__init__()
        self.seq_blocks = nn.Sequential(nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.seq_blocks(x)


class RandomInputs:
    """Endless random batches; use the InputGenerator of a data module for real data."""

    batch_size = 8

    def __iter__(self):
        while True:
            yield {"x": torch.randn(self.batch_size, 16)}


set_logging_verbosity("info")
torch.manual_seed(0)
inputs = RandomInputs()
mg = MaseGraph(model=JetTagger())
mg, _ = init_metadata_analysis_pass(mg, None)
mg, _ = add_common_metadata_analysis_pass(mg, {"dummy_in": next(iter(inputs))})
mg, _ = add_software_metadata_analysis_pass(mg, None)
report_graph_analysis_pass(mg)

pass_args = {
    "by": "type",
    "target_weight_nodes": ["linear"],
    "target_activation_nodes": ["relu"],
    "weight_statistics": {"variance_precise": {"device": "cpu", "dims": "all"}},
    "activation_statistics": {"range_quantile": {"device": "cpu", "dims": "all", "quantile": 0.97}},
    "input_generator": inputs,
    "num_samples": 32,
}
mg, _ = profile_statistics_analysis_pass(mg, pass_args)
mg, _ = report_node_meta_param_analysis_pass(mg, {"which": ("software",)})
print(f"drawing: {mg.draw('mase_output/jet_tagger.svg')}")
