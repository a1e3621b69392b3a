"""Saved layers of functions on edges: tensors that do not fit are refused before anything runs."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from chop.ir import MaseGraph
from chop.ir.graph.meta_file import GraphFileError
from chop.methods.edge_tables import EdgeTable
from tests.saved_tensors import replace_tensors

LAYERS = {
    "mlp": lambda: EdgeTable(4, 3, hidden=5),
    "spline": lambda: EdgeTable(4, 3, function="spline"),
    "frozen": lambda: EdgeTable(4, 3).frozen(),
}


@pytest.fixture
def damaged(tmp_path):
    """`damaged(layer, change)` saves a layer, changes its tensors, and loads it again."""

    def load(layer, change):
        MaseGraph(nn.Sequential(layer)).export(tmp_path / "g")
        tensors = load_file(tmp_path / "g" / "state_dict.safetensors")
        change(tensors)
        replace_tensors(tmp_path / "g", tensors)
        return MaseGraph.from_checkpoint(tmp_path / "g").model

    return load


@pytest.mark.parametrize("kind", LAYERS)
def test_every_tensor_of_another_shape_or_type_is_named(damaged, kind):
    layer = LAYERS[kind]()
    for name, tensor in layer.state_dict().items():
        shape, cls = [*tensor.shape], type(layer).__name__
        said = f"'{name}' of layer '0' \\({cls}\\) has the shape \\[1\\]; it must be "
        with pytest.raises(GraphFileError, match=said + json.dumps(shape)[:2].replace("[", r"\[")):
            damaged(layer, lambda t, n=name: t.update({f"0.{n}": t[f"0.{n}"].flatten()[:1]}))
        with pytest.raises(GraphFileError, match=f"'{name}' of layer '0' .* is of the type bool|"):
            damaged(layer, lambda t, n=name: t.update({f"0.{n}": t[f"0.{n}"].bool()}))


def test_widths_beyond_the_tables_are_refused(damaged):
    said = r"'in_width' of layer '0' .* has numbers from 0 to 9; they must be from 0 to 6"
    with pytest.raises(GraphFileError, match=said):
        damaged(
            LAYERS["frozen"](), lambda t: t["0.in_width"].copy_(torch.arange(12).view(4, 3) % 10)
        )


@pytest.mark.parametrize("bits", [(-190.0, 200.0), (float("nan"), 3.0), (1e30, 3.0)])
@pytest.mark.parametrize("kind", ["mlp", "spline"])
def test_numbers_of_bits_without_meaning_do_not_leave_the_tables(damaged, kind, bits):
    def change(tensors):
        for name, number in zip(("in_integer_bits", "in_frac_bits"), bits, strict=True):
            tensors[f"0.{name}"].fill_(number)

    model, x = damaged(LAYERS[kind](), change), torch.randn(300, 4)
    x[0] = 0
    for mode in (True, False):
        y = model.train(mode)(x.clone().requires_grad_())
        y.sum().backward()
        assert y.shape == (300, 3)
