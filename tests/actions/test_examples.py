"""Every example configuration runs, by the command that stands at its top."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from chop.dataset.jsc import FILE

ROOT = Path(__file__).parents[2]
LAYOUTS = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "dataset" / "layouts.py")))
FILES = sorted((ROOT / "configs" / "examples").glob("*.toml"))
ORDER = ("train", "test", "transform", "search")  # what one trains, others load


def command(file: Path) -> list[str]:
    """The words after `./ch` in the comment that says how the file is used."""
    found = re.search(r"^# .*\./ch (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{file.name} does not say how it is run"
    return found[1].split()


@pytest.mark.slow
def test_every_example_runs_as_it_says(ch, tmp_path, environment):
    (tmp_path / "cache" / "jsc").mkdir(parents=True)
    LAYOUTS.write_cernbox(tmp_path / "cache" / "jsc" / FILE, LAYOUTS.jets())
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "mase_output").symlink_to(tmp_path / "out")
    for file in sorted(FILES, key=lambda file: ORDER.index(command(file)[0])):
        words = command(file)
        assert f"configs/examples/{file.name}" in words
        short = ("--max-epochs", "1") if words[0] == "train" else ()
        done = ch(*words, *short)
        assert "is completed" in done.stderr, file.name
