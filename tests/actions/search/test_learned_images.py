"""The example of learned bits for images, small: residual sums, pooling and depthwise layers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from chop.checkpoints import load_graph
from chop.passes.graph.analysis.cost import cost_of

EXAMPLE = Path(__file__).parents[3] / "configs" / "examples" / "cifar10_learned.toml"
SMALL = {  # by the first words of a line
    "dataset": '"npz"',
    "batch_size": "16",
    "max_epochs": "3",
    "learning_rate = 5e-4": "1e-3",
    "num_samples": "32",
    "price": "[1e-11, 1e-9]",
    "steps": "20",
    "width_rate": "0.1",
    "checkpoints": "5",
    "max_designs": "3",
}


def small_example(model):
    """Return the text of the example for another network, with few steps."""
    changes, used, lines = {**SMALL, "model": f'"{model}"'}, set(), []
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        found = next((key for key in changes if line.startswith(key)), None)
        used.add(found)
        lines.append(f"{line.partition('=')[0]}= {changes[found]}" if found else line)
    assert used - {None} == {*changes}
    return "\n".join(lines)


@pytest.fixture
def pictures(tmp_path):
    """Noise whose class is the side that is brighter."""
    random = np.random.default_rng(0)
    y = np.arange(160) % 2
    x = random.integers(0, 128, (160, 3, 16, 16))
    x[y == 0, :, :, :8] += 100
    x[y == 1, :, :, 8:] += 100
    np.savez(tmp_path / "pictures.npz", x=x.astype(np.uint8), y=y)
    return tmp_path / "pictures.npz"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["vgg7", "resnet18", "mobilenetv2"])
def test_convolutional_networks_become_cheaper_and_are_integer_graphs(
    ch, tmp_path, pictures, model
):
    file = tmp_path / EXAMPLE.name
    file.write_text(small_example(model), encoding="utf-8")
    ch("search", "--config", file, "--data-path", pictures, "--accelerator", "cpu")
    folder = tmp_path / "out" / "cifar10_learned" / "software" / "search_ckpts"
    record = json.loads((folder / "search.json").read_text())
    assert record["trials"]
    x = torch.tensor(np.load(pictures)["x"][:8]) / 255
    for number, trial in enumerate(record["trials"]):
        graph = load_graph(folder / "search.designs" / f"design_{number}")
        total = cost_of(graph, per_sample=True)["total"]
        metrics = trial["hardware_metrics"]
        assert total["bit_ops"] == metrics["bitops"] == metrics["learned_cost"]
        with torch.no_grad():
            expected = graph.model.eval()(x)
        assert torch.equal(graph.to_integers()(x), expected)
        assert total["bit_ops_multiply"] < 0.9 * 8 * 8 * total["macs"]
