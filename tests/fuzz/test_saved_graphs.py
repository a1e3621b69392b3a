"""Random saved graphs, made of everything that can be imported, reach nothing but tensors.

Those that load are run. Meanwhile a hook of Python's own sees every file that is opened, every
process that is started and every module that is imported.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import random
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

from chop.ir import MaseGraph
from chop.ir.checked import CHECKED
from chop.ir.graph.meta_file import GraphFileError
from chop.ir.graph.names import ForeignName, SavedNames
from chop.ir.ops import StandIn
from chop.ir.pure import METHODS, NAMED
from chop.models.toy import smooth_step
from chop.passes import run_pass

ROOT = Path(__file__).parents[2]
HOMES = """
    torch torch.nn.functional torch.special torch.linalg torch.fft torch._C torch._C._nn torch.utils
    torch.hub torch.jit torch.serialization torch.multiprocessing torch.autograd torch.func operator
    math builtins os os.path sys io pathlib shutil subprocess pickle marshal importlib functools
    inspect json ctypes socket tempfile types numpy chop chop.system.files chop.cli
    chop.actions.user_code chop.checkpoints chop.system.processes chop.registry chop.ir.ops
    chop.ir.graph.saving chop.passes
    chop.passes.graph.transforms.quantize.quantized_funcs chop.models.toy
"""
KINDS = (Tensor, str, list, dict, tuple, np.ndarray, bytes, type, Path, nn.Module, fx.GraphModule)
PURE = sorted(NAMED)
PURE_METHODS = sorted(METHODS)


def _names() -> Iterator[str]:
    for home in HOMES.split():
        for name in dir(importlib.import_module(home)):
            yield f"{home}.{name}"
            yield f"{home}:{name}"


FUNCTIONS = sorted(_names())
ATTRIBUTES = sorted({name for kind in (*KINDS, type(len), type(random)) for name in dir(kind)})


def _subclasses(cls: type) -> Iterator[type]:
    yield cls
    for sub in type.__subclasses__(cls):
        yield from _subclasses(sub)


LAYERS = sorted({f"{cls.__module__}:{cls.__qualname__}" for cls in _subclasses(nn.Module)})
TEXTS = [
    "mean",
    "cpu",
    "__class__",
    "__glob",
    "als__",
    "{0.__class__}",
    "%s",
    "eval",
    "i,i->i",
    "w",
]


class Guard:
    """What Python did that a graph may not do, while it was watched."""

    def __init__(self) -> None:
        self.is_watching = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.is_watching:
            return
        self.is_watching = False  # looking at a frame is an event itself
        if self._is_foreign(event, args):
            self.seen.append(f"{event} {args!r:.200}")
        self.is_watching = True

    def _is_foreign(self, event: str, args: tuple[Any, ...]) -> bool:
        if event == "open":
            writes = isinstance(args[1], str) and any(letter in args[1] for letter in "wax+")
            return writes or bool((args[2] or 0) & 3)
        if event == "object.__getattr__":  # __code__, __globals__, …; libraries may read them
            return sys._getframe(2).f_code.co_filename.startswith("<eval_with_key>")
        return event.startswith(FOREIGN)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        self.is_watching = True
        try:
            yield
        finally:
            self.is_watching = False


FOREIGN = (
    *("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.kill"),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.link", "os.symlink"),
    *("os.truncate", "os.putenv", "shutil.", "socket.", "ctypes.", "pty.", "tempfile.", "pickle."),
    *("ftplib.", "http.", "urllib.", "webbrowser.", "sys.addaudithook", "sys.setprofile"),
)


@pytest.fixture(scope="module")
def guard() -> Guard:
    return Guard()


def test_the_guard_sees_what_it_is_for(guard, tmp_path):
    with guard.watching():
        (tmp_path / "x").write_text("")
    assert "open" in guard.seen.pop()
    assert guard.seen == []


class Generator:
    """Random graphs as a file describes them; some of their parts are what real ones have."""

    def __init__(self, seed: int, content: dict[str, Any], file: Path) -> None:
        self.random = random.Random(seed)
        self.content, self.texts = json.dumps(content), [*TEXTS, str(file)]

    def graph(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.content)
        names = ["x"]
        rows = content["nodes"]
        for number in range(self.random.randint(1, 4)):
            rows.insert(-1, self.node(f"n{number}", names))
            names.append(f"n{number}")
        rows[-1]["args"] = [{"node": self.random.choice(names)}]
        if self.random.random() < 0.3:
            self.spoil_a_layer(content["modules"])
        return content

    def node(self, name: str, names: list[str]) -> dict[str, Any]:
        op = self.random.choice(("call_function",) * 5 + ("call_method",) * 3 + ("call_module",))
        tame = self.random.random() < 0.7
        target, first = self.target(op, tame), {"node": self.random.choice(names)}
        args = [first] + [self.value(names, tame) for _ in range(self.random.randint(0, 2))]
        if target == "builtins.getattr":
            args[1:] = [self.value(names, False) if self.random.random() < 0.5 else "shape"]
        kwargs = {} if tame else {self.word(): self.value(names, False)}
        kwargs = kwargs if self.random.random() < 0.2 else {}
        return {"name": name, "op": op, "target": target, "args": args, "kwargs": kwargs}

    def target(self, op: str, tame: bool) -> str:
        if op == "call_function":
            some = self.random.random() < 0.1
            return "builtins.getattr" if some else self.random.choice(PURE if tame else FUNCTIONS)
        if op == "call_method":
            return self.random.choice(PURE_METHODS if tame else ATTRIBUTES)
        return "act" if tame else self.random.choice(ATTRIBUTES)

    def word(self) -> str:
        return self.random.choice(("key", "out", "dim", "default", "config", "dtype", "a b"))

    def value(self, names: list[str], tame: bool) -> Any:
        plain = [{"node": self.random.choice(names)}, 0, 1, -1, 2, 0.5, True, None]
        plain += [[1, 2], {"tuple": [0, 1]}, {"slice": [0, 1, None]}, {"dtype": "float64"}]
        if tame:
            return self.random.choice(plain)
        odd = [
            self.random.choice(self.texts),
            self.random.choice(ATTRIBUTES),
            {"function": self.random.choice(FUNCTIONS)},
            {"function": self.random.choice(PURE)},
            {"class": self.random.choice(LAYERS)},
            {"type": "object"},
            {"tensor": "fc.weight"},
            [self.random.choice(self.texts)],
            {"a": {"node": self.random.choice(names)}},
        ]
        return self.random.choice([*odd, plain[0]])

    def spoil_a_layer(self, rows: list[dict[str, Any]]) -> None:
        row = self.random.choice(rows)
        what = self.random.choice(("class", "attributes", "parameters", "name", "new"))
        if what == "class":
            row["class"] = self.random.choice(LAYERS)
        elif what == "new":
            rows.append({**rows[-1], "name": self.random.choice(ATTRIBUTES)})
        elif what == "name":
            row["name"] = self.random.choice(ATTRIBUTES)
        else:
            tensor = {"tensor": "fc.weight"}
            odd = tensor if what == "parameters" else self.value(["x"], False)
            row[what] = {**row[what], self.random.choice(ATTRIBUTES): odd}


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.fc(x))


def is_harmless(code: str) -> bool:
    """Whether the Python that fx writes reads no private attribute but of the model and torch."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            root = ast.unparse(node).partition(".")[0]
            if root not in ("self", "torch") and node.attr not in METHODS:
                return False
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            owner, name = map(ast.unparse, node.args)
            if not owner.startswith("self") or not ast.literal_eval(name).isdigit():
                return False
    return True


def loaded(folder: Path) -> MaseGraph | None:
    """The graph, or None if it was refused, which takes one sentence."""
    try:
        return MaseGraph.from_checkpoint(folder)
    except GraphFileError as error:
        (_,) = str(error).splitlines()
        return None


def run(graph: MaseGraph, x: Tensor) -> None:
    """As `ch test` and as the passes run it; what fails may fail."""
    with contextlib.suppress(Exception), torch.no_grad():
        graph.model.forward(x.clone())  # without the explanation that fx gives of an error
    with contextlib.suppress(Exception):
        run_pass("add_common_metadata", graph, {"dummy_in": {"x": x.clone()}})


def foreign_modules(before: set[str]) -> list[str]:
    """What was imported since from elsewhere than Python, its packages and MASE."""
    files = {
        name: getattr(module, "__file__", None)
        for name, module in list(sys.modules.items())
        if name not in before
    }
    homes = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), str(ROOT / "chop"))
    homes += (str(Path(torch.__file__).parents[1]),)
    return [name for name, file in files.items() if file and not file.startswith(homes)]


def check_graphs(folder: Path, guard: Guard, seed: int, count: int) -> int:
    """How many of `count` random graphs could be loaded, and were run."""
    MaseGraph(Small().eval()).export(folder / "g")
    file = folder / "g" / "graph.json"
    generator = Generator(seed, json.loads(file.read_text()), folder / "written")
    files, modules, x, ran = sorted(folder.rglob("*")), set(sys.modules), torch.randn(3, 4), 0
    for _ in range(count):
        text = json.dumps(generator.graph())
        file.write_text(text)
        with guard.watching(), warnings.catch_warnings(action="ignore"):
            graph = loaded(folder / "g")
            if graph is not None:
                run(graph, x)
        assert graph is None or is_harmless(graph.model.code), text
        assert guard.seen == [], text
        ran += graph is not None
    assert sorted(folder.rglob("*")) == files
    assert foreign_modules(modules) == []
    return ran


@pytest.mark.parametrize("seed", range(3))
def test_random_graphs_reach_nothing_but_tensors(tmp_path, guard, seed):
    assert check_graphs(tmp_path, guard, seed, 100) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
def test_many_random_graphs_reach_nothing_but_tensors(tmp_path, guard, seed):
    assert check_graphs(tmp_path, guard, seed, 300) >= 60


def test_no_name_that_can_be_imported_means_anything_but_a_listed_function():
    names = SavedNames()
    known = {*NAMED.values(), *CHECKED.values(), smooth_step}  # which torch.fx.wrap keeps whole
    for name in FUNCTIONS:
        with contextlib.suppress(ForeignName):
            fn = names.function(name)
            assert isinstance(fn, StandIn) or fn in known, name


def test_no_layer_that_is_imported_can_be_named_but_torchs_and_mases():
    names = SavedNames()
    for name in LAYERS:
        with contextlib.suppress(ForeignName):
            home = names.module_class(name).__module__
            assert home.startswith(("torch.nn.modules.", "chop.")), name


@pytest.mark.parametrize(
    "rest", [(), (1,), (0, 1), ("mean",), ("/tmp/x",), ([1, 2],), (torch.ones(2, 2),)]
)
def test_a_listed_function_opens_nothing_whatever_it_is_given(guard, rest):
    for name, fn in NAMED.items():
        with guard.watching(), warnings.catch_warnings(action="ignore"):
            for first in (torch.ones(2, 2), [torch.ones(2, 2)], 2, "/tmp/x"):
                with contextlib.suppress(Exception):
                    fn(first, *rest)
        assert guard.seen == [], name


def values() -> list[Any]:
    """Of every kind that a node can have as its value."""
    x = torch.ones(2, 2)
    made = [x, x.long(), 2, 0.5, True, "mean", [1, 2], (0, 1), {"a": x}, x.shape, range(2), [x]]
    return [*made, x.dtype, x.device, torch.finfo(x.dtype), x.max(0), {"a": x}.items(), None]


FUNCTION_KINDS = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, GeneratorType)


def parts(value: Any) -> list[Any]:
    return [value, *value] if isinstance(value, list | tuple | set) else [value]


def result_of(called: Any, value: Any, rest: tuple[Any, ...]) -> Any:
    """What a function, or the method of that name, gives; None where it fails."""
    with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
        if isinstance(called, str):
            return getattr(value, called)(*rest)
        return called(value, *rest)
    return None


SLOW = [(), (0,), (0, 1), (torch.ones(2, 2),)]


@pytest.mark.parametrize("rest", [("a",), *(pytest.param(r, marks=pytest.mark.slow) for r in SLOW)])
def test_no_value_is_a_function(rest):
    for called in [*METHODS, *(fn for fn in NAMED.values() if fn is not getattr)]:
        for value in values():
            result = result_of(called, value, rest)
            assert not any(isinstance(part, FUNCTION_KINDS) for part in parts(result)), called
