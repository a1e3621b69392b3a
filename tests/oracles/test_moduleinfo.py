"""torch judges what becomes of each of its layers: captured, described, saved, exported.

The layers and their inputs are those of PyTorch's own tests (ModuleInfo), as in test_opinfo.py.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("onnxruntime", reason="needs the extra onnx: run `make test-all`")

from . import stages

# torch warns of some of its own layers
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

PARTS = 24  # of the table, one for each test
LAYERS = 12  # of each class
LEFT_OUT = ("nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d")  # their examples are for float64


@pytest.fixture(scope="module")
def classes(torch_tests) -> list[Any]:
    infos = torch_tests("common_modules").module_db
    return [info for info in infos if info.name not in LEFT_OUT]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_layer_is_right_at_every_stage_or_refused(part, classes, tmp_path):
    wrong = [said for info in classes[part::PARTS] for said in failures(info, tmp_path)]
    assert not wrong, "\n".join(wrong)


def failures(info: Any, folder: Path) -> list[str]:
    found = []
    for number, (layer, args, kwargs) in enumerate(layers(info)):
        model, given = stages.network(layer, args, kwargs)
        for front_end in ("auto", "export") if not number else ("auto",):
            try:
                stages.check_stages(model, given, front_end, folder / "graph")
            except stages.Wrong as error:
                found.append(f"{info.name} {number} {front_end}: {error}")
    return found


def layers(info: Any) -> list[Any]:
    torch.default_generator.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=False
        )
        found = []
        for sample in samples[:LAYERS]:
            made, given = sample.constructor_input, sample.forward_input
            layer = info.module_cls(*made.args, **made.kwargs).eval()
            if given is not None:
                found.append((layer, given.args, given.kwargs))
    return found
