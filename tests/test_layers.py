"""Who may import whom: downwards only."""

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import chop
from chop.numerics import FORMATS, NumberFormat
from chop.numerics.affine_rounding import ScaledAffine
from chop.numerics.blocks import BlockFormat
from chop.numerics.mixed_rounding import MixedRounding

# room: the rooms that it may import
BELOW = """
extensions:
registry: extensions
dotted: registry
extras:
lazy: extensions
redaction:
log: redaction
files:
memory:
private_cache: files
caches: files
libraries: files private_cache
version:
processes:
charts:
progress:
plain_tensors:
project_networks: files ir
checkpoints: files plain_tensors project_networks ir
user_code: processes
options: registry
devices: registry
testing:
numerics: registry libraries
integers: registry lazy numerics
ir: registry extensions files numerics integers
hardware: registry extensions lazy caches extras options log files memory charts private_cache
    processes numerics integers
onnx: registry lazy extras options log files memory charts libraries processes version numerics
    integers ir
passes: registry lazy caches extensions options log files memory dotted charts progress version
    numerics integers ir hardware onnx
dataset: registry caches extras log files memory options plain_tensors
models: registry extensions extras log files options dataset checkpoints onnx
training: registry lazy options files memory processes charts checkpoints plain_tensors devices
    version dataset numerics ir
nn: extensions lazy numerics ir passes
pipelines: registry ir passes
tools: registry extras lazy log dotted devices files checkpoints dataset models passes
methods: registry lazy extensions extras options log dotted files libraries devices checkpoints
    version numerics integers ir hardware onnx passes dataset models training actions
catalogue: options numerics ir passes dataset models actions
"""
MAY_IMPORT = {
    room: set(rooms.split())
    for room, rooms in re.findall(r"^(\w+):(.*(?:\n +.*)*)", BELOW, re.MULTILINE)
}
MAY_IMPORT["actions"] = set(MAY_IMPORT) - {"catalogue", "methods"}
MAY_IMPORT["cli"] = set(MAY_IMPORT) - {"methods"}
MAY_IMPORT["aliases"] = set(MAY_IMPORT)  # where former paths lead; the root alone imports it
MAY_IMPORT["__init__"] = {"aliases", "extensions", "version", "ir", "models", "nn", "passes"}
MAY_IMPORT["__init__"] |= {"methods"}
MAY_IMPORT["__main__"] = {"cli", "processes"}

ROOT = Path(chop.__file__).parent


def files(room: str = "") -> list[tuple[str, list[ast.AST]]]:
    """The files of a room by their path in `chop`, with the nodes of their code."""
    return [
        (str(file.relative_to(ROOT)), [*ast.walk(parsed(file))])
        for file in sorted((ROOT / room).rglob("*.py"))
    ]


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def imported(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "chop":
                yield from (f"chop.{alias.name}" for alias in node.names)


def named(nodes: list[ast.AST]) -> Iterator[str]:
    """Return the modules that texts name, which could be imported by them."""
    texts = (node.value for node in nodes if isinstance(node, ast.Constant))
    yield from (text for text in texts if isinstance(text, str) and re.match(r"chop\.\w", text))


def test_imports_point_down_and_so_do_modules_named_in_texts():
    wrong = []
    for file, nodes in files():
        mine = file.partition("/")[0].removesuffix(".py")
        allowed = MAY_IMPORT[mine] | {mine}
        names = [*imported(nodes), *named(nodes)]
        wrong += [
            f"{file}: {name}"
            for name in names
            if name.startswith("chop.") and re.split(r"\W", name)[1] not in allowed
        ]
    assert not wrong, "\n".join(wrong)


def test_onnx_files_know_the_table_of_ops_and_nothing_else_of_graphs():
    found = {name for _, nodes in files("onnx") for name in imported(nodes)}
    assert {name for name in found if name.startswith("chop.ir")} == {"chop.ir.op_spec"}


def test_nothing_imports_the_testing_room():
    importers = [
        file
        for file, nodes in files()
        if any(name.startswith("chop.testing") for name in imported(nodes))
    ]
    assert not [file for file in importers if not file.startswith("testing/")]


def files_imported(folder: str) -> dict[str, set[str]]:
    """Return the modules of a folder that each of its modules imports, functions included."""
    modules = {
        f"chop/{file}".removesuffix(".py").removesuffix("/__init__").replace("/", "."): nodes
        for file, nodes in files(folder)
    }
    graph: dict[str, set[str]] = {}
    for module, nodes in modules.items():
        names = set()
        for node in nodes:
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                parts = {f"{node.module}.{alias.name}" for alias in node.names}
                whole = {part for part in parts if part not in modules}
                names |= (parts - whole) | ({node.module} if whole else set())
        graph[module] = {name for name in names if name in modules and name != module}
    return graph


def test_no_module_above_is_imported_by_a_name_of_the_root_package():
    """Only paths of files are read from the root, which may import from all rooms."""
    wrong = []
    for file, nodes in files():
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        names = {
            a.attr for a in attributes if isinstance(a.value, ast.Name) and a.value.id == "chop"
        }
        wrong += [f"{file}: chop.{name}" for name in names - {"__file__"} if file != "__init__.py"]
    assert not wrong, "\n".join(wrong)


BELOW_IN_PASSES = {  # folder of chop/passes/graph -> folders that it must not import
    "describe": ("analysis", "transforms", "interface"),
    "transforms": ("analysis",),
}


def test_transforms_do_not_import_analyses_and_what_both_need_lies_below():
    wrong = []
    for folder, above in BELOW_IN_PASSES.items():
        banned = tuple(f"chop.passes.graph.{name}" for name in above)
        for file, nodes in files(f"passes/graph/{folder}"):
            wrong += [f"{file}: {name}" for name in imported(nodes) if name.startswith(banned)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", ["numerics", "passes/graph", "actions/search"])
def test_the_files_of_a_folder_do_not_import_each_other_in_a_circle(folder):
    """Raises CycleError, which names the files."""
    tuple(TopologicalSorter(files_imported(folder)).static_order())


# part of chop/actions/search -> the parts that it may import besides itself
BELOW_IN_SEARCH: dict[str, set[str]] = {"space": set()}
BELOW_IN_SEARCH["samplers"] = BELOW_IN_SEARCH["metrics"] = {"space"}
BELOW_IN_SEARCH["store"] = BELOW_IN_SEARCH["spec"] = {"space", "samplers", "metrics"}
BELOW_IN_SEARCH["run"] = BELOW_IN_SEARCH["spec"] | {"spec", "store"}
BELOW_IN_SEARCH["results"] = BELOW_IN_SEARCH["run"] | {"run"}
BELOW_IN_SEARCH["run_study"] = BELOW_IN_SEARCH["results"] | {"results"}
BELOW_IN_SEARCH["compat"] = BELOW_IN_SEARCH["run_study"] | {"run_study"}
BELOW_IN_SEARCH["search"] = BELOW_IN_SEARCH["compat"] | {"compat"}
# the package's lazy attributes lead anywhere
BELOW_IN_SEARCH["__init__"] = BELOW_IN_SEARCH.keys() - {"search"}


def test_parts_of_the_search_import_downwards():
    package, wrong = "chop.actions.search", []
    for module, imports in files_imported("actions/search").items():
        mine, *theirs = (
            name.removeprefix(package).strip(".").partition(".")[0] or "__init__"
            for name in (module, *sorted(imports))
        )
        allowed = BELOW_IN_SEARCH[mine] | {mine}
        wrong += [f"{module}: {part}" for part in theirs if part not in allowed]
    assert not wrong, "\n".join(wrong)


def test_every_room_has_a_rule():
    rooms = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - {"__pycache__", "py"} <= MAY_IMPORT.keys()


# class names with more than one home, and why
HOMONYMS = {
    "Trial": "a trial in memory, and a trial in search.json",
    "Objective": "an objective in memory, and an objective in search.json",
    "Space": "a search space in memory, and a search space in search.json",
    "Problem": "what is wrong with an option; and the labs' name of a search, which they import",
    "Proxy": "fx's own name, which its messages show; and a score without training",
}


def test_every_class_name_has_one_home():
    homes: dict[str, list[str]] = {}
    for file, nodes in files():
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(file)
    wrong = {n: where for n, where in homes.items() if len(where) > 1 and n not in HOMONYMS}
    assert not wrong, wrong


MAX_FORMAT_CHECKS = 3  # in all
# checks of a format's class outside `numerics`, by file: a number may only become smaller
FORMAT_CHECKS: dict[str, int] = {
    "methods/binary_scaling/layers.py": 1,
    "methods/edge_tables/frozen_edges.py": 1,
    "methods/population/rounding.py": 1,
}


def format_checks(nodes: list[ast.AST], formats: set[str]) -> int:
    """Count the calls of isinstance and issubclass with a class of `formats`."""
    calls = (n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name))
    kinds = (
        [*ast.walk(call.args[1])] for call in calls if call.func.id in ("isinstance", "issubclass")
    )
    return sum(any(isinstance(n, ast.Name) and n.id in formats for n in kind) for kind in kinds)


def test_code_asks_a_format_for_its_grid_and_not_for_its_class():
    kinds = {*FORMATS.values(), NumberFormat, BlockFormat, ScaledAffine, MixedRounding}
    names = {kind.__name__ for kind in kinds}
    found = {file: format_checks(nodes, names) for file, nodes in files()}
    outside = {f: n for f, n in found.items() if n and not f.startswith("numerics/")}
    assert outside == FORMAT_CHECKS, "ask the format; if there are fewer checks, say so here"
    assert sum(outside.values()) <= MAX_FORMAT_CHECKS
