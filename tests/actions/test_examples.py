"""Every example configuration runs, by the command that stands at its top."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from chop.dataset.jsc import FILE

ROOT = Path(__file__).parents[2]
LAYOUTS = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "dataset" / "layouts.py")))
# CIFAR-10 is a download: tests/seeds/test_seed_lab4_search.py and
# tests/actions/search/test_learned_images.py run these files on a few images
DOWNLOADED = {"vgg7_cifar10_search.toml", "cifar10_learned.toml"}
LARGE = "jsc_gpu_search.toml"  # for a GPU, and with data that have to be made: see below
# trained for minutes, or on a GPU: see below
LEARNED = {"jsc_learned.toml": "steps = 12_000", "jsc_learned_gpu.toml": "steps = 16_000"}
FILES = [
    file
    for file in sorted((ROOT / "configs" / "examples").glob("*.toml"))
    if file.name not in {*DOWNLOADED, LARGE, *LEARNED}
]
ORDER = ("train", "test", "transform", "search")  # what one trains, others load


def command(file: Path) -> list[str]:
    """The words after `./ch` in the comment that says how the file is used."""
    found = re.search(r"^# .*\./ch (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{file.name} does not say how it is run"
    return found[1].split()


@pytest.mark.slow
def test_every_example_runs_as_it_says(ch_process, tmp_path, environment):
    (tmp_path / "cache" / "jsc").mkdir(parents=True)
    LAYOUTS.write_cernbox(tmp_path / "cache" / "jsc" / FILE, LAYOUTS.jets())
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "mase_output").symlink_to(tmp_path / "out")
    texts = [file.read_text(encoding="utf-8") for file in FILES]
    first = {
        words for text in texts for words in re.findall(r"first: \./ch (train .*)$", text, re.M)
    }
    for words in first:
        ch_process(*words.split(), "--max-epochs", "1")
    for file in sorted(FILES, key=lambda file: ORDER.index(command(file)[0])):
        words = command(file)
        assert f"configs/examples/{file.name}" in words
        short = ("--max-epochs", "1") if words[0] == "train" else ()
        done = ch_process(*words, *short)
        assert "is completed" in done.stderr, file.name


@pytest.mark.slow
def test_the_search_for_a_gpu_runs_small_on_a_cpu(ch_process, tmp_path, environment):
    jets, file = tmp_path / "jets.npz", tmp_path / LARGE
    made = [sys.executable, ROOT / "benchmarks" / "many_jets.py", jets, "--rows", "512"]
    subprocess.run(made, check=True, env=environment, cwd=ROOT)
    text = (ROOT / "configs" / "examples" / LARGE).read_text(encoding="utf-8")
    for large, small in (
        ("population = 250", "population = 4"),
        ("n_trials = 1000", "n_trials = 8"),
        ("max_epochs = 15", "max_epochs = 1"),
    ):
        assert large in text
        text = text.replace(large, small)
    file.write_text(text, encoding="utf-8")
    assert command(ROOT / "configs" / "examples" / LARGE)[-2:] == ["--data-path", "jets.npz"]
    done = ch_process(
        "search", "--config", str(file), "--data-path", str(jets), "--accelerator", "cpu"
    )
    assert "is completed" in done.stderr
    assert "one by one" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNED)
def test_fronts_run_with_few_steps_on_a_cpu(ch_process, tmp_path, environment, name):
    text = (ROOT / "configs" / "examples" / name).read_text(encoding="utf-8")
    assert f"configs/examples/{name}" in command(ROOT / "configs" / "examples" / name)
    assert LEARNED[name] in text
    text = re.sub(r"^(retrain|checkpoints|members) = \d+", r"\1 = 3", text, flags=re.MULTILINE)
    (tmp_path / name).write_text(text.replace(LEARNED[name], "steps = 30"), encoding="utf-8")
    done = ch_process("search", "--config", str(tmp_path / name), "--accelerator", "cpu")
    assert "is completed" in done.stderr
