"""A histogram holds every value in bounded memory, whatever comes in which order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chop.numerics.histograms import Histogram

SCALES = st.lists(st.sampled_from([1e-3, 0.1, 1.0, 7.0, 1e4]), min_size=1, max_size=4)


@given(SCALES, st.sampled_from([16, 64, 2048]))
def test_all_values_are_counted_in_their_bins_and_the_memory_stays(scales, bins):
    batches = [torch.randn(200) * scale for scale in scales]
    histogram = Histogram.empty(bins)
    for batch in batches:
        histogram.add(batch)
    values = torch.cat(batches)
    assert histogram.counts.shape == (1, bins)
    assert histogram.total == values.numel()
    wanted = torch.histogram(values.double(), histogram.edges())[0].long()
    assert torch.equal(histogram.counts[0], wanted)
    assert histogram.low.item() == values.min().item()
    assert histogram.high.item() == values.max().item()


def test_a_later_batch_beyond_the_range_doubles_it_and_merges_bins():
    histogram = Histogram.of(torch.tensor([-0.9, 0.1, 0.9]), bins=8)
    assert histogram.edges().tolist() == [-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1]
    histogram.add(torch.tensor([3.0]))
    assert histogram.edges().tolist() == [-4, -3, -2, -1, 0, 1, 2, 3, 4]
    assert histogram.counts[0].tolist() == [0, 0, 0, 1, 2, 0, 0, 1]


def test_zeros_are_counted_apart_and_need_no_range():
    histogram = Histogram.of(torch.zeros(5), bins=8)
    assert (histogram.limits.item(), histogram.zeros.item()) == (0.0, 5)
    assert histogram.is_non_negative
    histogram.add(torch.tensor([-0.25]))
    assert (histogram.limits.item(), histogram.total) == (0.25, 6)
    assert not histogram.is_non_negative


def test_channels_have_ranges_of_their_own_and_merge_into_that_of_the_tensor():
    x = torch.randn(50, 3) * torch.tensor([0.01, 1.0, 100.0])
    by_channel, whole = Histogram.of(x, 64, axis=1), Histogram.of(x, 64)
    assert by_channel.counts.shape == (3, 64)
    assert [h.total for h in by_channel.channels()] == [50, 50, 50]
    assert by_channel.limits[0] < by_channel.limits[1] < by_channel.limits[2]
    merged = by_channel.merged()
    assert torch.equal(merged.counts, whole.counts)
    assert torch.equal(merged.limits, whole.limits)


def test_points_stand_for_all_values():
    values, weights = Histogram.of(torch.cat([torch.rand(1000), torch.zeros(10)])).points()
    assert weights.sum() == 1010
    assert (values * weights).sum() / 1000 == pytest.approx(0.5, abs=0.05)


def test_negative_values_become_zeros():
    positive = Histogram.of(torch.tensor([-2.0, -1.0, 0.0, 3.0]), bins=8).positive()
    assert (positive.zeros.item(), positive.total, positive.low.item()) == (3, 4, 0.0)


def test_it_comes_back_from_its_plain_form():
    histogram = Histogram.of(torch.randn(30, 4), 16, axis=1)
    again = Histogram.from_plain(histogram.plain())
    assert torch.equal(again.counts, histogram.counts)
    assert again.axis == 1
    assert torch.equal(again.low, histogram.low)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_refused_and_nothing_is_counted(value):
    histogram = Histogram.of(torch.ones(3), bins=8)
    with pytest.raises(ValueError, match="NaN or infinite values"):
        histogram.add(torch.tensor([1.0, value]))
    assert histogram.total == 3


def test_an_empty_tensor_adds_nothing_and_other_channels_are_refused():
    histogram = Histogram.of(torch.randn(4, 3), 8, axis=1)
    histogram.add(torch.empty(0, 3))
    assert histogram.total == 12
    with pytest.raises(ValueError, match="it has 5 channels now, and had 3 before"):
        histogram.add(torch.randn(4, 5))


@pytest.mark.parametrize("bins", [0, 6, 18])
def test_bins_come_in_fours(bins):
    with pytest.raises(ValueError, match="bins must be a positive multiple of 4"):
        Histogram.empty(bins)
