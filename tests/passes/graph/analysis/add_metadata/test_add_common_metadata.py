"""One forward pass writes down every node, and leaves no trace of itself."""

import copy
from collections import namedtuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.prune import l1_unstructured
from torch.utils._python_dispatch import TorchDispatchMode

from chop.ir import MaseGraph
from chop.ir.graph.mase_metadata import TensorMeta
from chop.passes import (
    PassArgsError,
    Pipeline,
    add_common_metadata_analysis_pass,
    add_hardware_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
    verify_metadata_analysis_pass,
)

PREPARE = Pipeline(["init_metadata", "add_common_metadata"])


class Calls(nn.Module):
    def __init__(self, fn, **layers):
        super().__init__()
        self.fn = fn
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.fn(self, x)


def annotated(model, dummy_in, cf_args=None, custom_ops=None, **options):
    graph = MaseGraph(model, cf_args=cf_args, custom_ops=custom_ops)
    PREPARE(graph, {"add_common_metadata": {"dummy_in": dummy_in, **options}})
    assert verify_metadata_analysis_pass(graph)[1] == {}
    return graph


def common(graph, name):
    return next(node for node in graph.nodes if node.name == name).meta["mase"]["common"]


def value(graph, name, entry="data_out_0"):
    part = "results" if entry.startswith("data_out") else "args"
    return common(graph, name)[part][entry]["value"]


def tensors(graph):
    for node in graph.nodes:
        entries = node.meta["mase"]["common"]
        for operand in (*entries["args"].values(), *entries["results"].values()):
            if isinstance(operand, TensorMeta) and isinstance(operand.get("value"), Tensor):
                yield operand["value"]


class Restless(nn.Module):
    """Everything that changes when a model is merely run in train mode."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(4)
        self.drop = nn.Dropout()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))
        self.register_buffer("steps", torch.tensor(0))
        self.table = torch.ones(4)
        self.scale = nn.Parameter(torch.full((4,), 5.0))

    def forward(self, x):
        self.steps.add_(1)
        x = F.dropout(self.drop(self.bn(x)), training=self.training)
        x = F.batch_norm(x, self.mean, self.var, training=self.training)
        x = x + torch.rand_like(x) + torch.rand(x.shape)
        with torch.no_grad():
            self.scale.clamp_(-1, 1)
        return F.relu(x * self.scale, inplace=True) * self.table


class TestNothingIsTouched:
    @pytest.mark.parametrize("options", [{}, {"force_device_meta": True}, {"add_value": False}])
    def test_statistics_random_state_mode_gradients_and_inputs(self, options):
        model = Restless()
        model.bn.eval()  # a mixture of modes
        model.scale.grad = torch.ones(4)
        x = torch.randn(8, 4, requires_grad=True)
        state = copy.deepcopy(model.state_dict())
        modes = [module.training for module in model.modules()]
        rng, before = torch.get_rng_state(), x.detach().clone()
        graph = annotated(model, {"x": x}, **options)
        assert torch.equal(torch.get_rng_state(), rng)
        assert all(torch.equal(state[key], now) for key, now in model.state_dict().items())
        assert [module.training for module in model.modules()] == modes
        assert graph.model.training
        assert torch.equal(model.scale.grad, torch.ones(4))
        assert model.bn.weight.grad is None
        assert x.grad is None
        assert torch.equal(x, before)
        assert torch.is_grad_enabled()
        assert all(p.requires_grad for p in graph.model.parameters())

    def test_parameters_that_need_no_gradient_stay_so(self):
        model = nn.Sequential(nn.Linear(4, 4))
        model[0].weight.requires_grad = False
        annotated(model, {"input": torch.zeros(1, 4)})
        assert not model[0].weight.requires_grad
        assert model[0].bias.requires_grad

    def test_a_layer_that_merges_its_weights_in_eval_mode_is_not_asked_to(self):
        class Merges(nn.Linear):
            def train(self, mode=True):
                if not mode and self.training:
                    self.weight.data += 1
                return super().train(mode)

        layer = Merges(4, 4)
        before = layer.weight.detach().clone()
        annotated(
            nn.Sequential(layer), {"input": torch.zeros(1, 4)}, custom_ops={"modules": {Merges: {}}}
        )
        assert torch.equal(layer.weight, before)

    @pytest.mark.parametrize("on_meta", [False, True])
    def test_attributes_that_layers_assign_while_they_run_are_as_before(self, on_meta):
        layer = nn.Linear(4, 4)
        l1_unstructured(layer, "weight", 0.5)  # sets `weight` before each forward
        layer.register_forward_hook(lambda module, args, out: setattr(module, "last", out))
        before = dict(vars(layer))
        annotated(nn.Sequential(layer), {"input": torch.zeros(1, 4)}, force_device_meta=on_meta)
        assert vars(layer) == before

    def test_an_in_place_op_on_the_input_does_not_reach_the_callers_tensor(self):
        x = -torch.ones(2, 4)
        dummy_in = {"x": x}
        graph = annotated(Calls(lambda m, x: F.relu_(x)), dummy_in)
        assert torch.equal(x, -torch.ones(2, 4))
        assert dummy_in["x"] is x
        assert torch.equal(value(graph, "x"), -torch.ones(2, 4))

    def test_tensors_inside_lists_and_dicts_are_safe_too(self):
        x = torch.ones(2)
        annotated(Calls(lambda m, x: x["a"][0].mul_(3)), {"x": {"a": [x]}})
        assert torch.equal(x, torch.ones(2))

    def test_a_failure_leaves_model_and_metadata_as_they_were(self):
        model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
        graph = annotated(model, {"input": torch.randn(8, 4)})
        before = [node.meta["mase"].parameters.clone() for node in graph.nodes]
        model[1] = model[1].double()
        x, rng = torch.randn(2, 4), torch.get_rng_state()
        with pytest.raises(PassArgsError, match="node '_1'"):
            add_common_metadata_analysis_pass(graph, {"dummy_in": {"input": x}})
        assert [node.meta["mase"].parameters for node in graph.nodes] == before
        assert model.training
        assert torch.equal(torch.get_rng_state(), rng)


class TestRecordedValues:
    def test_they_are_clones_without_history(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        graph = annotated(model, {"input": torch.randn(2, 4, requires_grad=True)})
        recorded = list(tensors(graph))
        assert len(recorded) == 8
        own = {p.data_ptr() for p in model.parameters()}
        assert not any(t.requires_grad or t.data_ptr() in own for t in recorded)
        assert not any(isinstance(t, nn.Parameter) for t in recorded)

    def test_they_are_those_before_an_in_place_op_changes_them(self):
        x = torch.tensor([[-1.0, 2.0]])
        graph = annotated(nn.Sequential(nn.Identity(), nn.ReLU(inplace=True)), {"input": x})
        assert torch.equal(value(graph, "_1", "data_in_0"), x)
        assert torch.equal(value(graph, "_0"), x)
        assert torch.equal(value(graph, "_1"), x.relu())

    def test_a_later_read_sees_what_an_in_place_op_made_of_a_tensor(self):
        def changes(m, x):
            y = x + 0
            y.view(-1).mul_(10)
            return y + 1

        graph = annotated(Calls(changes), {"x": torch.ones(2)})
        assert torch.equal(value(graph, "add"), torch.ones(2))
        assert torch.equal(value(graph, "add_1", "data_in_0"), torch.full((2,), 10.0))
        assert torch.equal(value(graph, "add_1"), torch.full((2,), 11.0))

    def test_one_state_of_a_tensor_is_kept_once(self):
        graph = annotated(Calls(lambda m, x: x + x), {"x": torch.ones(2)})
        args = common(graph, "add")["args"]
        assert args["data_in_0"]["value"] is args["data_in_1"]["value"] is value(graph, "x")

    def test_they_are_there_on_every_node_by_default_and_on_none_if_not_wanted(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        graph = annotated(model, {"input": torch.randn(2, 4)})
        assert all(
            "value" in node.meta["mase"]["common"]["results"]["data_out_0"] for node in graph.nodes
        )
        graph = annotated(model, {"input": torch.randn(2, 4)}, add_value=False)
        assert list(tensors(graph)) == []

    def test_they_are_what_the_model_computes(self):
        model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Dropout(), nn.ReLU()).eval()
        x = torch.randn(8, 4)
        assert torch.equal(value(annotated(model, {"input": x}), "output"), model(x))

    def test_inference_mode_is_no_obstacle(self):
        with torch.inference_mode():
            x = torch.tensor([-1.0])
            graph = annotated(nn.Sequential(nn.Identity(), nn.ReLU(inplace=True)), {"input": x})
        assert value(graph, "_1", "data_in_0").item() == -1


class _Computed(TorchDispatchMode):
    """Every op that gives a tensor on a real device."""

    def __init__(self):
        super().__init__()
        self.ops = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.device.type != "meta":
            self.ops.add(func.name())
        return result


class TestMetaDevice:
    def test_shapes_are_those_of_a_real_run(self):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2))
        x = torch.randn(2, 3, 8, 8)
        model(x)
        real, meta = (
            annotated(model, {"input": x}, add_value=False, force_device_meta=on)
            for on in (False, True)
        )
        for ours, theirs in zip(real.nodes, meta.nodes, strict=True):
            assert ours.meta["mase"].parameters == theirs.meta["mase"].parameters
        assert {p.device.type for p in model.parameters()} == {"cpu"}

    def test_nothing_is_computed(self):
        def sums(m, x):
            return m.fc(x) + torch.arange(x.size(0))[:, None] + torch.ones(4)

        graph = MaseGraph(Calls(sums, fc=nn.Linear(4, 4)))
        init_metadata_analysis_pass(graph)
        options = {"dummy_in": {"x": torch.randn(2, 4)}, "force_device_meta": True}
        with _Computed() as computed:
            add_common_metadata_analysis_pass(graph, options)
        assert computed.ops <= {"aten::detach"}

    @pytest.mark.parametrize("device", ["meta", "cpu"])
    def test_a_model_that_lives_on_the_meta_device_needs_no_option(self, device):
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(10_000, 100_000), nn.ReLU())
        graph = annotated(model, {"input": torch.empty(1, 10_000, device=device)})
        assert common(graph, "output")["results"]["data_out_0"]["shape"] == [1, 100_000]

    def test_what_needs_numbers_says_how_to_go_on(self):
        graph = MaseGraph(Calls(lambda m, x: x * x.sum().item()))
        init_metadata_analysis_pass(graph)
        options = {"dummy_in": {"x": torch.ones(2)}, "force_device_meta": True}
        with pytest.raises(PassArgsError, match=r"node 'item' .*, or drop force_device_meta"):
            add_common_metadata_analysis_pass(graph, options)


class Optional(nn.Module):
    def forward(self, x, y=None, scale=2.0):
        return x * scale if y is None else x + y


class Starred(nn.Module):
    def forward(self, *xs, **named):
        return xs[0] + xs[1] * named["scale"]


class KeywordOnly(nn.Module):
    def forward(self, x, *, scale, shift=1.0):
        return x * scale + shift


Batch = namedtuple("Batch", "image label")
ONES = torch.ones(2, 3)
IDENTITY, NARROW = nn.Sequential(nn.Identity()), nn.Sequential(nn.Linear(2, 2))


class TestInputs:
    @pytest.mark.parametrize(
        ("model", "dummy_in", "cf_args"),
        [
            (nn.Sequential(nn.ReLU()), {"input": ONES}, None),
            (Optional(), {"x": ONES, "y": ONES}, None),
            (Optional(), {"x": ONES}, {"y": None}),
            (Optional(), {"x": ONES, "scale": 3.0}, {"y": None}),
            (KeywordOnly(), {"x": ONES, "scale": ONES}, None),
            (Starred(), {"xs": (ONES, ONES), "named": {"scale": 2.0}}, None),
            (Starred(), {"xs": (ONES, ONES), "scale": 2.0}, None),
            (Calls(lambda m, x: x["a"] + x["b"]), {"x": {"a": ONES, "b": ONES}}, None),
            (Calls(lambda m, x: x.image * 2), {"x": Batch(ONES, 3)}, None),
            (Calls(lambda m, x: x * 2), {"x": 3}, None),
        ],
    )
    def test_of_every_kind_are_given_by_the_names_of_forward(self, model, dummy_in, cf_args):
        graph = annotated(model, dummy_in, cf_args)
        assert common(graph, "output")["results"]

    def test_of_star_arguments_all_tensors_are_listed(self):
        graph = annotated(Starred(), {"xs": (ONES, ONES), "named": {"scale": ONES}})
        assert list(common(graph, "_xs")["results"]) == ["data_out_0", "data_out_1"]
        assert common(graph, "_named")["results"]["data_out_0"]["shape"] == [2, 3]

    def test_are_those_of_the_capture_if_none_are_given(self):
        example = torch.full((3, 3), 2.0)
        graph = MaseGraph(Optional(), {"y": None}, dummy_in={"x": example})
        for mg in (graph, graph.clone()):
            init_metadata_analysis_pass(mg)
            add_common_metadata_analysis_pass(mg)
            x = common(mg, "x")["results"]["data_out_0"]["value"]
            assert torch.equal(x, example)
        add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": ONES}})
        assert common(graph, "x")["results"]["data_out_0"]["shape"] == [2, 3]

    def test_of_a_loaded_graph_are_those_that_its_metadata_keep(self, tmp_path):
        annotated(Optional(), {"x": ONES}, {"y": None}).export(tmp_path / "graph")
        graph = MaseGraph.from_checkpoint(tmp_path / "graph")
        init_metadata_analysis_pass(graph)
        add_common_metadata_analysis_pass(graph)
        assert torch.equal(common(graph, "x")["results"]["data_out_0"]["value"], ONES)

    def test_that_only_a_tokenizer_gives_are_dropped_with_a_warning(self, caplog):
        ids = torch.tensor([[1, 2]])
        encoded = {"input_ids": ids, "token_type_ids": ids, "attention_mask": ids}

        class Embeds(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Embedding(4, 2)

            def forward(self, input_ids):
                return self.table(input_ids)

        graph = MaseGraph(Embeds(), dummy_in=encoded)
        init_metadata_analysis_pass(graph)
        caplog.clear()
        add_common_metadata_analysis_pass(graph, {"dummy_in": encoded})
        assert "the inputs have no attention_mask, token_type_ids; what the" in caplog.text
        with pytest.raises(PassArgsError, match="unknown input 'token_types'"):
            add_common_metadata_analysis_pass(graph, {"dummy_in": {**encoded, "token_types": ids}})

    def test_defaults_are_used(self):
        graph = annotated(Optional(), {"x": ONES}, {"y": None})
        scale = common(graph, "scale")["results"]["data_out_0"]
        assert scale == {"type": float, "shape": [1], "value": 2.0}

    @pytest.mark.parametrize(
        ("model", "dummy_in", "message"),
        [
            (Optional(), {}, r"no value for the model's input 'x'; give \{'dummy_in': \{'x': t"),
            (Optional(), None, r"dummy_in has no value for the model's input 'x'; give \{'dummy_i"),
            (Optional(), {"X": ONES}, r"dummy_in: unknown input 'X'; did you mean 'x'\? \(known: "),
            (IDENTITY, {"input_1": ONES}, r"unknown input 'input_1'; did you mean 'input'\? \(kno"),
            (Optional(), {"x": ONES}, r"give y a value, or MaseGraph\(model, cf_args=\{'y': None"),
            (NARROW, {"input": ONES}, r"'_0' \(call_module 0\) failed on input_1 = float32\[2, 3"),
            (NARROW, {"input": ONES}, r"cannot be multiplied .*; check the shapes, dtypes and val"),
            (NARROW, {"input": ONES[:, :2].long()}, r"on input_1 = int64\[2, 2\]: .*; check the s"),
            (Optional(), {"x": np.ones(3)}, r"the input 'x' is a numpy array; give torch.from_num"),
            (Optional(), ["x"], r"option 'dummy_in' is \['x'\], but it should be a valid dicti"),
        ],
    )
    def test_wrong_ones_are_refused_in_one_sentence(self, model, dummy_in, message):
        graph = MaseGraph(model)
        init_metadata_analysis_pass(graph)
        with pytest.raises(PassArgsError, match=message) as refused:
            add_common_metadata_analysis_pass(graph, {"dummy_in": dummy_in})
        assert "\n" not in str(refused.value)
        assert ". " not in str(refused.value)

    def test_a_misspelt_option_is_refused(self):
        graph = MaseGraph(Optional())
        with pytest.raises(PassArgsError, match=r"no option 'dummyin'; did you mean 'dummy_in'\?"):
            add_common_metadata_analysis_pass(graph, {"dummyin": {}})

    def test_the_callers_options_are_theirs(self):
        graph = MaseGraph(nn.Sequential(nn.ReLU()))
        init_metadata_analysis_pass(graph)
        options = {"dummy_in": {"input": ONES}, "add_value": False}
        kept = copy.copy(options)
        add_common_metadata_analysis_pass(graph, options)
        assert options == kept


@pytest.mark.parametrize(
    ("run", "first"),
    [
        (add_common_metadata_analysis_pass, "init_metadata_analysis_pass"),
        (add_software_metadata_analysis_pass, "add_common_metadata_analysis_pass"),
        (add_hardware_metadata_analysis_pass, "add_common_metadata_analysis_pass"),
    ],
)
def test_a_pass_without_its_prerequisites_says_which_to_run(run, first):
    with pytest.raises(PassArgsError, match=f"node 'input_1' has none; run {first} first"):
        run(MaseGraph(nn.Sequential(nn.ReLU())), {})


class TestAnyModel:
    def test_a_module_used_twice_has_two_nodes_and_one_weight(self):
        fc = nn.Linear(4, 4)
        graph = annotated(Calls(lambda m, x: m.fc(m.fc(x)), fc=fc), {"x": torch.ones(1, 4)})
        first, second = common(graph, "fc"), common(graph, "fc_1")
        assert first["args"]["weight"]["value"] is second["args"]["weight"]["value"]
        first["args"]["weight"]["precision"] = [8]
        assert second["args"]["weight"]["precision"] == [32]

    def test_shared_weights_are_listed_by_both(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        graph = annotated(model, {"input": torch.ones(1, 4)})
        assert value(graph, "_0", "weight") is value(graph, "_1", "weight")

    def test_a_weight_that_functions_read_too_is_one_weight(self):
        def tied(m, x):
            return F.linear(m.table(x), m.table.weight)

        model = Calls(tied, table=nn.Embedding(5, 4))
        graph = annotated(model, {"x": torch.tensor([1, 2])})
        assert common(graph, "linear")["args"]["weight"]["shape"] == [5, 4]
        annotated(model, {"x": torch.tensor([1, 2])}, force_device_meta=True)

    @pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
    def test_parametrised_layers_list_what_they_are_made_of(self, norm):
        model = nn.Sequential(getattr(nn.utils.parametrizations, norm)(nn.Linear(4, 2)))
        graph = annotated(model, {"input": torch.ones(1, 4)})
        assert common(graph, "_0")["mase_op"] == "linear"
        names = [name for name, _ in model[0].named_parameters()]
        assert list(common(graph, "_0")["args"]) == ["data_in_0", *names]

    def test_hooks_run_as_they_do_in_the_model(self):
        seen = []
        layer = nn.Linear(4, 4)
        layer.register_forward_hook(lambda module, args, out: seen.append(1) or out * 2)
        graph = annotated(nn.Sequential(layer), {"input": torch.zeros(1, 4)})
        assert torch.equal(value(graph, "_0"), 2 * layer.bias[None])
        assert seen == [1]

    def test_a_node_that_nobody_uses_is_annotated_too(self):
        def wasteful(m, x):
            _ = x * 2
            return x + 1

        assert common(annotated(Calls(wasteful), {"x": ONES}), "mul")["mase_op"] == "mul"

    def test_an_unknown_layer_and_function_get_full_metadata(self):
        class Strange(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.ones(3))

            def forward(self, x, by):
                return x * self.w * by if x.sum() > 0 else x

        model = Calls(lambda m, x: torch.fft.rfft(m.strange(x, 2)), strange=Strange())
        graph = annotated(model, {"x": ONES}, custom_ops={"modules": {Strange: {}}})
        strange, fft = common(graph, "strange"), common(graph, "fft_rfft")
        assert (strange["mase_type"], strange["mase_op"]) == ("module", "user_defined_module")
        assert list(strange["args"]) == ["data_in_0", "by", "w"]
        assert (fft["mase_type"], fft["mase_op"]) == ("patched_func", "user_defined_function")
        assert fft["results"]["data_out_0"]["torch_dtype"] == torch.complex64

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_models_of_any_precision(self, dtype):
        model = nn.Sequential(nn.Linear(3, 2), nn.ReLU()).to(dtype)
        graph = annotated(model, {"input": ONES.to(dtype)})
        assert common(graph, "_0")["args"]["weight"]["precision"] == [dtype.itemsize * 8]


class TestTheGraph:
    def test_inputs_are_numbered_in_their_order_and_results_are_the_outputs(self):
        class Two(nn.Module):
            def forward(self, a, b):
                return (a.view(-1) + 1).view(2, 2), b * 2

        graph = annotated(Two(), {"a": torch.zeros(2, 2), "b": torch.zeros(5)})
        meta = graph.meta["mase"]["common"]
        assert [meta["args"][f"data_in_{k}"]["shape"] for k in (0, 1)] == [[2, 2], [5]]
        assert [meta["results"][f"data_out_{k}"]["shape"] for k in (0, 1)] == [[2, 2], [5]]
        assert [n.name for n in meta["nodes_in"]] == [n.name for n in meta["nodes_out"]]
        assert [n.name for n in meta["nodes_in"]] == ["add", "mul"]

    def test_the_ends_and_what_only_reshapes_between_them_and_the_work_are_implicit(self):
        graph = annotated(Calls(lambda m, x: (x.view(-1) + 1).view(2, 3)), {"x": ONES})
        hardware = {node.name: node.meta["mase"]["hardware"] for node in graph.nodes}
        implicit = {name for name, meta in hardware.items() if meta.get("is_implicit")}
        assert implicit == {"x", "view", "view_1", "output"}

    def test_a_second_run_replaces_the_first(self):
        graph = annotated(nn.Sequential(nn.Linear(3, 2)), {"input": ONES})
        options = {"dummy_in": {"input": torch.ones(7, 3)}, "add_value": False}
        add_common_metadata_analysis_pass(graph, options)
        assert common(graph, "_0")["results"]["data_out_0"]["shape"] == [7, 2]
        assert "value" not in common(graph, "_0")["results"]["data_out_0"]

    def test_init_drops_all_metadata(self):
        graph = annotated(nn.Sequential(nn.Linear(3, 2)), {"input": ONES})
        init_metadata_analysis_pass(graph)
        empty = {"common": {}, "software": {}, "hardware": {}}
        assert all(node.meta["mase"].parameters == empty for node in graph.nodes)
