"""A captured step is the eager step, and a run on a GPU can be interrupted and resumed."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from chop.dataset import TensorSplit
from chop.training.devices import Place
from chop.training.loop import Training
from chop.training.names import Names
from chop.training.options import TrainOptions
from chop.training.steps import CapturedRun, EagerRun
from chop.training.tasks import CLASSIFICATION, REGRESSION

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda:0")


def rows(size, seed):
    x = torch.randn(size, 16, generator=torch.Generator().manual_seed(seed))
    weight = torch.randn(16, 5, generator=torch.Generator().manual_seed(99))
    return TensorSplit(x, (x @ weight).argmax(1))


def network():
    torch.manual_seed(7)
    return nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))


def training(folder=None, *, eager=False, size=1000, **changes):
    data = SimpleNamespace(
        train_dataset=rows(size, 1), val_dataset=rows(300, 2), batch_size=64, num_workers=0
    )
    asked = {"max_epochs": 3, "learning_rate": 1e-2, "progress": False} | changes
    names = Names(folder) if folder else None
    run = Training(network(), data, TrainOptions(**asked), names=names, place=Place(GPU))
    if eager:
        step = run.run.step
        run.run = EagerRun(step, run.train_feed.train, run._rate, run.train_feed.batches_per_epoch)
    return run


def state(run):
    return {k: v.cpu() for k, v in run.model.state_dict().items()}


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("precision", ["32", "16-mixed", "bf16"])
def test_a_captured_run_is_the_eager_run(optimizer, precision):
    options = {"optimizer": optimizer, "precision": precision, "gradient_clip": 1.0}
    options |= {"learning_rate": 0.1} if optimizer == "sgd" else {}
    captured, eager = training(**options), training(eager=True, **options)
    assert isinstance(captured.run, CapturedRun)
    a, b = captured.fit(), eager.fit()
    assert a.progress.step == b.progress.step == 48
    for key, value in state(captured).items():
        torch.testing.assert_close(value, state(eager)[key], rtol=1e-4, atol=1e-5)
    assert a.validation.accuracy > 0.6


@pytest.mark.parametrize("step", [2, 16, 20, 31])
def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(tmp_path, step):
    whole = training()
    whole.fit()
    first = training(tmp_path)
    steps = first._steps

    class Stop(Exception):
        pass

    def stopping():
        for outcome in steps():
            if first.progress.step == step:
                first._save("last")
                raise Stop
            yield outcome

    first._steps = stopping
    with pytest.raises(Stop):
        first.fit()
    second = training(tmp_path)
    second.resume(tmp_path / "last.ckpt")
    second.fit()
    assert all(torch.equal(v, state(second)[k]) for k, v in state(whole).items())


def test_a_loss_that_is_no_number_is_noticed_with_its_step():
    run = training(optimizer="sgd", learning_rate=1e30, log_every_n_steps=5)
    with pytest.raises(FloatingPointError, match=r"at step [23] .* lower `learning_rate`"):
        run.fit()


def test_data_that_are_no_numbers_are_named_and_never_saved(tmp_path):
    run = training(tmp_path, checkpoint_every=5, log_every_n_steps=50)
    with torch.no_grad():
        run.train_feed.split.x[500, 3] = torch.nan
    with pytest.raises(FloatingPointError, match="the data hold values that are not finite"):
        run.fit()
    for file in tmp_path.glob("*.ckpt"):
        saved = torch.load(file, weights_only=True)["state_dict"]
        assert all(torch.isfinite(value).all() for value in saved.values())


def test_a_checkpoint_of_a_gpu_is_read_on_a_cpu(tmp_path):
    run = training(tmp_path, max_epochs=1)
    run.fit()
    from chop.checkpoints import load_model

    model = load_model(tmp_path / "last.ckpt", "pl", network())
    assert all(v.device.type == "cpu" for v in model.state_dict().values())
    assert all(torch.equal(v, state(run)[k]) for k, v in model.state_dict().items())


def test_bytes_are_prepared_inside_the_captured_step():
    split = TensorSplit(
        torch.randint(0, 256, (512, 16), dtype=torch.uint8),
        torch.randint(0, 5, (512,)),
        prepare=lambda x: x.float() / 255,
    )
    data = SimpleNamespace(train_dataset=split, val_dataset=None, batch_size=64, num_workers=0)
    options = TrainOptions(max_epochs=2, learning_rate=1e-3, progress=False)
    run = Training(network(), data, options, place=Place(GPU))
    assert isinstance(run.run, CapturedRun)
    assert run.fit().progress.step == 16


class Halves(nn.Module):
    """Takes two inputs by name, and returns its prediction in a dictionary."""

    def __init__(self, outputs):
        super().__init__()
        torch.manual_seed(7)
        self.left, self.right = nn.Linear(8, 16), nn.Linear(8, 16)
        self.last = nn.Linear(16, outputs)

    def forward(self, *, left, right):
        return {"logits": self.last(torch.relu(self.left(left) + self.right(right))), "more": left}


def halves(size, seed, task):
    split = rows(size, seed)
    left, right = split.x.split(8, 1)
    y = split.x.sum(1) if task is REGRESSION else split.y
    return TensorSplit({"right": right, "left": left}, y)


@pytest.mark.parametrize("task", [CLASSIFICATION, REGRESSION], ids=lambda task: task.name)
def test_a_captured_run_with_several_inputs_is_the_eager_run(task):
    runs = []
    for eager in (False, True):
        data = SimpleNamespace(
            train_dataset=halves(1000, 1, task), val_dataset=halves(300, 2, task),
            batch_size=64, num_workers=0,
        )  # fmt: skip
        options = TrainOptions(max_epochs=5, learning_rate=1e-2, progress=False)
        model = Halves(1 if task is REGRESSION else 5)
        run = Training(model, data, options, place=Place(GPU), task=task)
        assert isinstance(run.run, CapturedRun)
        if eager:
            feed = run.train_feed
            run.run = EagerRun(run.run.step, feed.train, run._rate, feed.batches_per_epoch)
        runs.append((run.fit(), state(run)))
    (captured, weights), (_, eager_weights) = runs
    for key, value in weights.items():
        torch.testing.assert_close(value, eager_weights[key], rtol=1e-4, atol=1e-5)
    assert captured.validation.metrics[task.main] > 0.6
