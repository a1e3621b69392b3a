"""A signal ends a run after the step in which it came, and what was learnt is saved."""

import os
import signal
import stat

import pytest
import torch

from chop.training.interruption import Interrupted, Interruption, is_requeued


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_checkpoint_from_which_the_run_goes_on(small, tmp_path, number):
    run = small.training(tmp_path, max_epochs=3)
    steps = run._steps

    def noisy():
        for outcome in steps():
            if run.progress.step == 20:
                os.kill(os.getpid(), number)
            yield outcome

    run._steps = noisy
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as stopped:
        run.fit()
    assert stopped.value.exit_code == 128 + number
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert 20 <= saved["global_step"] <= 21
    assert signal.getsignal(number) is before
    again = small.training(tmp_path, max_epochs=3)
    again.resume(tmp_path / "last.ckpt")
    assert again.fit().progress.epoch == 3


def test_the_second_signal_does_not_wait():
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGINT)
        assert interruption.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_slurm_is_asked_to_queue_the_job_again(tmp_path, monkeypatch):
    tool = tmp_path / "scontrol"
    tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "77")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "5")
    interruption = Interruption(requeue=True)
    with pytest.raises(Interrupted):
        interruption.stop(signal.SIGUSR1, leads=False)
    assert not (tmp_path / "asked").exists()
    with pytest.raises(Interrupted):
        interruption.stop(signal.SIGUSR1)
    assert (tmp_path / "asked").read_text() == "requeue 77_5\n"


def test_a_job_that_slurm_runs_again_knows_it(monkeypatch):
    assert not is_requeued()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert is_requeued()
