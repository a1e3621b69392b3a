"""Checkpoints are complete, atomic, and enough to go on bit for bit."""

import contextlib
import resource
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chop.checkpoints import load_model
from chop.training.interruption import Interrupted
from chop.training.names import Names
from chop.training.saving import write_atomically


def equal(a, b) -> bool:
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_a_checkpoint_has_the_layout_of_lightning(small, tmp_path):
    run = small.training(tmp_path, max_epochs=1)
    run.fit()
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert {"epoch", "global_step", "state_dict", "optimizer_states"} <= saved.keys()
    assert {"lr_schedulers", "hyper_parameters", "pytorch-lightning_version"} <= saved.keys()
    assert all(key.startswith("model.") for key in saved["state_dict"])
    again = load_model(tmp_path / "last.ckpt", "pl", small.network())
    assert equal(again, run.model)


def test_best_is_the_epoch_of_the_lowest_validation_loss(small, tmp_path):
    seen = small.Recorder()
    small.training(tmp_path, visualizers=[seen], max_epochs=6, learning_rate=0.3).fit()
    losses = seen.values("val_loss_epoch")
    saved = torch.load(tmp_path / "best.ckpt", weights_only=True)
    assert saved["mase"]["progress"]["best_epoch"] == losses.index(min(losses))
    assert saved["epoch"] == losses.index(min(losses)) + 1


def interrupted_then_resumed(small, folder, step: int, **changes):
    """The model of a run that is stopped at `step` and resumed by a new process' objects."""
    torch.manual_seed(5)
    first = small.training(folder, **changes)
    steps = first._steps

    def stopping():
        for outcome in steps():
            if first.progress.step == step:
                first._save("last")
                raise Interrupted(signal.SIGTERM)
            yield outcome

    first._steps = stopping
    with pytest.raises(Interrupted):
        first.fit()
    torch.manual_seed(1234)  # whatever the new process begins with
    second = small.training(folder, **changes)
    second.resume(folder / "last.ckpt")
    assert second.progress.step == step
    second.fit()
    return second.model


@settings(max_examples=settings.default.max_examples // 3)
@given(step=st.integers(1, 47), optimizer=st.sampled_from(["adam", "adamw", "sgd"]))
def test_a_run_that_was_interrupted_anywhere_ends_as_if_it_had_not_been(
    small, tmp_path_factory, step, optimizer
):
    changes = {"optimizer": optimizer, "max_epochs": 3, "warmup_steps": 10}
    torch.manual_seed(5)
    whole = small.training(tmp_path_factory.mktemp("whole"), **changes)
    whole.fit()
    halved = interrupted_then_resumed(small, tmp_path_factory.mktemp("half"), step, **changes)
    assert equal(halved, whole.model)


def test_a_checkpoint_of_another_tool_cannot_be_resumed(small, tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "last.ckpt")
    said = r"not written by MASE; .*`load_name` and `load_type='pl'`"
    with pytest.raises(ValueError, match=said):
        small.training(tmp_path).resume(tmp_path / "last.ckpt")


def test_another_network_or_optimiser_cannot_go_on_with_a_run(small, tmp_path):
    small.training(tmp_path, max_epochs=1).fit()
    with pytest.raises(ValueError, match=r"was trained with Adam, not SGD; resume it with the sam"):
        small.training(tmp_path, optimizer="sgd").resume(tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match="does not fit the model: missing bias, weight"):
        small.training(tmp_path, model=torch.nn.Linear(16, 5)).resume(tmp_path / "last.ckpt")


def test_resuming_with_other_options_says_which(small, tmp_path, caplog):
    first = small.training(tmp_path, max_epochs=1)
    first.hyper_parameters = {"weight_decay": 0, "resume": False, "batch_size": 64}
    first.fit()
    second = small.training(tmp_path)
    second.hyper_parameters = {"weight_decay": 1, "resume": True, "batch_size": 64}
    second.resume(tmp_path / "last.ckpt")
    assert "weight_decay = 1; the run started with 0" in caplog.text
    assert "resume" not in caplog.text.replace("resuming", "")
    second.hyper_parameters["batch_size"] = 32
    with pytest.raises(ValueError, match=r"has batch_size = 64, not 32; use the same value, or"):
        second.resume(tmp_path / "last.ckpt")


def test_a_complete_run_that_is_resumed_changes_nothing(small, tmp_path):
    first = small.training(tmp_path, max_epochs=1)
    first.fit()
    seen = small.Recorder()
    second = small.training(tmp_path, max_epochs=1, visualizers=[seen])
    second.resume(tmp_path / "last.ckpt")
    fitted = second.fit()
    assert equal(first.model, second.model)
    assert fitted.validation is not None
    assert fitted.steps == 0
    assert not seen.rows


def test_a_second_run_in_a_folder_has_names_of_its_own(tmp_path):
    first = Names.claim(tmp_path)
    assert (first.best.name, first.last.name) == ("best.ckpt", "last.ckpt")
    first.last.touch()
    second = Names.claim(tmp_path)
    assert (second.best.name, second.last.name) == ("best-v1.ckpt", "last-v1.ckpt")
    second.best.touch()
    assert Names.claim(tmp_path).last.name == "last-v2.ckpt"
    assert Names.latest(tmp_path) == second
    assert Names.latest(tmp_path / "nowhere") is None


def test_runs_that_start_together_or_die_early_have_names_of_their_own(tmp_path):
    assert [Names.claim(tmp_path).version for _ in range(3)] == [0, 1, 2]
    with ThreadPoolExecutor(8) as many:
        versions = list(many.map(lambda _: Names.claim(tmp_path).version, range(40)))
    assert sorted(versions) == list(range(3, 43))


def test_checkpoints_of_former_versions_and_other_files_are_respected(tmp_path):
    (tmp_path / "best-v4.ckpt").touch()
    (tmp_path / "epoch=3.ckpt").touch()
    assert Names.claim(tmp_path).version == 5
    assert Names.latest(tmp_path).version == 4


@pytest.fixture
def full_disk():
    """A context in which no file can grow beyond 4 kB; Python ignores the signal by itself."""

    @contextlib.contextmanager
    def limited():
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path, full_disk):
    file = tmp_path / "last.ckpt"
    write_atomically({"weights": torch.zeros(10)}, file)
    with full_disk(), pytest.raises(OSError, match="the previous checkpoint is untouched"):
        write_atomically({"weights": torch.ones(100_000)}, file)
    assert torch.equal(torch.load(file, weights_only=True)["weights"], torch.zeros(10))
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "ckpts").write_text("a file where the folder should be")
    with pytest.raises(OSError, match=r"cannot write .*last\.ckpt.*free some space"):
        write_atomically({}, tmp_path / "ckpts" / "last.ckpt")
