"""What is said of models that cannot be captured, and of names that cannot be used."""

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.ir.graph.trace_errors import TraceError
from chop.registry import UnknownName

from .export_models import ByShape, X, layers


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


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 4, batch_first=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        return self.rnn(packed)[1][-1]


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
    def test_packed_sequences_are_refused_with_the_line_of_the_layer(self):
        inputs = {"x": torch.randn(2, 5, 4), "lengths": torch.tensor([5, 3])}
        with pytest.raises(TraceError) as refused:
            MaseGraph(Packed(), dummy_in=inputs)
        text = str(refused.value)
        assert f"{__file__} line " in text
        assert "`return self.rnn(packed)[1][-1]`: the layer 'rnn' is given packed sequences" in text
        assert "give it the padded sequences" in text

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


class AnyInputs(nn.Module):
    def forward(self, ids=None, **further):
        if ids is None:
            raise ValueError("you have to give ids")
        return ids + 1 if ids.shape[0] > 0 else ids


class TestInputsThatTheModelFailsOn:
    def test_a_name_that_any_inputs_take_is_to_be_checked(self):
        with pytest.raises(TraceError, match=r"give ids; check names, shapes and dtypes$"):
            MaseGraph(AnyInputs(), front_end="export", dummy_in={"idz": X["x"]})

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


class EachSample(nn.Module):
    def forward(self, x):
        return torch.func.vmap(lambda sample: sample * sample.sum())(x)


class Gradient(nn.Module):
    def forward(self, x):
        return torch.func.grad(lambda y: (y**2).sum())(x)


def around(layer):
    return nn.Sequential(nn.Linear(4, 4), layer)


class TestTorchFunc:
    @pytest.mark.slow
    def test_vmap_is_captured_but_not_saved(self, tmp_path):
        model = around(EachSample())
        graph = MaseGraph(model, dummy_in={"input": X["x"]})
        x = torch.randn(5, 4)
        torch.testing.assert_close(graph.model(x), model(x))
        with pytest.raises(ValueError, match=r"^cannot save node '[a-z_]*': ") as refused:
            graph.export(tmp_path / "graph")
        assert str(refused.value).partition(": ")[2] == (
            "forward() uses torch.func.vmap, which a saved graph cannot hold; compute on the whole "
            "batch instead, or keep the module that uses vmap whole with "
            "MaseGraph(model, custom_ops={'modules': {Class: {}}})"
        )

    @pytest.mark.slow
    def test_derivatives_are_refused(self):
        with pytest.raises(TraceError) as refused:
            MaseGraph(around(Gradient()), front_end="export", dummy_in={"input": X["x"]})
        assert "a graph cannot hold derivatives by torch.func; keep the module" in str(
            refused.value
        )

    @pytest.mark.parametrize("layer", [EachSample, Gradient])
    def test_the_advice_of_both_helps(self, layer, tmp_path):
        model, whole = around(layer()), {"modules": {layer: {}}}
        graph = MaseGraph(model, dummy_in={"input": X["x"]}, custom_ops=whole)
        graph.export(tmp_path / "graph")
        loaded = MaseGraph.from_checkpoint(tmp_path / "graph", custom_ops=whole)
        x = torch.randn(5, 4)
        torch.testing.assert_close(loaded.model(x), model(x))
