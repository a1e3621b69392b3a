"""Example configurations by name: `--config example:quickstart`."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from chop.actions.examples import EXAMPLES, config_path
from chop.actions.resolve import resolve

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "configs" / "examples").glob("*.toml"))


def test_every_example_of_the_clone_has_a_name():
    assert sorted(EXAMPLES) == [file.stem for file in FILES]
    for name, example in EXAMPLES.items():
        assert config_path(Path(f"example:{name}")) == example.path
        assert example.about
        assert f"--config example:{name}" in example.command
    assert config_path(Path("own.toml")) == Path("own.toml")


@pytest.mark.parametrize(
    "name", ["adaround", "affine", "calibrate", "equalize", "formats", "gptq", "integers"]
)
def test_examples_that_measure_accuracy_load_a_trained_network(name):
    example = EXAMPLES[f"jsc_sim_{name}"]
    assert "--load mase_output/jsc-s/software/training_ckpts/best.ckpt" in example.command
    assert "./ch train jsc-s jsc-sim" in example.path.read_text()


def test_examples_are_listed(here):
    _, out, _ = here("list", "examples", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert rows["quickstart"]["command"] == "ch search --config example:quickstart"
    assert rows["quickstart"]["about"].startswith("The quickest way")


def test_an_unknown_example_is_one_sentence_with_the_nearest(here):
    code, _, said = here("search", "--config", "example:quikstart")
    assert code == 2
    (line,) = said.splitlines()
    assert "--config: unknown example 'quikstart'; did you mean 'quickstart'?" in line


def test_options_are_read_from_an_example():
    config = resolve({"config": "example:jsc_sim_train", "max_epochs": "3"}).config
    assert config.config == ROOT / "configs" / "examples" / "jsc_sim_train.toml"
    assert (config.model, config.dataset, config.max_epochs) == ("jsc-tiny", "jsc-sim", 3)


@pytest.mark.slow
def test_an_example_runs_by_its_name(here, tmp_path):
    out = tmp_path / "out"
    code, _, said = here(
        "train", "--config", "example:jsc_sim_train", "--max-epochs", 1, "--project-dir", out
    )
    assert code == 0, said
    assert (out / "jsc-sim-lab1" / "software" / "training_ckpts" / "best.ckpt").is_file()


@pytest.mark.slow
def test_a_wheel_has_the_examples_and_all_data(tmp_path):
    clone = tmp_path / "clone"  # as a build leaves files behind
    shutil.copytree(ROOT / "chop", clone / "chop", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "configs", clone / "configs")
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, clone)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    run = subprocess.run(
        [*build, "-w", tmp_path / "wheel", clone], capture_output=True, text=True, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    assert {f"chop/example_configs/{file.name}" for file in FILES} <= names
    tracked = subprocess.run(
        ["git", "ls-files", "chop"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout.split()
    assert {name for name in tracked if not name.endswith("README.md")} <= names
    code = "from chop.actions.examples import EXAMPLES; print(EXAMPLES['quickstart'].path)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path / "site"
    )
    assert found.stdout.strip() == str(tmp_path / "site/chop/example_configs/quickstart.toml")


@pytest.mark.slow
def test_scores_of_random_weights_come_with_a_warning(here):
    words = ("--config", "example:jsc_sim_affine", "--project-dir", "out")
    warning = "the model 'jsc-s' has random weights, so its scores are meaningless; train it"
    code, _, said = here("transform", *words, "--project", "random", "--test")
    assert code == 0
    assert said.count(warning) == 1
    saved = ("--load", "out/random/software/transform/transformed_ckpt", "--load-type", "mz")
    code, _, said = here("transform", *words, "--project", "saved", "--test", *saved)
    assert code == 0
    assert warning not in said
    assert warning not in here("transform", *words, "--project", "untested")[2]
