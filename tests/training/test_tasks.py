"""Tasks: losses and metrics by hand, exact over batches and processes."""

import json
import logging
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.actions.train import hint_of_guessing
from chop.dataset import TensorSplit
from chop.dataset.base import IGNORED
from chop.training.loop import Training
from chop.training.tasks import CLASSIFICATION, DENSE, REGRESSION, TASKS, task_named


def outputs_and_labels(task, samples=30, seed=0):
    rng = torch.Generator().manual_seed(seed)
    if task is REGRESSION:
        y = 3 + torch.randn(samples, 2, generator=rng)
        return y + torch.randn(samples, 2, generator=rng) / 2, y
    shape = (4, 5) if task is DENSE else ()
    y = torch.randint(3, (samples, *shape), generator=rng)
    return torch.randn(samples, 3, *shape, generator=rng), y


def scored(task, outputs, y, sizes=(30,), reduce=lambda sums: sums):
    tally = task.tally()
    for o, labels in zip(outputs.split(list(sizes)), y.split(list(sizes)), strict=True):
        tally.add(o, labels)
    return tally.score(reduce)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_score_does_not_depend_on_the_batches(task):
    outputs, y = outputs_and_labels(task)
    whole = scored(task, outputs, y)
    for sizes in ([10, 10, 10], [1] * 30, [29, 1]):
        score = scored(task, outputs, y, sizes)
        assert score.metrics == pytest.approx(whole.metrics, rel=1e-12)
        assert score.loss == pytest.approx(whole.loss, rel=1e-6)
    assert whole.loss == pytest.approx(task.loss(outputs, y).item(), rel=1e-6)
    assert whole.with_loss.keys() == task.directions.keys()


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@pytest.mark.parametrize("sizes", [(10, 10, 10), (29, 1, 0), (30, 0, 0)])
def test_the_score_is_the_same_for_several_processes(task, sizes):
    """Each process, here a thread, has a share; sums are padded as `Place.total` does."""
    outputs, y = outputs_and_labels(task)
    shares = zip(outputs.split(list(sizes)), y.split(list(sizes)), strict=True)
    together, sent = threading.Barrier(len(sizes)), dict[int, torch.Tensor]()

    def process(rank, share):
        def reduce(sums):
            sent[rank] = sums
            together.wait()
            longest = max(map(len, sent.values()))
            total = sum(F.pad(sent[n], (0, longest - len(sent[n]))) for n in sorted(sent))
            together.wait()
            return total

        tally = task.tally()
        if len(share[1]):
            tally.add(*share)
        return tally.score(reduce)

    with ThreadPoolExecutor(len(sizes)) as pool:
        scores = list(pool.map(process, range(len(sizes)), shares))
    whole = scored(task, outputs, y)
    for score in scores:
        assert score.metrics == pytest.approx(whole.metrics, rel=1e-12)
        assert score.loss == pytest.approx(whole.loss, rel=1e-6)
        assert score.samples == 30


def test_regression_by_hand():
    outputs, y = torch.tensor([[1.0], [2.0], [6.0]]), torch.tensor([1.0, 4.0, 4.0])
    score = scored(REGRESSION, outputs, y, [3])
    assert score.loss == score.metrics["mse"] == pytest.approx(8 / 3)
    assert score.metrics["mae"] == pytest.approx(4 / 3)
    assert score.metrics["r2"] == pytest.approx(1 - 8 / 6)
    assert score.guess == 0


def test_r2_of_large_labels_keeps_its_digits():
    y = 1e9 + torch.arange(100, dtype=torch.float64)
    outputs = y + torch.where(torch.arange(100) % 2 == 0, 1.0, -1.0)
    spread = sum((i - 49.5) ** 2 for i in range(100))
    r2 = scored(REGRESSION, outputs, y, [7] * 14 + [2]).metrics["r2"]
    assert r2 == pytest.approx(1 - 100 / spread, rel=1e-9)


@pytest.mark.parametrize(("error", "r2"), [(0.0, 1.0), (1.0, 0.0)])
def test_r2_of_a_constant_target_is_one_or_zero(error, r2):
    y = torch.full((5,), 2.0)
    assert scored(REGRESSION, y + error, y, [5]).metrics["r2"] == r2


def test_r2_of_one_sample_is_not_a_number():
    assert math.isnan(scored(REGRESSION, torch.ones(1), torch.ones(1), [1]).metrics["r2"])


def test_dense_prediction_by_hand():
    y = torch.tensor([[[0, 0, 1, IGNORED]]])
    predicted = torch.tensor([[[0, 1, 1, 2]]])
    outputs = F.one_hot(predicted, 4).movedim(-1, 1).float()
    score = scored(DENSE, outputs, y, [1])
    assert score.metrics["pixel_accuracy"] == pytest.approx(2 / 3)
    assert score.by_class == (0.5, 0.5, None, None)  # the third is predicted where none counts
    assert score.metrics["mean_iou"] == 0.5
    assert score.guess == pytest.approx(2 / 3 / 2)
    assert score.loss == pytest.approx(F.cross_entropy(outputs, y).item())
    assert score.samples == 1


def test_pixels_that_do_not_count_have_no_gradient():
    outputs = torch.zeros(2, 3, 2, 2, requires_grad=True)
    DENSE.loss(outputs, torch.full((2, 2, 2), IGNORED)).backward()
    assert not outputs.grad.any()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_metrics_are_those_of_scikit_learn(package, seed):
    metrics = package("sklearn.metrics")
    outputs, y = outputs_and_labels(REGRESSION, seed=seed)
    score = scored(REGRESSION, outputs, y, [7, 23]).metrics
    assert score["r2"] == pytest.approx(metrics.r2_score(y, outputs))
    assert score["mse"] == pytest.approx(metrics.mean_squared_error(y, outputs))
    assert score["mae"] == pytest.approx(metrics.mean_absolute_error(y, outputs))
    outputs, y = outputs_and_labels(DENSE, seed=seed)
    score, flat = scored(DENSE, outputs, y, [7, 23]), outputs.argmax(1).flatten()
    iou = metrics.jaccard_score(y.flatten(), flat, average="macro")
    assert score.metrics["mean_iou"] == pytest.approx(iou)
    assert score.metrics["pixel_accuracy"] == metrics.accuracy_score(y.flatten(), flat)


@pytest.mark.parametrize(
    ("task", "y", "sentence"),
    [
        (CLASSIFICATION, torch.rand(4), "one per sample, not float32 .*use `task='reg'`"),
        (CLASSIFICATION, torch.zeros(4, 8, 8).long(), "use `task='dense'` for a class per pixel"),
        (DENSE, torch.zeros(4).long(), "one class index per pixel, .*use `task='cls'`"),
        (DENSE, torch.rand(4, 8, 8), "one class index per pixel, .*use `task='reg'`"),
        (REGRESSION, torch.zeros(4, dtype=torch.complex64), "must be real numbers"),
    ],
)
def test_labels_of_another_task_are_refused_with_its_name(task, y, sentence):
    with pytest.raises(ValueError, match=sentence):
        task.check_labels(y)


@pytest.mark.parametrize(
    ("task", "outputs", "y", "sentence"),
    [
        (REGRESSION, (4, 2), torch.rand(4), r"the shape of the labels, \(4,\), not \(4, 2\)"),
        (REGRESSION, (4,), torch.rand(4, 3), r"one output per target"),
        (REGRESSION, (4, 1), torch.full((4,), math.nan), "labels hold values that are not finite"),
        (DENSE, (4, 3, 4, 4), torch.zeros(4, 8, 8).long(), r"\(4, classes, 8, 8\), .*interpolate"),
        (DENSE, (4, 3), torch.zeros(4, 8, 8).long(), r"scores of shape \(4, classes, 8, 8\)"),
        (DENSE, (4, 3, 8, 8), torch.full((4, 8, 8), 3), "labels are 3 to 3, but .* 3 classes"),
    ],
)
def test_outputs_that_do_not_fit_the_labels_are_refused(task, outputs, y, sentence):
    with pytest.raises(ValueError, match=sentence):
        task.check_outputs(torch.zeros(outputs), y, y)


def test_tasks_have_two_names():
    assert task_named("regression") is task_named("reg") is REGRESSION
    with pytest.raises(ValueError, match="support the tasks cls, reg, dense, not 'lm'"):
        task_named("lm")
    with pytest.raises(ValueError, match="did you mean 'dense'"):
        task_named("denes")


def regression_data(small, **changes):
    """Rows with a target that is linear in them."""

    def rows(size, seed):
        x = torch.randn(size, 4, generator=torch.Generator().manual_seed(seed))
        return TensorSplit(x, 2 + x @ torch.tensor([1.0, -2.0, 0.5, 0.0]))

    splits = {"train_dataset": rows(500, 1), "val_dataset": rows(200, 2)}
    return small.data(**(splits | changes))


def fitted(small, model, of, task, **options):
    run = Training(model, of, small.options(**options), place=small.CPU, task=task)
    return run.fit()


def test_a_line_is_learnt(small):
    model = nn.Linear(4, 1)
    result = fitted(
        small, model, regression_data(small), REGRESSION, max_epochs=15, learning_rate=0.3
    )
    assert result.validation.metrics["r2"] > 0.999
    assert model.bias.item() == pytest.approx(2, abs=0.05)
    assert result.progress.best_accuracy is None
    assert result.progress.best_loss <= result.validation.loss


def test_integers_are_targets_too(small):
    of = regression_data(small)
    of.train_dataset = TensorSplit(of.train_dataset.x, of.train_dataset.y.round().long())
    assert fitted(small, nn.Linear(4, 1), of, REGRESSION).validation.metrics["mae"] > 0


def test_pixels_are_learnt(small):
    def maps(size, seed):
        x = torch.randn(size, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
        y = (x[:, 0] > 0).long()
        y[:, 0, 0] = IGNORED
        return TensorSplit(x, y)

    of = small.data(train_dataset=maps(200, 1), val_dataset=maps(100, 2))
    result = fitted(small, nn.Conv2d(1, 2, 1), of, DENSE, max_epochs=10, learning_rate=0.3)
    assert result.validation.metrics["mean_iou"] > 0.95


@pytest.mark.parametrize("inputs", ["dict", "tuple"])
def test_several_inputs_train_as_one_that_holds_both(small, inputs):
    class Two(nn.Linear):
        def forward(self, left, right):
            return super().forward(torch.cat([left, right], 1))

    def halves(split):
        left, right = split.x.split(8, 1)
        x = (left, right) if inputs == "tuple" else {"right": right, "left": left}
        return TensorSplit(x, split.y)

    one = small.data()
    two = small.data(train_dataset=halves(one.train_dataset), val_dataset=halves(one.val_dataset))
    losses = []
    for cls, of in ((nn.Linear, one), (Two, two)):
        torch.manual_seed(0)
        losses.append(fitted(small, cls(16, 5), of, CLASSIFICATION).validation.loss)
    assert losses[0] == losses[1]


def test_data_that_are_not_finite_are_found_in_any_input(small):
    class Two(nn.Linear):
        def forward(self, left, right):
            return super().forward(left + right)

    left, right = torch.randn(2, 100, 16)
    right[7, 3] = math.nan
    split = TensorSplit({"left": left, "right": right}, torch.zeros(100).long())
    with pytest.raises(FloatingPointError, match="batch itself holds values that are not finite"):
        fitted(small, Two(16, 5), small.data(train_dataset=split), CLASSIFICATION)


def said(caplog, result, **options):
    from chop.training.options import TrainOptions

    caplog.clear()
    with caplog.at_level(logging.WARNING, "chop"):
        hint_of_guessing(result, TrainOptions(**options))
    return caplog.text


def test_training_that_is_no_better_than_guessing_is_told(small, caplog):
    of = regression_data(small)
    bad = fitted(small, nn.Linear(4, 1), of, REGRESSION, max_epochs=1, learning_rate=1e-5)
    text = said(caplog, bad, learning_rate=1e-5)
    assert "The validation r2 of -" in text
    assert "is no better than always guessing the mean (0)" in text
    assert "learning rate 1e-05 is low: try `learning_rate=1e-3`" in text
    assert "train for more epochs" in said(caplog, bad, learning_rate=1e-2)
    assert not said(caplog, bad, learning_rate=1e-5, fast_dev_run=True)
    good = fitted(small, nn.Linear(4, 1), of, REGRESSION, max_epochs=20, learning_rate=0.1)
    assert not said(caplog, good, learning_rate=1e-5)


def test_a_constant_classifier_is_told_and_a_better_one_is_not(small, caplog):
    model = nn.Linear(16, 5)
    nn.init.zeros_(model.weight)
    model.bias.data = torch.tensor([9.0, 0, 0, 0, 0])
    result = fitted(small, model, small.data(), CLASSIFICATION, max_epochs=1, learning_rate=1e-9)
    assert "no better than always guessing the most frequent class" in said(caplog, result)
    result = fitted(small, small.network(), small.data(), CLASSIFICATION)
    assert not said(caplog, result)


def test_an_accuracy_within_the_error_of_a_guess_is_told(small, caplog):
    result = fitted(small, small.network(), small.data(), CLASSIFICATION)
    for above, is_told in ((0.01, True), (0.05, False)):
        score = replace(result.validation, metrics={"accuracy": 0.2 + above}, guess=0.2)
        score = replace(score, samples=1000)  # two standard errors are 0.025
        progress = replace(result.progress, best_accuracy=None)
        near = replace(result, validation=score, progress=progress)
        assert bool(said(caplog, near)) == is_told


def test_a_run_is_not_resumed_for_another_task(small, tmp_path):
    first = Training(
        nn.Linear(4, 1),
        regression_data(small),
        small.options(max_epochs=1),
        place=small.CPU,
        task=REGRESSION,
        hyper_parameters={"task": "reg"},
    )
    saved = {"hyper_parameters": json.loads(json.dumps(first.hyper_parameters))}
    other = small.training(model=nn.Linear(16, 5))
    with pytest.raises(ValueError, match="resumed run has task = reg, not classification"):
        other.resume_from(saved)
