"""Scales of affine layers on the command line: transformed, trained, tested, searched."""

import re

import pytest
import torch

from chop.checkpoints import load_graph

pytestmark = pytest.mark.slow

HEAD = """
model = "jsc-tiny"
dataset = "jsc-sim"
task = "cls"
batch_size = 512
max_epochs = 1
max_steps = 10
learning_rate = 1e-2
"""
TRANSFORM = f"""{HEAD}
[passes.quantize]
by = "type"
[passes.quantize.linear.config]
name = "affine"
data_in_width = 8
data_in_scale = 0.05
weight_width = 4
weight_axis = 0
learn = true
"""
SEARCH = f"""{HEAD}
[search.search_space]
name = "graph/quantize/mixed_precision_ptq"
[search.search_space.setup]
by = "type"
[search.search_space.seed.default.config]
name = ["NA"]
[search.search_space.seed.linear.config]
name = ["affine"]
data_in_width = [4, 8]
data_in_scale = [0.05, 0.1]
weight_width = [2, 8]
weight_axis = [0]
weight_power_of_two = [true]
learn = [true]
[search.strategy]
name = "optuna"
[search.strategy.sw_runner.basic_train]
max_steps = 3
[search.strategy.hw_runner.average_bitwidth]
compare_to = 32
[search.strategy.setup]
n_trials = 3
sampler = "random"
[search.strategy.metrics.accuracy]
direction = "maximize"
[search.strategy.metrics.average_bitwidth]
direction = "minimize"
"""


def layer_of(folder):
    return load_graph(folder).modules["seq_blocks.2"]


def test_a_transformed_network_learns_its_scales_and_keeps_them(ch, tmp_path):
    config = tmp_path / "t.toml"
    config.write_text(TRANSFORM)
    ch("transform", "--config", config, "--project", "first")
    first = tmp_path / "out/first/software/transform/transformed_ckpt"
    load = ("--load", first, "--load-type", "mz")
    ch("train", "--config", config, *load, "--project", "second")
    second = tmp_path / "out/second/software/training_ckpts/transformed_ckpt"
    before, after = layer_of(first), layer_of(second)
    assert isinstance(after.weight_scale, torch.nn.Parameter)
    for name in ("weight_scale", "data_in_scale"):
        assert not torch.equal(getattr(before, name), getattr(after, name))
    said = ch("test", "--config", config, "--load", second, "--load-type", "mz")
    assert "accuracy" in said.stdout + said.stderr


def test_a_search_builds_the_best_with_its_scales(ch, tmp_path):
    config = tmp_path / "s.toml"
    config.write_text(SEARCH)
    ch("search", "--config", config, "--project", "study")
    said = ch("search", "--config", config, "--project", "study", "--apply", "best").stderr
    layer = layer_of(re.search(r"Saved the design to (\S+)", said)[1])
    assert type(layer).__name__ == "LinearAffine"
    assert (layer.scale_of("weight")[0].log2() % 1 == 0).all()
