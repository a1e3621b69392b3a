"""Memory that is not there is one sentence with what to lower, wherever it is missing."""

import io
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch

from chop.dataset import get_dataset
from chop.models import MODELS as REGISTERED
from chop.system.memory import OutOfMemory, is_out_of_memory, memory_for

MODELS = """
import torch
from torch import nn
from chop.models import model

class Hungry(nn.Linear):
    error = None

    def forward(self, x):
        if self.error is not None and len(x) > 2:
            raise self.error
        return super().forward(x) + (torch.empty(2**60)[0] if len(x) > 2 else 0)

@model("too-large-to-build")
def too_large(info, *, width: int = 2**40):
    return nn.Sequential(nn.Linear(info.num_features, width), nn.Linear(width, info.num_classes))

class Wide(nn.Linear):
    def forward(self, x):
        return super().forward(x).repeat(2**50, 1)

@model("too-large-to-describe")
def wide(info):
    return Wide(info.num_features, info.num_classes)

@model("too-large-to-run")
def hungry(info):
    return Hungry(info.num_features, info.num_classes)

@model("too-large-for-the-gpu")
def too_large_for_the_gpu(info):
    layer = Hungry(info.num_features, info.num_classes)
    layer.error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")
    return layer
"""


@pytest.fixture
def ch(here, tmp_path):
    """Runs a command with the models above, and returns its last sentence; it has failed."""
    (tmp_path / "models.py").write_text(MODELS)
    registered = dict(REGISTERED.items())

    def run(*words):
        code, _, err = here(*words, "--import", "models.py", "--no-progress")
        assert code == 1, err
        assert "Traceback" not in err
        return err.strip().splitlines()[-1]

    yield run
    REGISTERED._items.clear()
    REGISTERED._items.update(registered)


def test_a_model_that_is_too_large_to_build_or_for_the_gpu(ch):
    assert ch("train", "too-large-to-build", "jsc-sim") == (
        "ch: not enough memory to build the model 'too-large-to-build' (64 TiB more); choose a "
        "smaller one or smaller model_args"
    )
    assert ch("train", "too-large-for-the-gpu", "jsc-sim").startswith(
        "ch: not enough memory to train with batches of 128 (2.50 GiB more); lower --batch-size"
    )


@pytest.mark.parametrize(
    ("action", "purpose"),
    [("train", "train with"), ("test --load weights.pt --load-type pt", "score")],
)
def test_batches_that_are_too_large(ch, tmp_path, action, purpose):
    torch.save(torch.nn.Linear(16, 5).state_dict(), tmp_path / "weights.pt")
    assert ch(*action.split(), "too-large-to-run", "jsc-sim", "--batch-size", "300") == (
        f"ch: not enough memory to {purpose} batches of 300 (4 EiB more); lower --batch-size, or "
        f"choose a smaller model or smaller model_args"
    )


def test_a_pass_that_needs_too_much(ch, tmp_path):
    (tmp_path / "t.toml").write_text("[passes.add_common_metadata]\n")
    said = ch("transform", "too-large-to-describe", "jsc-sim", "--config", "t.toml")
    assert "not enough memory to run the node 'repeat'" in said
    assert said.endswith("lower --batch-size, or choose a smaller model or smaller model_args")


# --- data files


def header(shape, dtype="<f4"):
    out = io.BytesIO()
    described = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, described)
    return out.getvalue()


def npz(file, x, claimed=None):
    """An archive with the bytes `x` as an array; its directory may claim another size of them."""
    y = io.BytesIO()
    np.save(y, np.arange(10) % 2)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", x)
        archive.writestr("y.npy", y.getvalue())
        archive.infolist()[0].file_size = claimed or len(x)
    return file


def refused(file, kind=ValueError):
    with pytest.raises(kind) as error:
        get_dataset("npz", "train", path=file)
    return str(error.value)


def test_a_header_that_asks_for_more_than_the_file_holds(here, tmp_path):
    file = npz(tmp_path / "own.npz", header((10**12, 16)) + bytes(640))
    sentence = (
        f"{file} is damaged: the header of x.npy says 58.2 TiB, but the file holds 768 bytes; "
        f"write it with numpy.savez(file, x=x, y=y)"
    )
    assert refused(file) == sentence
    code, _, err = here("train", "jsc-tiny", "npz", "--data-path", file)
    assert (code, err.splitlines()[-1]) == (2, f"ch: {sentence}")


def test_an_archive_that_would_unpack_to_more_than_the_memory(tmp_path):
    start = header((10**12, 16))
    file = npz(tmp_path / "own.npz", start, claimed=len(start) + 64 * 10**12)
    said = refused(file, OutOfMemory)
    assert said.startswith(f"{file} needs 58.2 TiB of memory, but ")
    assert said.endswith("are available; use a file with fewer samples")


def test_a_single_array_in_the_place_of_an_archive(tmp_path):
    file = tmp_path / "own.npz"
    file.write_bytes(header((10**13,)))
    assert "is a single array (npy); write it with numpy.savez" in refused(file)


# --- what is recognised


def fails(error):
    raise error


CAUSES = {
    "numpy": lambda: np.empty(2**59),
    "torch": lambda: torch.empty(2**60),
    "overflow": lambda: torch.empty(2**40, 2**40),
    "python": lambda: bytearray(2**60),
    "gpu": lambda: fails(torch.OutOfMemoryError("")),
    "system": lambda: fails(OSError(12, "Cannot allocate memory")),
}


@pytest.mark.parametrize("cause", CAUSES.values(), ids=list(CAUSES))
def test_every_kind_of_error_is_recognised(cause):
    with (
        pytest.raises(OutOfMemory, match=r"^not enough memory to live.*; eat less$"),
        memory_for("live", "eat less"),
    ):
        cause()


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("shapes"), RecursionError()])
def test_other_errors_are_left_alone(error):
    assert not is_out_of_memory(error)
    with pytest.raises(type(error)) as same, memory_for("live"):
        raise error
    assert same.value is error


def test_what_was_said_nearer_stays():
    with pytest.raises(OutOfMemory, match="to read"), memory_for("go on"), memory_for("read"):
        raise MemoryError


LIMITED = """
import resource, sys
import torch
from chop import cli

with open("/proc/self/statm") as about:
    used = int(about.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
cli.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_limit_of_the_process_is_respected(tmp_path):
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "t.toml").write_text("[model_args]\nwidth = 20_000_000\n")  # 1.3 GB of weights
    words = ("train", "too-large-to-build", "jsc-sim", "--config", "t.toml")
    command = [sys.executable, "-c", LIMITED, *words, "--import", "models.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith("ch: not enough memory to build the model"), done.stderr
    assert "Traceback" not in done.stderr
