"""Good data files of every kind, and odd ones that no program would write."""

from __future__ import annotations

import io
import runpy
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import torch
from safetensors.torch import save_file

from .commands import OPTIONS, TRAINING
from .pickles import Planted, archive, planted

WRITERS = Path(__file__).parents[1] / "dataset"
# file or folder -> model, data set
FILES = {
    "data.npz": ("jsc-tiny", "npz"),
    "data.pt": ("jsc-tiny", "tensors"),
    "data.safetensors": ("jsc-tiny", "tensors"),
    "table.csv": ("jsc-tiny", "csv"),
    "table.parquet": ("jsc-tiny", "parquet"),
    "jets.h5": ("jsc-tiny", "jsc"),
    "jets.arff": ("jsc-tiny", "jsc-openml"),
    "mnist": ("mlp", "mnist"),
    "cifar.tar.gz": ("mlp", "cifar10"),
}


def that_reads(name: str) -> Sequence[str]:
    """Return a command that reads a file, and trains for a step."""
    model, dataset = FILES[name]
    data = (model, dataset, f"--data-path={name}")
    return ("train", *data, *TRAINING, "--max-steps=1", *OPTIONS)


def write_data(folder: Path, samples: np.ndarray, labels: np.ndarray) -> None:
    """Write one good file of each kind."""
    jets = SimpleNamespace(**runpy.run_path(str(WRITERS / "layouts.py")))
    images = SimpleNamespace(**runpy.run_path(str(WRITERS / "image_files.py")))
    np.savez(folder / "data.npz", x=samples, y=labels)
    tensors = {"x": torch.from_numpy(samples), "y": torch.from_numpy(labels)}
    torch.save(tensors, folder / "data.pt")
    save_file(tensors, folder / "data.safetensors")
    rows = jets.some_jets(40)
    jets.write_csv(folder / "table.csv", rows)
    if find_spec("pyarrow"):
        jets.write_parquet(folder / "table.parquet", rows)
    jets.write_cernbox(folder / "jets.h5", rows)
    jets.write_arff(folder / "jets.arff", rows)
    images.write_mnist(folder / "mnist", images.some_images((28, 28), 10, 20, 10))
    pictures = images.some_images((32, 32, 3), 10, 20, 10)
    images.write_archive(folder / "cifar.tar.gz", images.cifar_files(pictures))


ODD_HEADERS = (
    "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999, 16), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 16), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 16, }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': ([(4, 16), }",
    "{'descr': __import__('os').getcwd(), 'fortran_order': False, 'shape': (4, 16), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (4, 16), }",
    "{" * 90,
    "",
)


def npy(array: np.ndarray) -> bytes:
    """Return what `numpy.save` writes."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def with_header(header: str) -> bytes:
    """Return an npy file that begins with this header."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)


def odd_array(random: Random, array: np.ndarray, marker: Path) -> Any:
    """Return an array of another type or shape, or one whose objects are pickles."""
    objects = np.empty(array.shape, object)
    objects[...] = planted(random, marker)
    ways = (
        *(array[:0], array[:1], array[None], array.ravel(), array[0], array[:3]),
        *(array.astype(kind) for kind in ("c16", "f2", "g", "U8", "S8", "i1", "?", "M8[s]")),
        *(array * np.nan, array * 1e300, array.astype("f8") * np.inf, objects),
        np.zeros(len(array), [("a", "f4"), ("b", "U3")]),
    )
    return random.choice(ways)


def odd_npz(random: Random, arrays: dict[str, np.ndarray], marker: Path) -> bytes:
    """Return an npz file with odd arrays, names or headers."""
    members = {f"{name}.npy": npy(array) for name, array in arrays.items()}
    name = random.choice(sorted(arrays))
    odd = odd_array(random, arrays[name], marker)
    ways = (
        {f"{name}.npy": npy(odd)},
        {f"{name}.npy": npy(odd)},
        {f"{name}.npy": with_header(random.choice(ODD_HEADERS))},
        {f"{name}.npy": b"no array"},
        {name: b"no array"},
        {f"{name.upper()}.npy": members[f"{name}.npy"]},
        {"x_test.npy": members["x.npy"]},
        {"../../home/executed": b"", "/executed.npy": members["x.npy"]},
    )
    with np.errstate(all="ignore"):
        return archive(members | random.choice(ways))


def odd_tensors(random: Random, arrays: dict[str, np.ndarray], marker: Path) -> Any:
    """Return what a pt file might hold instead of samples and labels."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    x, y = tensors["x"], tensors["y"]
    return random.choice(
        (
            *([x, y], (x, y, y), x, None, {}, {"x": x}, {0: x, 1: y}, {"x": x, "y": [1, 2]}),
            *({"x": odd, "y": y} for odd in (x.to_sparse(), x.to("meta"), x.bfloat16(), x[0])),
            {"x": torch.nn.Parameter(x), "y": y},
            {"x": torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "y": y},
            {"x": x.to(torch.complex64), "y": y},
            {"x": torch.zeros(1).expand(1 << 40, 16), "y": y},
            {"x": x, "y": y.float() + 0.5},
            {"x": x, "y": y, "X": x},
            {"x": x, "y": Planted(exec, f"open({str(marker)!r}, 'w')")},
        )
    )


def write_odd_h5(random: Random, file: Path, notes: Path) -> None:
    """Change the table of jets: its name, columns, types or size, or make it a link elsewhere."""
    with h5py.File(file, "a") as h5:
        table = h5["t_allpar_new"][:]
        del h5["t_allpar_new"]
        names = list(table.dtype.names)
        way = random.randrange(8)
        if way == 0:
            h5["t_allpar_new"] = h5py.ExternalLink(str(notes), "/x")
        elif way == 1:
            h5["t_allpar_new"] = h5py.SoftLink("/t_allpar_new")
        elif way == 2:
            h5["t_allpar_new"] = random.choice((3, "text", np.zeros((4, 4)), np.zeros(0)))
        elif way == 3:
            h5.create_group("t_allpar_new")["table"] = table[: random.choice((0, 1, 40))]
        elif way == 4:
            h5["t_allpar_new"] = table[random.sample(names, 20)]
        elif way == 5:
            kinds = random.choice(("S4", "c8", "i1", ("f4", 3), "f8"))
            h5["t_allpar_new"] = np.zeros(40, [(name, kinds) for name in names])
        elif way == 6:
            table[random.choice(names)] = np.nan
            h5["t_allpar_new"] = table
        else:
            h5.create_dataset("t_allpar_new", (1 << 40,), table.dtype, chunks=(1,))
