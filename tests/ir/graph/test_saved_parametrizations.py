"""Layers with a parametrized weight are saved with what torch computes it from."""

import copy
import json
import logging

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.saved_modules import load_modules, save_modules
from chop.passes import Pipeline
from chop.passes.graph.utils import get_mase_op
from chop.passes.module import quantize_module_transform_pass
from tests.saved_tensors import replace_tensors

INTEGER = {"name": "integer"} | {
    f"{operand}_{key}": number
    for operand in ("data_in", "weight", "bias")
    for key, number in (("width", 8), ("frac_width", 6))
}
MADE = {
    "weight norm": lambda layer: parametrizations.weight_norm(layer),
    "weight norm of all": lambda layer: parametrizations.weight_norm(layer, dim=None),
    "spectral norm": lambda layer: parametrizations.spectral_norm(layer, n_power_iterations=2),
    "orthogonal": lambda layer: parametrizations.orthogonal(layer),
    "cayley": lambda layer: parametrizations.orthogonal(
        layer, orthogonal_map="cayley", use_trivialization=False
    ),
    "two": lambda layer: parametrizations.spectral_norm(parametrizations.weight_norm(layer)),
    "weight and bias": lambda layer: parametrizations.weight_norm(
        parametrizations.weight_norm(layer), "bias"
    ),
}
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def model_of(kind="weight norm"):
    torch.manual_seed(1)
    return nn.Sequential(MADE[kind](nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 2))


def graph_of(model):
    about = {"dummy_in": {"input": X}}
    return Pipeline(["init_metadata", ("add_common_metadata", about)])(MaseGraph(model))[0]


def saved_and_loaded(graph, folder):
    graph.export(folder / "g")
    return MaseGraph.from_checkpoint(folder / "g")


def trained(model):
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    model.train()
    for _ in range(3):
        optimiser.zero_grad()
        model(X).square().sum().backward()
        optimiser.step()
    return model.state_dict()


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("kind", MADE)
def test_a_loaded_layer_computes_and_trains_as_before(kind, tmp_path):
    graph = graph_of(model_of(kind).eval())
    loaded = saved_and_loaded(graph, tmp_path)
    assert equal(loaded.model.state_dict(), graph.model.state_dict())
    assert torch.equal(loaded.model(X), graph.model(X))
    layer = loaded.modules["0"]
    assert parametrize.is_parametrized(layer, "weight")
    assert type(layer).__name__ == "ParametrizedLinear"
    assert equal(trained(loaded.model), trained(graph.model))
    parametrize.remove_parametrizations(layer, "weight")
    assert isinstance(layer.weight, nn.Parameter)


@pytest.mark.parametrize("kind", ["weight norm", "spectral norm", "orthogonal"])
def test_a_quantized_one_too_and_its_formats_can_be_changed(kind, tmp_path):
    graph = graph_of(model_of(kind).eval())
    table = {"by": "type", "linear": {"config": INTEGER}}
    before = {key: tensor.clone() for key, tensor in graph.model.state_dict().items()}
    quantized = Pipeline([("quantize", table)])(graph)[0]
    assert equal(before, quantized.model.state_dict())
    loaded = saved_and_loaded(quantized, tmp_path)
    assert type(loaded.modules["0"]).__name__ == "ParametrizedLinearInteger"
    assert torch.equal(loaded.model(X), quantized.model(X))
    for each in (loaded, quantized):
        each.modules["0"].configure({**INTEGER, "weight_width": 3, "weight_frac_width": 2})
    assert torch.equal(loaded.model(X), quantized.model(X))
    again = saved_and_loaded(loaded.clone(), tmp_path)
    assert torch.equal(again.model(X), loaded.model(X))


def test_quantizing_in_train_mode_does_not_advance_a_spectral_norm():
    model = model_of("spectral norm").train()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    quantize_module_transform_pass(model, {"by": "type", "linear": {"config": INTEGER}})
    assert equal(before, model.state_dict())


def test_a_tensor_that_two_layers_share_is_shared_again(tmp_path):
    model = model_of()
    model[2] = parametrizations.weight_norm(nn.Linear(4, 4))
    model[2].parametrizations.weight.original1 = model[0].parametrizations.weight.original1
    loaded = saved_and_loaded(graph_of(model), tmp_path).modules
    first, last = (loaded[name].parametrizations.weight.original1 for name in "02")
    assert first is last


WRONG = {
    "too many directions": {"original1": torch.ones(16)},
    "too few lengths": {"original0": torch.ones(1, 1)},
    "lengths of another dimension": {"original0": torch.ones(1, 4)},
    "lengths of another type": {"original0": torch.ones(4, 1).double()},
}


@pytest.mark.parametrize("case", WRONG)
def test_lengths_that_do_not_fit_their_directions_are_refused(case, tmp_path):
    """Torch does not check them, and writes behind its memory."""
    graph = graph_of(model_of("weight norm"))
    graph.export(tmp_path / "g")
    state = load_file(tmp_path / "g" / "state_dict.safetensors")
    state |= {f"0.parametrizations.weight.{key}": t for key, t in WRONG[case].items()}
    replace_tensors(tmp_path / "g", state)
    with pytest.raises(ValueError, match=r"lengths of the weight norm of 'weight' .* must be"):
        MaseGraph.from_checkpoint(tmp_path / "g")


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.v, self.g = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.ones(4, 1))

    def forward(self, input):
        weight, _ = torch._weight_norm_interface(self.v, self.g, 0)
        return input @ weight @ torch._weight_norm(self.v, self.g, 0)


def test_a_graph_that_calls_a_weight_norm_checks_its_lengths(tmp_path):
    graph = graph_of(Normed())
    for place in ("a", "b"):  # the loaded one can be saved, too
        loaded = saved_and_loaded(graph, tmp_path / place)
        assert torch.equal(loaded.model(X), graph.model(X))
        ops = [get_mase_op(node) for node in loaded.fx_graph.nodes if "norm" in node.name]
        assert ops == ["weight_norm"] * 2
        graph = loaded
    state = load_file(tmp_path / "a" / "g" / "state_dict.safetensors")
    replace_tensors(tmp_path / "a" / "g", state | {"g": torch.ones(1, 1)})
    wrong = MaseGraph.from_checkpoint(tmp_path / "a" / "g")
    with pytest.raises(ValueError, match=r"the lengths of a weight norm .* must be \[4, 1\]"):
        wrong.model(X)


def test_a_weight_norm_whose_lengths_change_after_loading_is_refused_when_it_runs(tmp_path):
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)))
    loaded = saved_and_loaded(graph_of(model), tmp_path)
    assert torch.equal(loaded.model(X), model(X))
    lengths = loaded.modules["0"].parametrizations.weight.original0
    with torch.no_grad():
        lengths.as_strided_([1, 1], [1, 1])
    with pytest.raises(ValueError, match=r"the lengths of a weight norm .* must be \[4, 1\]"):
        loaded.model(X)


class Half(nn.Module):
    def forward(self, weight):
        return weight / 2


def test_the_present_weight_of_another_parametrization_is_saved_with_one_warning(tmp_path, caplog):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    for layer in model[:2]:
        parametrize.register_parametrization(layer, "weight", Half())
    graph = graph_of(model)
    with caplog.at_level(logging.WARNING, "chop"):
        loaded = saved_and_loaded(graph, tmp_path)
    (said,) = caplog.messages
    assert said.startswith("the parametrizations of '0', '1' are not saved")
    assert torch.equal(loaded.model(X), model(X))
    assert type(loaded.modules["0"]) is nn.Linear
    assert loaded.modules["0"].weight.requires_grad


@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_norms_by_hooks_are_copied_and_their_loss_is_explained(norm, tmp_path, caplog):
    model, x = nn.Sequential(getattr(nn.utils, norm)(nn.Linear(4, 4))).eval(), torch.randn(3, 4)
    graph = MaseGraph(model)
    graph.model(x).sum().backward()
    assert torch.equal(graph.clone().model(x), model(x))
    graph.export(tmp_path / "graph")
    assert "the hooks of module '0' are not saved" in caplog.text
    assert f"by torch.nn.utils.parametrizations.{norm}" in caplog.text


def test_a_graph_with_a_parametrized_lstm_is_copied_after_training():
    lstm = parametrizations.weight_norm(nn.LSTM(4, 4), "weight_hh_l0")
    graph, x = MaseGraph(nn.Sequential(lstm)), torch.randn(3, 2, 4)
    graph.model(x)[0].sum().backward()
    copied = graph.clone()
    with torch.no_grad():
        expected = 2 * lstm.parametrizations.weight_hh_l0.original0
        graph.modules["0"].parametrizations.weight_hh_l0.original0.copy_(expected)
        copied.modules["0"].parametrizations.weight_hh_l0.original0.copy_(expected)
        assert torch.equal(copied.model(x)[0], graph.model(x)[0])


def test_without_a_graph_torchs_are_saved_and_others_refused(tmp_path):
    model = model_of().eval()
    built = copy.deepcopy(model)
    table = {"by": "name", "0": {"config": INTEGER}}
    changed, _ = quantize_module_transform_pass(model, table)
    nn.init.zeros_(built[0].parametrizations.weight.original1)
    save_modules(changed, tmp_path / "m")
    loaded = load_modules(tmp_path / "m", built, lambda to, state, _: to.load_state_dict(state))
    assert torch.equal(loaded(X), changed(X))
    parametrize.register_parametrization(changed[0], "bias", Half())
    with pytest.raises(ValueError, match="the parametrization of layer '0' cannot be saved"):
        save_modules(changed, tmp_path / "m")


def spoil_kind(table):
    table["weight"]["steps"][0]["kind"] = "pickle"


def spoil_class(table):
    table["weight"]["steps"][0]["kind"] = "torch.nn.modules.linear:Linear"


def spoil_attribute(table):
    table["weight"]["steps"][0]["forward"] = 1


def spoil_dim(table):
    table["weight"]["steps"][0]["dim"] = {"function": "torch.add"}


def spoil_missing(table):
    del table["weight"]["steps"][0]["dim"]


def spoil_buffer(table):
    table["weight"]["steps"][0]["buffers"]["forward"] = None


def spoil_second(table):
    table["weight"]["steps"] *= 2


def spoil_none(table):
    table["weight"]["steps"] = []


def spoil_original(table):
    table["weight"]["originals"]["forward"] = table["weight"]["originals"].pop("original0")


def spoil_null(table):
    table["weight"]["originals"]["original0"] = None


def spoil_twice(table):
    table["bias"] = table["weight"]


def spoil_method(table):
    table["forward"] = table.pop("weight")


def spoil_private(table):
    table["__class__"] = table.pop("weight")


def spoil_table(table):
    table["weight"] = 1


SPOILS = {name[6:]: spoil for name, spoil in list(globals().items()) if name.startswith("spoil_")}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=list(SPOILS))
def test_a_file_cannot_name_or_set_anything_else(tmp_path, spoil):
    graph_of(model_of()).export(tmp_path / "g")
    file = tmp_path / "g" / "graph.json"
    content = json.loads(file.read_text())
    spoil(next(row for row in content["modules"] if row["name"] == "0")["parametrizations"])
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"graph\.json") as error:
        MaseGraph.from_checkpoint(tmp_path / "g")
    assert "\n" not in str(error.value)
