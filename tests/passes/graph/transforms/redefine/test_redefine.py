"""The redefine passes: what the labs write, what is refused, what is remembered."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes import PassArgsError, Pipeline
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    cost_analysis_pass,
    init_metadata_analysis_pass,
    prune_channels_transform_pass,
    prune_transform_pass,
    quantize_transform_pass,
    redefine_conv_transform_pass,
    redefine_linear_transform_pass,
    redefine_transform_pass,
    verify_metadata_analysis_pass,
)
from chop.passes.graph.describe import common
from chop.passes.graph.transforms.pruning import masks_of

LABS = {
    "by": "name",
    "default": {"config": {"name": None}},
    "seq_blocks_2": {"config": {"name": "output_only", "channel_multiplier": 2}},
    "seq_blocks_4": {"config": {"name": "both", "channel_multiplier": 4}},
    "seq_blocks_6": {"config": {"name": "input_only"}},
}
KEYS = {"width": 8, "frac_width": 4}
INTEGER = {f"{o}_{k}": KEYS[k] for o in ("data_in", "weight", "bias") for k in KEYS}
INTEGER = {"config": {"name": "integer", **INTEGER}}


def both(**choice):
    return {"config": {"name": "both", **choice}}


def widths(info):
    return {name: row["width"] for name, row in info["widths"].items()}


def jets(parents):
    return parents("jsc").graph.clone()


def linears(mg):
    layers = (mg.modules[f"seq_blocks.{i}"] for i in (2, 4, 6))
    return [(layer.in_features, layer.out_features) for layer in layers]


class TestLabs:
    @pytest.mark.parametrize("wrapped", [False, True])
    @pytest.mark.parametrize("run", [redefine_linear_transform_pass, redefine_transform_pass])
    def test_what_they_write_gives_16_32_64_5(self, parents, run, wrapped):
        pass_args = {"config": LABS} if wrapped else LABS
        before = copy.deepcopy(pass_args)
        mg, info = run(jets(parents), pass_args)
        assert linears(mg) == [(16, 32), (32, 64), (64, 5)]
        assert pass_args == before
        assert info["fresh"] == ["seq_blocks_2", "seq_blocks_4", "seq_blocks_6"]

    def test_again_on_the_result_starts_from_the_original(self, parents):
        mg, _ = redefine_linear_transform_pass(jets(parents), LABS)
        weight = mg.modules["seq_blocks.4"].weight
        mg, info = redefine_linear_transform_pass(mg, LABS)
        assert linears(mg) == [(16, 32), (32, 64), (64, 5)]
        assert mg.modules["seq_blocks.4"].weight is weight
        assert info["fresh"] == []
        mg, _ = redefine_linear_transform_pass(mg, seq_blocks_4=both(channel_multiplier=1))
        assert linears(mg) == [(16, 32), (32, 16), (16, 5)]

    def test_the_original_outlives_copies_files_and_new_metadata(self, parents, tmp_path):
        mg, _ = redefine_linear_transform_pass(jets(parents), LABS)
        mg = MaseGraph.from_checkpoint(mg.clone().export(tmp_path / "mz"))
        mg, _ = init_metadata_analysis_pass(mg)
        mg, _ = add_common_metadata_analysis_pass(mg, dummy_in={"x": parents("jsc").x})
        mg, info = redefine_linear_transform_pass(mg, seq_blocks_2=both(channel_multiplier=3))
        assert linears(mg) == [(16, 48), (48, 64), (64, 5)]
        assert info["widths"]["seq_blocks_2"] == {"original": 16, "width": 48}

    def test_a_multiplier_of_input_only_is_that_of_whoever_gives_the_inputs(self, parents):
        tail = {"config": {"name": "input_only", "channel_multiplier": 4}}
        mg, _ = redefine_linear_transform_pass(jets(parents), seq_blocks_6=tail)
        assert linears(mg) == [(16, 16), (16, 64), (64, 5)]
        mg, _ = redefine_linear_transform_pass(jets(parents), {**LABS, "seq_blocks_6": tail})
        assert linears(mg) == [(16, 32), (32, 64), (64, 5)]
        tail["config"]["channel_multiplier"] = 3
        message = r"'seq_blocks_6' .*48 inputs .*'seq_blocks_4' has 64"
        with pytest.raises(PassArgsError, match=message):
            redefine_linear_transform_pass(jets(parents), {**LABS, "seq_blocks_6": tail})

    def test_inputs_of_no_layer_stay(self, parents):
        head = {"config": {"name": "input_only", "channel_multiplier": 1}}
        mg, _ = redefine_linear_transform_pass(jets(parents), seq_blocks_2=head)
        assert linears(mg) == [(16, 16), (16, 16), (16, 5)]
        head["config"]["channel_multiplier"] = 2
        message = "inputs of node 'seq_blocks_2' come from no layer"
        with pytest.raises(PassArgsError, match=message):
            redefine_linear_transform_pass(jets(parents), seq_blocks_2=head)

    def test_a_sampled_config_of_a_search_is_taken_as_it_is(self, parents):
        sampled = {**LABS, "seq_blocks_1": {"config": {"name": None}}, "accelerator": "cuda"}
        sampled["seq_blocks_3"] = {"config": {"name": "NA"}}
        mg, _ = redefine_linear_transform_pass(jets(parents), sampled)
        assert linears(mg) == [(16, 32), (32, 64), (64, 5)]


class TestChoices:
    def test_absolute_widths(self, parents):
        config = {"seq_blocks_2": {"out_features": 7}, "seq_blocks_4": both(width=9)}
        mg, _ = redefine_transform_pass(jets(parents), config)
        assert linears(mg) == [(16, 7), (7, 9), (9, 5)]
        mg, _ = redefine_conv_transform_pass(
            parents("vgg").graph.clone(), feature_layers_17={"config": {"out_channels": 5}}
        )
        assert mg.modules["classifier.0"].in_features == 5
        assert mg.modules["feature_layers.18"].num_features == 5

    def test_no_layer_loses_its_last_channel(self, parents):
        config = {"seq_blocks_2": both(channel_multiplier=0.001)}
        mg, _ = redefine_transform_pass(jets(parents), config)
        assert linears(mg) == [(16, 1), (1, 16), (16, 5)]

    def test_by_regular_expression_and_by_type(self, parents):
        double = both(channel_multiplier=2)
        by_name = {"by": "regex_name", "seq_blocks_[24]": double}
        mg, _ = redefine_transform_pass(jets(parents), by_name)
        assert linears(mg) == [(16, 32), (32, 32), (32, 5)]
        mg, info = redefine_transform_pass(jets(parents), by="type", linear=double)
        assert linears(mg) == [(16, 32), (32, 32), (32, 5)]
        assert "'output' gives them away" in info["kept"]["seq_blocks_6"]

    def test_a_residual_network_doubles_as_a_whole(self, parents):
        graph = parents("resnet").graph.clone()
        double = both(channel_multiplier=2)
        mg, info = redefine_conv_transform_pass(graph, by="type", conv2d=double)
        assert mg.modules["fc"].in_features == 48
        assert info["kept"] == {}
        assert mg.model(parents("resnet").x).shape == (2, 3)

    def test_what_is_added_to_a_layer_follows_it(self, parents):
        mg, info = redefine_conv_transform_pass(
            parents("resnet").graph.clone(), layer1_1_conv2=both(width=10)
        )
        same = ["conv1", "layer1_0_conv2", "layer1_1_conv2"]
        assert [widths(info)[name] for name in same] == [10, 10, 10]
        assert widths(info)["layer1_0_conv1"] == 3
        assert mg.modules["layer2.0.downsample.0"].in_channels == 10

    def test_one_call_takes_both_kinds_and_two_calls_add_up(self, parents):
        conv = {"feature_layers_17": both(channel_multiplier=2)}
        linear = {"classifier_0": both(width=3)}
        once, _ = redefine_transform_pass(parents("vgg").graph.clone(), {**conv, **linear})
        mg, first = redefine_conv_transform_pass(parents("vgg").graph.clone(), conv)
        twice, second = redefine_linear_transform_pass(mg, linear)
        assert repr(once.model) == repr(twice.model)
        assert first["fresh"] == ["feature_layers_17", "feature_layers_18", "classifier_0"]
        assert second["fresh"] == ["classifier_0", "classifier_2"]

    def test_a_firm_choice_wins_over_the_default(self, parents):
        config = {"default": both(channel_multiplier=2), "layer1_0_conv2": both(width=5)}
        _, info = redefine_transform_pass(parents("resnet").graph.clone(), config)
        assert widths(info)["conv1"] == 5
        assert widths(info)["layer1_0_conv1"] == 6

    def test_widths_that_only_differ_by_rounding_agree(self, make_graph, calls):
        net = calls(
            lambda self, x: self.head(torch.cat([self.a(x), self.b(x)], 1) + self.c(x)),
            a=nn.Linear(4, 3),
            b=nn.Linear(4, 3),
            c=nn.Linear(4, 6),
            head=nn.Linear(6, 2),
        )
        graph = make_graph(net, torch.randn(2, 4))
        names = dict.fromkeys("abc", both(channel_multiplier=1.5))
        mg, info = redefine_transform_pass(graph, names)
        assert mg.model(torch.randn(2, 4)).shape == (2, 2)
        assert widths(info)["c"] == widths(info)["a"] + widths(info)["b"]

    def test_what_is_left_of_a_sum_falls_to_the_layer_that_nobody_named(self, parents):
        config = {"a": both(width=6), "c": both(width=11)}
        _, info = redefine_transform_pass(parents("plain").graph.clone(), config)
        assert widths(info)["b"] == 5


class TestRefused:
    def refused(self, graph, config, message, run=redefine_transform_pass):
        before, keys = repr(graph.model), [node.name for node in graph.nodes]
        with pytest.raises(PassArgsError, match=message) as caught:
            run(graph, config)
        assert str(caught.value).startswith(f"pass '{run.name}': ")
        assert "\n" not in str(caught.value)
        assert repr(graph.model) == before
        assert [node.name for node in graph.nodes] == keys

    def test_contradictions_name_both_nodes(self, parents):
        config = {"conv1": both(channel_multiplier=2), "layer1_0_conv2": both(channel_multiplier=3)}
        message = r"'layer1_0_conv2' cannot have 9 .*node 'conv1' has 6 .*choose widths that agree"
        self.refused(parents("resnet").graph.clone(), config, message)
        config = {"conv1": both(width=7), "layer1_0_conv2": {"config": {"name": "input_only"}}}
        self.refused(parents("resnet").graph.clone(), config, r"'layer1_0_conv2' .*'conv1'")
        # the repeats of a block are refused together with widths, before anything is changed
        config |= {"layer1.1": {"repeat": 2}}
        self.refused(parents("resnet").graph.clone(), config, r"'layer1_0_conv2' .*'conv1'")
        config = {"a": both(width=20), "b": both(width=20), "c": both(width=9)}
        self.refused(parents("plain").graph.clone(), config, "'c' cannot have 9 .*'a' has 20")

    def test_results_keep_their_number(self, parents):
        message = "'seq_blocks_6' cannot become 10, as node 'output' gives them away .*input_only"
        self.refused(jets(parents), {"seq_blocks_6": both(channel_multiplier=2)}, message)

    def test_a_depthwise_layer_has_no_width_of_its_own(self, parents):
        message = "'deep' has no width to choose, .*name the layer before it"
        self.refused(parents("plain").graph.clone(), {"deep": both(width=7)}, message)
        _, info = redefine_transform_pass(
            parents("plain").graph.clone(), {"by": "type", "conv2d": both(channel_multiplier=2)}
        )
        assert "name the layer before it" in info["kept"]["deep"]

    def test_layers_of_another_kind(self, parents):
        graph = parents("vgg").graph.clone()
        message = "node 'feature_layers_0' is conv2d; these can be redefined here: linear"
        config = {"feature_layers_0": both(width=3)}
        self.refused(graph, config, message, redefine_linear_transform_pass)
        message = "op 'linear' cannot be redefined here; these can: conv1d"
        config = {"by": "type", "linear": both(width=3)}
        self.refused(graph, config, message, redefine_conv_transform_pass)
        self.refused(graph, {"feature_layers_2": both(width=3)}, "'feature_layers_2' is relu")

    @pytest.mark.parametrize(
        ("table", "message"),
        [
            (both(channel_multiplier=0), "channel_multiplier is 0; give a number above 0"),
            (both(channel_multiplier=-2), "channel_multiplier is -2; give a number above 0"),
            (both(channel_multiplier=True), "channel_multiplier is True; give a number above 0"),
            (both(channel_multiplier="2"), "channel_multiplier is '2'; give a number above 0"),
            (both(channel_multiplier=float("nan")), "channel_multiplier is nan"),
            (both(channel_multiplier=[1, 2]), "a list; give one number, as choices are for"),
            (both(width=2.5), "width is 2.5; give an integer"),
            (both(width=4, channel_multiplier=2), "give one of them"),
            (both(width=4, out_features=4), "has width and out_features; give one of them"),
            (both(), "is 'both' and needs channel_multiplier or width"),
            (both(chanel_multiplier=2), "did you mean 'channel_multiplier'"),
            ({"config": {"name": "outputs_only"}}, "did you mean 'output_only'"),
            ({"config": {"name": "input_only", "width": 4}}, "omit the width"),
            (both(repeat=-1), "repeat is -1; give an integer, 0 to skip"),
            (both(repeat=True), "repeat is True"),
            (3, "needs a table"),
            ({"config": {"width": 3}, "repeat": 2}, "'repeat' is next to 'config'; put it inside"),
        ],
    )
    def test_choices_that_cannot_be_meant(self, parents, table, message):
        self.refused(jets(parents), {"seq_blocks_2": table}, f"'seq_blocks_2'.*{message}")

    def test_unknown_names(self, parents):
        message = "unknown node 'seq_blocks_22'; did you mean 'seq_blocks_2'"
        self.refused(jets(parents), {"seq_blocks_22": both(width=3)}, message)
        self.refused(jets(parents), {"config": {"by": "names"}}, "did you mean 'name'")
        self.refused(jets(parents), {"config": {"weights": "fesh"}}, "did you mean 'fresh'")

    def test_a_width_of_which_a_flattened_channel_has_several(self, make_graph, calls):
        def forward(self, x):
            return self.head(torch.flatten(self.a(x), 1) + self.b(x.flatten(1)))

        layers = {"a": nn.Conv2d(1, 3, 1), "b": nn.Linear(4, 12), "head": nn.Linear(12, 2)}
        graph = make_graph(calls(forward, **layers), torch.randn(2, 1, 2, 2))
        self.refused(graph, {"b": both(width=14)}, "give a multiple of 4")
        _, info = redefine_transform_pass(graph.clone(), b=both(channel_multiplier=1.2))
        assert widths(info)["b"] == 4 * widths(info)["a"] == 16  # the nearest that there is
        mg, info = redefine_transform_pass(graph, b=both(width=20))
        assert widths(info)["a"] == 5
        assert mg.model(torch.randn(2, 1, 2, 2)).shape == (2, 2)

    def test_a_single_channel_beside_itself_stays(self, make_graph, calls):
        def forward(self, x):
            y = self.a(x)
            return self.head(torch.cat([y, F.relu(y)], 1))

        net = calls(forward, a=nn.Linear(4, 1), head=nn.Linear(2, 2))
        graph = make_graph(net, torch.randn(2, 4))
        self.refused(graph, {"a": both(width=2)}, "'cat' puts a single channel beside itself")

    def test_two_calls_of_one_layer_agree(self, make_graph, calls):
        def forward(self, x):
            return self.c(self.b(F.relu(self.b(self.a(x)))))

        layers = {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "c": nn.Linear(4, 2)}
        graph = make_graph(calls(forward, **layers), torch.randn(2, 4))
        config = {"b": both(width=3), "b_1": both(width=2)}
        self.refused(graph, config, "'b' and 'b_1' call the same module 'b'")
        _, info = redefine_transform_pass(graph, b=both(width=3))
        assert widths(info) == {"a": 3, "b": 3, "c": 2}


class TestWeights:
    def test_new_weights_come_from_the_seed_alone(self, parents):
        state = torch.get_rng_state()
        models = []
        for seed in (0, 0, 1):
            torch.rand(3)
            models.append(redefine_transform_pass(jets(parents), {**LABS, "seed": seed})[0].model)
        first, same, other = (m.get_submodule("seq_blocks.4").weight for m in models)
        assert torch.equal(first, same)
        assert not torch.equal(first, other)
        torch.set_rng_state(state)
        before = torch.get_rng_state()
        redefine_transform_pass(jets(parents), LABS)
        assert torch.equal(torch.get_rng_state(), before)

    def test_layers_of_the_same_shape_keep_theirs(self, parents):
        mg, info = redefine_transform_pass(jets(parents), seq_blocks_4=both(width=20))
        old = parents("jsc").model.seq_blocks
        assert torch.equal(mg.modules["seq_blocks.2"].weight, old[2].weight)
        assert info["fresh"] == ["seq_blocks_4", "seq_blocks_6"]

    @pytest.mark.parametrize("weights", ["fresh", "inherit"])
    def test_the_model_that_was_traced_shares_nothing_that_changed(self, make_graph, weights):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        state = {key: value.clone() for key, value in model.state_dict().items()}
        mg = make_graph(model, torch.randn(2, 4))
        mg, _ = redefine_transform_pass(mg, {"_0": both(width=6), "weights": weights})
        with torch.no_grad():
            for parameter in mg.model.parameters():
                parameter.add_(1)
        assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())

    @pytest.mark.parametrize("weights", ["fresh", "inherit"])
    def test_dtype_mode_and_gradients_stay_as_they_were(self, parents, weights):
        mg = jets(parents)
        mg.modules["seq_blocks.4"].weight.requires_grad_(False)
        mg, _ = redefine_transform_pass(mg, {**LABS, "weights": weights})
        assert {p.dtype for p in mg.model.parameters()} == {torch.double}
        assert not mg.modules["seq_blocks.4"].weight.requires_grad
        assert mg.modules["seq_blocks.2"].weight.requires_grad
        assert not any(module.training for module in mg.model.modules())

    def test_new_weights_of_a_masked_layer_are_new_and_masked(self, parents):
        mg = jets(parents)
        mg, _ = prune_transform_pass(mg, weight={"sparsity": 0.5, "method": "l1-norm"})
        old = mg.modules["seq_blocks.4"]._parameters["weight"].clone()
        mg, _ = redefine_transform_pass(mg, seq_blocks_4=both(channel_multiplier=2))
        layer = mg.modules["seq_blocks.4"]
        assert layer._parameters["weight"].shape == masks_of(layer)["weight"].shape == (32, 16)
        assert not torch.equal(layer._parameters["weight"][::2], old)
        assert (layer.weight == 0).double().mean() == pytest.approx(0.5, abs=0.1)


class TestAfterwards:
    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("weights", ["fresh", "inherit"])
    @pytest.mark.parametrize("name", ["jsc", "resnet", "plain"])
    def test_a_redefined_graph_is_saved_and_loaded(self, parents, tmp_path, name, weights):
        parent = parents(name)
        wider = {"default": both(channel_multiplier=1.5), "weights": weights}
        mg, _ = redefine_transform_pass(parent.graph.clone(), wider)
        loaded = MaseGraph.from_checkpoint(mg.export(tmp_path / "mz"))
        assert torch.equal(loaded.model(parent.x), mg.model(parent.x))
        assert verify_metadata_analysis_pass(loaded)[1] == {}
        _, info = redefine_transform_pass(loaded, wider)
        assert info["fresh"] == []

    def test_the_cost_is_that_of_the_new_network(self, parents):
        mg, _ = redefine_transform_pass(jets(parents), LABS)
        total = cost_analysis_pass(mg, per_sample=True)[1]["total"]
        assert total["macs"] == 16 * 32 + 32 * 64 + 64 * 5 + 0
        assert total["parameters"] == 2 * 16 + 17 * 32 + 33 * 64 + 65 * 5

    def test_quantize_and_prune_work_on_it(self, parents):
        steps = [
            ("redefine", {**LABS, "weights": "inherit"}),
            ("prune", {"weight": {"sparsity": 0.5, "method": "l1-norm"}}),
            ("quantize", {"by": "type", "linear": INTEGER}),
            ("verify_metadata", {"strict": True}),
        ]
        mg, _ = Pipeline(steps)(jets(parents))
        layer = mg.modules["seq_blocks.4"]
        assert type(layer).__name__ == "LinearInteger"
        assert (layer.weight == 0).sum() >= 32 * 64 // 2
        assert mg.model(parents("jsc").x).shape == (6, 5)

    def test_it_works_on_quantized_and_on_narrowed_graphs(self, parents):
        mg, _ = quantize_transform_pass(jets(parents), {"by": "type", "linear": INTEGER})
        expected = mg.model(parents("jsc").x)
        same = both(channel_multiplier=1)
        mg, _ = redefine_transform_pass(mg, seq_blocks_2=same, weights="inherit")
        assert torch.equal(mg.model(parents("jsc").x), expected)
        mg, _ = redefine_transform_pass(mg, LABS)
        assert type(mg.modules["seq_blocks.4"]).__name__ == "LinearInteger"
        assert linears(mg) == [(16, 32), (32, 64), (64, 5)]
        verify_metadata_analysis_pass(mg, strict=True)
        mg, _ = prune_channels_transform_pass(jets(parents), sparsity=0.5)
        mg, _ = redefine_transform_pass(mg, seq_blocks_2=both(channel_multiplier=3))
        assert linears(mg) == [(16, 24), (24, 8), (8, 5)]

    def test_values_that_were_kept_are_those_of_the_new_network(self, parents, make_graph):
        parent = parents("jsc")
        mg = make_graph(parent.model, parent.x, add_value=True)
        mg, _ = redefine_transform_pass(mg, {**LABS, "weights": "inherit"})
        out = next(node for node in mg.nodes if node.name == "seq_blocks_7")
        value = out.meta["mase"].common.results.tensor("data_out_0").value
        torch.testing.assert_close(value, parent.y)

    def test_a_network_with_much_to_compute_is_described_without_computing(
        self, parents, monkeypatch
    ):
        small, _ = redefine_transform_pass(parents("resnet").graph.clone(), conv1=both(width=5))
        monkeypatch.setattr(common, "LITTLE_WORK", 0)
        large, _ = redefine_transform_pass(parents("resnet").graph.clone(), conv1=both(width=5))
        for one, other in zip(small.nodes, large.nodes, strict=True):
            assert one.meta["mase"].parameters == other.meta["mase"].parameters

    def test_a_network_that_asks_for_its_device_gets_the_true_one(
        self, make_graph, calls, monkeypatch
    ):
        monkeypatch.setattr(common, "LITTLE_WORK", 0)
        layers = {"a": nn.Linear(4, 4), "b": nn.Linear(4, 2)}
        net = calls(lambda self, x: self.b(self.a(x)).to(x.device), **layers)
        mg, _ = redefine_transform_pass(make_graph(net, torch.randn(2, 4)), a=both(width=3))
        values = [n.meta["mase"].common.results["data_out_0"].get("value") for n in mg.nodes]
        assert torch.device("cpu") in values
        assert verify_metadata_analysis_pass(mg)[1] == {}

    def test_it_trains(self, parents):
        mg, _ = redefine_transform_pass(parents("resnet").graph.clone(), {"default": both(width=4)})
        optimiser = torch.optim.SGD(mg.model.train().parameters(), lr=0.1)
        mg.model(parents("resnet").x).square().mean().backward()
        optimiser.step()
        assert all(p.grad is not None for p in mg.model.parameters())
