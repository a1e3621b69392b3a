"""What `ch train --resume` reads: the fields of last.ckpt, and the rows of metrics.csv."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from .commands import TRAIN
from .harness import Sandbox, inputs
from .mutations import ODD, changed, changed_lines, changed_numbers, damaged, foreign
from .pickles import hostile_file
from .tensors import odd_state

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, about odd tensors
CELLS = ("", "nan", "x", "-1", "1e999", '"', "9" * 30)


def write_odd_fields(random: Random, sandbox: Sandbox, last: Path) -> None:
    """Change fields of the checkpoint, most of them ours."""
    saved = torch.load(last, weights_only=True)
    odd = (*ODD, torch.zeros(3), torch.zeros(0, dtype=torch.uint8))
    parts = ("mase", "mase", "optimizer_states", "hyper_parameters", "state_dict", None)
    part = random.choice(parts)
    if part is None:
        saved = changed(random, saved, odd)
    elif part == "state_dict":
        saved[part] = odd_state(random, saved[part])
    else:
        saved[part] = changed(random, saved[part], odd)
    torch.save(saved, last)


def write_damaged(random: Random, sandbox: Sandbox, last: Path) -> None:
    """Damage the checkpoint, or put a pickle that would run code in its place."""
    saved: dict[str, Any] = torch.load(last, weights_only=True)
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: damaged(random, last.read_bytes()),
        lambda: foreign(random),
        lambda: hostile_file(random, sandbox.marker, saved),
    )
    last.write_bytes(random.choice(ways)())


def write_odd_metrics(random: Random, sandbox: Sandbox, last: Path) -> None:
    """Change cells, lines or bytes of the metrics."""
    file = sandbox.project / "software" / "metrics.csv"
    if random.random() < 0.3:
        file.write_bytes(damaged(random, file.read_bytes()))
        return
    lines = [changed_numbers(random, line, CELLS) for line in file.read_text().splitlines()]
    lines = changed_lines(random, lines) if random.random() < 0.7 else lines
    file.write_text("\n".join(lines), errors="surrogateescape")


@inputs("resume")
def test_a_run_is_resumed_or_refused(sandbox: Sandbox, random: Random, index: int) -> None:
    sandbox.take("data.npz")
    sandbox.take_project("trained")
    last = sandbox.project / "software" / "training_ckpts" / "last.ckpt"
    ways = (write_odd_fields, write_odd_fields, write_damaged, write_odd_metrics)
    random.choice(ways)(random, sandbox, last)
    sandbox.check(*TRAIN, "--resume", "--max-epochs=2")
