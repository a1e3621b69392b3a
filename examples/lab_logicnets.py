"""LogicNets: a network for jets in which every neuron is a truth table.

    python examples/lab_logicnets.py                       # a minute on a laptop
    python examples/lab_logicnets.py --epochs 30 --bits 3 --fan-in 5

Each neuron has a few inputs of a few bits. The network is trained with arithmetic and tested with
its lookup tables, which give identical bits. The default data set is simulated; its scores are not
JSC results.
"""

from __future__ import annotations

import argparse

import torch
from tabulate import tabulate
from torch import nn

from chop.dataset import MaseDataModule
from chop.ir import MaseGraph
from chop.passes import (
    Pipeline,
    logicnets_fusion_transform_pass,
    quantize_transform_pass,
    verify_metadata_analysis_pass,
)
from chop.training.loop import Training
from chop.training.options import TrainOptions


class JetTagger(nn.Module):
    """Three linear layers, each normalised before its activation."""

    def __init__(self, features: int, classes: int, hidden: tuple[int, int]) -> None:
        super().__init__()
        first, second = hidden
        self.layers = nn.Sequential(
            nn.BatchNorm1d(features),
            *(nn.Linear(features, first), nn.BatchNorm1d(first), nn.ReLU()),
            *(nn.Linear(first, second), nn.BatchNorm1d(second), nn.ReLU()),
            *(nn.Linear(second, classes), nn.BatchNorm1d(classes)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


# each linear layer, with the layers before and after it that are merged into its tables
MERGED = {
    "layers_1": (["layers_0"], ["layers_2", "layers_3"]),
    "layers_4": ([], ["layers_5", "layers_6"]),
    "layers_7": ([], ["layers_8"]),
}


def as_logicnets(model: nn.Module, x: torch.Tensor, bits: int, fan_in: int) -> MaseGraph:
    """Return the network with truth tables as neurons, ready to be trained."""
    prepare = Pipeline(["init_metadata", ("add_common_metadata", {"dummy_in": {"x": x}})])
    graph, _ = prepare(MaseGraph(model))
    tables = {}
    for name, (before, after) in MERGED.items():
        tables[name] = {
            "config": {
                "name": "logicnets",
                "fan_in": fan_in,
                "data_in_width": bits,
                "data_in_frac_width": bits - 2,
                "data_out_width": 8 if name == "layers_7" else bits,  # the last gives the logits
                "data_out_frac_width": 4 if name == "layers_7" else bits - 2,
                "additional_layers_inputs": before,
                "additional_layers_outputs": after,
            }
        }
    graph, _ = quantize_transform_pass(graph, {"by": "name", **tables})
    graph, _ = logicnets_fusion_transform_pass(graph, tables)
    verify_metadata_analysis_pass(graph, {"strict": True})
    return graph


def answers(model: nn.Module, x: torch.Tensor, by_tables: bool) -> torch.Tensor:
    for name in MERGED:
        model.get_submodule(name.replace("_", ".")).is_lut_inference = by_tables
    with torch.no_grad():
        return model.eval()(x)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dataset", default="jsc-sim")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--bits", type=int, default=3, help="bits of each input of a neuron")
    parser.add_argument("--fan-in", type=int, default=4, help="number of inputs of a neuron")
    parser.add_argument("--hidden", type=int, nargs=2, default=(64, 32))
    args = parser.parse_args()

    torch.manual_seed(0)
    data = MaseDataModule(args.dataset, batch_size=1024)
    data.setup()
    info = data.dataset_info
    model = JetTagger(info["num_features"], info["num_classes"], tuple(args.hidden))
    graph = as_logicnets(model, torch.randn(2, info["num_features"]), args.bits, args.fan_in)
    options = TrainOptions(max_epochs=args.epochs, learning_rate=2e-3, progress=False)
    Training(graph.model, data, options).fit()

    batches = [(x, y) for x, y in data.test_dataloader()]
    x, y = (torch.cat(part) for part in zip(*batches, strict=True))
    computed, looked_up = (answers(graph.model, x, by_tables=t) for t in (False, True))
    assert torch.equal(computed, looked_up), "tables and arithmetic differ"
    accuracy = (looked_up.argmax(-1) == y).float().mean().item()
    rows = []
    for name in MERGED:
        layer = graph.modules[name.replace("_", ".")]
        entries = layer.tables.numel()
        rows.append((name, layer.out_features, layer.fan_in, layer.tables.shape[1], entries))
    print(tabulate(rows, ("layer", "neurons", "fan-in", "entries each", "entries"), "github"))
    print(f"\n{info.title}: test accuracy {accuracy:.4f} with tables, bit-identical to arithmetic")


if __name__ == "__main__":
    main()
