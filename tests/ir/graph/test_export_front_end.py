"""Models that torch.fx cannot trace, as graphs by torch.export."""

from collections import UserDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from chop.ir import MaseGraph
from chop.ir.graph.trace_errors import TraceError
from chop.passes import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
    prune_transform_pass,
    quantize_transform_pass,
    report_node_type_analysis_pass,
    verify_common_metadata_analysis_pass,
)
from chop.registry import UnknownName

Pair = namedtuple("Pair", "mean spread")


@dataclass
class Both:
    features: torch.Tensor
    classes: torch.Tensor
    cache: object = None


class ByShape(nn.Module):
    """Decides by shape and loops over a size."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, features):
        if features.shape[-1] != 4:
            features = F.pad(features, (0, 4 - features.shape[-1]))
        for _ in range(features.dim()):
            features = torch.relu(self.inner(features))
        return self.head(features)


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(1, 2, 3, padding=1), nn.ConvTranspose2d(2, 2, 2, stride=2)
        self.pool, self.head = nn.MaxPool2d(2), nn.Conv2d(4, 3, 1)

    def forward(self, image):
        skip = F.relu(self.down(image))
        y = self.up(self.pool(skip))
        if y.shape[-2:] != skip.shape[-2:]:
            y = F.interpolate(y, size=skip.shape[-2:], mode="bilinear", align_corners=False)
        return self.head(torch.cat((skip, y), 1))


class Loop(nn.Module):
    """A cell in a loop over time."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(3, 5), nn.Linear(5, 2)

    def forward(self, steps):
        state = steps.new_zeros(steps.shape[0], 5)
        for t in range(steps.shape[1]):
            state = self.cell(steps[:, t], state)
        return self.head(state)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
        )
        self.lstm = nn.LSTM(8, 4, batch_first=True)

    def forward(self, x):
        batch, _, width = x.shape
        assert width == 8, f"a width of {width}"
        y, _ = self.attention(x, x, x, need_weights=False)
        y, (state, _) = self.lstm(self.encoder(y), (x.new_zeros(1, batch, 4),) * 2)
        return y, state[-1]


class Dicts(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, batch, *, extra=None, scale=2.0):
        y = self.a(batch["a"]) + self.b(batch["deep"][0])
        if extra is not None:
            y = y + extra
        return {"y": y * scale, "parts": [y, (y.sum(),)], "absent": None}


class Dataclass(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, input, mask):
        if input.shape != mask.shape:
            mask = mask.expand(input.shape)
        features = self.body(input) * mask
        return Both(features, self.head(features))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 6), nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("positions", torch.randn(20, 6), persistent=False)

    def forward(self, ids):
        length = ids.shape[1]
        if length > 20:
            raise ValueError("at most 20")
        y = self.embed(ids) + self.positions[:length]
        return self.head(y), F.linear(y, self.embed.weight)


class Bag(nn.Module):
    """Takes any number of inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, *args, **kwargs):
        total = sum(self.layer(x) for x in args)
        return Pair(total + kwargs["shift"], total if len(args) > 1 else None)


class Trains(nn.Module):
    """Reads `self.training`, and has layers that do."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        if x.shape[0] > 10**6:
            x = x * 0
        return F.dropout(self.drop(self.norm(x)), 0.5, self.training)


def image(batch):
    return {"image": torch.randn(batch, 1, 9, 9)}


def nested(batch):
    inputs = {"a": torch.randn(batch, 3), "deep": [torch.randn(batch, 2)]}
    return {"batch": inputs, "extra": torch.randn(batch, 4)}


def bag(batch):
    return {"args": (torch.randn(batch, 4), torch.randn(batch, 4)), "shift": torch.ones(4)}


OWN = {
    "by shape": (ByShape, lambda batch: {"features": torch.randn(batch, 3)}),
    "u-net": (Unet, image),
    "loop": (Loop, lambda batch: {"steps": torch.randn(batch, 6, 3)}),
    "attention": (Attention, lambda batch: {"x": torch.randn(batch, 5, 8)}),
    "nested inputs": (Dicts, nested),
    "dataclass": (
        Dataclass,
        lambda batch: {"input": torch.randn(batch, 4), "mask": torch.ones(batch, 4)},
    ),
    "tied": (Tied, lambda batch: {"ids": torch.randint(0, 10, (batch, 7))}),
    "any number": (Bag, bag),
    "trains": (Trains, lambda batch: {"x": torch.randn(batch, 4)}),
}


def called(model, inputs):
    positional = inputs.get("args", ())
    return model(*positional, **{key: value for key, value in inputs.items() if key != "args"})


def captured(name, batch=2):
    cls, inputs = OWN[name]
    model = cls().eval()
    return model, MaseGraph(model, front_end="export", dummy_in=inputs(batch)), inputs


def assert_equal(results, expected):
    ours, theirs = tree_leaves(plain(results)), tree_leaves(plain(expected))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def plain(value):
    return dict(vars(value)) if isinstance(value, Both) or hasattr(value, "to_tuple") else value


def layers(graph):
    return [str(node.target) for node in graph.nodes if node.op == "call_module"]


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


INTEGER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
INTEGER |= {"weight_width": 8, "weight_frac_width": 4, "bias_width": 8, "bias_frac_width": 4}
PRUNE = {"weight": {"sparsity": 0.5, "scope": "local", "method": "l1-norm"}}


class ByValue(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            x = x * 2
        return x


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.gate = nn.Linear(4, 4), ByValue()

    def forward(self, x):
        return self.gate(self.layer(x))


X = {"x": torch.randn(3, 4)}


class Wrong(nn.Module):
    def forward(self, x):
        return x + self.missing if x.shape[0] > 0 else x


class TestRefusals:
    def test_a_decision_by_value_is_refused_with_file_line_and_code(self, capfd):
        with pytest.raises(TraceError) as refused:
            MaseGraph(Gated(), dummy_in=X)
        text = str(refused.value)
        assert text.startswith(f"cannot trace module 'gate' (ByValue), {__file__} line ")
        assert "`if x.sum() > 0:`: it decides by the values of a tensor" in text
        assert "torch.where" in text
        assert "freeze" not in text
        assert 'MaseGraph(model, custom_ops={"modules": {ByValue: {}}})' in text
        assert capfd.readouterr() == ("", "")  # torch prints the graph of the failed attempt

    @pytest.mark.slow
    def test_the_module_that_decides_is_kept_whole(self):
        model = Gated()
        whole = {"modules": {ByValue: {}}}
        graph = MaseGraph(model, custom_ops=whole, front_end="export", dummy_in=X)
        assert layers(graph) == ["layer", "gate"]
        for x in (torch.randn(7, 4), -torch.ones(5, 4)):
            torch.testing.assert_close(graph.model(x), model(x))

    def test_without_inputs_fx_refuses_and_asks_for_inputs(self):
        with pytest.raises(
            TraceError, match=r"give example inputs with MaseGraph\(model, dummy_in="
        ):
            MaseGraph(ByShape())

    def test_with_inputs_fx_advises_the_other_front_end(self):
        with pytest.raises(TraceError, match=r"use front_end='auto' or 'export', ") as refused:
            MaseGraph(ByShape(), front_end="fx", dummy_in={"features": torch.randn(2, 4)})
        assert "dummy_in=" not in str(refused.value)

    @pytest.mark.slow
    def test_a_mistake_in_forward_is_said(self):
        with pytest.raises(TraceError, match="no attribute 'missing'; fix forward"):
            MaseGraph(Wrong(), front_end="export", dummy_in=X)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"front_end": "dynamo"}, "unknown front end 'dynamo' (known: auto, fx, export)"),
            ({"front_end": "export"}, "torch.export needs example inputs"),
            ({"dummy_in": {"y": X["x"]}}, "unknown input in dummy_in 'y' (known: x)"),
            ({"dummy_in": {}}, "dummy_in has no value for the model's input 'x'"),
            ({"dummy_in": 3}, "dummy_in is a dict of inputs by name, a tuple of them, or a tensor"),
            ({"dummy_in": (X["x"], X["x"])}, "dummy_in has 2 inputs, and forward() takes 1"),
            ({"dummy_in": X, "cf_args": {"z": 1}}, "forward argument in cf_args 'z' (known: x)"),
        ],
    )
    def test_wrong_options(self, options, words):
        options = {"front_end": "export", **options}
        with pytest.raises((TypeError, ValueError, UnknownName)) as refused:
            MaseGraph(Gated(), **options)
        assert words in str(refused.value)


class Features(nn.Module):
    """Takes a dict, and counts its calls with random numbers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, batch):
        self.calls.add_(torch.rand(()))
        return self.layer(batch["num"] if batch["cat"].shape[0] > 0 else batch["cat"])


class TestInputsThatTheModelFailsOn:
    @pytest.mark.parametrize("front_end", ["auto", "fx", "export"])
    def test_a_wrong_shape_is_said(self, front_end):
        with pytest.raises(TraceError) as refused:
            MaseGraph(Gated(), front_end=front_end, dummy_in={"x": torch.randn(2, 5)})
        assert str(refused.value) == (
            "the model fails on dummy_in (x = float32[2, 5]): mat1 and mat2 shapes cannot be "
            "multiplied (2x5 and 4x4); check shapes and dtypes"
        )

    def test_a_wrong_dtype_is_said(self):
        with pytest.raises(TraceError, match=r"on dummy_in \(x = int64\[2, 4\]\): mat1 and mat2"):
            MaseGraph(Gated(), dummy_in=torch.ones(2, 4, dtype=torch.int64))

    def test_a_missing_key_is_said_and_the_model_stays_as_it_was(self):
        model, state = Features(), torch.get_rng_state()
        x = torch.ones(2, dtype=torch.int64)
        with pytest.raises(TraceError) as refused:
            MaseGraph(model, front_end="export", dummy_in={"batch": {"cat": x}})
        assert str(refused.value) == (
            "the model fails on dummy_in (batch = {'cat': int64[2]}): KeyError: 'num'; "
            "check the keys of dicts"
        )
        assert model.calls == 0
        assert torch.equal(torch.get_rng_state(), state)

    def test_a_model_on_the_meta_device_is_not_run(self):
        with pytest.raises(TraceError, match="cannot trace"):
            MaseGraph(Gated().to("meta"), dummy_in={"x": torch.randn(2, 5)})


class NoGrad(nn.Module):
    def __init__(self):
        super().__init__()
        self.fixed, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            y = self.fixed(x).exp()
        return self.head(y)


class Autocast(NoGrad):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.fixed(x)
        with torch.autocast("cpu", enabled=False):
            return self.head(y.float())


class Inference(NoGrad):
    @torch.inference_mode()
    def forward(self, x):
        return self.head(self.fixed(x))


class TestContexts:
    def test_fx_warns_of_no_grad(self, caplog):
        graph = MaseGraph(NoGrad())
        (record,) = caplog.records
        assert f"forward() uses no_grad ({__file__} line " in record.getMessage()
        assert "gradients flow" in record.getMessage()
        assert graph.front_end == "fx"

    @pytest.mark.slow
    def test_export_keeps_no_grad_and_is_chosen_for_it(self, caplog):
        graph = MaseGraph(NoGrad(), dummy_in=X)
        assert graph.front_end == "export"
        assert "no_grad" not in caplog.text
        x = torch.randn(2, 4, requires_grad=True)
        graph.model(x).sum().backward()
        assert x.grad is None
        assert graph.model.fixed.weight.grad is None
        assert graph.model.head.weight.grad is not None

    @pytest.mark.slow
    @pytest.mark.parametrize("options", [{}, {"front_end": "export"}])
    def test_both_warn_of_autocast_once(self, caplog, options):
        graph = MaseGraph(Autocast(), dummy_in=X, **options)
        texts = [record.getMessage() for record in caplog.records if record.name.startswith("chop")]
        assert len(texts) == 1
        assert f"forward() uses autocast ({__file__} line " in texts[0]
        assert graph.model(X["x"]).dtype == torch.float32

    @pytest.mark.slow
    def test_both_warn_of_inference_mode(self, caplog):
        for options in ({}, {"dummy_in": X}):
            MaseGraph(Inference(), **options)
            assert "forward() uses inference_mode" in caplog.text
            caplog.clear()


class Options(nn.Module):
    """An argument after one with a default, by keyword only, and a switch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, mask=None, *, scale, switch=True):
        y = self.layer(x) * scale
        if mask is not None and mask.shape[0] > 1:
            y = y + mask
        return y if switch else -y


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act = nn.Linear(4, 4), nn.ReLU(inplace=True)
        self.again = self.first
        self.constant = torch.arange(4.0)

    def forward(self, x):
        y = self.first(x)
        self.act(y)
        if x.shape[0] > 0:
            y[:, 0] = 5.0
        y += torch.tensor([1.0, 2.0, 3.0, 4.0])
        return self.again(y) * self.constant + torch.arange(4, device=x.device)


class One(nn.Module):
    def forward(self, x):
        return x.squeeze(0) * 2 if x.shape[0] == 1 else x + 1


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


def kind_of(value):
    return type(value).__name__


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
class TestInputs:
    def test_one_tensor_given_twice_is_two_inputs(self):
        model, x = Options(), X["x"]
        inputs = {"x": x, "mask": x, "scale": x, "switch": True}
        graph = MaseGraph(model, front_end="export", dummy_in=inputs)
        given = [torch.randn(5, 4) for _ in range(3)]
        expected = model(given[0], given[1], scale=given[2])
        assert_equal(graph.model(given[0], given[1], scale=given[2]), expected)
        assert_equal(graph.model(*given), expected)

    def test_a_switch_is_part_of_the_graph_which_refuses_another_value(self, tmp_path):
        inputs = {"x": X["x"], "scale": torch.ones(4), "switch": True}
        graph = MaseGraph(Options(), front_end="export", dummy_in=inputs)
        graph.export(tmp_path / "graph")
        for each in (graph, MaseGraph.from_checkpoint(tmp_path / "graph")):
            assert [str(node.target) for node in each.inputs] == ["x", "scale", "switch"]
            with pytest.raises(AssertionError, match="this graph is of switch = True"):
                each.model(**inputs | {"switch": False})

    def test_frozen_arguments_disappear(self):
        inputs = {"x": X["x"], "scale": torch.ones(4), "mask": None}
        graph = MaseGraph(
            Options(), {"switch": False, "mask": None}, front_end="export", dummy_in=inputs
        )
        assert [str(node.target) for node in graph.inputs] == ["x", "scale"]

    @pytest.mark.parametrize(
        "given", [UserDict(X), (X["x"],), [X["x"]], X["x"]], ids=lambda given: type(given).__name__
    )
    def test_mappings_and_tuples(self, given):
        graph = MaseGraph(Shared(), front_end="export", dummy_in=given)
        assert [node.name for node in graph.inputs] == ["x"]

    def test_sizes_that_forward_treats_differently_are_refused(self):
        _, graph, _ = captured("tied")
        graph.model(torch.zeros(2, 20, dtype=torch.long))
        with pytest.raises(AssertionError, match=r"only for inputs with ids\.shape\[1\] <= 20"):
            graph.model(torch.zeros(2, 21, dtype=torch.long))

    def test_a_model_that_treats_one_sample_differently(self, caplog):
        model, x = One(), torch.randn(1, 4)
        graph = MaseGraph(model, dummy_in=x)
        assert "this graph is only for inputs of the sizes x [1, 4]" in caplog.text
        assert_equal(graph.model(x), model(x))


class Cache:
    """Not a value of a graph."""


class Caches(nn.Module):
    def forward(self, x, cache=None):
        return {"y": x + 1 if x.shape[0] else x, "cache": Cache()}


class Returns(nn.Module):
    def forward(self, x):
        return Cache()


@pytest.mark.slow
class TestResults:
    def test_what_is_not_a_value_is_left_out_with_a_warning(self, caplog):
        graph = MaseGraph(Caches(), dummy_in=X)
        assert "the graph leaves out the result 'cache', which is a Cache" in caplog.text
        assert_equal(graph.model(X["x"]), {"y": X["x"] + 1, "cache": None})

    def test_a_result_that_is_not_a_value_is_refused(self):
        with pytest.raises(TraceError, match=r"forward\(\) returns a Cache; return tensors"):
            MaseGraph(Returns(), front_end="export", dummy_in=X)

    @pytest.mark.parametrize(
        ("cache", "words"),
        [(Cache(), "'cache' holds a Cache; give tensors"), (X["x"].numpy(), "torch.from_numpy")],
    )
    def test_inputs_are_tensors_and_plain_values(self, cache, words):
        with pytest.raises(TypeError, match=words):
            MaseGraph(Caches(), front_end="export", dummy_in={**X, "cache": [cache]})


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


class Meta(nn.Module):
    def __init__(self):
        super().__init__()
        self.meta = nn.Linear(4, 4)

    def forward(self, x):
        return self.meta(x)


def test_a_layer_called_meta_is_one_sentence():
    with pytest.raises(ValueError, match=r"uses the name 'meta' itself; rename 'meta' of Meta"):
        MaseGraph(Meta())


class Keyed(nn.Module):
    def __init__(self, key):
        super().__init__()
        self.key, self.heads = key, nn.ModuleDict({key: nn.Linear(4, 4)})

    def forward(self, x):
        return self.heads[self.key](x)


@pytest.mark.parametrize("front_end", ["fx", "export"])
@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("class", "'class' is a keyword of Python"),
        ("None", "'None' is a keyword of Python"),
        ('a"b', "has characters that torch.fx cannot write"),
        ("a\nb", "has characters that torch.fx cannot write"),
    ],
)
def test_a_layer_name_that_breaks_the_code_is_one_sentence(front_end, key, words):
    with pytest.raises(ValueError, match=r"rename .* of Keyed, for example to '") as refused:
        MaseGraph(Keyed(key), front_end=front_end, dummy_in=X)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_keyword_inside_a_layer_that_is_kept_whole_is_no_problem():
    model = nn.Sequential(Keyed("class"))
    graph = MaseGraph(model, custom_ops={"modules": {Keyed: {}}})
    assert torch.equal(graph.model(X["x"]), model(X["x"]))


@pytest.mark.parametrize("key", ["head-1", "a:b", "a/b", "a b", "tête", "meta", "__x"])
def test_a_layer_name_that_cannot_be_saved_is_warned_of_at_capture(key, caplog, tmp_path):
    graph = MaseGraph(Keyed(key))
    assert f"the name '{key}' in 'heads.{key}' cannot be saved" in caplog.text
    assert "rename it before saving" in caplog.text
    advised = caplog.text.strip().rpartition(" to '")[2].rstrip("'")
    with pytest.raises(ValueError, match="not an attribute that a file may set"):
        graph.export(tmp_path / "graph")
    caplog.clear()
    MaseGraph(Keyed(advised)).export(tmp_path / "graph")
    assert caplog.text == ""


def test_keyword_only_arguments_after_defaults_are_traced_by_fx():
    graph = MaseGraph(Options(), {"switch": True, "mask": None})
    assert [str(node.target) for node in graph.inputs] == ["x", "scale"]
    graph = MaseGraph(Keyword())
    x, shift = torch.randn(2, 4), torch.randn(4)
    assert torch.equal(graph.model(x, 2.0, shift=shift), x * 2.0 + shift)


class Keyword(nn.Module):
    def forward(self, x, scale=1.0, *, shift):
        return x * scale + shift


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
    for batch, length in ((1, 7), (3, 12)):
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


class Traceable(nn.Module):
    """What torch.fx traces as well: nested inputs, and results in a dataclass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch, *, shift=None):
        y = self.layer(batch["x"]) + batch["more"][0]
        return Both(y, [y.sum(), None])


def test_fx_has_nested_inputs_and_dataclasses_too(tmp_path):
    model = Traceable()
    graph = MaseGraph(model)
    assert graph.front_end == "fx"
    given = {"x": torch.randn(2, 4), "more": (torch.randn(2, 4),)}
    graph.export(tmp_path / "graph")
    again = MaseGraph.from_checkpoint(tmp_path / "graph")
    expected = model(given)
    for results in (graph.model(given), again.model(given)):
        assert torch.equal(results.features, expected.features)
        assert torch.equal(results.classes[0], expected.classes[0])
        assert results.cache is None


class Loss(nn.Module):
    def forward(self, x):
        return nn.functional.binary_cross_entropy_with_logits(x, (x > 0).float())


class Half(nn.Module):
    def forward(self, x):
        return x[:, : int(x.shape[1] * 0.5)].sum(1)


class Least(nn.Module):
    def forward(self, x):
        n = min(x.shape[1], 6)
        return x[:, :n].sum(1) * 2 if n < x.shape[1] else x.sum(1)


class Longer(nn.Module):
    def forward(self, x, y):
        return x.sum(1) if x.shape[1] > y.shape[1] else y.sum(1)


class Elu(nn.Module):
    def forward(self, x):
        return nn.functional.elu(x) if x.shape[-1] == 4 else x


class Sums(nn.Module):
    def forward(self, *xs):
        return sum(xs)


@pytest.mark.slow
class TestSilentlyWrong:
    """A graph gives what the model gives, or refuses in one sentence."""

    def test_a_loss_is_reduced_as_torch_does(self):
        x = torch.randn(3, 8)
        graph = MaseGraph(Loss(), front_end="export", dummy_in=(x,))
        assert torch.allclose(graph.model(x), Loss()(x))

    @pytest.mark.parametrize("model", [Half(), Least()], ids=lambda model: type(model).__name__)
    @pytest.mark.parametrize("length", [3, 5, 6, 7, 8, 12])
    def test_a_size_that_would_take_another_branch_is_refused(self, model, length):
        graph = MaseGraph(model, front_end="export", dummy_in=(torch.randn(2, 8, 4),))
        same_or_refused(graph, model, torch.randn(2, length, 4))

    @pytest.mark.parametrize("lengths", [(8, 5), (5, 8), (5, 5)])
    def test_so_are_relations_of_two_inputs(self, lengths):
        example = (torch.randn(2, 8), torch.randn(2, 6))
        graph = MaseGraph(Longer(), front_end="export", dummy_in=example)
        same_or_refused(graph, Longer(), *(torch.randn(2, n) for n in lengths))

    def test_elu_keeps_its_arguments(self):
        x = torch.randn(3, 4)
        graph = MaseGraph(Elu(), front_end="export", dummy_in=(x,))
        assert torch.allclose(graph.model(x), Elu()(x))

    def test_another_number_of_inputs_is_refused(self):
        x = torch.randn(3, 4)
        graph = MaseGraph(Sums(), front_end="export", dummy_in=(x, x))
        same_or_refused(graph, Sums(), x, x, x)


def same_or_refused(graph, model, *inputs):
    expected = model(*inputs)
    try:
        result = graph.model(*inputs)
    except (AssertionError, ValueError, RuntimeError):
        return
    assert torch.allclose(result, expected)
