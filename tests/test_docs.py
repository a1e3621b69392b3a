"""What the documentation shows is run; what it lists is up to date."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITH_CODE = [page for page in PAGES if PYTHON.search(page.read_text(encoding="utf-8"))]


def code_of(page):
    """All Python of a page, in its order."""
    return "\n".join(PYTHON.findall(page.read_text(encoding="utf-8")))


def runs(*arguments, **options):
    """Python succeeds with these arguments."""
    command = [sys.executable, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, **options)
    assert run.returncode == 0, run.stdout + run.stderr


def kept_by_git(folder):
    """The files in a folder that git would list as new, if it were the root of a clone."""
    (folder / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    subprocess.run(["git", "init", "-q", folder], check=True)
    listed = ["git", "-C", folder, "ls-files", "--others", "--exclude-standard"]
    run = subprocess.run(listed, capture_output=True, text=True, check=True)
    return [name for name in run.stdout.splitlines() if name != ".gitignore"]


def test_the_python_of_every_page_can_be_parsed():
    for page in WITH_CODE:
        compile(code_of(page), page, "exec")


def test_the_python_of_the_readme_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code_of(ROOT / "README.md"), "README.md", "exec"), {"__name__": "readme"})
    assert "LinearInteger" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path):
    (tmp_path / "page.py").write_text(code_of(page), encoding="utf-8")
    runs("-W", "error", "page.py", cwd=tmp_path)
    (tmp_path / "page.py").unlink()
    assert not kept_by_git(tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_documentation_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    dead = [link for link in links if not (page.parent / link).exists()]
    assert not dead
    assert text.strip(), "an empty page"


def test_the_readme_opens_with_the_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    quickstart = "./ch search --config configs/examples/quickstart.toml"
    assert text.startswith(f"# MASE\n\n```bash\n{quickstart}\nmake test\n```\n")


@pytest.mark.slow
def test_the_reference_is_what_the_registries_say():
    runs(ROOT / "scripts" / "make_reference.py", "--check")


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SMALL = {  # so that nobody waits for minutes
    "lab1_sweep.py": ["--epochs", "1", "--seeds", "1"],
    "lab2_quantize.py": ["--epochs", "1"],
    "lab3_search.py": ["--epochs", "1", "--seeds", "1", "--trials", "5"],
    "lab4_nas.py": ["--epochs", "1", "--seeds", "1", "--trials", "4"],
    "lab_logicnets.py": ["--epochs", "1", "--hidden", "16", "8"],
}


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_in_an_empty_folder(example, tmp_path):
    runs("-W", "error", example, *SMALL.get(example.name, []), cwd=tmp_path)
    assert not kept_by_git(tmp_path)


def test_every_example_can_be_parsed():
    assert EXAMPLES
    for example in EXAMPLES:
        compile(example.read_text(encoding="utf-8"), example, "exec")
