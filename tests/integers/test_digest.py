"""Checksums of networks in integers."""

import pytest
import torch

from chop.integers.digest import content


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 23), (12, 3)),
        ([[1], [2]], [[1, 2]]),
        (["1", 2], [1, 2]),
        (torch.tensor([1, 2]), torch.tensor([[1, 2]])),
        (torch.tensor([1]), torch.tensor([1.0])),
        (None, "None"),
    ],
)
def test_different_values_have_different_content(one, other):
    assert b"".join(content(one)) != b"".join(content(other))
