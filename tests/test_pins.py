"""What the project asks for is pinned."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_requirement_of_the_core_and_of_each_extra_has_one_pinned_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(name for extra in extras for name in extra)]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [canonical(line.partition("==")[0]) for line in lines if "==" in line]
    assert len(pins) == len(set(pins))
    names = {canonical(re.match(r"[\w.-]+", requirement).group()) for requirement in wanted}
    assert names <= set(pins)
    # an extra of a requirement brings packages that nobody pinned
    assert not [requirement for requirement in wanted if "[" in requirement]
