"""Write docs/own_model.md as the notebook examples/notebooks/own_model.ipynb; --check compares."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "own_model.md"
NOTEBOOK = ROOT / "examples" / "notebooks" / "own_model.ipynb"
CODE = re.compile(r"^```python\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def cell(number: int, text: str, code: bool) -> dict[str, object]:
    """A cell without output."""
    described: dict[str, object] = {
        "cell_type": "code" if code else "markdown",
        "id": f"cell-{number}",
        "metadata": {},
        "source": text.splitlines(keepends=True),
    }
    return described | ({"execution_count": None, "outputs": []} if code else {})


def notebook(page: str) -> str:
    """Return a page as a notebook: Python as code, the rest as text, with links from its folder."""
    page = re.sub(r"\s\(\[as a notebook\]\([^)]*\)\)", "", page)
    parts = [(part.strip("\n"), place % 2 == 1) for place, part in enumerate(CODE.split(page))]
    texts = [(re.sub(r"\]\((\w+\.md)", r"](../../docs/\1", t) if not c else t, c) for t, c in parts]
    cells = [cell(n, text, code) for n, (text, code) in enumerate(texts, 1) if text]
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    text = notebook(PAGE.read_text(encoding="utf-8"))
    if "--check" not in sys.argv:
        NOTEBOOK.write_text(text, encoding="utf-8")
        return 0
    if NOTEBOOK.read_text(encoding="utf-8") == text:
        return 0
    print(f"{NOTEBOOK.name} is not what {PAGE.name} says; run python scripts/make_notebook.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
