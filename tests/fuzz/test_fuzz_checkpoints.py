"""Checkpoints: cut, flipped, of other programs, with odd weights, and with code to run."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file, save_file

from .commands import that_loads
from .harness import Sandbox, inputs
from .mutations import changed, changed_json, damaged, foreign
from .pickles import archive, hostile_file, tar
from .tensors import odd_object, odd_state

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, about odd tensors

INDEX = "hf/model.safetensors.index.json"
SAMPLES = {"state.pt": "pt", "state.safetensors": "pt", "best.ckpt": "pl", "hf": "hf"}


def write_damaged(random: Random, sandbox: Sandbox, name: str) -> None:
    """Damage the bytes of a good checkpoint."""
    files = sorted(path for path in (sandbox.work / name).rglob("*") if path.is_file())
    file = random.choice(files or [sandbox.work / name])
    file.write_bytes(damaged(random, file.read_bytes()))


def write_odd(random: Random, sandbox: Sandbox, name: str) -> None:
    """Save other weights or other objects than a checkpoint has."""
    file = sandbox.work / name
    if name == "hf":
        index = sandbox.work / INDEX
        index.write_bytes(changed_json(random, index.read_text()))
    elif name == "state.safetensors":
        odd = odd_state(random, load_file(file))
        names = {str(k).encode(errors="replace").decode(): v for k, v in odd.items()}  # of UTF-8
        save_file({k: v for k, v in names.items() if can_be_saved(v)}, file)
    elif name == "state.pt":
        write = random.choice((odd_state, odd_state, odd_object))
        torch.save(write(random, torch.load(file, weights_only=True)), file)
    else:
        saved = torch.load(file, weights_only=True)
        if random.random() < 0.6:
            saved["state_dict"] = odd_state(random, saved["state_dict"])
        else:
            saved = changed(random, saved)
        torch.save(saved, file)


def can_be_saved(value: object) -> bool:
    """Whether safetensors can hold a value."""
    plain = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return plain and not (
        value.is_meta or value.is_quantized or value.is_nested or value.numel() > 1e6
    )


def write_foreign(random: Random, sandbox: Sandbox, name: str) -> None:
    """Put another kind of file in the place of a checkpoint."""
    escaping = {"../../home/notes.txt": b"", "/home/executed": b"", "archive/data.pkl": b"N."}
    content = random.choice((foreign(random), foreign(random), archive(escaping), tar(escaping)))
    place(sandbox.work / name).write_bytes(content)


def write_hostile(random: Random, sandbox: Sandbox, name: str) -> None:
    """Put a pickle that would run code in the place of a checkpoint."""
    state = torch.load(sandbox.work / "state.pt", weights_only=True)
    content = hostile_file(random, sandbox.marker, state)
    place(sandbox.work / name).write_bytes(content)


def place(path: Path) -> Path:
    """Return the file that is read: in a folder of Hugging Face, the one without an index."""
    if not path.is_dir():
        return path
    (path / Path(INDEX).name).unlink()
    return path / "pytorch_model.bin"


@inputs("checkpoint")
def test_a_checkpoint_is_loaded_or_refused(sandbox: Sandbox, random: Random, index: int) -> None:
    sandbox.take("data.npz", "transform.toml", "search.toml", *SAMPLES)
    name = random.choice(sorted(SAMPLES))
    ways = (write_damaged, write_odd, write_odd, write_foreign, write_hostile)
    random.choice(ways)(random, sandbox, name)
    kind = SAMPLES[name] if random.random() < 0.8 else random.choice(("pt", "pl", "mz", "hf"))
    sandbox.check(*that_loads(random, name, kind))
