"""Models that torch.fx cannot trace, as graphs by torch.export."""

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.passes import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
    prune_transform_pass,
    quantize_transform_pass,
    report_node_type_analysis_pass,
    verify_common_metadata_analysis_pass,
)

from .export_models import (
    INTEGER,
    OWN,
    ByShape,
    Shared,
    Trains,
    X,
    assert_equal,
    called,
    captured,
    layers,
)

PRUNE = {"weight": {"sparsity": 0.5, "scope": "local", "method": "l1-norm"}}


def test_a_model_that_decides_by_shape():
    model, graph, inputs = captured("by shape")
    assert graph.front_end == "export"
    assert layers(graph) == ["inner", "inner", "head"]
    given = inputs(5)
    assert_equal(called(graph.model, given), called(model, given))


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
class TestOwnModels:
    def test_results_are_equal_for_other_batches(self, name):
        model, graph, inputs = captured(name, batch=1 if name == "tied" else 2)
        assert graph.front_end == "export"
        for batch in (2, 5):
            given = inputs(batch)
            assert_equal(called(graph.model, given), called(model, given))

    def test_names_of_layers_and_weights_are_the_models(self, name):
        model, graph, _ = captured(name)
        names = dict(model.named_modules())
        assert layers(graph)
        for target in layers(graph):
            assert type(graph.modules[target]) is type(names.get(target, graph.modules[target]))
        ours = {key for key in graph.model.state_dict() if "_tensor_constant" not in key}
        assert ours == set(model.state_dict())

    def test_all_passes_work(self, name, tmp_path, capsys):
        model, graph, inputs = captured(name)
        inputs = inputs(2)
        if name == "any number":
            inputs = {"args": inputs["args"], "kwargs": {"shift": inputs["shift"]}}
        init_metadata_analysis_pass(graph)
        add_common_metadata_analysis_pass(graph, {"dummy_in": inputs})
        add_software_metadata_analysis_pass(graph)
        verify_common_metadata_analysis_pass(graph)
        report_node_type_analysis_pass(graph)
        assert graph.draw(tmp_path / "graph.svg").exists()
        graph.export(tmp_path / "graph")
        again = MaseGraph.from_checkpoint(tmp_path / "graph")
        assert again.front_end == "export"
        given = OWN[name][1](3)
        for copy in (again, graph.clone()):
            assert_equal(called(copy.model, given), called(model, given))
        quantized = graph.clone()
        by_type = {
            "by": "type",
            "linear": {"config": INTEGER},
            "default": {"config": {"name": None}},
        }
        quantize_transform_pass(quantized, by_type)
        called(quantized.model, given)
        changed = [t for t in layers(quantized) if "Integer" in type(quantized.modules[t]).__name__]
        linear = [t for t in layers(graph) if type(graph.modules[t]) is nn.Linear]
        assert changed == linear
        if linear:
            prune_transform_pass(graph, PRUNE)
        called(graph.model, given)


class Records(nn.Module):
    """Registers a hook at its first call, as networks of transformers do."""

    def __init__(self):
        super().__init__()
        self.layer, self.is_ready = nn.Linear(4, 4), False

    def forward(self, x):
        if not self.is_ready:
            self.layer.register_forward_hook(lambda module, args, out: None)
            self.is_ready = True
        return self.layer(x)


class Patches(nn.Module):
    def forward(self, image):
        batch, channels, height, width = image.shape
        if height % 4:
            raise ValueError("not patches of four")
        parts = image.reshape(batch, channels, height // 4, 4, width // 4, 4)
        return parts.transpose(3, 4).flatten(1)


def scaled(x):
    return x * 2 if x.sum() > 0 else x


class CallsFunction(nn.Module):
    def forward(self, x):
        return scaled(x) + (1 if x.shape[0] > 0 else 0)


@pytest.mark.slow
class TestNames:
    def test_tied_and_unused_weights_keep_their_names(self, tmp_path):
        model = TwoNames()
        graph = MaseGraph(model, front_end="export", dummy_in={"ids": torch.zeros(2, 3).long()})
        graph.export(tmp_path / "graph")
        again = MaseGraph.from_checkpoint(tmp_path / "graph")
        for each in (graph, graph.clone(), again, again.clone()):
            assert set(each.model.state_dict()) == set(model.state_dict())
            assert each.model.shared.weight is each.model.embed.weight
            each.model.load_state_dict(model.state_dict())
        assert graph.clone().model.shared.weight is not model.shared.weight


class TwoNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.shared = nn.Embedding(5, 4), nn.Embedding(5, 4)
        self.shared.weight, self.unused = self.embed.weight, nn.Sequential(nn.BatchNorm1d(4))
        self.register_buffer("table", torch.ones(2), persistent=False)

    def forward(self, ids):
        return self.embed(ids)


@pytest.mark.slow
class TestModels:
    def test_shared_layers_constants_and_writes_in_place(self):
        model = Shared()
        graph = MaseGraph(model, dummy_in=X)
        assert layers(graph) == ["first", "act", "first"]
        for _ in range(2):  # a constant that is written to stays as it was
            x = torch.randn(6, 4)
            assert_equal(graph.model(x), model(x))

    def test_a_graph_moves_to_another_device(self):
        graph = MaseGraph(Shared(), dummy_in=X)
        assert graph.model.to("meta")(X["x"].to("meta")).is_meta

    def test_images_of_other_sizes(self):
        model, graph, _ = captured("u-net")
        assert_equal(graph.model(odd := torch.randn(2, 1, 13, 11)), model(odd))
        with pytest.raises(AssertionError, match="this graph is only for inputs with"):
            graph.model(torch.randn(2, 1, 8, 8))
        graph = MaseGraph(Patches(), dummy_in=torch.randn(2, 3, 8, 8))
        with pytest.raises(AssertionError, match=r"only for inputs with image\.shape\[2\] == 8"):
            graph.model(torch.randn(2, 3, 4, 16))

    def test_bfloat16(self):
        model = ByShape().bfloat16()
        x = torch.randn(2, 3, dtype=torch.bfloat16)
        assert_equal(MaseGraph(model, dummy_in=x).model(x), model(x))

    def test_a_model_on_the_meta_device_needs_no_memory(self):
        with torch.device("meta"):
            model = ByShape()
        graph = MaseGraph(model, dummy_in=torch.randn(2, 3))
        init_metadata_analysis_pass(graph)
        inputs = {"features": torch.randn(2, 3)}
        add_common_metadata_analysis_pass(
            graph, {"dummy_in": inputs, "force_device_meta": True, "add_value": False}
        )
        head = next(node for node in graph.nodes if node.name == "head")
        assert head.meta["mase"]["common"]["results"]["data_out_0"]["shape"] == [2, 2]

    def test_train_and_eval_mode(self):
        model, graph, _ = captured("trains")
        x = torch.randn(64, 4)
        graph.model.train()
        torch.manual_seed(0)
        ours = graph.model(x)
        assert (ours == 0).any()
        assert graph.model.norm.num_batches_tracked == 1
        assert model.norm is graph.model.norm
        graph.model.eval()
        assert not (graph.model(x) == 0).any()
        assert graph.model.calls == 2

    def test_capturing_leaves_the_model_as_it_was(self):
        model = Trains().train()
        before = {key: value.clone() for key, value in model.state_dict().items()}
        attributes = {name: set(vars(module)) for name, module in model.named_modules()}
        MaseGraph(model, front_end="export", dummy_in=X)
        assert_equal(model.state_dict(), before)
        assert attributes == {name: set(vars(module)) for name, module in model.named_modules()}
        assert type(model.training) is bool

    def test_hooks_that_forward_registers_are_not_registered_twice(self):
        model = Records()
        MaseGraph(model, front_end="export", dummy_in=X)
        model(X["x"])
        assert len(model.layer._forward_hooks) == 1

    def test_hooks_of_a_layer_run_once(self):
        model = Shared()
        model.first.register_forward_hook(lambda module, args, out: out * 3)
        graph = MaseGraph(model, dummy_in=X)
        assert_equal(graph.model(X["x"]), model(X["x"]))

    def test_functions_that_are_kept_whole(self):
        model = CallsFunction()
        whole = {"functions": {scaled: {}}}
        graph = MaseGraph(model, custom_ops=whole, front_end="export", dummy_in=X)
        assert scaled in [node.target for node in graph.nodes]
        for x in (torch.ones(5, 4), -torch.ones(2, 4)):
            assert_equal(graph.model(x), model(x))

    def test_compiled(self):
        model, graph, inputs = captured("by shape")
        compiled = torch.compile(graph.model, backend="eager")
        given = inputs(3)
        assert_equal(compiled(**given), model(**given))
        torch._dynamo.reset()

    def test_an_exported_program_is_answered_with_advice(self, caplog):
        program = torch.export.export(ByShape(), (torch.randn(2, 3),))
        with pytest.raises(TypeError, match="give the model itself: MaseGraph"):
            MaseGraph(program)
        MaseGraph(program.module())
        assert "whose layers are functions; to keep them, give the model itself" in caplog.text


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 32, "vocab_size": 50, "pad_token_id": 0}
NETWORKS = {
    "Bert": ("BertForSequenceClassification", SMALL),
    "GPT2": ("GPT2LMHeadModel", {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50}),
    "Llama": ("LlamaForCausalLM", {**SMALL, "num_key_value_heads": 1}),
    "ViT": ("ViTForImageClassification", {**SMALL, "image_size": 16, "patch_size": 4}),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_transformers(package, name, tmp_path):
    transformers = package("transformers")
    cls, sizes = NETWORKS[name]
    torch.manual_seed(0)
    model = getattr(transformers, cls)(getattr(transformers, f"{name}Config")(**sizes)).eval()

    def inputs(batch, length):
        if name == "ViT":
            return {"pixel_values": torch.randn(batch, 3, 16, 16)}
        return {"input_ids": torch.randint(1, 50, (batch, length))}

    frozen = {} if name == "ViT" else {"use_cache": False}
    graph = MaseGraph(model, frozen, dummy_in=inputs(1, 7))
    assert graph.front_end == "export"
    assert set(graph.model.state_dict()) == set(model.state_dict())
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph, {"dummy_in": inputs(2, 7), "add_value": False})
    graph.export(tmp_path / "graph")
    again = MaseGraph.from_checkpoint(tmp_path / "graph")
    for batch, length in ((1, 7), (3, 12), (1, 1), (2, 1)):
        given = inputs(batch, length)
        expected = model(**given, **frozen)
        for each in (graph, again):
            results = each.model(**given)
            torch.testing.assert_close(results.logits, expected.logits)
            assert results["logits"] is results[0]
    quantize_transform_pass(
        graph, {"by": "regex_name", r".*(query|q_proj|lm_head)": {"config": INTEGER}}
    )
    assert torch.isfinite(graph.model(**given).logits).all()
