"""Splits as tensors: every sample once, in an order that can be returned to."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chop.dataset.tensors import EpochPass, TensorLoader, TensorSplit, batches, epoch_order


def numbered(size: int, **how) -> TensorSplit:
    return TensorSplit(torch.arange(size).float().view(-1, 1), torch.arange(size), **how)


def labels(pieces) -> list[int]:
    return torch.cat([y for _, y in pieces]).tolist()


@given(size=st.integers(1, 400), batch=st.integers(1, 90), epoch=st.integers(0, 3))
def test_a_pass_takes_every_sample_once_with_its_label(size, batch, epoch):
    pieces = list(batches(numbered(size), batch, EpochPass(0, epoch)))
    assert sorted(labels(pieces)) == list(range(size))
    assert all(torch.equal(x.view(-1), y.float()) for x, y in pieces)
    assert {len(x) for x, _ in pieces[:-1]} <= {batch}


@given(size=st.integers(2, 300), batch=st.integers(1, 40), data=st.data())
def test_a_pass_can_be_entered_at_any_batch(size, batch, data):
    whole = list(batches(numbered(size), batch, EpochPass(3, 1)))
    first = data.draw(st.integers(0, len(whole) - 1))
    rest = list(batches(numbered(size), batch, EpochPass(3, 1), first=first))
    assert labels(rest) == labels(whole[first:])


@given(size=st.integers(1, 200), world=st.integers(1, 5))
def test_processes_share_the_samples_in_equal_parts(size, world):
    shares = [EpochPass(0, 0, rank, world).order(size).tolist() for rank in range(world)]
    assert len({len(share) for share in shares}) == 1
    assert {i for share in shares for i in share} == set(range(size))
    assert sum(map(len, shares)) - size < world


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [epoch_order(500, seed=s, epoch=e).tolist() for s in range(4) for e in range(4)]
    assert len({tuple(order) for order in orders}) == 16


def test_augmentation_follows_from_the_number_of_the_batch():
    def shifted(x, generator):
        return x + torch.rand(len(x), 1, generator=generator)

    split = numbered(40, augment=shifted)
    whole = [x for x, _ in batches(split, 8, EpochPass(0, 2))]
    late = [x for x, _ in batches(split, 8, EpochPass(0, 2), first=3)]
    assert all(map(torch.equal, whole[3:], late))
    assert not torch.equal(whole[0] - whole[0].floor(), whole[1] - whole[1].floor())
    plain = [x for x, _ in batches(split, 8)]
    assert torch.equal(torch.cat(plain), split.x)


def test_what_is_stored_is_prepared_by_the_batch():
    split = TensorSplit(
        torch.full((5, 1), 255, dtype=torch.uint8),
        torch.zeros(5, dtype=torch.int64),
        prepare=lambda x: x.float() / 255,
    )
    assert split[0][0].tolist() == [1.0]
    assert split[-1][0].tolist() == [1.0]
    assert [x.tolist() for x, _ in batches(split, 5)] == [[[1.0]] * 5]


def test_a_loader_shuffles_anew_each_time_and_can_go_back():
    loader = TensorLoader(numbered(50), 16, shuffle=True)
    first, second = labels(loader), labels(loader)
    assert first != second
    assert len(loader) == 4
    loader.epoch = 0
    assert labels(loader) == first
    assert labels(TensorLoader(numbered(50), 16)) == list(range(50))


def test_samples_without_labels_are_refused():
    with pytest.raises(ValueError, match="5 samples need 5 labels, not 4"):
        TensorSplit(torch.zeros(5, 1), torch.zeros(4))
    with pytest.raises(ValueError, match="batch_size is at least 1, not 0"):
        TensorLoader(numbered(3), 0)
