"""The training loop does what a hand-written loop would do, and keeps its books."""

import math
import signal

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.dataset import MaseDataModule, TensorSplit
from chop.dataset.tensors import EpochPass, batches
from chop.methods.edge_tables import EdgeTable
from chop.numerics.compiled import KERNELS
from chop.training.devices import fixed_threads, threads_for
from chop.training.feed import Feed
from chop.training.loop import Training


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [v.clone() for v in model.state_dict().values()]


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(map(torch.equal, weights(a), weights(b)))


def test_it_is_the_plain_loop_bit_for_bit(small):
    ours, plain = small.network(), small.network()
    torch.manual_seed(3)
    small.training(model=ours, max_epochs=2, schedule="constant").fit()

    torch.manual_seed(3)
    optimizer = torch.optim.Adam(plain.parameters(), 1e-2, fused=True)
    plain.train()
    for epoch in range(2):
        for x, y in batches(small.rows(1000, 1), 64, EpochPass(0, epoch)):
            optimizer.zero_grad()
            F.cross_entropy(plain(x), y).backward()
            optimizer.step()
    assert same(ours, plain)


def test_data_that_are_not_loaded_are_set_up(small):
    data = MaseDataModule("jsc-sim", batch_size=4096)
    fitted = Training(small.network(), data, small.options(max_epochs=1), place=small.CPU).fit()
    assert fitted.progress.epoch == 1
    assert fitted.validation is not None


@pytest.mark.parametrize("data", [[1, 2], None, "jsc"])
def test_data_that_are_not_a_data_module_are_refused(small, data):
    with pytest.raises(TypeError, match=f"must be a MaseDataModule, .* {type(data).__name__}$"):
        Training(small.network(), data, small.options(), place=small.CPU)


def test_it_learns(small):
    fitted = small.training(max_epochs=12).fit()
    assert fitted.validation.accuracy > 0.65  # chance is 0.2
    assert fitted.progress.epoch == 12
    assert fitted.progress.step == 12 * math.ceil(1000 / 64)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(small):
    def run(seed: int) -> nn.Module:
        model = small.network()
        torch.manual_seed(seed)
        small.training(model=model, seed=seed, max_epochs=1).fit()
        return model

    assert same(run(1), run(1))
    assert not same(run(1), run(2))


def test_gradients_of_several_batches_add_up_to_those_of_a_larger_one(small):
    def run(batch: int, parts: int) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 5)).double()
        of = small.data(size=960, batch_size=batch)
        of.train_dataset = TensorSplit(of.train_dataset.x.double(), of.train_dataset.y)
        of.val_dataset = None
        run = small.training(
            model=model, of=of, accumulate_grad_batches=parts, optimizer="sgd", max_epochs=1
        )
        run.fit()
        assert run.progress.step == 10
        return model

    for a, b in zip(weights(run(96, 1)), weights(run(32, 3)), strict=True):
        torch.testing.assert_close(a, b)


def test_an_incomplete_group_of_batches_still_makes_a_step(small):
    run = small.training(of=small.data(size=64 * 5), accumulate_grad_batches=2, max_epochs=1)
    assert run.fit().progress.step == 3


def test_gradient_clip_bounds_the_length_of_a_step(small):
    model = small.network()
    before = weights(model)
    small.training(
        model=model, optimizer="sgd", learning_rate=1.0, gradient_clip=1e-4, max_steps=1
    ).fit()
    trained = dict(model.named_parameters())
    moved = [
        (after - was).norm()
        for (name, after), was in zip(model.state_dict().items(), before, strict=True)
        if name in trained
    ]
    # Nesterov's first step is 1 + 0.9 gradients long
    assert 0 < torch.stack(moved).norm() <= 1.9e-4 * 1.001


def test_max_steps_ends_the_run_in_the_middle_of_an_epoch(small):
    fitted = small.training(max_steps=5).fit()
    assert (fitted.progress.step, fitted.progress.epoch, fitted.progress.step_in_epoch) == (5, 0, 5)
    assert fitted.validation is not None


def test_early_stopping_waits_for_as_many_epochs_as_it_was_told(small):
    # noise cannot be learnt: the validation loss rises from the first epochs on
    of = small.data(size=200)
    of.train_dataset.y = torch.randint(5, (200,), generator=torch.Generator().manual_seed(0))
    run = small.training(of=of, early_stopping=3, max_epochs=200, learning_rate=3e-2)
    progress = run.fit().progress
    assert progress.epoch < 200
    assert progress.stale_epochs == 3


def test_metrics_have_the_names_and_the_steps_of_the_labs(small):
    seen = small.Recorder()
    small.training(visualizers=[seen], log_every_n_steps=5, max_epochs=2).fit()
    assert seen.steps("train_loss_step") == [5, 10, 15, 20, 25, 30]
    assert seen.steps("train_acc_step") == seen.steps("lr") == seen.steps("train_loss_step")
    assert seen.steps("val_loss_epoch") == seen.steps("val_acc_epoch") == [16, 32]
    assert all(0 <= accuracy <= 1 for accuracy in seen.values("train_acc_step"))


def test_one_batch_is_enough_to_see_whether_it_runs_and_leaves_nothing(small, tmp_path):
    fitted = small.training(tmp_path, fast_dev_run=True).fit()
    assert fitted.progress.step == 1
    assert fitted.validation is not None
    assert not list(tmp_path.iterdir())


def test_a_model_without_parameters_is_refused(small):
    with pytest.raises(ValueError, match="no trainable parameters"):
        small.training(model=nn.Identity())


def test_frozen_parameters_stay(small):
    model = small.network()
    model[2].weight.requires_grad_(False)
    before = model[2].weight.clone()
    small.training(model=model, max_epochs=1).fit()
    assert torch.equal(model[2].weight, before)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "changes",
    [
        *({"precision": precision} for precision in ("32", "64", "16-mixed", "bf16")),
        *({"optimizer": "adamw"}, {"optimizer": "sgd", "learning_rate": 0.05}),
    ],
)
def test_every_precision_and_optimizer_trains_on_a_cpu(small, changes):
    fitted = small.training(max_epochs=8, **changes).fit()
    assert fitted.validation.accuracy > 0.5


def test_a_validation_loss_that_is_no_number_stops_the_run(small):
    of = small.data()
    of.val_dataset.x[3, 3] = math.nan
    said = "the validation loss is nan: the data hold values"
    with pytest.raises(FloatingPointError, match=said):
        small.training(of=of, model=nn.Linear(16, 5)).fit()


def test_speed_counts_samples_not_batches(small, monkeypatch):
    run = small.training(of=small.data(size=10, batch_size=4096), max_epochs=1)
    clock = iter(range(100))
    monkeypatch.setattr("chop.training.loop.time.perf_counter", lambda: next(clock))
    assert run.fit().samples_per_second == 10


def test_random_data_of_users_differ_from_epoch_to_epoch_and_can_be_returned_to(small):
    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.rand(16), index % 5

    def drawn(epoch):
        feed = Feed(Noisy(), 4, small.CPU, num_workers=1)
        return torch.cat([x for x, _ in feed.train(epoch)])

    assert torch.equal(drawn(0), drawn(0))
    assert not torch.equal(drawn(0), drawn(1))


class TestALossThatIsNoNumber:
    def test_names_the_step_and_the_data_if_they_are_the_cause(self, small, tmp_path):
        of = small.data()
        of.train_dataset.x[500, 3] = math.nan
        with pytest.raises(
            FloatingPointError, match=r"nan at step \d+ \(epoch 1\): the batch itse"
        ):
            small.training(tmp_path, of=of, model=nn.Linear(16, 5)).fit()
        assert not list(tmp_path.iterdir())

    def test_names_the_weights_if_the_steps_were_too_large(self, small, tmp_path):
        model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5))
        with pytest.raises(FloatingPointError, match="lower `learning_rate`"):
            small.training(
                tmp_path, model=model, optimizer="sgd", learning_rate=1e30, max_epochs=3
            ).fit()

    def test_keeps_the_checkpoint_of_the_last_good_epoch(self, small, tmp_path):
        run = small.training(tmp_path, max_epochs=2)
        original = run._end_epoch

        def poison(outcome, seconds):
            original(outcome, seconds)
            with torch.no_grad():
                run.model[2].weight[0, 0] = math.inf

        run._end_epoch = poison
        with pytest.raises(FloatingPointError, match=r"step 17 \(epoch 2\): \S+ is no longer"):
            run.fit()
        saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
        assert saved["epoch"] == 1
        assert all(torch.isfinite(v).all() for v in saved["state_dict"].values())


def test_a_data_set_of_another_kind_is_read_by_a_data_loader(small):
    class Slow(torch.utils.data.Dataset):
        def __init__(self, split):
            self.split = split

        def __len__(self):
            return len(self.split)

        def __getitem__(self, index):
            return self.split[index]

    fast, slow = small.network(), small.network()
    of = small.data()
    torch.manual_seed(0)
    small.training(model=fast, of=of, max_epochs=2).fit()
    of.train_dataset, of.val_dataset = Slow(of.train_dataset), Slow(of.val_dataset)
    torch.manual_seed(0)
    small.training(model=slow, of=of, max_epochs=2).fit()
    assert same(fast, slow)


def test_an_empty_data_set_is_refused(small):
    empty = TensorSplit(torch.empty(0, 16), torch.empty(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="empty"):
        small.training(of=small.data(train_dataset=empty))


def test_a_run_that_is_out_of_time_ends_with_the_step_that_runs(small):
    fitted = small.training(max_seconds=1e-9, max_epochs=50).fit()
    assert fitted.steps == 1
    assert fitted.validation is not None


def test_a_watched_run_tells_instead_of_logging_and_leaves_signals_alone(small, caplog):
    told, handler = [], signal.getsignal(signal.SIGINT)

    def watch(epoch, score):
        told.append((epoch, score.samples, signal.getsignal(signal.SIGINT) is handler))

    run = Training(small.network(), small.data(), small.options(), place=small.CPU, watch=watch)
    with caplog.at_level("INFO", logger="chop"):
        run.fit()
    assert told == [(epoch, 300, True) for epoch in (1, 2, 3)]
    assert not caplog.records


def test_an_objective_of_ones_own_is_what_is_made_small(small):
    def shrink(forward, x, y):
        logits = forward(x)
        return logits.square().mean(), logits

    model = small.network()
    Training(
        model, small.data(), small.options(max_epochs=20), place=small.CPU, objective=shrink
    ).fit()
    assert model.eval()(small.data().val_dataset.x).abs().mean() < 0.05


@pytest.mark.parametrize(("batch", "width", "one"), [(512, 5_615, True), (4096, 10_000, False)])
def test_small_networks_are_trained_with_one_thread(batch, width, one):
    """The first is the quickstart, for which two threads take many times as long."""
    with fixed_threads(2):
        with threads_for(batch * width, torch.device("cpu")):
            assert torch.get_num_threads() == (1 if one else 2)
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize("learns", [True, False])
def test_layers_that_learn_bits_are_trained_once_their_kernels_are_there(
    small, learns, monkeypatch
):
    waited = []
    monkeypatch.setattr(KERNELS, "settle", lambda: waited.append(True))
    model = nn.Sequential(EdgeTable(16, 5, hidden=2)) if learns else small.network()
    small.training(model=model, max_epochs=1, max_steps=1).fit()
    assert bool(waited) == learns
