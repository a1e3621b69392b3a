"""Lab 4: seed 004's own transform passes, which replace layers through `graph.modules`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import redefine_conv_transform_pass, redefine_linear_transform_pass
from chop.passes.graph.utils import get_parent_name

Notebook = Callable[..., dict[str, Any]]
Golden = Callable[[str, str], None]

# Question 1.
REDEFINE_LINEAR = """\
def instantiate_linear(in_features, out_features, bias):
    if bias is not None:
        bias = True
    return nn.Linear(
        in_features=in_features,
        out_features=out_features,
        bias=bias)

def redefine_linear_transform_pass(graph, pass_args=None):
    main_config = pass_args.pop('config')
    print(main_config)
    default = main_config.pop('default', None)
    print(default)
    if default is None:
        raise ValueError(f"default value must be provided.")
    i = 0
    pre_in=1
    pre_out=1
    for node in graph.fx_graph.nodes:
        i += 1
        # if node name is not matched, it won't be tracked
        config = main_config.get(node.name, default)['config']
        name = config.get("name", None)
        
        if name is not None:
            ori_module = graph.modules[node.target]
            # Initially assign in_features and out_features to be 16
            # otherwise the size of in_features and out_features will be enlarged each time applying pass
            in_features = 16
            out_features = 16
            bias = ori_module.bias
            if name == "output_only":
                in_features = ori_module.in_features
                out_features = out_features * config["channel_multiplier"]
                pre_out=config["channel_multiplier"]
            elif name == "both":
                in_features = in_features * pre_out
                out_features = out_features * config["channel_multiplier"]
                pre_out = pre_in
                pre_in = config["channel_multiplier"]
            elif name == "input_only":
                in_features = in_features * pre_in
                out_features = ori_module.out_features
            new_module = instantiate_linear(in_features, out_features, bias)
            parent_name, name = get_parent_name(node.target)
            setattr(graph.modules[parent_name], name, new_module)
    return graph, {}



pass_config = {
"by": "name",
"default": {"config": {"name": None}},
"seq_blocks_2": {
    "config": {
        "name": "output_only",
        # weight
        "channel_multiplier": 2,
        }
    },
"seq_blocks_4": {
    "config": {
        "name": "both",
        "channel_multiplier":4,
        }
    },
"seq_blocks_6": {
    "config": {
        "name": "input_only",
        }
    },
}

# this performs the architecture transformation based on the config
mg, _ = redefine_linear_transform_pass(
    graph=mg, pass_args={"config": pass_config})

num_para = sum(p.numel() for p in mg.model.parameters() if p.requires_grad)
mg.model
"""  # noqa: E501, W293

# The optional task.
REDEFINE_VGG = """\
def instantiate_Conv(in_features, out_features, kernel_size=3,padding=1):
    return nn.Conv2d(
        in_channels=in_features,
        out_channels=out_features,
        kernel_size=kernel_size,
        padding=padding)
def instantiate_BatchNorm(out_features):
    return nn.BatchNorm2d(
        num_features=out_features
    )
    
def redefine_vgg_pass(graph, pass_args=None):
    main_config = pass_args# .pop('config')
    default = main_config.pop('default', None)
    if default is None:
        raise ValueError(f"default value must be provided.")
    i = 0
    pre_out=1
    for node in graph.fx_graph.nodes:
        i += 1
        # if node name is not matched, it won't be tracked
        config = main_config.get(node.name, default)['config']
        name = config.get("name", None)
        #print(node.target in graph.modules.keys())
        
        if 'feature_layers' in get_parent_name(node.target):
            ori_module = graph.modules[node.target]
            if isinstance(ori_module,nn.Conv2d):
                in_features = 128
                out_features = 128
                if name is not None:
                    if name == "output_only":
                        in_features = ori_module.in_channels
                        out_features = out_features * config["channel_multiplier"]
                        pre_out=config["channel_multiplier"]
                    elif name == "both":
                        in_features = in_features * pre_out
                        out_features = out_features * config["channel_multiplier"]
                        pre_out = config["channel_multiplier"]
                    elif name == "input_only":
                        in_features = in_features * pre_out
                        out_features = ori_module.out_channels
                    new_module = instantiate_Conv(in_features, out_features)
                    parent_name, name = get_parent_name(node.target)
                    setattr(graph.modules[parent_name], name, new_module)
            elif isinstance(ori_module,nn.BatchNorm2d):
                new_module =instantiate_BatchNorm(out_features=out_features)
                parent_name, name = get_parent_name(node.target)
                setattr(graph.modules[parent_name], name, new_module)
    return graph, {}
"""  # noqa: W293

# Its best trial.
BEST_TRIAL = """\
{
    "0":{
        "number":3,
        "value":[
            0.1168477312,
            6.4
        ],
        "software_metrics":{
            "loss":2.3963468075,
            "accuracy":0.1168477312
        },
        "hardware_metrics":{
            "average_bitwidth":32,
            "memory_density":1.0
        },
        "scaled_metrics":{
            "accuracy":0.1168477312,
            "average_bitwidth":6.4
        },
        "sampled_config":{
            "feature_layers_0":{
                "config":{
                    "name":"output_only",
                    "channel_multiplier":2
                }
            },
            "feature_layers_2":{
                "config":{
                    "name":null
                }
            },
            "feature_layers_3":{
                "config":{
                    "name":"both",
                    "channel_multiplier":2
                }
            },
            "feature_layers_5":{
                "config":{
                    "name":null
                }
            },
            "feature_layers_7":{
                "config":{
                    "name":"both",
                    "channel_multiplier":2
                }
            },
            "feature_layers_9":{
                "config":{
                    "name":null
                }
            },
            "feature_layers_10":{
                "config":{
                    "name":"both",
                    "channel_multiplier":4
                }
            },
            "feature_layers_12":{
                "config":{
                    "name":null
                }
            },
            "feature_layers_14":{
                "config":{
                    "name":"both",
                    "channel_multiplier":4
                }
            },
            "feature_layers_16":{
                "config":{
                    "name":null
                }
            },
            "feature_layers_17":{
                "config":{
                    "name":"input_only"
                }
            },
            "feature_layers_19":{
                "config":{
                    "name":null
                }
            },
            "classifier_0":{
                "config":{
                    "name":null
                }
            },
            "classifier_1":{
                "config":{
                    "name":null
                }
            },
            "classifier_2":{
                "config":{
                    "name":null
                }
            },
            "classifier_3":{
                "config":{
                    "name":null
                }
            },
            "last_layer":{
                "config":{
                    "name":null
                }
            },
            "by":"name",
            "accelerator":"cuda"
        }
    }
}
"""


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
