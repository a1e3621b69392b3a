"""Lab 4: seed 004's own transform passes, which replace layers through `graph.modules`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import redefine_conv_transform_pass, redefine_linear_transform_pass
from chop.passes.graph.utils import get_parent_name

Notebook = Callable[..., dict[str, Any]]
Golden = Callable[[str, str], None]
FILES = Path(__file__).parent / "files"

# Question 1.
REDEFINE_LINEAR = (FILES / "seed_004_redefine_linear.py").read_text(encoding="utf-8")

# The optional task.
REDEFINE_VGG = (FILES / "seed_004_redefine_vgg.py").read_text(encoding="utf-8")

# Its best trial.
BEST_TRIAL = (FILES / "seed_004_best_vgg7.json").read_text(encoding="utf-8")


class JSC_Three_Linear_Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seq_blocks = nn.Sequential(
            nn.BatchNorm1d(16),  # 0
            nn.ReLU(16),  # 1
            nn.Linear(16, 16),  # 2
            nn.ReLU(16),  # 3
            nn.Linear(16, 16),  # 4
            nn.ReLU(16),  # 5
            nn.Linear(16, 5),  # 6
            nn.ReLU(5),  # 7
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.seq_blocks(x)


class VGG(nn.Module):
    """VGG7's layers under VGG7's names, a few channels wide."""

    def __init__(self) -> None:
        super().__init__()

        def block(i: int, o: int) -> list[nn.Module]:
            return [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]

        self.feature_layers = nn.Sequential(
            *(*block(3, 4), *block(4, 4), nn.MaxPool2d(2)),
            *(*block(4, 8), *block(8, 8), nn.MaxPool2d(2)),
            *(*block(8, 16), *block(16, 16), nn.MaxPool2d(2)),
        )
        self.classifier = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.last_layer = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.feature_layers(x).view(-1, 16)
        return self.last_layer(self.classifier(x))


def test_seed_004_redefines_the_linear_layers_to_16_32_64_5(
    notebook: Notebook, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    mg = MaseGraph(model=JSC_Three_Linear_Layers())
    names = notebook(REDEFINE_LINEAR, mg=mg, nn=nn, get_parent_name=get_parent_name)
    assert names["mg"] is mg
    golden("seed_004_linear_config.txt", capsys.readouterr().out)
    golden("seed_004_linear_model.txt", f"{mg.model!r}\n")
    assert names["num_para"] == 2 * 16 + (16 + 1) * 32 + (32 + 1) * 64 + (64 + 1) * 5
    assert mg.model(torch.randn(8, 16)).shape == (8, 5)


def test_redefining_one_graph_leaves_another_of_the_same_model_untouched(
    notebook: Notebook,
) -> None:
    model = JSC_Three_Linear_Layers()
    ori_mg, mg = MaseGraph(model=model), MaseGraph(model=model)
    before, x = repr(ori_mg.model), torch.randn(8, 16)
    expected = ori_mg.model.eval()(x)
    notebook(REDEFINE_LINEAR, mg=mg, nn=nn, get_parent_name=get_parent_name)
    assert repr(ori_mg.model) == before
    assert torch.equal(ori_mg.model(x), expected)
    assert model.seq_blocks[4].out_features == 16
    # leaves are shared, containers are not
    assert mg.modules["seq_blocks.0"] is ori_mg.modules["seq_blocks.0"] is model.seq_blocks[0]
    assert mg.modules["seq_blocks"] is not ori_mg.modules["seq_blocks"]


def test_metadata_finds_the_redefined_layers(graph_of: Any, notebook: Notebook) -> None:
    mg = graph_of(JSC_Three_Linear_Layers())
    notebook(REDEFINE_LINEAR, mg=mg, nn=nn, get_parent_name=get_parent_name)
    found = {node.name: node.meta["mase"].module for node in mg.nodes}
    assert found["seq_blocks_4"] is mg.model.seq_blocks.get_submodule("4")
    assert found["seq_blocks_4"].out_features == 64


def test_seed_004_redefines_a_vgg_to_its_best_trial(
    graph_of: Any, notebook: Notebook, golden: Golden
) -> None:
    model = VGG()
    ori_mg, mg = MaseGraph(model=model), graph_of(model, torch.randn(2, 3, 8, 8))
    before = repr(ori_mg.model)
    config = json.loads(BEST_TRIAL)["0"]["sampled_config"] | {"default": {"config": {"name": None}}}
    redefine = notebook(REDEFINE_VGG, nn=nn, get_parent_name=get_parent_name)["redefine_vgg_pass"]
    assert redefine(mg, config) == (mg, {})
    golden("seed_004_vgg_model.txt", f"{mg.model!r}\n")
    assert mg.model(torch.randn(2, 3, 8, 8)).shape == (2, 10)
    assert repr(ori_mg.model) == before


def test_our_pass_gives_what_seed_004_prints(
    graph_of: Any, notebook: Notebook, golden: Golden
) -> None:
    theirs = MaseGraph(model=JSC_Three_Linear_Layers())
    names = notebook(REDEFINE_LINEAR, mg=theirs, nn=nn, get_parent_name=get_parent_name)
    config = names["pass_config"]  # their own pass has taken its default out
    mg = graph_of(JSC_Three_Linear_Layers())
    mg, _ = redefine_linear_transform_pass(graph=mg, pass_args={"config": config})
    golden("seed_004_linear_model.txt", f"{mg.model!r}\n")
    mg, _ = redefine_linear_transform_pass(graph=mg, pass_args={"config": config})
    golden("seed_004_linear_model.txt", f"{mg.model!r}\n")


def test_our_pass_takes_the_best_trial_of_a_vgg(graph_of: Any) -> None:
    x = torch.randn(2, 3, 8, 8)
    config = json.loads(BEST_TRIAL)["0"]["sampled_config"]
    mg, _ = redefine_conv_transform_pass(graph_of(VGG(), x), config)
    convs = [m for m in mg.model.modules() if isinstance(m, nn.Conv2d)]
    assert [conv.out_channels for conv in convs] == [8, 8, 16, 32, 64, 16]
    assert [conv.in_channels for conv in convs] == [3, 8, 8, 16, 32, 64]
    assert mg.model(x).shape == (2, 10)
