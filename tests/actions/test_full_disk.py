"""A full disk is one sentence that names the file, whatever the command; what is there is whole."""

import json
import tomllib

import pytest

from chop.ir import MaseGraph

TRAIN = ("train", "jsc-tiny", "jsc-sim", "--batch-size", "8192", "--max-epochs", "1")
TRANSFORM = """
model = "jsc-tiny"
dataset = "jsc-sim"
[passes.report_graph]
file_name = "graph.txt"
[passes.report_node_meta_param]
save_path = "meta.txt"
[passes.cost]
file_name = "cost.json"
[passes.save_node_meta_param]
save_path = "node_meta.toml"
"""
READ = {".json": json.loads, ".toml": tomllib.loads}
SIZES = [4, 12, 24, 28, *(pytest.param(kib, marks=pytest.mark.slow) for kib in range(32, 48, 4))]


def check_disk(disk):
    """Nothing is half there: no empty file, no part, and JSON and TOML that can be read."""
    files = [file for file in disk.rglob("*") if file.is_file()]
    for file in files:
        assert ".part" not in str(file)
        assert file.stat().st_size or file.name.startswith((".run", "events.")), file
        READ.get(file.suffix, len)(file.read_bytes().decode(errors="replace"))
    for folder in {file.parent for file in files if file.name == "graph.json"}:
        MaseGraph.from_checkpoint(folder)


@pytest.mark.parametrize("kib", [4, 12, pytest.param(20, marks=pytest.mark.slow)])
def test_training_stops_with_a_sentence_that_names_the_file(here, small_disk, kib):
    disk = small_disk(kib)
    code, _, err = here(*TRAIN, "--no-progress", "--project-dir", disk, "--project", "p")
    assert code == 1
    last = err.strip().splitlines()[-1]
    assert last.startswith(f"ch: cannot write {disk}/p/"), err
    assert "free some space" in last
    assert "Traceback" not in err
    check_disk(disk)


@pytest.mark.parametrize("kib", SIZES)
def test_a_transform_stops_with_a_sentence_that_names_the_file(here, small_disk, tmp_path, kib):
    disk, config = small_disk(kib), tmp_path / "t.toml"
    config.write_text(TRANSFORM)
    options = ("--config", config, "--project-dir", disk, "--project", "p")
    code, _, err = here("transform", *options)
    assert code == 1
    last = err.strip().splitlines()[-1]
    assert f"cannot write {disk}/p/" in last, err
    assert last.startswith("ch: ")
    assert "Traceback" not in err
    check_disk(disk)
