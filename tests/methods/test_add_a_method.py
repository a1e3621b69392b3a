"""The method of docs/add_a_method.md, as a folder of its own and as one file."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import chop

PAGE = (Path(__file__).parents[2] / "docs" / "add_a_method.md").read_text(encoding="utf-8")
LAYERS, OPS, RULES, USE = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
(SEARCH,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

FILES_AND_CIRCUITS = """
import onnxruntime

session = onnxruntime.InferenceSession("mase_output/distances.onnx")
results, *_ = session.run(None, {session.get_inputs()[0].name: x.numpy()})
assert torch.equal(torch.from_numpy(results), mg.model(x))
assert circuit.latency > 0
assert cost.total.lut > 0
"""


def test_the_page_lists_the_modules_that_rooms_ask_for():
    listed = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    asked = r"room=\"(\w+)\"|(?:names|modules)_of_methods\(\"(\w+)\"\)"
    files = Path(chop.__file__).parent.rglob("*.py")
    rooms = {a or b for file in files for a, b in re.findall(asked, file.read_text("utf-8"))}
    assert listed == rooms | {"ops"}  # which rules import


def python(*arguments, **options):
    command = [sys.executable, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, **options)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_folder_is_a_method_from_the_layer_to_files_and_circuits(tmp_path, package):
    """Nothing imports its modules: the registries do."""
    for name in ("onnx", "onnxruntime", "alkaid"):
        package(name)
    folder = tmp_path / "my_methods" / "distances"
    folder.mkdir(parents=True)
    for part in (folder.parent, folder):
        (part / "__init__.py").write_text("")
    (folder / "layers.py").write_text(LAYERS)
    (folder / "ops.py").write_text(OPS)
    (folder / "rules.py").write_text(f"from my_methods.distances.ops import DistanceCodes\n{RULES}")
    plugged = "import torch\nfrom chop import extensions\nextensions.add_methods('my_methods')\n"
    (tmp_path / "use.py").write_text(plugged + USE + FILES_AND_CIRCUITS)
    python("-W", "error", "use.py", cwd=tmp_path)


@pytest.mark.slow
def test_a_search_finds_designs_of_the_method_and_retrains_them(tmp_path, package):
    package("alkaid")
    (tmp_path / "distances.py").write_text(LAYERS + OPS + RULES)
    search = SEARCH.replace('"integer", ', "").replace("n_trials = 20", "n_trials = 6")
    (tmp_path / "distances.toml").write_text(search)
    words = ["search", "--config", "distances.toml", "--import", "distances.py"]
    python("-m", "chop", *words, "--project-dir", "out", cwd=tmp_path)
    results = tmp_path / "out" / "distances" / "software" / "search_ckpts"
    assert '"distances"' in (results / "search.json").read_text(encoding="utf-8")
    assert (results / "report.html").is_file()
