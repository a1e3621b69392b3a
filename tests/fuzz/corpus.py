"""Good files of every kind, made once by the commands themselves, for tests to damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from .commands import SEARCH, TRAIN, TRANSFORM
from .data_files import write_data
from .harness import Sandbox, Server

FEATURES, CLASSES, ROWS = 16, 5, 64
HEAD_TOML = """\
model = "jsc-tiny"
dataset = "npz"
data_path = "data.npz"
batch_size = 32
max_epochs = 1
learning_rate = 1e-3
trainer_precision = "32"
"""
QUANTIZE_TOML = """
[passes.quantize]
by = "type"
linear.config = { name = "integer", data_in_width = 8, data_in_frac_width = 4, \
weight_width = 8, weight_frac_width = 4, bias_width = 8, bias_frac_width = 4 }
"""
SEARCH_TOML = """
load_name = "best.ckpt"
load_type = "pl"

[search.search_space]
name = "graph/quantize/mixed_precision_ptq"
setup.by = "type"
[search.search_space.seed.default.config]
name = ["NA"]
[search.search_space.seed.linear.config]
name = ["integer"]
data_in_width = [4, 8]
data_in_frac_width = ["NA"]
weight_width = { min = 2, max = 8 }
weight_frac_width = ["NA"]
bias_width = [8]
bias_frac_width = [4]
[search.strategy.sw_runner.basic_evaluation]
num_samples = 32
[search.strategy.hw_runner.average_bitwidth]
[search.strategy.setup]
sampler = "random"
n_trials = 3
[search.strategy.metrics]
accuracy = {}
average_bitwidth = {}
[search.retrain]
designs = "best"
max_epochs = 1
"""


def build(server: Server, folder: Path) -> Path:
    """Make all samples in `folder`, and return where they are."""
    sandbox = Sandbox(server, folder, folder)
    work = sandbox.work
    write_data(work, *table())
    (work / "search.toml").write_text(HEAD_TOML + SEARCH_TOML)
    (work / "transform.toml").write_text(HEAD_TOML + QUANTIZE_TOML)

    def run(*argv: str, keep: str) -> Path:
        ending = sandbox.run(*argv)
        assert ending.status == 0, sandbox.report()
        return sandbox.project.rename(work / keep)

    trained = run(*TRAIN, keep="trained")
    shutil.copy(trained / "software" / "training_ckpts" / "best.ckpt", work)
    write_weights(work)
    done = run(*TRANSFORM, keep="transformed")
    shutil.move(done / "software" / "transform" / "transformed_ckpt", work / "graph")
    run(*SEARCH, "--storage=sqlite:///study.db", keep="in_database")
    run(*SEARCH, keep="searched")
    return work


def table() -> tuple[np.ndarray, np.ndarray]:
    """Return samples and labels of a tiny data set."""
    samples = np.random.default_rng(0).standard_normal((ROWS, FEATURES), dtype=np.float32)
    return samples, np.arange(ROWS) % CLASSES


def write_weights(work: Path) -> None:
    """Write the weights of best.ckpt as a state dict, as safetensors, and as Hugging Face does."""
    saved = torch.load(work / "best.ckpt", weights_only=True)["state_dict"]
    state = {key.removeprefix("model."): tensor for key, tensor in saved.items()}
    torch.save(state, work / "state.pt")
    save_file(state, work / "state.safetensors")
    (work / "hf").mkdir()
    keys = sorted(state)
    shards = {"model-1.safetensors": keys[::2], "model-2.safetensors": keys[1::2]}
    for name, part in shards.items():
        save_file({key: state[key] for key in part}, work / "hf" / name)
    index = {"metadata": {}, "weight_map": {key: n for n, part in shards.items() for key in part}}
    (work / "hf" / "model.safetensors.index.json").write_text(json.dumps(index))
