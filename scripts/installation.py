"""What is installed in the Python that runs this. As a script: prove that MASE can run in it.

    python -I scripts/installation.py [EXTRA]...

imports the core dependencies and prints, as JSON, where the packages lie and which are there.
"""

import importlib
import json
import os
import re
import sys
import sysconfig
from importlib import metadata
from pathlib import Path


def distribution(name: str, path: list[str] | None = None) -> metadata.Distribution | None:
    """The installed distribution of that name, if there is one."""
    return next(iter(metadata.distributions(name=name, path=path or sys.path)), None)


def needs(found: metadata.Distribution, extra: str = "") -> list[str]:
    """Names of what a distribution needs: for itself, or for that extra of it."""
    wanted = f'extra == "{extra}"' if extra else ""
    split = [requirement.partition(";") for requirement in found.requires or []]
    return [
        re.match(r"[\w.-]+", name).group()
        for name, _, marker in split
        if marker.strip().replace("'", '"') == wanted
    ]


def lacks(extras: list[str], path: list[str] | None = None) -> list[str]:
    """Names of what MASE needs here, with these extras, and does not have."""
    found = distribution("mase", path)
    if found is None:
        return ["mase"]
    wanted = [name for extra in ["", *extras] for name in needs(found, extra)]
    return [name for name in wanted if distribution(name) is None]


def prove(extras: list[str]) -> dict:
    """Import every core dependency, or stop with what is wrong; tell which packages are there."""
    site = Path(sysconfig.get_path("purelib"))
    # pip writes RECORD last of all
    half = [info.name for info in site.glob("*.dist-info") if not (info / "RECORD").exists()]
    if missing := lacks(extras) + half:
        sys.exit(f"not installed, or only half: {', '.join(missing)}")
    for name in needs(distribution("mase")):
        # each of our dependencies is imported by its own name
        importlib.import_module(name.replace("-", "_"))
    # A package may be changed by hand, and caches come and go; only a loss counts.
    passing = ("__pycache__", ".dist-info")
    packages = [name for name in sorted(os.listdir(site)) if not name.endswith(passing)]
    return {"site": str(site), "packages": packages}


if __name__ == "__main__":
    print(json.dumps(prove(sys.argv[1:])))
