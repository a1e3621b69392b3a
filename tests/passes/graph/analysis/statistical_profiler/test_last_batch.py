"""The last batch of a pass that reads so many samples, in a graph that checks sizes."""

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.passes import PassArgsError, Pipeline

REFUSAL = "this graph is only for inputs with x.shape[0] >= 2; for other sizes, make another graph"


class NotOne(nn.Module):
    """Refuses a single sample, as a graph does that was exported from a batch."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        torch._assert(x.shape[0] >= 2, REFUSAL)
        return self.fc(x)


def profiled(batches, num_samples):
    graph = MaseGraph(NotOne())
    dummy = ("add_common_metadata", {"dummy_in": {"x": torch.randn(4, 3)}})
    stat = {"by": "type", "target_activation_nodes": ["linear"], "num_samples": num_samples}
    stat |= {"activation_statistics": {"range_min_max": {"abs": False, "dims": "all"}}}
    stat |= {"input_generator": ({"x": batch} for batch in batches)}
    steps = ["init_metadata", dummy, "add_software_metadata", ("profile_statistics", stat)]
    return Pipeline(steps)(graph)


@pytest.mark.parametrize("num_samples", [1, 4, 5, 7])
def test_the_last_batch_has_two_samples_if_one_is_refused(num_samples):
    profiled([torch.randn(4, 3), torch.randn(4, 3)], num_samples)


def test_the_refusal_is_one_sentence_with_one_fix():
    with pytest.raises(PassArgsError) as error:
        profiled([torch.randn(1, 3)], 4)
    assert str(error.value).splitlines()[0] == f"pass 'profile_statistics': {REFUSAL}"
