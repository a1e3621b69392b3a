"""Make the pictures of the README in docs/images: the report of the quickstart, and a graph.

python scripts/make_images.py [FOLDER]; needs playwright, and Chromium on the PATH.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from chop.ir import MaseGraph
from chop.passes import run_pass

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
CONFIG = Path("configs", "examples", "quickstart.toml")
SIZE = {"width": 1200, "height": 940}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Tagger(nn.Module):
    """The network that the README reads as a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.seq_blocks = nn.Sequential(nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.seq_blocks(x)
        return out


def draw_graph(file: Path) -> Path:
    """Draw the README's network after its linear layer was quantised."""
    integer = {"name": "integer"}
    integer |= {f"{o}_width": 8 for o in ("data_in", "weight", "bias")}
    integer |= {f"{o}_frac_width": 4 for o in ("data_in", "weight", "bias")}
    graph = MaseGraph(Tagger())
    for name, options in (
        ("init_metadata", {}),
        ("add_common_metadata", {"dummy_in": {"x": torch.randn(8, 16)}}),
        ("quantize", {"by": "type", "linear": {"config": integer}}),
    ):
        graph, _ = run_pass(name, graph, options)
    return graph.draw(file)


def search(folder: Path) -> Path:
    """Run the quickstart in a folder, and return its report."""
    (folder / CONFIG).parent.mkdir(parents=True)
    shutil.copy(ROOT / CONFIG, folder / CONFIG)  # so that the report names no path of this machine
    words = ["search", "--config", str(CONFIG), "--project-dir", "mase_output"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "chop", *words]
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=sys.stderr)
    [page] = folder.glob("mase_output/*/software/search_ckpts/report.html")
    return page


def photograph(page: Path, file: Path) -> None:
    """Save the top of a page as a picture: the Pareto front and the chosen design."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page(viewport=SIZE, color_scheme="light")
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready]", state="attached")
        tab.wait_for_selector("#scatter svg")
        tab.screenshot(path=file)
        browser.close()


def main() -> None:
    images = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    images.mkdir(parents=True, exist_ok=True)
    draw_graph(images / "graph.svg")
    with tempfile.TemporaryDirectory() as folder:
        photograph(search(Path(folder)), images / "report.png")


if __name__ == "__main__":
    main()
