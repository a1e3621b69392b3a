"""Data files: damaged, of the wrong kind, with odd arrays, with pickles, and with odd options."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from .data_files import FILES, odd_npz, odd_tensors, that_reads, write_odd_h5
from .harness import Sandbox, inputs
from .mutations import TOML_VALUES, changed_lines, changed_numbers, damaged, foreign
from .pickles import hostile_file, tar

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch and numpy, about odd arrays

CELLS = ("", "nan", "inf", "-", "1e999", "x", '"', "0x10", "1,5", "9" * 400, "\x00", "🦆")
KEYS = ("label", "test", "validation", "split_seed", "standardize", "cache", "path", "renew", "x")


def write_damaged(random: Random, sandbox: Sandbox, name: str) -> None:
    """Damage the bytes of a good file."""
    path = sandbox.work / name
    file = random.choice(sorted(path.iterdir())) if path.is_dir() else path
    file.write_bytes(damaged(random, file.read_bytes()))


def write_foreign(random: Random, sandbox: Sandbox, name: str) -> None:
    """Put another kind of file in its place, or one that would run code."""
    path = sandbox.work / name
    file = random.choice(sorted(path.iterdir())) if path.is_dir() else path
    hostile = hostile_file(random, sandbox.marker)
    escaping = tar({"../../home/notes.txt": b"", "/executed": b"", "test_batch.bin": b"x"})
    file.write_bytes(random.choice((foreign(random), hostile, escaping)))


def write_odd(random: Random, sandbox: Sandbox, name: str) -> None:
    """Write what the format allows and no data set has."""
    file = sandbox.work / name
    with np.load(sandbox.corpus / "data.npz") as data:
        arrays = dict(data)
    if name == "data.npz":
        file.write_bytes(odd_npz(random, arrays, sandbox.marker))
    elif name == "data.pt":
        torch.save(odd_tensors(random, arrays, sandbox.marker), file)
    elif name == "data.safetensors":
        kind = random.choice(("f2", "i1", "u1", "?", "c8", "f8"))
        odd = {key: torch.from_numpy(array.astype(kind)) for key, array in arrays.items()}
        save_file(odd | {random.choice(("X", "y", "../x", "")): odd["x"].clone()}, file)
    elif name == "jets.h5":
        write_odd_h5(random, file, sandbox.home / "notes.txt")
    elif name in ("table.csv", "jets.arff"):
        lines = file.read_text().splitlines()
        for _ in range(random.choice((1, 3))):
            place = random.randrange(len(lines))
            lines[place] = changed_numbers(random, lines[place], CELLS)
        lines = changed_lines(random, lines) if random.random() < 0.5 else lines
        file.write_text("\n".join(lines), errors="surrogateescape")
    else:
        write_damaged(random, sandbox, name)


def write_options(random: Random, sandbox: Sandbox, name: str) -> None:
    """Ask for an odd preparation of a good file."""
    value = random.choice(TOML_VALUES).replace("@HOME@", str(sandbox.home))
    line = f"{random.choice(KEYS)} = {value}\n"
    (sandbox.work / "options.toml").write_text(f"[dataset_args]\n{line}")


@inputs("data")
def test_a_data_file_is_read_or_refused(sandbox: Sandbox, random: Random, index: int) -> None:
    name = random.choice(sorted(FILES))
    if name == "table.parquet":
        pytest.importorskip("pyarrow")
    sandbox.take(name)
    (sandbox.work / "options.toml").touch()
    ways = (write_damaged, write_damaged, write_odd, write_odd, write_foreign, write_options)
    random.choice(ways)(random, sandbox, name)
    sandbox.check(*that_reads(name), "--config=options.toml")
