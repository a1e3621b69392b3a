"""Write pages of docs as notebooks in examples/notebooks; --check compares."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "docs" / "own_model.md", ROOT / "docs" / "labs" / "lab4_hardware.md")
NOTEBOOKS = ROOT / "examples" / "notebooks"
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
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


def notebook(page: Path) -> str:
    """Return a page as a notebook: Python as code, the rest as text, with links from its folder."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"\s\(\[as a notebook\]\([^)]*\)\)", "", text)
    text = re.sub(r"\*The same as a notebook: \[[^)]*\)\. ", "*", text)
    parts = [(part.strip("\n"), place % 2 == 1) for place, part in enumerate(CODE.split(text))]

    def from_here(link: re.Match[str]) -> str:
        return "](" + os.path.relpath(page.parent / link[1], NOTEBOOKS)

    texts = [(part if code else LINK.sub(from_here, part), code) for part, code in parts]
    cells = [cell(n, text, code) for n, (text, code) in enumerate(texts, 1) if text]
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    stale = False
    for page in PAGES:
        file, text = NOTEBOOKS / f"{page.stem}.ipynb", notebook(page)
        if "--check" not in sys.argv:
            file.write_text(text, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            print(f"{file.name} is not what {page.name} says; run python scripts/make_notebook.py")
            stale = True
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
