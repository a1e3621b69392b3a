"""Saved graphs from strangers: what they cannot do, neither when loaded nor when run."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.passes import run_pass


def node(name, op, target, *args, **kwargs):
    return {"name": name, "op": op, "target": target, "args": list(args), "kwargs": kwargs}


def function(name, target, *args, **kwargs):
    return node(name, "call_function", target, *args, **kwargs)


def method(name, target, *args, **kwargs):
    return node(name, "call_method", target, *args, **kwargs)


def ref(name):
    return {"node": name}


X = ref("input_1")


@pytest.fixture
def folder(tmp_path):
    """A graph that `ch test jsc-tiny jsc-sim` can score."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 5), nn.BatchNorm1d(5), nn.ReLU())
    graph, _ = run_pass("init_metadata", MaseGraph(model))
    graph.export(tmp_path / "graph")
    return tmp_path / "graph"


def described(folder):
    return json.loads((folder / "graph.json").read_text())


def write(folder, content):
    (folder / "graph.json").write_text(json.dumps(content))
    (folder / "node_meta_param.toml").write_text("")


def with_nodes(folder, *rows):
    """The graph with further nodes in front of its layers."""
    content = described(folder)
    content["nodes"][1:1] = rows
    write(folder, content)


def refusal(folder, **options):
    with pytest.raises(ValueError, match=r"graph\.json was not loaded|graph\.json is damaged") as e:
        MaseGraph.from_checkpoint(folder, **options)
    (line,) = str(e.value).splitlines()
    return line


def computed_private_names(file):
    """getattr whose names are computed reaches eval through the globals of a method."""
    return [
        function("n1", "operator.add", "__fu", "nc__"),
        function("n2", "builtins.getattr", X, "register_hook"),
        function("n3", "builtins.getattr", ref("n2"), ref("n1")),
        function("n4", "operator.add", "__glob", "als__"),
        function("n5", "builtins.getattr", ref("n3"), ref("n4")),
        function("n6", "operator.getitem", ref("n5"), "__builtins__"),
        function("n7", "operator.getitem", ref("n6"), "eval"),
        function("n8", "builtins.max", [f"open({str(file)!r}, 'w').close()"], key=ref("n7")),
    ]


def method_as_key_of_max(file):
    return [
        method("n1", "detach", X),
        method("n2", "numpy", ref("n1")),
        function("n3", "builtins.getattr", ref("n2"), "tofile"),
        function("n4", "builtins.max", [str(file)], key=ref("n3")),
    ]


def method_as_key_of_sort(file):
    return [
        method("n1", "detach", X),
        method("n2", "numpy", ref("n1")),
        function("n3", "builtins.getattr", ref("n2"), "tofile"),
        method("n4", "sort", [str(file)], key=ref("n3")),
    ]


EXPLOITS = (computed_private_names, method_as_key_of_max, method_as_key_of_sort)


@pytest.mark.parametrize("exploit", EXPLOITS)
@pytest.mark.parametrize("action", ["test", "transform"])
def test_a_known_exploit_writes_nothing(folder, exploit, action, monkeypatch, capsys):
    from chop.cli import main

    monkeypatch.chdir(folder.parent)
    target = folder.parent / "written"
    with_nodes(folder, *exploit(target))
    words = [action, "jsc-tiny", "jsc-sim", "--load", str(folder), "--load-type", "mz"]
    with pytest.raises(SystemExit) as end:
        main([*words, "--project-dir", str(folder.parent / "out")])
    assert end.value.code in (1, 2)
    assert not target.exists()
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ch: ")]
    assert len(said) == 1
    assert "graph.json was not loaded: node 'n" in said[0]


@pytest.mark.slow
@pytest.mark.parametrize("exploit", EXPLOITS)
def test_a_known_exploit_writes_nothing_in_a_process_of_its_own(folder, exploit):
    target = folder.parent / "written"
    with_nodes(folder, *exploit(target))
    words = ["test", "jsc-tiny", "jsc-sim", "--load", str(folder), "--load-type", "mz"]
    done = subprocess.run(
        [sys.executable, "-m", "chop", *words, "--project-dir", str(folder.parent / "out")],
        capture_output=True,
        text=True,
        cwd=folder.parent,
    )
    assert done.returncode in (1, 2)
    assert not target.exists()
    assert "Traceback" not in done.stderr
    assert "graph.json was not loaded: node 'n" in done.stderr
