"""Packages import their names when they are used, and not before."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import chop
from chop import lazy

ROOT = Path(chop.__file__).parent
MOST_OF_A_SEARCH = 350  # modules that the example quickstart may load
LAZY = [
    ".".join(("chop", *file.parent.relative_to(ROOT).parts))
    for file in sorted(ROOT.rglob("__init__.py"))
    if "= lazy.importer(" in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("package", LAZY)
def test_all_names_of_a_package_can_be_imported(package):
    there = importlib.import_module(package)
    assert there.__all__
    for name in there.__all__:
        assert getattr(there, name) is not None


@pytest.mark.parametrize("package", LAZY)
def test_no_name_is_that_of_a_module_which_would_hide_it(package):
    there = importlib.import_module(package)
    modules = {module.name for module in pkgutil.iter_modules(there.__path__)}
    hidden = {name for name, home in lazy.homes_of(package).items() if home != package} & modules
    assert not hidden


def test_modules_of_a_package_are_attributes_and_other_names_are_refused():
    passes = importlib.import_module("chop.passes.graph.transforms")
    assert passes.quantize.quantize_transform_pass is passes.quantize_transform_pass
    with pytest.raises(AttributeError, match=r"chop\.passes\.graph\.transforms' has no attribute"):
        passes.quantise_transform_pass  # noqa: B018


def loaded(code):
    """Return the modules of chop that a new process has loaded."""
    names = "import sys; print(*(m for m in sys.modules if m.partition('.')[0] == 'chop'))"
    command = [sys.executable, "-c", f"{code}\n{names}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(
    ("code", "most"),
    [
        ("import chop.passes", 70),
        ("from chop.passes import quantize_transform_pass", 205),
        ("from chop.passes.base import PASSES; PASSES['quantize']", 205),
    ],
)
def test_what_is_not_used_is_not_loaded(code, most):
    modules = loaded(code)
    assert len(modules) < most
    assert not [
        name for name in modules if name.startswith(("chop.hardware.unrolled", "chop.onnx"))
    ]


def test_methods_are_not_loaded_for_what_is_there_without_them():
    code = """
import chop.passes
from chop.hardware.unrolled.registry import UNROLLED
from chop.integers import ReluCodes
from chop.models import MODELS
from chop.passes.graph.analysis.cost import rule_of
from chop.passes.graph.interface.export_onnx.registry import writer_of
found = [MODELS["jsc-toy"], *map(rule_of, ("linear", "relu")), *map(writer_of, ("linear", "tanh"))]
assert all(found) and UNROLLED[ReluCodes]"""
    method = "chop.methods.edge_tables"
    names = {name for name in loaded(code) if name.startswith(method)}
    assert names <= {method, f"{method}.rows"}


def test_a_search_loads_what_it_uses(tmp_path):
    quick = ["--n-trials", "2", "--max-epochs", "1", "--no-progress"]
    config = str(ROOT.parent / "configs" / "examples" / "quickstart.toml")
    words = ["search", "--config", config, *quick, "--project-dir", str(tmp_path)]
    modules = loaded(f"from chop.cli import ChopCLI; ChopCLI({words}).run()")
    assert (tmp_path / "quickstart/software/search_ckpts/report.html").exists()
    assert len(modules) <= MOST_OF_A_SEARCH
    unused = ("dataset.mnist", "hardware.unrolled", "layers", "models.vision.vgg", "onnx.builder")
    starts = tuple(f"chop.{name}" for name in unused)
    assert not [name for name in modules if name.startswith(starts)]
