"""A full disk is one sentence that names the file, whatever the command; what is there is whole."""

import json
import tomllib

import pytest

from chop.ir import MaseGraph

TRAIN = ("train", "jsc-tiny", "jsc-sim", "--batch-size", "8192", "--max-epochs", "1")
TRANSFORM = """
model = "jsc-tiny"
dataset = "jsc-sim"
[passes]
report_graph.file_name = "graph.txt"
report_node_meta_param.save_path = "meta.txt"
cost.file_name = "cost.json"
save_node_meta_param.save_path = "node_meta.toml"
"""
SEARCH = """
model = "jsc-tiny"
dataset = "jsc-sim"
max_epochs = 1
batch_size = 8192
[search]
train_parent = true
[search.search_space]
name = "graph/quantize/mixed_precision_ptq"
setup.by = "type"
seed.linear.config = { name = ["integer"], data_in_width = [4, 8], data_in_frac_width = ["NA"], \
weight_width = [2, 4, 8], weight_frac_width = ["NA"], bias_width = [8], bias_frac_width = [4] }
[search.strategy]
sw_runner.basic_evaluation.num_samples = 256
hw_runner.average_bitwidth = {}
setup = {sampler = "random", n_trials = 6}
metrics = {accuracy.direction = "maximize", average_bitwidth.direction = "minimize"}
"""
READ = {".json": json.loads, ".toml": tomllib.loads}


def check_disk(disk):
    """Nothing is half there: no empty file, no part, and JSON and TOML that can be read."""
    files = [file for file in disk.rglob("*") if file.is_file()]
    for file in files:
        assert ".part" not in str(file)
        assert file.stat().st_size or file.name.startswith((".run", "events.")), file
        READ.get(file.suffix, len)(file.read_bytes().decode(errors="replace"))
    for folder in {file.parent for file in files if file.name == "graph.json"}:
        MaseGraph.from_checkpoint(folder)


def last_sentence(disk, code, err):
    if code == 0 and not disk.is_mount():
        pytest.skip("no disk can be mounted here, and no file was too large")
    assert code == 1
    assert "Traceback" not in err
    return err.strip().splitlines()[-1]


@pytest.mark.parametrize("kib", [4, 12, pytest.param(20, marks=pytest.mark.slow)])
def test_training_stops_with_a_sentence_that_names_the_file(here, small_disk, kib):
    disk = small_disk(kib)
    code, _, err = here(*TRAIN, "--no-progress", "--project-dir", disk, "--project", "p")
    last = last_sentence(disk, code, err)
    assert last.startswith(f"ch: cannot write {disk}/p/"), err
    assert "free some space" in last
    check_disk(disk)


CASES = [("transform", TRANSFORM, "cannot write ", kib) for kib in (4, 12, 24, 28)]
SLOW = [("transform", TRANSFORM, "cannot write ", kib) for kib in range(32, 48, 4)]
SLOW += [("search", SEARCH, "", kib) for kib in (24, 36, 44, 52, 60, 68, 80)]


@pytest.mark.parametrize(
    ("action", "text", "sentence", "kib"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_others_stop_with_a_sentence_that_names_the_file(
    here, small_disk, tmp_path, action, text, sentence, kib
):
    disk, config = small_disk(kib), tmp_path / "a.toml"
    config.write_text(text)
    options = ("--config", config, "--project-dir", disk, "--project", "p", "--no-progress")
    code, _, err = here(action, *options)
    last = last_sentence(disk, code, err)
    assert f"{sentence}{disk}/p/" in last, err
    assert last.startswith("ch: ")
    check_disk(disk)
