"""Draw the waves of docs/labs/lab4_hardware.md anew: run its code, and keep the pictures.

python scripts/make_waves.py; needs the extra `hardware`.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "labs" / "lab4_hardware.md"
IMAGES = ROOT / "docs" / "images"
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def main() -> None:
    """Run the page in a temporary directory, and copy the pictures that it draws."""
    code = "\n".join(CODE.findall(PAGE.read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
        for picture in Path(folder, "mase_output").glob("*.svg"):
            shutil.copy(picture, IMAGES / picture.name)


if __name__ == "__main__":
    main()
