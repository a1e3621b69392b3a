"""Scores are exact: every sample counts once, whatever the batches."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.dataset.tensors import batches
from chop.training.devices import Place
from chop.training.evaluate import evaluate
from chop.training.feed import Feed
from chop.training.steps import Mixed

MIXED = Mixed("32", torch.device("cpu"))


@pytest.mark.parametrize("batch_size", [1, 7, 64, 300, 1000])
def test_the_score_does_not_depend_on_the_batches(small, batch_size):
    model, split = small.network(), small.rows(300, 4)
    score = evaluate(model, batches(split, batch_size), mixed=MIXED)
    with torch.no_grad():
        logits = model.eval()(split.x)
    assert score.samples == 300
    assert score.accuracy == (logits.argmax(1) == split.y).double().mean().item()
    assert score.loss == pytest.approx(F.cross_entropy(logits, split.y).item(), rel=1e-6)


def test_classes_add_up_and_one_that_does_not_occur_has_no_accuracy(small):
    split = small.rows(400, 4)
    split.y[split.y == 3] = 2
    score = evaluate(small.network(), batches(split, 64), mixed=MIXED)
    assert score.class_accuracy[3] is None
    shares = [(split.y == c).float().mean().item() for c in range(5)]
    parts = [a * s for a, s in zip(score.class_accuracy, shares, strict=True) if a is not None]
    assert sum(parts) == pytest.approx(score.accuracy)


def test_mode_statistics_and_random_numbers_stay_as_they_are(small):
    model = small.network().train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    random = torch.get_rng_state()
    evaluate(model, batches(small.rows(100, 4), 32), mixed=MIXED)
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


def test_shares_of_several_processes_score_as_one(small):
    model, split = small.network(), small.rows(101, 4)
    alone = evaluate(model, batches(split, 16), mixed=MIXED)
    sums = []
    for rank in range(3):
        feed = Feed(split, 16, Place(torch.device("cpu"), rank, 3))
        evaluate(model, feed.every(), mixed=MIXED, reduce=lambda s: sums.append(s) or s)

    together = evaluate(model, batches(split, 16), mixed=MIXED, reduce=lambda _: sum(sums))
    assert (together.samples, together.accuracy) == (101, alone.accuracy)
    assert together.loss == pytest.approx(alone.loss, rel=1e-6)


def test_nothing_to_score_is_refused():
    with pytest.raises(ValueError, match="scoring needs at least one sample"):
        evaluate(nn.Identity(), [], mixed=MIXED)


def test_a_model_that_works_in_place_leaves_the_data_alone(small):
    split = small.rows(200, 4)
    before = split.x.clone()

    class Rude(nn.Linear):
        def forward(self, x):
            return super().forward(x.mul_(0.5).relu_())

    evaluate(Rude(16, 5), batches(split, 64), mixed=MIXED)
    of = small.data(val_dataset=split)
    small.training(model=Rude(16, 5), of=of, max_epochs=2).fit()
    assert torch.equal(split.x, before)
    assert torch.equal(of.train_dataset.x, small.rows(1000, 1).x)
