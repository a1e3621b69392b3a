"""Command lines that read files, on a tiny data set and with a few steps of training."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

# every command is given its folder, so that none writes into the clone
OPTIONS = ("--project-dir=out", "--project=fuzz", "--cpu=0", "--accelerator=cpu", "--no-progress")
TRAINING = ("--batch-size=32", "--max-epochs=1", "--trainer-precision=32")
MODEL = ("jsc-tiny", "npz", "--data-path=data.npz", *TRAINING)
TRAIN = ("train", *MODEL, *OPTIONS)
TEST = ("test", *MODEL, *OPTIONS)
TRANSFORM = ("transform", "--config=transform.toml", *OPTIONS)
SEARCH = ("search", "--config=search.toml", *OPTIONS)


def that_loads(random: Random, load: str, kind: str) -> Sequence[str]:
    """Return a command that loads a checkpoint; four of five only test it."""
    others = (TRAIN, TRANSFORM, SEARCH)
    command = TEST if random.random() < 0.8 else random.choice(others)
    return (*command, f"--load={load}", f"--load-type={kind}")
