"""A format that says which tensors layers keep is quantised, calibrated and frozen like others."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.numerics import FORMATS
from chop.numerics.affine import Affine
from chop.numerics.mixed_integer import MixedInteger
from chop.passes import Pipeline
from chop.passes.graph.transforms.learned_bits.freeze_bits import frozen_layer
from chop.passes.graph.transforms.quantize.quantize import quantized_layer
from chop.passes.graph.transforms.quantize.variants import LAYER_VARIANTS

X = torch.randn(50, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def formats(monkeypatch):
    """Two new formats, in the registry for one test: they say the same as those they extend."""
    for registry in (FORMATS, LAYER_VARIANTS):
        monkeypatch.setattr(registry, "_items", dict(registry._load()))

    @dataclass(frozen=True)
    class Scaled(Affine, name="scaled", suffix="Scaled"):
        pass

    @dataclass(frozen=True)
    class Widths(MixedInteger, name="widths", suffix="Widths"):
        pass


def layer(config):
    torch.manual_seed(0)
    return quantized_layer(nn.Linear(6, 4), config)


def calibrated(config):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).eval()
    common = ("add_common_metadata", {"dummy_in": {"input": X}, "add_value": False})
    calibrate = ("calibrate", {"input_generator": iter([{"input": X}]), "num_samples": 50})
    quantize = ("quantize", {"by": "type", "linear": {"config": config}})
    return Pipeline(["init_metadata", common, "add_software_metadata", calibrate, quantize])(
        MaseGraph(model)
    )[0]


@pytest.mark.parametrize("learn", [False, True])
def test_a_new_format_with_scales_is_calibrated_and_keeps_them_like_affine(learn):
    keys = {"data_in_width": 8, "weight_width": 6, "weight_axis": 0, "learn": learn}
    ours, theirs = (calibrated({"name": name, **keys}).model for name in ("scaled", "affine"))
    assert torch.equal(ours(X), theirs(X))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert [*dict(ours.named_parameters())] == [*dict(theirs.named_parameters())]
    assert ours.get_submodule("0").current_formats()["bias"].width == 32


def test_a_new_format_with_bits_learns_them_and_is_frozen_like_mixed_integer():
    keys = {
        f"{o}_{k}": n for o in ("data_in", "weight") for k, n in (("width", 6), ("frac_width", 3))
    }
    ours, theirs = (
        layer({"name": name, **keys, "learn": True}) for name in ("widths", "mixed_integer")
    )
    assert ours.width_parameters().keys() == theirs.width_parameters().keys() != set()
    assert torch.equal(ours.bit_cost("ebops"), theirs.bit_cost("ebops"))
    assert frozen_layer(ours).config == frozen_layer(theirs).config
    assert torch.equal(frozen_layer(ours)(X), ours(X))
