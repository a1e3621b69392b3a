""" "calibrated" in a config of quantize becomes the number that the data ask for."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.numerics import FORMATS
from chop.passes import PassArgsError, Pipeline, verify_metadata_analysis_pass
from chop.passes.graph import calibrate_analysis_pass, quantize_transform_pass
from chop.passes.module import quantize_module_transform_pass

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(3))
Integer = FORMATS["integer"]
METHODS = ["output", "mse", "minmax", "percentile", "entropy"]


class Net(nn.Module):
    """Layers, a sum of two activations, and their product."""

    def __init__(self, bias=True):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6, bias=bias), nn.Linear(6, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.a(x))
        z = torch.add(y, x) / 2
        return self.b(z + torch.matmul(z, z.transpose(0, 1)).mean() * 0.01)


def graph_of(model=None, x=X):
    graph = MaseGraph(model or Net())
    options = {"dummy_in": {graph.inputs[0].target: x}, "add_value": False}
    steps = ["init_metadata", ("add_common_metadata", options), "add_software_metadata"]
    return Pipeline(steps)(graph)[0]


def calibrated(graph, x=X, **options):
    name = str(graph.inputs[0].target)
    given = {"input_generator": [{name: x}], "num_samples": len(x), "silent": True}
    return calibrate_analysis_pass(graph, {**given, **options})[0]


def config(*operands, width=6, **more):
    about = {"name": "integer", **more}
    for operand in operands or ("data_in", "weight", "bias"):
        about[f"{operand}_width"] = width
        about[f"{operand}_frac_width"] = "calibrated"
    return about


def quantized(graph, by="type", **tables):
    tables = {key: {"config": table} for key, table in tables.items()}
    return quantize_transform_pass(graph, {"by": by, **tables})[1]


def least_squares(x, width, signed=True):
    """Return the best fraction width by trying all."""
    tried = {f: Integer(width, f, signed=signed)(x.detach()) - x for f in range(-8, 20)}
    return min(tried, key=lambda f: tried[f].square().sum())


class TestInteger:
    @pytest.mark.sampled(1)
    @pytest.mark.parametrize("width", [4, 6, 8])
    def test_mse_finds_the_fractions_with_the_least_squared_error(self, width):
        graph = calibrated(graph_of(), method="mse")
        quantized(graph, by="name", a=config(width=width))
        layer = graph.model.a
        assert layer.config["data_in_frac_width"] == least_squares(X, width)
        assert layer.config["weight_frac_width"] == least_squares(layer.weight, width)
        assert layer.config["bias_frac_width"] == least_squares(layer.bias, width)

    def test_minmax_clips_nothing_and_wastes_no_bit(self):
        graph = calibrated(graph_of(), method="minmax")
        quantized(graph, by="name", a=config())
        fmt = graph.model.a.formats["data_in"]
        assert fmt.range[1] + fmt.smallest / 2 >= X.abs().max() > fmt.range[1] / 2

    @pytest.mark.slow
    def test_a_percentile_leaves_out_a_few_values(self):
        x = X.clone()
        x[0, 0] = 50.0
        found = []
        for percent in (100.0, 99.0):
            graph = calibrated(graph_of(), x, method="percentile", percentile=percent)
            quantized(graph, by="name", a=config())
            found.append(graph.model.a.config["data_in_frac_width"])
        assert found[0] + 3 <= found[1]

    def test_inputs_that_are_never_negative_lose_their_sign(self):
        graph = calibrated(graph_of(), X.abs())
        quantized(graph, by="name", a=config(), b=config())
        assert not graph.model.a.formats["data_in"].signed
        assert graph.model.a.formats["weight"].signed

    @pytest.mark.sampled(1)
    @pytest.mark.parametrize("key", ["data_in_signed", "signed"])
    def test_unless_the_config_gives_the_sign(self, key):
        graph = calibrated(graph_of(), X.abs())
        quantized(graph, by="name", a=config(**{key: True}))
        assert graph.model.a.formats["data_in"].signed

    def test_relu_ignores_negative_values(self):
        x = torch.cat([X, torch.full((1, 6), -100.0)])
        graph = calibrated(graph_of(nn.Sequential(nn.ReLU())), x, method="mse")
        quantized(graph, relu=config("data_in"))
        fmt = next(m for m in graph.model.modules() if hasattr(m, "formats")).formats["data_in"]
        assert (fmt.signed, fmt.frac_width) == (False, least_squares(x.relu(), 6, signed=False))

    def test_a_bias_without_keys_takes_the_widths_of_the_weight_but_its_own_fraction(self):
        model = Net()
        with torch.no_grad():
            model.a.bias.mul_(100)
        graph = calibrated(graph_of(model), method="mse")
        quantized(graph, by="name", a=config("data_in", "weight"))
        layer = graph.model.a
        assert layer.formats["bias"].width == 6
        assert layer.formats["bias"].frac_width == least_squares(layer.bias, 6)

    @pytest.mark.slow
    def test_a_layer_without_a_bias(self):
        graph = calibrated(graph_of(Net(bias=False)))
        quantized(graph, by="name", a=config())
        assert graph.model.a(X).isfinite().all()

    def test_functions_of_several_inputs_cover_them_all(self):
        model = Net()
        graph = calibrated(graph_of(model), X * 20, method="minmax")
        quantized(graph, add=config("data_in"), matmul=config("data_in", "weight"))
        nodes = {n.name: n for n in graph.nodes}
        add = nodes["add"].kwargs["config"]
        fmt = Integer(6, add["data_in_frac_width"], signed=add.get("data_in_signed", True))
        assert fmt.range[1] >= (X * 20).abs().max() * 0.98
        product = nodes["matmul"].kwargs["config"]
        assert isinstance(product["weight_frac_width"], int)
        assert graph.model(X * 20).isfinite().all()

    @pytest.mark.slow
    def test_results_have_fractions_of_their_own(self):
        graph = calibrated(graph_of(), method="mse")
        quantized(graph, by="name", a=config("data_in", "weight", "bias", "data_out"))
        with torch.no_grad():
            wanted = least_squares(
                nn.functional.linear(X, graph.model.a.weight, graph.model.a.bias), 6
            )
        assert graph.model.a.config["data_out_frac_width"] == wanted

    def test_a_layer_that_is_called_twice_covers_both_calls(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(6, 6)

            def forward(self, x):
                return self.a(30 * self.a(x))

        graph = calibrated(graph_of(Twice()), method="minmax")
        rows = quantized(graph, linear=config())["calibrated"]
        inner = 30 * graph.model.a.float_class.forward(graph.model.a, X)
        fmt = graph.model.a.formats["data_in"]
        assert fmt.range[1] + fmt.smallest >= inner.abs().max() * 0.98
        assert [row["Operand"] for row in rows] == ["data_in", "weight", "bias"]

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["lstm", "gru", "rnn", "attention"])
    def test_layers_of_several_weights(self, kind):
        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                makers = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
                attention = nn.MultiheadAttention(6, 2, batch_first=True)
                self.inner = makers[kind](6, 6, batch_first=True) if kind in makers else attention

            def forward(self, x):
                return self.inner(x, x, x)[0] if kind == "attention" else self.inner(x)[0]

        x = X.reshape(8, 8, 6)
        model = Layer().eval()
        exact = model(x)
        graph = calibrated(graph_of(model, x), x)
        quantized(graph, by="regex_name", **{"inner.*": config(width=8)})
        error = (graph.model.eval()(x) - exact).square().mean() / exact.square().mean()
        assert error < 0.01

    def test_all_zeros_keep_half_of_the_width(self):
        graph = calibrated(graph_of(), torch.zeros(8, 6))
        quantized(graph, by="name", a=config())
        assert graph.model.a.config["data_in_frac_width"] == 3

    def test_saved_configs_have_numbers_only(self, tmp_path):
        graph = calibrated(graph_of())
        quantized(graph, by="name", a=config(), b=config())
        assert "calibrated" not in graph.model.a.config.values()
        again = MaseGraph.from_checkpoint(graph.export(tmp_path / "graph"))
        assert torch.equal(again.model.eval()(X), graph.model.eval()(X))

    def test_the_table_is_logged_and_returned(self, caplog):
        graph = calibrated(graph_of(), method="mse")
        with caplog.at_level(logging.INFO, logger="chop"):
            rows = quantized(graph, by="name", a=config())["calibrated"]
        assert [row["Operand"] for row in rows] == ["data_in", "weight", "bias"]
        assert rows[0]["Fraction"] == graph.model.a.config["data_in_frac_width"]
        assert (rows[0]["Width"], rows[0]["Method"]) == (6, "mse")
        assert "Calibrated numbers:" in caplog.text


def error_of(graph, exact, x=X):
    p, q = exact.log_softmax(-1), graph.model.eval()(x).log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


class TestOutput:
    @pytest.mark.sampled(1)
    @pytest.mark.parametrize("width", [3, 5])
    def test_its_error_is_at_most_that_of_squared_errors_and_of_half_the_width(self, width):
        torch.manual_seed(1)
        heavy = X * X.abs()
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
        with torch.no_grad():
            exact = model(heavy)
        errors = {}
        for how in ("output", "mse", None):
            graph = graph_of(model)
            table = config(width=width)
            if how is None:
                table = {k: None if v == "calibrated" else v for k, v in table.items()}
            else:
                calibrated(graph, heavy, method=how)
            quantized(graph, linear=table)
            with torch.no_grad():
                errors[how] = error_of(graph, exact, heavy)
        assert errors["output"] <= min(errors["mse"], errors[None])
        assert errors["output"] < 0.9 * errors[None]

    @pytest.mark.slow
    def test_the_metadata_stay_valid(self):
        graph = calibrated(graph_of())
        quantized(graph, by="name", a=config(), b=config())
        verify_metadata_analysis_pass(graph)

    def test_a_graph_that_was_loaded_falls_back_on_squared_errors(self, tmp_path):
        graph = calibrated(graph_of())
        again = MaseGraph.from_checkpoint(graph.export(tmp_path / "graph"))
        quantized(again, by="name", a=config())
        assert again.model.a.config["weight_frac_width"] == least_squares(again.model.a.weight, 6)


class TestAffine:
    @pytest.mark.sampled(1)
    @pytest.mark.parametrize("method", METHODS)
    def test_scales_of_activations_fill_the_buffers(self, method):
        graph = calibrated(graph_of(), method=method, bins=256)
        table = {"name": "affine", "data_in_width": 8, "weight_width": 8, "weight_axis": 0}
        quantized(graph, by="name", a=table)
        layer = graph.model.a
        reach = layer.data_in_scale.item() * 127
        assert 0.5 * X.abs().max() < reach < 1.1 * X.abs().max()
        assert layer.weight_scale.shape == (6,)

    @pytest.mark.slow
    def test_a_zero_point_covers_a_shifted_range(self):
        graph = calibrated(graph_of(), X.abs() + 4, method="minmax")
        about = {"data_in_width": 8, "data_in_zero_point": "calibrated", "weight_width": 8}
        quantized(graph, by="name", a={"name": "affine", **about})
        rounded = graph.model.a.q("data_in", X.abs() + 4)
        assert (rounded - X.abs() - 4).abs().max() <= graph.model.a.data_in_scale / 2 * 1.01

    @pytest.mark.slow
    def test_weights_of_few_bits_have_the_least_squared_error(self):
        graph = calibrated(graph_of(), method="mse")
        table = {"name": "affine", "data_in_width": 8, "weight_width": 3}
        quantized(graph, by="name", a=table)
        layer = graph.model.a
        error = (layer.get_quantized_weight() - layer.weight).square().sum()
        covering = FORMATS["affine"](3, scale=layer.weight.abs().max().item() / 3)
        assert error <= (covering(layer.weight) - layer.weight).square().sum()

    def test_weights_of_norms_may_have_a_scale_for_each_channel(self):
        graph = graph_of(nn.Sequential(nn.LayerNorm(X.shape[1])))
        keys = {"data_in_width": 8, "weight_width": 8, "weight_axis": 0}
        quantized(calibrated(graph, method="mse"), layer_norm={"name": "affine", **keys})
        assert graph.modules["0"].weight_scale.shape == X.shape[1:]

    @pytest.mark.slow
    def test_functions_take_them_too(self):
        graph = calibrated(graph_of())
        quantized(graph, add={"name": "affine", "data_in_width": 8})
        assert graph.model(X).isfinite().all()

    def test_a_channel_axis_needs_histograms_of_channels(self):
        graph = calibrated(graph_of())
        table = {"name": "affine", "data_in_width": 8, "data_in_axis": -1, "weight_width": 8}
        table["bias_width"] = 16
        with pytest.raises(PassArgsError, match="run calibrate with per_channel = true"):
            quantized(graph, by="name", a=table)
        quantized(calibrated(graph, per_channel=True), by="name", a=table)
        assert graph.model.a.data_in_scale.shape == (6,)


class TestWithoutData:
    def test_weights_need_none(self):
        graph = graph_of()
        table = config("weight", data_in_width=6, data_in_frac_width=3)
        quantized(graph, by="name", a=table)
        assert graph.model.a.config["weight_frac_width"] == least_squares(graph.model.a.weight, 6)

    def test_not_even_metadata_for_statistics(self):
        graph = MaseGraph(Net())
        options = {"dummy_in": {"x": X}, "add_value": False}
        graph, _ = Pipeline(["init_metadata", ("add_common_metadata", options)])(graph)
        with pytest.raises(PassArgsError, match="run calibrate before quantize"):
            quantized(graph, by="name", a=config())
        quantized(graph, by="name", a=config("weight", data_in_width=6, data_in_frac_width=3))
        assert graph.model.a.config["weight_frac_width"] == least_squares(graph.model.a.weight, 6)

    def test_an_activation_is_refused_in_one_sentence_and_nothing_is_changed(self):
        graph = graph_of()
        text = "data_in of node 'a' is to be calibrated, .* run calibrate before quantize"
        with pytest.raises(PassArgsError, match=text):
            quantized(graph, by="name", a=config())
        assert type(graph.model.a) is nn.Linear

    def test_a_layer_outside_a_graph_has_weights_but_no_activations(self):
        model = Net()
        table = config("weight", data_in_width=6, data_in_frac_width=3)
        new, _ = quantize_module_transform_pass(model, {"by": "name", "a": {"config": table}})
        assert new.a.config["weight_frac_width"] == least_squares(new.a.weight, 6)
        with pytest.raises(PassArgsError, match="which needs a graph; give a number"):
            quantize_module_transform_pass(model, {"by": "name", "b": {"config": config()}})

    def test_weights_that_are_not_finite_are_refused(self):
        model = Net()
        with torch.no_grad():
            model.a.weight[0, 0] = torch.nan
        table = config("weight", data_in_width=6, data_in_frac_width=3)
        with pytest.raises(PassArgsError, match="weight has NaN or infinite values"):
            quantized(graph_of(model), by="name", a=table)

    @pytest.mark.parametrize(
        ("table", "key"),
        [
            ({"name": "integer", "data_in_width": "calibrated"}, "data_in_width"),
            ({"name": "minifloat_ieee", "data_in_width": "calibrated"}, "data_in_width"),
            ({"name": "integer", "data_in_width": 8, "signed": "calibrated"}, "signed"),
        ],
    )
    def test_other_keys_cannot_be_calibrated(self, table, key):
        with pytest.raises(PassArgsError, match=f"{key} cannot be 'calibrated'"):
            quantized(graph_of(), linear=table)


class TestMistakes:
    @pytest.mark.parametrize(
        ("name", "key"),
        [
            ("integer", "data_in_frac_width"),
            ("affine", "data_in_zero_point"),
            ("affine", "weight_scale"),
        ],
    )
    def test_a_misspelt_mark(self, name, key):
        widths = {"data_in_width": 8, "weight_width": 8}
        text = f"{key} must be a number or 'calibrated', not 'calibratde'; did you mean 'calib"
        with pytest.raises(PassArgsError, match=text):
            quantize_transform_pass.check(
                {"by": "type", "linear": {"config": {"name": name, **widths, key: "calibratde"}}}
            )

    def test_a_zero_point_that_is_missing(self):
        table = {"name": "affine", "weight_width": 8, "data_in_width": 8, "data_in_scale": 0.05}
        text = "data_in has no zero point yet; run calibrate, or give data_in_zero_point"
        with pytest.raises(PassArgsError, match=text):
            quantized(graph_of(), linear=table | {"data_in_zero_point": "calibrated"})


def test_numbers_of_the_table_have_four_digits(caplog):
    graph = calibrated(graph_of(), method="mse")
    table = {"name": "affine", "data_in_width": 8, "weight_width": 8, "weight_axis": 0}
    with caplog.at_level(logging.INFO, logger="chop"):
        quantized(graph, by="name", a=table)
    scale = graph.model.a.data_in_scale.item()
    assert f" {scale:.4g} " in caplog.text
    assert repr(scale)[:8] not in caplog.text
