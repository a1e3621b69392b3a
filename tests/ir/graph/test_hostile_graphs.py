"""Saved graphs from strangers: what they cannot do, neither when loaded nor when run."""

import contextlib
import json
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.actions.user_code import import_user_file
from chop.cli import main
from chop.ir import MaseGraph
from chop.ir.graph.meta_file import GraphFileError
from chop.ir.ops import define
from chop.passes import run_pass
from chop.system.files import write_safetensors


def node(name, op, target, /, *args, **kwargs):
    return {"name": name, "op": op, "target": target, "args": list(args), "kwargs": kwargs}


def function(name, target, *args, **kwargs):
    return node(name, "call_function", target, *args, **kwargs)


def method(name, target, *args, **kwargs):
    return node(name, "call_method", target, *args, **kwargs)


def ref(name):
    return {"node": name}


X = ref("x")
QUANTIZED = "chop.passes.graph.transforms.quantize.quantized_funcs"


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


TOFILE = [
    method("n1", "detach", X),
    method("n2", "numpy", ref("n1")),
    function("n3", "builtins.getattr", ref("n2"), "tofile"),
]


def method_as_key_of_max(file):
    return [*TOFILE, function("n4", "builtins.max", [str(file)], key=ref("n3"))]


def method_as_key_of_sort(file):
    return [*TOFILE, method("n4", "sort", [str(file)], key=ref("n3"))]


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
    config = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 8}
    return [function("n1", f"{QUANTIZED}:add_integer__torch__save", X, str(file), config=config)]


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


FUNCTION = {"function": "torch.add"}
COMPUTED = {"name": "integer", "data_in_width": [X]}
NODES = {
    "a function as an argument": [function("n", "torch.add", X, FUNCTION)],
    "a function as a key": [function("n", "builtins.max", [1, 2], key=FUNCTION)],
    "a private name of a result": [function("n", "chop.ir.nested:named_output", __class__=X)],
    "a function as a result": [function("n", "chop.ir.nested:named_output", y=FUNCTION)],
    "a default": [function("n", "builtins.max", [], default=X)],
    "a class as an argument": [function("n", "torch.add", X, {"type": "object"})],
    "a layer as an argument": [
        function("n", "torch.add", X, {"class": "torch.nn.modules.linear:Linear"})
    ],
    "a dict as an argument": [function("n", "torch.relu", {})],
    "a tensor that is not in a node": [function("n", "torch.relu", {"tensor": "fc.weight"})],
    "a computed name": [
        function("n1", "builtins.getattr", X, "dtype"),
        function("n", "builtins.getattr", X, ref("n1")),
    ],
    "a private attribute": [function("n", "builtins.getattr", X, "__class__")],
    "a method as an attribute": [function("n", "builtins.getattr", X, "register_hook")],
    "a default of an attribute": [function("n", "builtins.getattr", X, "shape", 1)],
    "an attribute of a literal": [function("n", "builtins.getattr", "x", "real")],
    "an attribute by keyword": [function("n", "builtins.getattr", X, key="shape")],
    "values of a tensor": [function("n", "builtins.getattr", X, "values")],
    "values of all its numbers": [
        method("n1", "max", X),
        function("n", "builtins.getattr", ref("n1"), "values"),
    ],
    "a path": [method("n", "to", X, "/etc/passwd")],
    "a format string": [function("n", "operator.mod", "%s", X)],
    "code as an equation": [function("n", "torch.einsum", "__import__('os')", X)],
    "a private key": [function("n", "operator.getitem", X, "__class__")],
    "a method of a text": [method("n", "split", "a b")],
    "a method of nothing": [method("n", "relu")],
    "apply_": [method("n", "apply_", X, FUNCTION)],
    "map_": [method("n", "map_", X, X, FUNCTION)],
    "register_hook": [method("n", "register_hook", X, FUNCTION)],
    "numpy": [method("n", "numpy", X)],
    "format": [method("n", "format", X)],
    "a constructor": [function("n", "torch.nn.modules.linear:Linear", 2, 2)],
    "an operator that opens files": [function("n", "torch.ops.aten.from_file.default", "x")],
    "a config that is computed": [function("n", f"{QUANTIZED}:relu_integer", X, config=X)],
    "a config that is computed inside": [
        function("n", f"{QUANTIZED}:relu_integer", X, config=COMPUTED)
    ],
    "a quantized function of a private name": [
        function("n", f"{QUANTIZED}:add_integer__torch____class__", X, config={})
    ],
    "a method of the model": [node("n", "get_attr", "forward")],
    "a layer as a value": [node("n", "get_attr", "fc")],
    "a private name of the model": [node("n", "call_module", "__class__", X)],
    "a node for the model": [method("self", "relu", X)],
    "an input for the model": [node("n", "placeholder", "self")],
    "an input with a function": [node("n", "placeholder", "y", FUNCTION)],
    "an argument that is code": [function("n", "torch.relu", X, **{"a=1)#": 1})],
    "a container that is called": [node("n", "call_module", "", X)],
}
EVIL = """
    os.system os:system builtins.eval torch.load torch.from_file torch.ops.aten.from_file
    operator.methodcaller chop.actions.user_code:import_user_file torch.Tensor.__reduce_ex__
"""
NODES |= {target: [function("n", target, X)] for target in EVIL.split()}
NODES |= {
    target: [node("n", op, target, X)]
    for op, target in (
        ("call_method", "tofile"),
        ("call_method", "__class__"),
        ("call_method", "add(1); import os; x.sin"),
        ("get_attr", "x; import os"),
        ("call_module", '0", os.system("true"), "'),
    )
}


@pytest.mark.parametrize("rows", NODES.values(), ids=list(NODES))
def test_a_node_that_could_do_harm_is_named(folder, rows):
    assert f"node {rows[-1]['name']!r}" in refusal(with_nodes(folder, *rows))


TO_LAYERS = {
    "a function": {"inplace": FUNCTION},
    "getattr": {"inplace": {"function": "builtins.getattr"}},
    "a method": {"forward": 1},
    "another method": {"state_dict": 1},
    "its layers": {"_modules": 1},
    "a private name": {"__class__": 1},
    "a table of its own": {"_forward_hooks": {}},
    "its own parametrization": {"parametrizations": 1},
}


@pytest.mark.parametrize("attributes", TO_LAYERS.values(), ids=list(TO_LAYERS))
def test_a_file_cannot_give_a_layer_code(folder, attributes):
    def change(content):
        layer(content, "act")["attributes"] |= attributes

    said = refusal(changed(folder, change))
    assert "inplace" in attributes or "not an attribute that a file may set" in said


@pytest.mark.parametrize("cls", [{"class": "torch.nn.modules.linear:Linear"}, {"type": "str"}])
def test_a_layer_calls_functions_and_constructs_nothing(tmp_path, cls):
    model, whole = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 4)), nn.TransformerEncoderLayer
    MaseGraph(model, custom_ops={"modules": {whole: {}}}).export(tmp_path / "g")

    def change(content):
        layer(content, "0")["attributes"]["activation"] = cls

    assert "'activation' of layer '0' (TransformerEncoderLayer) may not be a class" in refusal(
        changed(tmp_path / "g", change)
    )


CLASSES = [
    "torch.nn.modules.linear:LazyLinear",
    "torch.nn.parallel.data_parallel:DataParallel",
    "torch.nn.utils.parametrize:ParametrizationList",
    "torch.ao.nn.quantized.modules.linear:Linear",
    "torch.fx.graph_module:GraphModule",
    "torch.jit._script:ScriptModule",
    "torch.nn.modules.linear:Tensor",
    "subprocess:Popen",
    "json.tool:Linear",
    "chop.__main__:main",
    "chop.passes.graph.analysis.run:_InterpretedModule",
    "chop.models.toy:nn.Linear",
    "chop.models.toy:torch",
    "chop.models.toy:__builtins__",
    "chop.passes./tmp/evil:Layer",
    "tests.ir.graph.test_hostile_graphs:Scorer",
    f"{Scorer.__module__}:Scorer",
]


@pytest.mark.parametrize("cls", CLASSES)
def test_a_file_cannot_name_every_class_that_is_imported(folder, cls):
    assert "there is no layer" in refusal(
        changed(folder, lambda content: layer(content, "act").update({"class": cls}))
    )


@pytest.mark.parametrize("name", ["to_folder", "forward", "graph", "parametrizations", "__class__"])
@pytest.mark.parametrize("part", ["layer", "buffers", "parameters"])
def test_what_a_model_has_is_not_called_like_its_methods(folder, name, part):
    def change(content):
        if part == "layer":
            content["modules"].append(layer(content, "act") | {"name": name})
        else:
            layer(content, "")[part] |= {name: {"tensor": "fc.weight"}}

    assert "not an attribute that a file may set" in refusal(changed(folder, change))


def test_a_name_means_one_thing(folder):
    def change(content):
        layer(content, "")["buffers"]["act"] = {"tensor": "fc.weight"}

    assert "has 'act' twice" in refusal(changed(folder, change))


def test_the_root_of_a_graph_has_no_forward_of_its_own(folder):
    def change(content):
        layer(content, "")["class"] = "torch.nn.modules.container:Sequential"

    assert "plain Module" in refusal(changed(folder, change))


def test_a_layer_does_not_contain_itself(folder):
    def change(content):
        pairs = (("act.x", "fc"), ("fc.x", "act"))
        content["modules"] += [{"name": name, "same_as": other} for name, other in pairs]

    assert "contains itself" in refusal(changed(folder, change))


def test_layers_that_share_each_other_over_and_over_are_counted(folder):
    def change(content):
        plain = layer(content, "") | {"name": "b0"}
        rows = [plain]
        for i in range(60):
            rows.append(plain | {"name": f"b{i + 1}"})
            rows += [{"name": f"b{i + 1}.{key}", "same_as": f"b{i}"} for key in "xy"]
        content["modules"] += rows

    assert "at most 1000000 are allowed" in refusal(changed(folder, change))


def test_texts_by_which_a_layer_looks_itself_up_are_names_of_it(tmp_path):
    MaseGraph(nn.Sequential(nn.LSTM(3, 3))).export(tmp_path / "g")

    def change(content):
        layer(content, "0")["attributes"]["_flat_weights_names"][0] = "__class__"

    assert "'__class__', which it does not have" in refusal(changed(tmp_path / "g", change))


@pytest.mark.parametrize(
    ("part", "name", "key"), [("attributes", "act", "inplace"), ("buffers", "norm", "running_var")]
)
def test_a_layer_without_what_its_constructor_sets_is_named(folder, part, name, key):
    classes = {"act": "ReLU", "norm": "BatchNorm1d"}
    said = refusal(changed(folder, lambda content: layer(content, name)[part].pop(key)))
    assert f"layer {name!r} ({classes[name]}) lacks the attribute {key!r}" in said


def test_a_function_that_the_users_file_imports_is_not_the_users(folder, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from subprocess import run\ndef halved(x): return x / 2\n")
    import_user_file(file)
    with_nodes(folder, function("n", "mase_user_mine:run", ["touch", str(tmp_path / "y")]))
    assert "mase_user_mine:run" in refusal(folder)
    changed(folder, lambda content: content["nodes"].pop(1))
    with_nodes(folder, function("n", "mase_user_mine:halved", X))
    x = torch.ones(2, 16)
    assert MaseGraph.from_checkpoint(folder).model(x).shape == (2, 5)


@pytest.mark.usefixtures("own_op_table")
def test_a_row_of_the_users_does_not_open_torchs_functions(folder):
    assert define("from_file", "builtin_func").functions == (torch.from_file,)
    for target in ("torch.from_file", "torch.ops.aten.from_file.default"):
        with_nodes(folder, function("n", target, "file"))
        assert target in refusal(folder)
        changed(folder, lambda content: content["nodes"].pop(1))


def test_a_graph_that_cannot_be_run_is_one_sentence(folder, capfd):
    rows = [method("n1", "tolist", X), method("n2", "relu", ref("n1"))]
    with_nodes(folder, *rows)
    with pytest.raises(SystemExit) as ended:
        main([*command(folder, "test"), "--no-progress"])
    said = capfd.readouterr().err
    assert ended.value.code == 1
    assert "Traceback" not in said
    assert "the model cannot process a batch" in said.splitlines()[-1]


ALLOWED = {
    "sizes": lambda x: x.view(x.shape[0], x.size(1) // 1, -1)[:, :, 0],
    "attributes": lambda x: x.T.mT.to(x.dtype).to(x.device).real,
    "named results": lambda x: x.max(dim=1, keepdim=True).values + x.sort(1).values,
    "limits": lambda x: x.masked_fill(x > 0, torch.finfo(x.dtype).min),
    "numbers": lambda x: x * math.sqrt(x.shape[1]) / x.size(0) + x.ndim**2,
    "an equation": lambda x: torch.einsum("bi,ij->bj", x, x.T @ x),
    "words": lambda x: torch.div(F.gelu(x, approximate="tanh"), 2, rounding_mode="floor"),
    "a dtype": lambda x: x.to(torch.float64).type("torch.FloatTensor"),
    "slices": lambda x: torch.cat([x[..., 0:1], x[:, None, 1]], dim=-1),
    "an assertion": lambda x: (torch._assert(x.shape[1] == 16, "16 (not more)"), x)[1],
    "a transform": lambda x: torch.fft.rfft(x).abs(),
    "in place": lambda x: x.clone().add_(1).clamp_(min=0),
}


class Whole(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute

    def forward(self, x):
        return self.compute(x)


@pytest.mark.parametrize("compute", ALLOWED.values(), ids=list(ALLOWED))
def test_what_models_compute_with_comes_back(tmp_path, compute):
    graph, x = MaseGraph(Whole(compute)), torch.randn(2, 16)
    graph.export(tmp_path / "g")
    assert torch.equal(MaseGraph.from_checkpoint(tmp_path / "g").model(x), graph.model(x))


def test_functions_of_python_take_sizes(folder):
    rows = [
        function("n1", "builtins.len", X),
        function("n2", "builtins.max", ref("n1"), 3),
        function("n3", "builtins.range", ref("n2")),
        function("n4", "builtins.sum", ref("n3")),
        function("n5", "torch.add", X, ref("n4")),
    ]
    with_nodes(folder, *rows)
    changed(folder, lambda content: content["nodes"][-1].update(args=[ref("n5")]))
    assert torch.equal(
        MaseGraph.from_checkpoint(folder).model(torch.zeros(2, 16)), torch.full((2, 16), 3.0)
    )


REFUSED = {
    "the method 'numpy'": lambda x: x.numpy(),
    "the method 'data_ptr'": lambda x: x.data_ptr(),
    "the attribute 'grad_fn'": lambda x: x.grad_fn,
    "the text '/etc/passwd'": lambda x: x.to("/etc/passwd"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_could_not_be_loaded_is_refused_when_it_is_saved(tmp_path, reason):
    with pytest.raises(ValueError, match=rf"cannot save node '\w+': .*{reason}"):
        MaseGraph(Whole(REFUSED[reason])).export(tmp_path / "g")


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 3000 + "]" * 3000,
        "[" + ".".join(["x"] * 3000) + "]\n",
        '[x]\na = { device = "nowhere" }\n',
        "[x]\na = 2001-01-01\n",
        '[x]\na = { tensor = "x" }\n',
        "[x]\na = " + "1" * 5000 + "\n",
        '[x]\ncommon = "y"\n',
        "[x]\ncommon = { args = 3 }\n",
        '[x]\ntensor = "y"\n',
    ],
)
def test_metadata_of_any_shape_is_read_or_refused_in_one_sentence(folder, text):
    (folder / "node_meta_param.toml").write_text(text)
    with contextlib.suppress(GraphFileError):
        MaseGraph.from_checkpoint(folder)


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("attributes", "patched_custom_layers", ["Linear"]),
        ("attributes", "patched_op_names", [1]),
        ("attributes", "additional_inputs", []),
        ("attributes", "original_architecture", 1),
        ("custom_ops", "functions", {"dict": [[{"function": "builtins.eval"}, {}]]}),
        ("custom_ops", "layers", {}),
        ("cf_args", "x", {"function": "torch.add"}),
        ("metadata", "common", {"nodes_in": ["x"]}),
        ("metadata", "common", 1),
    ],
)
def test_settings_of_another_kind_are_refused(folder, part, key, value):
    refusal(changed(folder, lambda content: content[part].update({key: value})))


def test_functions_in_metadata_are_texts(folder):
    (folder / "node_meta_param.toml").write_text('[x]\na = { function = "builtins.max" }\n')
    (x, *_) = MaseGraph.from_checkpoint(folder).nodes
    assert x.meta["mase"]["a"] == "builtins.max"


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ('torch_dtype = "float32"', "torch_dtype"),
        ("torch_dtype = [1]", "torch_dtype"),
        ("shape = 3", "shape"),
        ('precision = "8"', "precision"),
    ],
)
def test_metadata_of_a_tensor_has_values_of_their_kinds(folder, entry, key):
    text = f"[x.common.results.data_out_0]\ntype = 'float'\n{entry}\n"
    (folder / "node_meta_param.toml").write_text(text)
    with pytest.raises(GraphFileError, match=rf"toml is damaged: '{key}' of a tensor"):
        MaseGraph.from_checkpoint(folder)


RESULTS = [
    "[x.common.results]\ndata_out_0 = 5\n",
    "[x.common.results]\ndata_out_0 = true\n",
    "[x.common.results]\ndata_out_0 = 'value'\n",
    "[x.common.results]\ndata_out_0 = ['value']\n",
    *(
        f"[x.common.results.data_out_0]\ntype = 'float'\n{entries}\n"
        for entries in (
            "value = 5",
            "value = 'hello'",
            "value = [1, 2]",
            "value = { tensor = 'x' }",
            "value = { tensor = 'x' }\nshape = ['x']\ntorch_dtype = { dtype = 'float32' }",
            "value = { tensor = 'x' }\nshape = [2, 8]\ntorch_dtype = { dtype = 'float32' }",
            "value = { tensor = 'x' }\nshape = [2, 16]\ntorch_dtype = { dtype = 'float16' }",
        )
    ),
]


@pytest.mark.parametrize("text", RESULTS)
def test_example_inputs_are_tensors_of_the_recorded_shape_and_dtype(folder, text):
    write_safetensors({"x": torch.ones(2, 16)}, folder / "node_meta_param.safetensors")
    common = "[x.common]\nmase_type = 'placeholder'\nmase_op = 'placeholder'\nargs = {}\n"
    (folder / "node_meta_param.toml").write_text(common + text)
    assert MaseGraph.from_checkpoint(folder).example_inputs == {}


class Scaled(Scorer):
    def forward(self, x, times, plus=1.0):
        return super().forward(x) * times + plus


def test_example_inputs_of_a_saved_graph_come_back(tmp_path):
    graph, x = MaseGraph(Scaled().eval()), torch.randn(2, 16)
    run_pass("init_metadata", graph)
    run_pass("add_common_metadata", graph, {"dummy_in": {"x": x, "times": 3}})
    graph.export(tmp_path)
    inputs = MaseGraph.from_checkpoint(tmp_path).example_inputs
    assert torch.equal(inputs.pop("x"), x)
    assert inputs == {"times": 3, "plus": 1.0}
