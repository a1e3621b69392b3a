"""Graphs on disk: what comes back, and what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from chop.checkpoints import load_model
from chop.ir import MaseGraph
from chop.ir.graph import saving
from chop.ir.graph.layer_extras import EXTRAS, Extra
from chop.ir.graph.meta_file import GraphFileError
from chop.ir.graph.names import ForeignName, SavedNames
from chop.ir.graph.saving import made_from, trained_on
from chop.passes import Pipeline, run_pass
from chop.passes.graph.transforms.quantize.quantized_modules.linear import QuantLinear
from chop.system.files import replaced_folder, write_safetensors
from tests.saved_tensors import replace_tensors

ROOT = Path(__file__).parents[3]
WIDTHS = {"width": 5, "frac_width": 2}


class Tied(nn.Module):
    """Shared weights, a buffer outside the state_dict, slices, dtypes, a frozen layer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.rnn = nn.LSTM(6, 6, batch_first=True)
        self.mix = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight
        self.norm = self.same = nn.LayerNorm(6)
        self.norm.weight.requires_grad_(False)
        self.register_buffer("scale", torch.tensor([0.5, 2.0]), persistent=False)

    def forward(self, x: torch.Tensor):
        y, _ = self.rnn(self.embed(x))
        y, _ = self.mix(y, y, y)
        y = self.same(self.norm(y)) * self.scale[..., None, 0:1].to(torch.float32)
        z = torch.zeros(y.shape[0], 1, 6, dtype=y.dtype) + torch.tensor(3.0)
        y = torch.cat([F.gelu(y), z], dim=1).clamp(max=float("inf"))
        return {"scores": self.head(y), "size": y.size()}


class Own(nn.Module):
    def __init__(self, factor: float, act=F.relu):
        super().__init__()
        self.factor, self.act = factor, act
        self.table = {"a": (1, None), 2: torch.arange(3)}

    def forward(self, x):
        return self.act(x) * self.factor


class Learning(QuantLinear):
    """A quantized layer that starts anew whenever it is configured."""

    format_name = "integer"

    def configure(self, config):
        super().configure(config)
        self.register_buffer("seen", torch.zeros(1))
        self.merged = nn.ModuleList()
        return self

    def forward(self, x):
        return super().forward(x) + self.seen + len(self.merged)


def doubled(x):
    return x + x


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = Own(3.0)

    def forward(self, x):
        return doubled(self.own(x))


OWN = {"modules": {Own: {}}, "functions": {doubled: {}}}


@pytest.fixture
def saved(tmp_path):
    """A small graph on disk."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    graph, _ = run_pass("init_metadata", MaseGraph(model))
    graph.export(tmp_path / "graph")
    return tmp_path / "graph"


def edited(folder, change):
    """Load after `change` was made to what graph.json says."""
    content = json.loads((folder / "graph.json").read_text())
    change(content)
    (folder / "graph.json").write_text(json.dumps(content))
    return MaseGraph.from_checkpoint(folder)


def test_sharing_strides_modes_and_odd_arguments_survive(tmp_path):
    torch.manual_seed(0)
    model = Tied().eval()
    model.rnn.train()
    x = torch.tensor([[1, 2, 3], [4, 5, 6]])
    graph, _ = Pipeline(["init_metadata", ("add_common_metadata", {"dummy_in": {"x": x}})])(
        MaseGraph(model)
    )
    graph.model.same = graph.model.norm
    graph.export(tmp_path / "g")
    back = MaseGraph.from_checkpoint(tmp_path / "g")
    assert torch.equal(back.model(x)["scores"], graph.model(x)["scores"])
    assert str(back.model) == str(graph.model)
    assert back.model.head.weight is back.model.embed.weight
    assert back.model.norm is back.model.same
    assert not back.model.norm.weight.requires_grad
    assert back.model.norm.bias.requires_grad
    assert list(back.model.state_dict()) == list(graph.model.state_dict())
    assert back.model.rnn.training
    assert not back.model.training
    value = back.fx_graph.find_nodes(op="call_function", target=F.gelu)[0].meta["mase"]
    assert torch.is_tensor(value.common.args["data_in_0"]["value"])
    run_pass("verify_metadata", back, {"strict": True})


def test_channels_last_weights_stay_so(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 4, 3)).to(memory_format=torch.channels_last)
    MaseGraph(model).export(tmp_path / "g")
    weight = MaseGraph.from_checkpoint(tmp_path / "g").modules["0"].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(weight, model[0].weight)


def test_layers_and_functions_of_ones_own_come_back(tmp_path):
    graph, x = MaseGraph(Outer(), custom_ops=OWN), torch.randn(3)
    graph.export(tmp_path / "g")
    back = MaseGraph.from_checkpoint(tmp_path / "g", custom_ops=OWN)
    assert torch.equal(back.model(x), graph.model(x))
    own = back.model.own
    assert (own.factor, own.act, own.table["a"]) == (3.0, F.relu, (1, None))
    assert torch.equal(own.table[2], torch.arange(3))
    assert back.custom_ops == graph.custom_ops
    with pytest.raises(ValueError, match=r"Own.*custom_ops"):
        MaseGraph.from_checkpoint(tmp_path / "g")
    with pytest.raises(ValueError, match=r"doubled.*custom_ops"):
        MaseGraph.from_checkpoint(tmp_path / "g", custom_ops={"modules": {Own: {}}})


def test_a_layer_is_as_it_was_and_not_as_it_would_be_configured(tmp_path):
    widths = {f"{o}_width": 8 for o in ("data_in", "weight", "bias")}
    layer = Learning(3, 2, config=widths | {f"{o[:-6]}_frac_width": 4 for o in widths})
    layer.seen += 2
    layer.merged.append(nn.ReLU())
    own = {"modules": {Learning: {}}}
    graph, x = MaseGraph(nn.Sequential(layer), custom_ops=own), torch.randn(4, 3)
    graph.export(tmp_path / "g")
    back = MaseGraph.from_checkpoint(tmp_path / "g", custom_ops=own)
    assert torch.equal(back.model(x), graph.model(x))
    assert str(back.model) == str(graph.model)


USER = """
import torch
from torch import nn
class Twice(nn.Module):
    def forward(self, x): return 2 * x
@torch.fx.wrap
def halved(x): return x / 2
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.twice = Twice()
    def forward(self, x): return halved(self.twice(x))
"""


@pytest.mark.slow
def test_another_process_needs_chop_and_the_users_file_only(tmp_path):
    (tmp_path / "mine.py").write_text(USER)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.py").write_text(USER)
    script = (
        "import sys, torch; from chop.ir import MaseGraph\n"
        "from chop.actions.user_code import import_user_file\n"
        "mine = import_user_file(sys.argv[1])\n"
        "ops = {'modules': {mine.Twice: {}}}\n"
        "if sys.argv[2] == 'save': MaseGraph(mine.Net(), custom_ops=ops).export(sys.argv[3])\n"
        "else: print(MaseGraph.from_checkpoint(sys.argv[3]).model(torch.ones(2)).tolist())"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def run(file, what):
        words = [sys.executable, "-c", script, str(file), what, str(tmp_path / "g")]
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(tmp_path / "mine.py", "save")
    assert run(tmp_path / "elsewhere" / "mine.py", "load").strip() == "[1.0, 1.0]"


def test_what_cannot_come_back_is_refused_when_it_is_saved(tmp_path):
    class Local(nn.Module):
        def forward(self, x):
            return x

    graph = MaseGraph(nn.Sequential(Local()), custom_ops={"modules": {Local: {}}})
    graph.custom_ops = {"modules": {}, "functions": {}}
    with pytest.raises(ValueError, match=r"module '0'.*Local.*top of a module"):
        graph.export(tmp_path / "g")
    with pytest.raises(ValueError, match="attribute 'act' of Own is a function"):
        MaseGraph(nn.Sequential(Own(1.0, act=lambda x: x)), custom_ops=OWN).export(tmp_path / "g")
    with pytest.raises(ValueError, match="meta device"):
        MaseGraph(nn.Sequential(nn.Linear(2, 2, device="meta"))).export(tmp_path / "g")
    assert not (tmp_path / "g").exists()


class Turned(nn.Module):
    def __init__(self, turns):
        super().__init__()
        self.register_buffer("turns", turns)

    def forward(self, x):
        return (x * self.turns).real


def test_complex_numbers_come_back_also_those_that_torch_conjugates_later(tmp_path):
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    for turns in (numbers, numbers.conj(), numbers.conj().imag):
        MaseGraph(Turned(turns)).export(tmp_path / "graph")
        assert torch.equal(MaseGraph.from_checkpoint(tmp_path / "graph").model.turns, turns)


def test_numbers_that_no_file_holds_are_refused_by_their_name(tmp_path):
    turns = torch.ones(2, dtype=torch.complex128)
    with pytest.raises(ValueError, match=r"'turns' is of torch\.complex128, which .* complex64"):
        MaseGraph(Turned(turns)).export(tmp_path / "graph")
    assert not (tmp_path / "graph").exists()


def test_saving_leaves_the_graph_as_it_was(tmp_path):
    graph, _ = run_pass("init_metadata", MaseGraph(nn.Sequential(nn.Linear(2, 2))))
    metas = [node.meta["mase"] for node in graph.nodes]
    before = str(graph.model)
    graph.export(tmp_path / "g")
    assert [node.meta["mase"] for node in graph.nodes] == metas
    assert str(graph.model) == before


def test_only_folders_of_graphs_are_replaced(saved, tmp_path):
    graph = MaseGraph.from_checkpoint(saved)
    graph.export(saved)
    (saved / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"notes\.txt"):
        graph.export(saved)
    with pytest.raises(FileExistsError, match="is a file"):
        graph.export(saved / "notes.txt")
    assert (saved / "notes.txt").read_text() == "mine"


def test_a_failed_save_leaves_the_earlier_one(saved, monkeypatch):
    before = {file.name: file.read_bytes() for file in saved.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("chop.ir.graph.saving.write_node_meta", full)
    with pytest.raises(OSError, match=r"No space left.*nothing was changed"):
        MaseGraph(nn.Sequential(nn.Linear(2, 2))).export(saved)
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == before
    assert [p.name for p in saved.parent.iterdir()] == ["graph"]


def test_a_swap_that_fails_is_undone(tmp_path, monkeypatch):
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a").write_text("old")
    rename = os.rename

    def broken(source, target):
        if ".part" in str(source):
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", broken)
    with (
        pytest.raises(OSError, match="nothing was"),
        replaced_folder(tmp_path / "f", ["a"]) as part,
    ):
        (part / "a").write_text("new")
    assert (tmp_path / "f" / "a").read_text() == "old"


@pytest.mark.parametrize("name", ["graph.json", "state_dict.safetensors", "node_meta_param.toml"])
class TestDamage:
    def test_a_missing_file_is_named(self, saved, name):
        (saved / name).unlink()
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            MaseGraph.from_checkpoint(saved)

    def test_a_truncated_file_is_named(self, saved, name):
        content = (saved / name).read_bytes()
        (saved / name).write_bytes(content[: len(content) * 2 // 3 - 1] + b"\xff")
        with pytest.raises(ValueError, match=name.replace(".", r"\.")) as error:
            MaseGraph.from_checkpoint(saved)
        assert "\n" not in str(error.value)


def test_what_a_graph_was_made_from_is_noted(saved, tmp_path):
    graph = MaseGraph.from_checkpoint(saved)
    assert made_from(saved) == graph.meta["made_from"] == {}
    graph.meta["made_from"] = {"model": "mine"}
    graph.clone().export(tmp_path / "noted")
    assert made_from(tmp_path / "noted") == {"model": "mine"}
    assert MaseGraph.from_checkpoint(tmp_path / "noted").meta["made_from"] == {"model": "mine"}
    graph.meta["made_from"] = {"model": 3}
    with pytest.raises(ValueError, match="made_from has names by kind"):
        graph.export(tmp_path / "wrong")


def test_notes_of_a_file_are_parsed_once_until_it_changes(saved, tmp_path, monkeypatch):
    parsed = []
    read = saving.read_json
    monkeypatch.setattr(saving, "read_json", lambda *a: parsed.append(a) or read(*a))
    folder = tmp_path / "noted"
    graph = MaseGraph.from_checkpoint(saved)
    for name in ("first", "other"):
        graph.meta["made_from"] = {"model": name}
        graph.clone().export(folder)
        parsed.clear()
        made_from(folder)["model"] = "of the caller"
        assert made_from(folder) == {"model": name}
        assert trained_on(folder) == {}
        assert len(parsed) == 1


@pytest.mark.parametrize("name", ["net", "net.pt", "net.v1", "deep/net"])
def test_the_weights_alone_are_saved_as_a_state_dict(tmp_path, name):
    model = nn.Sequential(nn.Linear(3, 2))
    file = MaseGraph(model).export(tmp_path / name, save_format="state_dict")
    assert file == tmp_path / (name if name.endswith(".pt") else f"{name}.pt")
    state = torch.load(file, weights_only=True)
    assert torch.equal(state["0.weight"], model[0].weight)
    other = load_model(file, "pt", nn.Sequential(nn.Linear(3, 2)))
    assert torch.equal(other[0].bias, model[0].bias)


def test_an_unknown_save_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match="save_format 'statedict'; did you mean 'state_dict'"):
        MaseGraph(nn.Sequential(nn.Linear(3, 2))).export(tmp_path, save_format="statedict")
    graph = MaseGraph(nn.Sequential(nn.Linear(3, 2)))
    folder = graph.export(tmp_path / "whole", save_format="full_model")
    assert MaseGraph.from_checkpoint(folder).modules["0"].weight.shape == (2, 3)


def test_a_folder_without_that_note_still_loads(saved):
    graph = edited(saved, lambda content: content.pop("made_from"))
    assert graph.meta["made_from"] == made_from(saved) == {}


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return torch.matmul(self.fc(x), x.T)


@pytest.mark.parametrize(
    ("options", "rounding"),
    [
        ({"floor": True}, "floor"),
        ({"weight_floor": True, "overflow": "wrap"}, "floor"),
        ({"rounding": "up", "overflow": "symmetric"}, "up"),
    ],
)
def test_rounding_and_overflow_come_back(options, rounding, tmp_path):
    x = torch.tensor([[0.97, 0.1, 0.3, 0.5], [0.2, -9.99, 0.6, 8.7]])
    graph = MaseGraph(Product())
    run_pass("init_metadata", graph)
    run_pass("add_common_metadata", graph, {"dummy_in": {"x": x}})
    config = {f"{o}_{k}": v for o in ("data_in", "weight") for k, v in WIDTHS.items()}
    table = {"config": {"name": "integer", **config, **options}}
    run_pass("quantize", graph, {"by": "type", "linear": table, "matmul": table})
    graph.export(tmp_path)
    again = MaseGraph.from_checkpoint(tmp_path)
    assert torch.equal(again.model(x), graph.model(x))
    (layer,) = (node for node in again.nodes if node.op == "call_module")
    assert layer.meta["mase"]["common"]["args"]["weight"]["rounding"] == rounding


@pytest.mark.parametrize("config", [None, 3, [], {}, {"name": None}, {"name": ["block_fp"]}])
def test_odd_configs_are_refused(saved, config):
    def change(content):
        content["nodes"][0]["kwargs"] = {"config": config}

    with pytest.raises(ValueError, match=r"graph\.json"):
        edited(saved, change)


OPEN_TABLES = ("cf_args", "custom_ops", "attributes", "metadata", "made_from", "trained_on")


def test_a_part_of_another_kind_is_refused(saved):
    whole = json.loads((saved / "graph.json").read_text())
    for key in whole:
        if key in ("format", "version"):
            continue
        for wrong in (None, 3, "x", [], {}, [[]], [{}]):
            if (key, wrong) == ("class_name", "x") or (key in OPEN_TABLES and wrong == {}):
                continue
            (saved / "graph.json").write_text(json.dumps(whole | {key: wrong}))
            with pytest.raises(ValueError, match=r"graph\.json|node_meta_param|state_dict"):
                MaseGraph.from_checkpoint(saved)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.update({"0.bias": t["0.bias"][0]}), r"'0\.bias' .* of the shape \[\] and not"),
        (lambda t: t.update({"0.weight": t["0.weight"][:2]}), r"shape \[2, 4\] and not float32 of"),
        (lambda t: t.update({"0.weight": t["0.weight"].half()}), "float16 of .* and not float32"),
        (lambda t: t.update({"0.weight": t["0.weight"].char()}), "is int8 of the shape"),
        (lambda t: t.update({"0.more": t["0.bias"] + 1}), r"was saved without a tensor '0\.more'"),
        (lambda t: t.pop("0.bias"), r"has no tensor '0\.bias'"),
    ],
)
def test_tensors_of_other_types_and_sizes_than_saved_are_refused(saved, change, sentence):
    file = saved / "state_dict.safetensors"
    tensors = load_file(file)
    change(tensors)
    write_safetensors(tensors, file, {"format": "pt"})
    with pytest.raises(GraphFileError, match=sentence) as refusal:
        MaseGraph.from_checkpoint(saved)
    assert str(refusal.value).startswith(("'0", str(file)))
    assert str(refusal.value).endswith("; copy the whole directory again, or save the graph again")


@pytest.mark.parametrize(
    ("count", "sentence"),
    [
        (torch.tensor(True), "is of the type bool; it must be"),
        (torch.tensor(1.5), "is of the type float32; it must be"),
        (torch.tensor([1, 2]), r"has the shape \[2\]; it must be \[\] of integer numbers"),
        (torch.tensor(-1), "has numbers from -1 to -1; they must be from 0 to"),
    ],
)
@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)]
)
def test_a_norm_that_cannot_count_its_batches_is_refused(tmp_path, norm, count, sentence):
    MaseGraph(nn.Sequential(norm)).export(tmp_path / "graph")
    tensors = load_file(tmp_path / "graph" / "state_dict.safetensors")
    replace_tensors(tmp_path / "graph", {**tensors, "0.num_batches_tracked": count})
    with pytest.raises(ValueError, match=f"'num_batches_tracked' of layer '0' .* {sentence}"):
        MaseGraph.from_checkpoint(tmp_path / "graph")


def test_a_file_of_another_part_is_named_once(saved):
    (saved / "graph.json").write_text('{"format": "mase-graph", ')
    with pytest.raises(GraphFileError, match="is damaged: ") as refusal:
        made_from(saved)
    assert str(refusal.value).count("graph.json") == 1


def test_foreign_folders_and_other_versions_are_refused(saved, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        MaseGraph.from_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is not a saved graph"):
        MaseGraph.from_checkpoint(tmp_path)
    for other in (1, 99):
        with pytest.raises(ValueError, match=rf"version {other}.*with the MASE that saved it"):
            edited(saved, lambda c, other=other: c.update(version=other))
    with pytest.raises(ValueError, match="was not saved by MASE: its format is not 'mase-graph'"):
        edited(saved, lambda c: c.update(format="onnx"))


@pytest.mark.parametrize("name", ["a b", "x = 1", "class", "__import__('os')"])
def test_names_of_nodes_and_arguments_are_not_code(saved, name):
    for change in ({"name": name}, {"kwargs": {name: 1}}):
        with pytest.raises(ValueError, match=r"graph\.json"):
            edited(saved, lambda content, change=change: content["nodes"][1].update(change))


def test_names_mean_the_same_thing_in_both_directions():
    names = SavedNames()
    for fn in (F.relu, torch.add, len, torch.Tensor.mul, torch.ops.aten.add.Tensor, torch.arange):
        assert names.function(names.of_function(fn)) is fn
    for cls in (nn.Linear, nn.Module, nn.MultiheadAttention):
        assert names.module_class(names.of_class(cls)) is cls
    with pytest.raises(ForeignName, match="custom_ops"):
        names.of_function(doubled)


def test_masks_travel_with_their_layers(tmp_path, monkeypatch):
    def attach(module, masks):
        """As pruning does: a class of the same name that reads the weight through a buffer."""
        module.register_buffer("weight_mask", masks["weight"])
        cls = type(module)
        body = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        body["weight"] = property(lambda self: self._parameters["weight"] * self.weight_mask)
        module.__class__ = type(cls.__name__, (cls,), body)

    def read(module):
        return {"weight": module.weight_mask} if "weight_mask" in module._buffers else {}

    monkeypatch.setitem(EXTRAS, "masks", Extra(read, attach))
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    attach(model[0], {"weight": torch.eye(3)})
    graph, x = MaseGraph(model), torch.randn(2, 3)
    graph.export(tmp_path / "g")
    back = MaseGraph.from_checkpoint(tmp_path / "g")
    assert torch.equal(back.model(x), graph.model(x))
    assert torch.equal(back.modules["0"].weight_mask, torch.eye(3))
    assert list(back.model.state_dict()) == list(graph.model.state_dict())
    assert str(back.model) == str(graph.model)


def spoilt(value, draw):
    """One place of a tree of JSON with something else in it."""
    junk = draw(st.sampled_from([None, -1, "os.system", [], {}, {"node": "x"}, {"tensor": "y"}]))
    if not isinstance(value, list | dict) or not value or draw(st.integers(0, 4)) == 0:
        return junk
    key = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
    new = value.copy()
    if draw(st.integers(0, 5)) == 0:
        del new[key]
    else:
        new[key] = spoilt(value[key], draw)
    return new


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_spoilt_description_is_loaded_or_refused_in_one_sentence(saved, data):
    original = saved / "original.json"
    if not original.exists():
        original.write_bytes((saved / "graph.json").read_bytes())
    content = spoilt(json.loads(original.read_text()), data.draw)
    (saved / "graph.json").write_text(json.dumps(content))
    said = [str(saved)]
    try:
        MaseGraph.from_checkpoint(saved)
    except ValueError as error:
        said = str(error).splitlines()
    assert len(said) == 1
    assert str(saved) in said[0]
