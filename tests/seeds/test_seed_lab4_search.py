"""Lab 4: seed 004's two search files, as written, through `ch search`; candidates are trained."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from chop.actions.config import RunConfig
from chop.actions.search.space.base import Parent
from chop.actions.search.space.registry import space_of
from chop.actions.search.spec.parent import candidates_trained
from chop.dataset import MaseDatasetInfo, cifar
from chop.ir.graph.mase_graph import MaseGraph
from chop.models import get_model, get_model_info
from chop.passes import Pipeline
from chop.tools.config_load import convert_str_na_to_none

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
IMAGES = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "dataset" / "image_files.py")))
FILES = Path(__file__).parent / "files"
JSC = (FILES / "seed_004_jsc_three_linear.toml").read_text(encoding="utf-8")
VGG = (FILES / "seed_004_vgg7.toml").read_text(encoding="utf-8")
# the layers of the seed's best.json; ours also lists the batch norms, which can be rounded as well
JSC_NODES = [f"seq_blocks_{i}" for i in range(1, 8)]
VGG_NODES = [
    *(f"feature_layers_{i}" for i in (0, 2, 3, 5, 7, 9, 10, 12, 14, 16, 17, 19)),
    *(f"classifier_{i}" for i in range(4)),
    "last_layer",
]
Search = Callable[..., tuple[str, Path]]


@pytest.fixture
def search(tmp_path: Path, ch: Callable[..., str]) -> Search:
    """`search(text, …)` writes a file and runs it; what was said, and the folder of results."""

    def run(text: str, *flags: object) -> tuple[str, Path]:
        config = tmp_path / "seed.toml"
        config.write_text(text)
        said = ch("search", "--config", config, "--no-progress", *flags)
        (folder,) = tmp_path.glob("out/*/software/search_ckpts")
        return said, folder

    return run


def patched(text: str, **values: Any) -> str:
    """The file with other values for some of its keys."""
    for key, value in values.items():
        text, count = re.subn(rf"^{key} = .*$", f"{key} = {json.dumps(value)}", text, flags=re.M)
        assert count == 1, f"the file has {count} lines for {key}"
    return text


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return list(json.loads((folder / name).read_text()).values())


def check_layout(folder: Path, nodes: list[str], widened: dict[str, str]) -> None:
    """best.json is the seed's, key for key: rows, metrics, a table for every layer."""
    best = rows(folder, "best.json")
    assert best
    for row in best:
        assert list(row) == [
            *("number", "value", "software_metrics", "hardware_metrics"),
            *("scaled_metrics", "sampled_config"),
        ]
        assert row["value"] == list(row["scaled_metrics"].values())
        assert row["software_metrics"].keys() == {"loss", "accuracy"}
        assert row["hardware_metrics"] == {"average_bitwidth": 32, "memory_density": 1.0}
        assert row["scaled_metrics"]["average_bitwidth"] == 6.4
        config = row["sampled_config"]
        assert (config["by"], config["accelerator"]) == ("name", "cpu")
        assert [node for node in config if node in nodes] == nodes
        for node in nodes:
            table = config[node]["config"]
            assert table["name"] == widened.get(node)
            named = {"name", "channel_multiplier"}
            assert table.keys() == (named if table["name"] in ("output_only", "both") else {"name"})


def check_jsc(folder: Path) -> None:
    widened = {"seq_blocks_2": "output_only", "seq_blocks_4": "both", "seq_blocks_6": "input_only"}
    check_layout(folder, JSC_NODES, widened)


def designs(folder: Path) -> list[tuple[int, ...]]:
    """The multipliers of every trial."""
    found = []
    for row in rows(folder, "log.json"):
        assert row["state"] == "COMPLETE"
        tables = [t for t in row["user_attrs_sampled_config"].values() if isinstance(t, dict)]
        of = [table["config"].get("channel_multiplier") for table in tables]
        found.append(tuple(multiplier for multiplier in of if multiplier))
    return found


@pytest.mark.skipif(not SHARED.is_dir(), reason="the seeds are not beside this clone")
def test_the_files_are_those_of_the_seed():
    (document,) = (SHARED / "seeds").glob("004_*.txt")
    text = document.read_text(encoding="utf-8")
    assert re.findall(r"^```\n(# basics\n.*?)^```", text, re.M | re.S) == [JSC, VGG]


@pytest.mark.parametrize(("text", "epochs", "rate"), [(JSC, 5, 1e-2), (VGG, 10, 1e-1)])
def test_both_files_train_their_candidates_as_their_own_options_say(text, epochs, rate, caplog):
    file = tomllib.loads(text)
    options = {k: v for k, v in file.items() if k in ("max_epochs", "learning_rate", "search")}
    caplog.set_level("INFO", logger="chop")
    runners = candidates_trained(RunConfig(**options))["strategy"]["sw_runner"]
    assert list(runners) == ["basic_train", "basic_evaluation"]
    assert runners["basic_train"]["max_epochs"] == epochs
    assert runners["basic_train"]["learning_rate"] == rate
    assert f"trained for max_epochs = {epochs} at learning_rate = {rate:g}" in caplog.text


@pytest.mark.slow
def test_the_file_for_jets_runs_as_written(search):
    said, folder = search(JSC)
    assert "each is trained for max_epochs = 5 at learning_rate = 0.01" in said
    assert "2 nodes, 2 keys with a choice, 36 designs" in said
    assert "Layers with new weights" not in said, "forty times what a pass has to report"
    assert len(designs(folder)) == 40
    check_jsc(folder)
    best = rows(folder, "best.json")[0]
    assert best["software_metrics"]["accuracy"] > 0.4, "an untrained network has 0.2 to 0.33"
    for name in ("log.json", "study.pkl", "report.html"):
        assert (folder / name).exists()


@pytest.mark.slow
def test_brute_force_trains_every_width_once_and_ends(search):
    _, folder = search(patched(JSC, sampler="brute"), "--max-epochs", 1)
    tried = designs(folder)
    multipliers = (1, 2, 4, 6, 8, 10)
    assert sorted(tried) == [(a, b) for a in multipliers for b in multipliers]
    check_jsc(folder)


@pytest.mark.slow
def test_the_command_that_builds_the_best_can_be_pasted(shell_process, tmp_path):
    (tmp_path / "seed.toml").write_text(patched(JSC, n_trials=2))
    flags = "--no-progress --accelerator cpu --max-epochs 1"
    said = shell_process(f"./ch search --config seed.toml {flags}").stderr
    command = said.partition("Build the best with: ch ")[2].partition("\n")[0]
    shell_process(f"./ch {command}")
    (folder,) = tmp_path.glob("out/*/software/search_ckpts")
    number = rows(folder, "best.json")[0]["number"]
    assert (folder / f"trial_{number}").is_dir()


def test_the_space_of_the_file_for_vgg7_is_that_of_the_seed():
    image = MaseDatasetInfo(
        name="cifar10", image_classification=True, num_classes=10, image_size=(3, 32, 32)
    )
    model = get_model("vgg7", task="cls", dataset_info=image)
    about = {"dummy_in": {"x": torch.randn(2, 3, 32, 32)}, "add_value": False}
    graph, _ = Pipeline(["init_metadata", ("add_common_metadata", about)])(MaseGraph(model))
    table = convert_str_na_to_none(tomllib.loads(VGG)["search"])["search_space"]
    space = space_of(table, Parent(graph, get_model_info("vgg7"), "cls", None))
    assert space.choices.size == 2 * 4**4
    config = space.config_of(space.choices.nth(0))
    assert [node for node in config if node in VGG_NODES] == VGG_NODES


def photographs(folder: Path, size: int) -> Path:
    """Real images where they are at hand, noise otherwise, in the official archive."""
    real = SHARED / "data" / "cifar10-small.npz"
    if real.exists():
        with np.load(real, allow_pickle=False) as file:
            arrays = [file[f"{kind}_{split}"] for split in ("train", "test") for kind in "xy"]
    else:
        arrays = IMAGES.some_images((32, 32, 3), 10)
    contents = IMAGES.cifar_files([array[:size] for array in arrays])
    return IMAGES.write_archive(folder / cifar.CIFAR10.archive, contents)


@pytest.mark.slow
def test_the_file_for_vgg7_runs_on_images(search, tmp_path):
    """As written but for the number of trials; a step of training each, on twenty images."""
    few = ("--max-epochs", 1, "--data-path", photographs(tmp_path, 20), "--cpu", 0)
    said, folder = search(patched(VGG, n_trials=2), *few)
    assert "5 nodes, 5 keys with a choice, 512 designs" in said
    assert "each is trained for max_epochs = 1 at learning_rate = 0.1" in said
    assert len(set(designs(folder))) == 2
    widened = {f"feature_layers_{i}": "both" for i in (3, 7, 10, 14)}
    widened |= {"feature_layers_0": "output_only", "feature_layers_17": "input_only"}
    check_layout(folder, VGG_NODES, widened)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "brute"])
def test_our_file_for_vgg7_runs_on_images(search, tmp_path, sampler):
    example = (ROOT / "configs" / "examples" / "vgg7_cifar10_search.toml").read_text()
    text = patched(example, n_trials=3, max_epochs=1, sampler=sampler)
    said, folder = search(text, "--data-path", photographs(tmp_path, 20), "--cpu", 0)
    assert "5 nodes, 5 keys with a choice, 243 designs" in said
    assert len(set(designs(folder))) == 3
    macs = [row["user_attrs_hardware_metrics"]["macs"] for row in rows(folder, "log.json")]
    assert len(set(macs)) == 3
