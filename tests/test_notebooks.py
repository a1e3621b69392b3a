"""The notebooks run from top to bottom, and are kept without their output."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, kernel_name="python3", timeout=None).execute()
errors = [o for c in notebook.cells for o in c.get("outputs", []) if o.output_type == "error"]
sys.exit(bool(errors))
"""


def cells(notebook):
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def test_the_labs_and_the_own_model_have_notebooks():
    assert {"own_model", *(f"lab{n}" for n in range(1, 5))} <= {each.stem for each in NOTEBOOKS}


def test_notebooks_of_pages_are_what_the_pages_say():
    command = [sys.executable, str(ROOT / "scripts" / "make_notebook.py"), "--check"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_output(notebook):
    code = [cell for cell in cells(notebook) if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_somewhere(notebook):
    text = "".join(line for cell in cells(notebook) for line in cell["source"])
    targets = [end.partition(")")[0] for end in text.split("](")[1:]]
    dead = [t for t in targets if "://" not in t and not (notebook.parent / t).exists()]
    assert not dead


def tier(notebook):
    """A notebook that simulates a circuit is for those with the tools."""
    return [pytest.mark.slow, *([pytest.mark.rtl] if "hardware" in notebook.stem else [])]


@pytest.mark.parametrize(
    "notebook", [pytest.param(n, marks=tier(n)) for n in NOTEBOOKS], ids=lambda path: path.stem
)
def test_a_notebook_runs_from_top_to_bottom(notebook, tmp_path, package):
    package("nbclient"), package("ipykernel")
    command = [sys.executable, "-c", EXECUTE, str(notebook)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
