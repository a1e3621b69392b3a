"""The example file prunes as it says."""

import tomllib
from pathlib import Path

import torch

import chop
from chop.dataset import MaseDatasetInfo
from chop.ir.graph.mase_graph import MaseGraph
from chop.models import get_model
from chop.passes import Pipeline, run_pass

FILE = Path(chop.__file__).parents[1] / "configs" / "examples" / "jsc_sim_prune.toml"


def test_the_tables_of_the_example_are_options_of_passes():
    config = tomllib.loads(FILE.read_text(encoding="utf-8"))
    jets = MaseDatasetInfo(name="jsc", num_features=16, num_classes=5)
    mg = MaseGraph(get_model(config["model"], dataset_info=jets))
    dummy = {"dummy_in": {mg.inputs[0].target: torch.randn(2, 16)}}
    mg, _ = Pipeline(["init_metadata", ("add_common_metadata", dummy)])(mg)
    for name, options in config["passes"].items():
        mg, info = run_pass(name, mg, options)
    assert info["weight"]["total"]["reached"] == 0.2
    assert all(row == {"requested": 0.1} for row in info["activation"].values())
