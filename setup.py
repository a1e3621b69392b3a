"""Copies the example configurations into the package of a wheel; the rest is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

EXAMPLES = Path("configs/examples")


class WithExamples(build_py):
    """Builds the package with `chop/example_configs`, which `--config example:NAME` reads."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # a clone has the files themselves
            return
        folder = Path(self.build_lib) / "chop" / "example_configs"
        folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(EXAMPLES.glob("*.toml")):
            shutil.copy2(file, folder / file.name)


setup(cmdclass={"build_py": WithExamples})
