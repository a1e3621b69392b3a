"""The pictures of the README: made by a script, small, and free of paths of a machine."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
MAX_BYTES = 300_000


PICTURE = re.compile(r"images/[\w.]+")


def test_the_readme_shows_a_report_and_a_graph_that_are_there():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"docs/images/[\w.]+", text))
    assert shown == {"docs/images/report.png", "docs/images/graph.svg"}
    assert all((ROOT / name).is_file() for name in shown)


def test_every_picture_is_shown_on_some_page():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {name for page in pages for name in PICTURE.findall(page.read_text(encoding="utf-8"))}
    assert {f"images/{file.name}" for file in IMAGES.iterdir()} == shown


def test_the_readme_says_first_what_one_gets_and_how_long_it_takes():
    first = (ROOT / "README.md").read_text(encoding="utf-8").split("![")[0]
    assert "Pareto front" in first
    assert re.search(r"takes .* seconds", first)
    assert re.search(r"`make test` takes .* minutes", first)


@pytest.mark.parametrize("name", ["report.png", "graph.svg"])
def test_pictures_are_small(name):
    assert 1_000 < (IMAGES / name).stat().st_size < MAX_BYTES


def test_the_graph_is_a_drawing_with_shapes_and_formats():
    drawing = ElementTree.parse(IMAGES / "graph.svg").getroot()
    texts = " ".join(drawing.itertext())
    assert "linear → 8×5" in texts
    assert "integer(8, 4)" in texts


@pytest.mark.slow
@pytest.mark.browser
def test_the_script_makes_both(tmp_path, package):
    package("playwright")
    image = package("PIL.Image")
    script = ROOT / "scripts" / "make_images.py"
    subprocess.run([sys.executable, script, tmp_path], check=True, timeout=600)
    assert (tmp_path / "graph.svg").read_bytes() == (IMAGES / "graph.svg").read_bytes()
    with image.open(tmp_path / "report.png") as made, image.open(IMAGES / "report.png") as kept:
        assert made.size == kept.size
        assert len(made.convert("RGB").getcolors(1 << 24)) > 100
    assert (tmp_path / "report.png").stat().st_size < MAX_BYTES
