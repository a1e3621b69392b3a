"""MaseGraph: what it takes, what it shares with the model, and how it is copied."""

import cmath
import copy
import gc
import pickle
import sys
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from chop.ir import MaseGraph
from chop.ir.graph.trace_errors import TraceError
from chop.ir.ops import OPS
from chop.passes import Pipeline, verify_metadata_analysis_pass
from chop.registry import UnknownName

ANNOTATE = Pipeline(
    ["init_metadata", "add_common_metadata", "add_software_metadata", "add_hardware_metadata"]
)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq_blocks = nn.Sequential(nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x):
        return self.seq_blocks(x)


@pytest.fixture
def prepared_mlp():
    return annotated(Mlp(), x=torch.ones(2, 4))


def annotated(model, **dummy_in):
    graph = MaseGraph(model)
    ANNOTATE(graph, {"add_common_metadata": {"dummy_in": dummy_in}})
    return graph


class TestAttributes:
    def test_those_of_mase(self):
        model = Mlp()
        graph = MaseGraph(model=model)
        assert isinstance(graph.model, fx.GraphModule)
        assert graph.fx_graph is graph.model.graph
        layers = [f"seq_blocks_{i}" for i in range(3)]
        assert [n.name for n in graph.nodes] == ["x", *layers, "output"]
        assert [n.name for n in graph.inputs] == ["x"]
        assert "size" in graph.implicit_nodes
        assert graph.cf_args == {}
        assert graph.nodes_in == graph.nodes_out == []
        assert repr(graph) == "MaseGraph(5 nodes, 4 modules)"
        x = torch.randn(3, 4)
        assert torch.equal(graph.model.eval()(x), model.eval()(x))

    def test_from_module_is_the_constructor(self):
        assert len(MaseGraph.from_module(Mlp(), cf_args=None, custom_ops={}).nodes) == 5

    def test_arguments_of_older_scripts_are_accepted(self):
        assert MaseGraph(Mlp(), skip_init_metadata=True, add_metadata_args={"a": 1}).nodes

    def test_a_new_fx_graph_can_be_set(self):
        graph = annotated(Mlp(), x=torch.zeros(2, 4))
        graph.fx_graph = copy.deepcopy(graph.fx_graph)
        assert graph.model.graph is graph.fx_graph
        assert all(node.meta["mase"].node is node for node in graph.nodes)

    def test_drawing_writes_a_picture(self, tmp_path):
        path = MaseGraph(Mlp()).draw(tmp_path / "deep" / "graph.svg")
        assert path.read_text(encoding="utf-8").startswith("<svg")


class TestModules:
    def test_they_are_live_and_the_root_is_the_empty_name(self):
        graph = MaseGraph(Mlp())
        assert graph.modules[""] is graph.model
        assert graph.modules["seq_blocks.2"] is getattr(graph.modules["seq_blocks"], "2")
        new = nn.Linear(4, 3)
        setattr(graph.modules["seq_blocks"], "2", new)
        assert graph.modules["seq_blocks.2"] is new
        assert graph.model(torch.zeros(2, 4)).shape == (2, 3)

    def test_they_read_as_a_dict(self):
        modules = MaseGraph(Mlp()).modules
        assert list(modules) == ["", "seq_blocks", "seq_blocks.0", "seq_blocks.1", "seq_blocks.2"]
        assert len(modules) == 5
        assert "seq_blocks.0" in modules
        assert "seq_blocks.9" not in modules
        assert F.relu not in modules  # a function node's target
        assert modules.get("seq_blocks.9") is None
        assert repr(modules) == repr(dict(modules))

    def test_an_unknown_name_is_refused_with_the_nearest(self):
        with pytest.raises(UnknownName, match=r"unknown module 'seq_block'; did you mean 'seq_b"):
            MaseGraph(Mlp()).modules["seq_block"]

    def test_a_module_under_two_names_is_found_under_both(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = self.b = nn.Linear(4, 4)

            def forward(self, x):
                return self.b(self.a(x))

        graph = MaseGraph(Twice())
        calls = [node for node in graph.nodes if node.op == "call_module"]
        assert [node.target for node in calls] == ["a", "a"]
        assert [node.name for node in calls] == ["a", "a_1"]


class TestSharing:
    def test_two_graphs_of_one_model_share_leaves_but_not_containers(self):
        model = Mlp()
        first, second = MaseGraph(model), MaseGraph(model)
        leaf = model.seq_blocks[2]
        assert first.modules["seq_blocks.2"] is second.modules["seq_blocks.2"] is leaf
        assert first.modules["seq_blocks"] is not second.modules["seq_blocks"]
        setattr(first.modules["seq_blocks"], "2", nn.Identity())
        assert second.modules["seq_blocks.2"] is model.seq_blocks[2] is leaf

    def test_containers_keep_the_names_and_the_mode_of_the_model(self):
        model = Mlp().eval()
        graph = MaseGraph(model)
        assert list(graph.modules["seq_blocks"]._modules) == ["0", "1", "2"]
        assert not any(module.training for module in graph.modules.values())
        model.train()
        assert all(module.training for module in MaseGraph(model).modules.values())

    def test_the_state_dict_has_the_keys_of_the_model(self):
        class Buffers(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("saved", torch.ones(4))
                self.register_buffer("scratch", torch.ones(4), persistent=False)
                self.plain = torch.ones(4)

            def forward(self, x):
                return x * self.saved + self.scratch + self.plain + torch.ones(4)

        model = Buffers()
        graph = MaseGraph(model)
        assert graph.model.state_dict().keys() == model.state_dict().keys() == {"saved"}
        graph.model.load_state_dict(model.state_dict())

    def test_tracing_leaves_the_model_as_it_was(self):
        class Remembers(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)
                self.num_calls = 0
                self.register_buffer("steps", torch.tensor(0))
                self.register_buffer("more", torch.tensor(0))

            def forward(self, x):
                self.num_calls += 1
                self.steps.add_(1)
                self.more += 1
                self.last = self.fc(x)
                return self.last + torch.ones(4)

        model = Remembers()
        before = dict(vars(model))
        names = [[node.name for node in MaseGraph(model).nodes] for _ in range(2)]
        assert names[0] == names[1]  # constants are numbered anew in each graph
        assert vars(model) == before
        assert (model.num_calls, int(model.steps), int(model.more)) == (0, 0, 0)


class TestWhatItTakes:
    @pytest.mark.parametrize(
        ("model", "message"),
        [
            (None, r"not NoneType None; build a model first"),
            (3, r"not int 3; build a model first"),
            ([nn.ReLU()], r"not list \[ReLU\(\)\]; build a model first"),
            (F.relu, r"not function <function relu.*>; build a model first"),
            ("resnet18", r"not the name 'resnet18'; build the model first"),
            (nn.Linear, r"not the class Linear; call it: Linear\(…\)"),
            (nn.Module(), r"with a forward\(\); the class Module has none; write one"),
            (nn.ModuleList(), r"with a forward\(\); the class ModuleList has none; write one"),
        ],
    )
    def test_anything_but_a_module_with_a_forward_is_refused(self, model, message):
        with pytest.raises(TypeError, match=f"MaseGraph takes an nn.Module or .*{message}"):
            MaseGraph(model)

    @pytest.mark.sampled(1)
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    @pytest.mark.parametrize("compiled", [torch.jit.script, torch.compile])
    def test_a_compiled_model_is_refused(self, compiled):
        with pytest.raises(TypeError, match=r"not the compiled \w+; give the model before comp"):
            MaseGraph(compiled(nn.Linear(2, 2)))

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_a_compiled_layer_is_refused(self):
        model = nn.Sequential(nn.Linear(2, 2), torch.jit.script(nn.Linear(2, 2)))
        with pytest.raises(TypeError, match="not the compiled layer '1'; give the model before"):
            MaseGraph(model)

    def test_a_lazy_layer_must_have_seen_an_input(self):
        model = nn.Sequential(nn.LazyLinear(3))
        with pytest.raises(ValueError, match=r"'0.weight' of Sequential has no shape yet; call"):
            MaseGraph(model)
        model(torch.zeros(1, 2))
        assert MaseGraph(model).modules["0"].in_features == 2

    def test_an_empty_model_is_a_graph_of_its_ends(self):
        assert [node.op for node in MaseGraph(nn.Sequential()).nodes] == ["placeholder", "output"]

    def test_a_model_without_inputs_is_a_graph(self):
        class Constant(nn.Module):
            def __init__(self):
                super().__init__()
                self.p = nn.Parameter(torch.ones(2))

            def forward(self):
                return self.p * 2

        graph = annotated(Constant())
        assert graph.nodes_in == []
        assert [node.name for node in graph.nodes_out] == ["mul"]

    def test_a_graph_module_is_taken_as_it_is(self):
        traced = fx.symbolic_trace(Mlp())
        graph = MaseGraph(traced)
        assert graph.model is traced
        assert graph.tracer is None
        ANNOTATE(graph, {"add_common_metadata": {"dummy_in": {"x": torch.zeros(2, 4)}}})
        modules = [node.meta["mase"].module for node in graph.nodes]
        assert modules[1] is traced.get_submodule("seq_blocks.0")

    def test_an_exported_program_is_a_graph_module_too(self):
        class Small(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

            def forward(self, x):
                return F.relu(self.bn(self.conv(x))).mean((2, 3)).softmax(-1)

        x = torch.randn(2, 3, 8, 8)
        exported = torch.export.export(Small().eval(), (x,)).module()
        graph = MaseGraph(exported)
        ANNOTATE(graph, {"add_common_metadata": {"dummy_in": {"x": x}}})
        assert verify_metadata_analysis_pass(graph)[1] == {}
        ops = [node.meta["mase"]["common"]["mase_op"] for node in graph.nodes]
        quantized = [op for op in ops if op in OPS and OPS[op].quantized]
        assert quantized == ["conv2d", "batch_norm", "relu", "softmax"]

    def test_a_copied_graph_module_gets_metadata_of_its_own(self):
        first = annotated(Mlp(), x=torch.zeros(2, 4))
        second = MaseGraph(copy.deepcopy(first.model))
        for ours, theirs in zip(second.nodes, first.nodes, strict=True):
            assert ours.meta["mase"].node is ours
            assert ours.meta["mase"].parameters == theirs.meta["mase"].parameters
            assert ours.meta["mase"].parameters is not theirs.meta["mase"].parameters

    def test_a_subclass_of_sequential_and_deep_lists_are_traced_through(self):
        class Block(nn.Sequential):
            pass

        class Listed(nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = nn.ModuleList([nn.ModuleDict({"k": Block(nn.Linear(4, 4))})])

            def forward(self, x):
                return self.blocks[0]["k"](x)

        assert [node.target for node in MaseGraph(Listed()).nodes][1] == "blocks.0.k.0"


def double(x):
    return x * 2 if x.sum() > 0 else x


class Branches(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class UsesBoth(nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = Branches()

    def forward(self, x):
        return double(self.branches(x))


class TestCustomOps:
    def test_they_are_kept_whole_and_compute_the_same(self):
        custom = {"modules": {Branches: {}}, "functions": {double: {}}}
        graph = MaseGraph(UsesBoth(), custom_ops=custom)
        assert [node.name for node in graph.nodes] == ["x", "branches", "double", "output"]
        assert graph.model.custom_ops == graph.custom_ops == custom
        x = -torch.ones(3)
        assert torch.equal(graph.model(x), UsesBoth()(x))

    def test_they_survive_a_pickle_of_the_model(self):
        custom = {"modules": {Branches: {}}, "functions": {double: {}}}
        model = MaseGraph(UsesBoth(), custom_ops=custom).model
        loaded = pickle.loads(pickle.dumps(model))
        assert [n.name for n in loaded.graph.nodes] == ["x", "branches", "double", "output"]

    @pytest.mark.parametrize(
        ("custom_ops", "error", "message"),
        [
            ({"module": {}}, UnknownName, r"unknown key of custom_ops 'module'; did you mean 'mod"),
            ({"modules": [Branches]}, TypeError, r"custom_ops\['modules'\] is a dict \{thing: \{"),
            ({"modules": {Branches(): {}}}, TypeError, r"takes classes of modules, not Branches"),
            ({"functions": {3: {}}}, TypeError, r'custom_ops\["functions"\] takes named funct.* 3'),
        ],
    )
    def test_wrong_ones_are_refused(self, custom_ops, error, message):
        with pytest.raises(error, match=message):
            MaseGraph(UsesBoth(), custom_ops=custom_ops)


class Patched(nn.Module):
    patched_nodes = {  # noqa: RUF012
        "modules": [],
        "layers": [Branches],
        "functions": [double],
        "additional_inputs": {"scale": 2.0},
    }

    def __init__(self):
        super().__init__()
        self.branches = Branches()

    def forward(self, x, scale):
        return double(self.branches(x)) * scale


class TestPatchedNodes:
    def test_layers_and_functions_are_leaves_with_the_names_of_mase(self):
        graph = annotated(Patched(), x=torch.ones(3))
        assert graph.model.patched_op_names == ["branches", "double"]
        assert graph.model.patched_custom_layers == [Branches]
        assert graph.model.additional_inputs == {"scale": 2.0}
        common = {node.name: node.meta["mase"]["common"] for node in graph.nodes}
        for name, op in (("branches", "patched_custom_layers"), ("double", "double")):
            assert (common[name]["mase_type"], common[name]["mase_op"]) == ("patched_func", op)
        assert common["scale"]["results"]["data_out_0"]["type"] == "model_specific_input"

    def test_calls_into_a_python_module_are_leaves(self):
        class Model(nn.Module):
            patched_nodes = {"modules": [cmath]}  # noqa: RUF012

            def forward(self, x):
                return x * cmath.isfinite(x.size(0))

        assert [node.name for node in MaseGraph(Model()).nodes][2] == "isfinite"

    @pytest.mark.parametrize(
        ("patched", "error", "message"),
        [
            ({"layer": []}, UnknownName, r"unknown key of patched_nodes 'layer'; did you mean 'la"),
            ({"layers": [nn.ReLU()]}, TypeError, r"takes classes of modules, not ReLU"),
            ({"functions": ["double"]}, TypeError, r"takes named functions, not 'double'"),
            ({"modules": ["math"]}, TypeError, r"takes Python modules, not 'math'"),
        ],
    )
    def test_wrong_ones_are_refused(self, patched, error, message):
        model = Patched()
        model.patched_nodes = patched
        with pytest.raises(error, match=message):
            MaseGraph(model)


class Optional(nn.Module):
    def forward(self, x, mask=None, scale=2.0, return_dict=True):
        if mask is not None:
            x = x + mask
        x = x * scale
        return {"x": x} if return_dict else x


class TestFrozenArguments:
    def test_cf_args_are_constants_of_the_graph(self):
        graph = MaseGraph(Optional(), cf_args={"mask": None, "return_dict": False})
        assert [node.name for node in graph.nodes] == ["x", "scale", "mul", "output"]
        assert torch.equal(graph.model(torch.ones(2)), torch.full((2,), 2.0))
        assert graph.cf_args == {"mask": None, "return_dict": False}

    def test_hf_input_names_are_the_inputs_to_keep(self):
        graph = MaseGraph(Optional(), hf_input_names=["x"])
        assert [node.name for node in graph.inputs] == ["x"]
        assert torch.equal(graph.model(torch.ones(2))["x"], torch.full((2,), 2.0))

    def test_unknown_names_are_refused(self):
        with pytest.raises(UnknownName, match=r"forward argument in cf_args 'msk'; did you mean '"):
            MaseGraph(Optional(), cf_args={"msk": None})
        with pytest.raises(UnknownName, match=r"unknown forward argument 'y' \(known: x, mask"):
            MaseGraph(Optional(), hf_input_names=["y"])

    def test_the_callers_dict_is_theirs(self):
        frozen = {"mask": None, "return_dict": False}
        MaseGraph(Optional(), cf_args=frozen, hf_input_names=["x"])
        assert frozen == {"mask": None, "return_dict": False}


class TestClone:
    @pytest.mark.parametrize("copied", [MaseGraph.clone, copy.deepcopy])
    def test_a_clone_is_independent(self, copied):
        graph = annotated(Mlp(), x=torch.zeros(2, 4))
        new = copied(graph)
        assert [node.name for node in new.nodes] == [node.name for node in graph.nodes]
        assert new.modules["seq_blocks.2"] is not graph.modules["seq_blocks.2"]
        for ours, theirs in zip(new.nodes, graph.nodes, strict=True):
            meta = ours.meta["mase"]
            assert meta.node is ours
            assert meta.model is new.model
            assert meta.parameters == theirs.meta["mase"].parameters
        linear = list(new.nodes)[3].meta["mase"]
        assert linear.module is new.modules["seq_blocks.2"]
        linear["common"]["args"]["weight"]["precision"] = [8, 4]
        assert list(graph.nodes)[3].meta["mase"]["common"]["args"]["weight"]["precision"] == [32]

    def test_the_graphs_own_metadata_is_about_the_copys_nodes(self):
        graph = annotated(Mlp(), x=torch.zeros(2, 4))
        graph.meta["mine"] = "kept"
        new = graph.clone()
        assert new.meta["mine"] == "kept"
        assert new.meta["mase"].graph is new
        ends = (*new.meta["mase"].common.nodes_in, *new.nodes_in, *new.nodes_out)
        assert all(node.graph is new.fx_graph for node in ends)
        assert [n.name for n in new.nodes_in] == [n.name for n in graph.nodes_in]

    def test_recorded_values_are_shared_and_nothing_else(self):
        graph = annotated(Mlp(), x=torch.zeros(2, 4))
        new = graph.clone()
        ours, theirs = (list(g.nodes)[3].meta["mase"].common.args["weight"] for g in (new, graph))
        assert ours["value"] is theirs["value"]
        assert ours is not theirs

    def test_shared_weights_stay_shared(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[0].weight = model[1].weight
        graph = MaseGraph(model).clone()
        assert graph.modules["0"].weight is graph.modules["1"].weight is not model[0].weight

    def test_what_the_constructor_left_on_the_model_is_copied(self):
        graph = MaseGraph(Patched()).clone()
        assert graph.model.patched_op_names == ["branches", "double"]
        assert graph.model.additional_inputs == {"scale": 2.0}
        assert graph.model.custom_ops == {"modules": {}, "functions": {}}

    def test_a_clone_without_metadata_is_a_clone(self):
        assert "mase" not in next(iter(MaseGraph(Mlp()).clone().nodes)).meta

    def test_the_model_is_copied_once_however_many_nodes_there_are(self, monkeypatch):
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(50)))
        graph = annotated(model, input=torch.zeros(1, 4))
        copied, deepcopy = [], nn.Parameter.__deepcopy__
        monkeypatch.setattr(
            nn.Parameter, "__deepcopy__", lambda p, memo: copied.append(p) or deepcopy(p, memo)
        )
        graph.clone()
        assert len(copied) == len(list(model.parameters())) == 100


class TestSize:
    def test_two_hundred_levels_of_modules(self):
        model = nn.Linear(4, 4)
        for _ in range(200):
            model = nn.Sequential(model)
        limit = sys.getrecursionlimit()
        graph = annotated(model, input=torch.zeros(2, 4))
        assert len(graph.nodes) == 3
        assert len(graph.clone().nodes) == 3
        assert sys.getrecursionlimit() == limit

    def test_more_nodes_than_python_may_recurse(self):
        length = sys.getrecursionlimit() + 200

        class Long(nn.Module):
            def forward(self, x):
                for _ in range(length):
                    x = x + 1
                return x

        graph = annotated(Long(), x=torch.zeros(1))
        assert len(graph.nodes) == length + 2
        assert len(graph.clone().nodes) == length + 2
        values = list(graph.nodes)[-1].meta["mase"]["common"]["results"]
        assert values["data_out_0"]["value"].item() == length

    def test_a_model_that_calls_itself_for_ever_is_refused(self):
        class Endless(nn.Module):
            def forward(self, x):
                return self(x)

        with pytest.raises(TraceError, match="recursion"):
            MaseGraph(Endless())


@pytest.mark.parametrize("annotation", ["Tensor", list[int], torch.Tensor | None])
def test_a_model_is_saved_and_loaded_whatever_its_annotations_are(annotation):
    class Annotated(nn.Module):
        def forward(self, x: annotation) -> annotation:
            return x + 1

    assert pickle.loads(pickle.dumps(MaseGraph(Annotated()).model))(1) == 2


def test_an_annotation_that_fx_cannot_write_down_does_no_harm():
    from collections.abc import Callable

    class Annotated(nn.Module):
        def forward(self, x: Callable[[int], int]) -> "Anything at all":  # noqa: F722
            return x + 1

    assert MaseGraph(Annotated()).model(1) == 2


def test_a_clone_survives_the_erasure_of_the_first_computing_node(prepared_mlp):
    graph = prepared_mlp
    first = graph.nodes_in[0]
    first.replace_all_uses_with(first.all_input_nodes[0])
    graph.fx_graph.erase_node(first)
    assert graph.clone().nodes_in == []


def test_another_fx_graph_brings_its_own_nodes(prepared_mlp):
    other = prepared_mlp.clone()
    prepared_mlp.fx_graph = other.fx_graph
    assert all(node.graph is prepared_mlp.fx_graph for node in prepared_mlp.nodes_in)


def test_what_is_for_tracing_is_refused_for_a_traced_model(prepared_mlp):
    with pytest.raises(ValueError, match="cf_args and hf_input_names are for tracing"):
        MaseGraph(prepared_mlp.model, cf_args={"x": 1})


def test_a_graph_keeps_neither_the_model_nor_itself_alive():
    model = nn.Sequential(nn.Linear(2, 2))
    graph = MaseGraph(model)
    copied, watched = graph.clone(), weakref.ref(model)
    gone = weakref.ref(graph)
    del graph
    assert gone() is None
    del model
    gc.collect()
    assert watched() is None
    assert len(copied.nodes) == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: MaseGraph(m, cf_args=["x"]), "cf_args must be a dict, not list"),
        (lambda m: MaseGraph(m, custom_ops=[nn.Linear]), "custom_ops must be a dict, not list"),
        (lambda m: MaseGraph(MaseGraph(m)), "this is already a MaseGraph"),
        (lambda m: MaseGraph(nn.DataParallel(m)), "give model.module"),
        (lambda m: MaseGraph(m).draw("net.png"), "draw writes SVG: name the file net.svg"),
        (lambda m: MaseGraph(m).draw(Path("folder.svg")), "is a directory; give a file in it"),
    ],
)
def test_clumsy_calls_are_refused_in_one_sentence(make, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises((TypeError, ValueError, OSError)) as caught:
        make(nn.Sequential(nn.Linear(2, 2)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_misspelt_part_or_operand_is_answered_with_the_nearest(prepared_mlp):
    meta = prepared_mlp.nodes_in[0].meta["mase"]
    with pytest.raises(KeyError, match="did you mean 'common'"):
        meta["comon"]
    with pytest.raises(KeyError, match="did you mean 'weight'"):
        meta.common.args.tensor("wieght")
