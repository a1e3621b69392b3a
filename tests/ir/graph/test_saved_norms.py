"""Norms in saved graphs: what torch would notice in training only is refused when they are read."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from chop.ir import MaseGraph
from tests.saved_tensors import replace_tensors

WRONG = {
    "weight": (torch.ones(1), r"has the shape \[1\]; it must be \[4\] of floating-point numbers"),
    "running_var": (torch.ones(5), r"has the shape \[5\]; it must be \[4\]"),
    "num_batches_tracked": (torch.tensor(True), "is of the type bool; it must be"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_tensor_that_a_norm_cannot_train_with_is_named(name, tmp_path):
    tensor, why = WRONG[name]
    MaseGraph(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))).export(tmp_path / "g")
    state = load_file(tmp_path / "g" / "state_dict.safetensors")
    replace_tensors(tmp_path / "g", state | {f"1.{name}": tensor})
    with pytest.raises(ValueError, match=rf"'{name}' of layer '1' \(BatchNorm1d\) {why}"):
        MaseGraph.from_checkpoint(tmp_path / "g")
