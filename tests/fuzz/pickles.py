"""Pickles that would run code, in all the wrappings that `torch.load` and numpy know."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch


class Planted:
    """An object that calls a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def planted(random: Random, marker: Path) -> Planted:
    """Return an object that makes `marker` when it is unpickled."""
    code = f"open({str(marker)!r}, 'w').close()"
    calls: Sequence[tuple[Any, ...]] = (
        (os.system, f"touch {marker}"),
        (exec, code),
        (eval, code),
        (open, str(marker), "w"),
        (Path.touch, marker),
        (subprocess.call, ["touch", str(marker)]),
        (torch.save, {}, str(marker)),
        (np.save, str(marker), 1),
    )
    return Planted(*random.choice(calls))


def hostile_file(random: Random, marker: Path, content: Any = None) -> bytes:
    """Return what `torch.load` would run code from, wrapped in one of its formats."""
    bad = planted(random, marker)
    tree = random.choice(
        (bad, [bad], {"state_dict": bad}, {"weight": bad}, (content or {}) | {"state_dict": bad})
    )
    ways: Sequence[Callable[[], bytes]] = (
        lambda: torch_file(tree),
        lambda: torch_file(tree, _use_new_zipfile_serialization=False),
        lambda: pickle.dumps(tree, random.randrange(6)),
        lambda: by_hand(random, marker),
        lambda: archive({"archive/data.pkl": by_hand(random, marker), "archive/version": b"3\n"}),
        lambda: archive({"archive/data.pkl": pickle.dumps(tree, 2), "archive/constants.pkl": b"."}),
        lambda: tar({"pickle": pickle.dumps(tree, 2), "storages": by_hand(random, marker)}),
    )
    return random.choice(ways)()


def torch_file(tree: Any, **options: Any) -> bytes:
    """Return what `torch.save` writes."""
    buffer = io.BytesIO()
    torch.save(tree, buffer, **options)
    return buffer.getvalue()


def by_hand(random: Random, marker: Path) -> bytes:
    """Return a pickle that no `__reduce__` makes: other opcodes call `os.system` too."""
    command = f"touch {marker}".encode()
    text = b"\x8c" + bytes([len(command[:255])]) + command[:255]
    return random.choice(
        (
            b"cposix\nsystem\n(V" + command + b"\ntR.",
            b"(V" + command + b"\niposix\nsystem\n.",
            b"\x80\x04\x8c\x05posix\x8c\x06system\x93" + text + b"\x85R.",
            b"\x80\x04c__builtin__\nexec\n\x8c\x0eimport socket\x0a" + b"\x85R.",
            b"\x80\x02ctorch.nn.modules.module\nModule\n)\x81}(V__setstate__\ncposix\nsystem\nub.",
        )
    )


def archive(members: dict[str, bytes]) -> bytes:
    """Return a zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def tar(members: dict[str, bytes]) -> bytes:
    """Return a tar file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            file.addfile(about, io.BytesIO(content))
    return buffer.getvalue()
