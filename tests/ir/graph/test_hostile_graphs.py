"""Saved graphs from strangers: what they cannot do, neither when loaded nor when run."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from chop.cli import main
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


X = ref("x")


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 5)
        self.norm = nn.BatchNorm1d(5)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.norm(self.fc(x)))


@pytest.fixture
def folder(tmp_path):
    """A graph that `ch test jsc-tiny jsc-sim` can score."""
    torch.manual_seed(0)
    graph, _ = run_pass("init_metadata", MaseGraph(Scorer().eval()))
    graph.export(tmp_path / "graph")
    return tmp_path / "graph"


def changed(folder, change):
    """The folder after `change` was made to what graph.json says."""
    content = json.loads((folder / "graph.json").read_text())
    change(content)
    (folder / "graph.json").write_text(json.dumps(content))
    (folder / "node_meta_param.toml").write_text("")
    return folder


def with_nodes(folder, *rows):
    """The graph with further nodes in front of its layers."""
    return changed(folder, lambda content: content["nodes"].__setitem__(slice(1, 1), rows))


def layer(content, name):
    return next(row for row in content["modules"] if row["name"] == name)


def refusal(folder, **options):
    """The one sentence that loading ends with."""
    with pytest.raises(ValueError, match=r"graph\.json (was not loaded|is damaged): ") as error:
        MaseGraph.from_checkpoint(folder, **options)
    (line,) = str(error.value).splitlines()
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


def method_of_the_model_that_writes_a_folder(file):
    """A layer that is called like a method of fx.GraphModule."""
    return [node("n1", "call_module", "to_folder", str(file))]


def node_in_place_of_the_model(file):
    """A node called self, whose methods then pass for layers."""
    return [
        method("n1", "detach", X),
        method("self", "numpy", ref("n1")),
        node("n2", "call_module", "tofile", str(file)),
    ]


def quantized_form_of_a_function_that_writes(file):
    home = "chop.passes.graph.transforms.quantize.quantized_funcs"
    bits = {f"data_in_{key}": 8 for key in ("width", "frac_width")}
    config = {"name": "integer", **bits}
    return [function("n1", f"{home}:add_integer__torch__save", X, str(file), config=config)]


EXPLOITS = (
    computed_private_names,
    method_as_key_of_max,
    method_as_key_of_sort,
    method_of_the_model_that_writes_a_folder,
    node_in_place_of_the_model,
    quantized_form_of_a_function_that_writes,
)
CONFIG = """
model = "jsc-tiny"
dataset = "jsc-sim"
[passes.report_graph]
"""


def exploited(folder, exploit):
    """What the exploit would write, after it was put into the graph."""
    file = folder.parent / "written"
    with_nodes(folder, *exploit(file))

    def add_layers(content):
        for row in content["nodes"]:
            if row["op"] == "call_module" and row["target"] in ("to_folder", "tofile"):
                content["modules"].append(layer(content, "act") | {"name": row["target"]})

    changed(folder, add_layers)
    return file


def command(folder, action):
    words = [action, "jsc-tiny", "jsc-sim", "--load", str(folder), "--load-type", "mz"]
    if action in ("transform", "search"):
        (folder.parent / "run.toml").write_text(CONFIG)
        words = [action, "--config", str(folder.parent / "run.toml"), *words[3:]]
    return [*words, "--project-dir", str(folder.parent / "out")]


@pytest.mark.parametrize("exploit", EXPLOITS)
@pytest.mark.parametrize("action", ["test", "transform"])
def test_a_known_exploit_writes_nothing(folder, exploit, action, monkeypatch, capsys):
    monkeypatch.chdir(folder.parent)
    target = exploited(folder, exploit)
    with pytest.raises(SystemExit) as end:
        main(command(folder, action))
    assert end.value.code in (1, 2)
    assert not target.exists()
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ch: ")]
    assert len(said) == 1
    assert "graph.json was not loaded: " in said[0]


@pytest.mark.slow
@pytest.mark.parametrize("exploit", EXPLOITS[:3])
@pytest.mark.parametrize("action", ["test", "train", "transform", "search"])
def test_a_known_exploit_writes_nothing_in_a_process_of_its_own(folder, exploit, action):
    target = exploited(folder, exploit)
    words = [sys.executable, "-m", "chop", *command(folder, action)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder.parent)
    assert done.returncode in (1, 2)
    assert not target.exists()
    assert "Traceback" not in done.stderr
