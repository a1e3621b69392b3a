"""What the labs' notebooks have at hand: students' code runs here as it stands in their reports.

Data sets, models and `InputGenerator` are stand-ins with the labs' names and signatures.
"""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from chop.dataset.jsc import FILE
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import add_common_metadata_analysis_pass, init_metadata_analysis_pass

ROOT = Path(__file__).parents[2]


class JSC_Tiny(nn.Module):
    """The labs' network as they write it: nn.ReLU(16) is inplace, forward has no annotation."""

    def __init__(self, info: Any = None) -> None:
        super().__init__()
        self.seq_blocks = nn.Sequential(
            nn.BatchNorm1d(16), nn.ReLU(16), nn.Linear(16, 5), nn.ReLU(5)
        )

    def forward(self, x):
        return self.seq_blocks(x)


class MaseDataModule:
    """64 jets of noise in batches."""

    def __init__(self, name: str, batch_size: int, num_workers: int, model_name: str) -> None:
        self.name, self.batch_size = name, batch_size
        self.dataset_info = SimpleNamespace(num_classes=5, num_features=16)
        self.train_dataset: TensorDataset | None = None

    def prepare_data(self) -> None: ...

    def setup(self, stage: str | None = None) -> None:
        self.train_dataset = TensorDataset(torch.randn(64, 16), torch.randint(5, (64,)))

    def train_dataloader(self) -> DataLoader[Any]:
        assert self.train_dataset is not None, "setup() comes first"
        return DataLoader(self.train_dataset, self.batch_size, shuffle=True)

    val_dataloader = train_dataloader


class InputGenerator:
    """Batches of a data module as the model's inputs, until they end."""

    def __init__(
        self, model_info: Any, data_module: MaseDataModule, task: str, which_dataloader: str
    ) -> None:
        self.batch_size = data_module.batch_size
        self._batches = iter(getattr(data_module, f"{which_dataloader}_dataloader")())

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return self

    def __next__(self) -> dict[str, Tensor]:
        x, _ = next(self._batches)
        return {"x": x}


@pytest.fixture(autouse=True)
def _torch_prints_as_in_the_labs(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch from 2.12 on adds `bias=True` to the repr of a BatchNorm.

    It is taken out here and nowhere else, so that tables have the widths of the seeds' too.
    """
    newer = nn.BatchNorm1d.extra_repr

    def extra_repr(self: Any) -> str:
        return newer(self).replace(", bias=True", "")

    monkeypatch.setattr(nn.modules.batchnorm._NormBase, "extra_repr", extra_repr)


@pytest.fixture
def numbers_aside() -> Callable[[str], str]:
    """A table's text with <number> for what was measured, and no padding that depends on it.

    Counts are integers and stay. Measured numbers stand in the last column, so only its width
    varies: its borders become one character, its cells end in one space.
    """

    def normalized(text: str) -> str:
        text = re.sub(r"-?\d+\.\d+(e[+-]\d+)?", "<number>", text)
        text = re.sub(r" +\|$", " |", text, flags=re.MULTILINE)
        return re.sub(r"([-=])[-=]*\+$", r"\1+", text, flags=re.MULTILINE)

    return normalized


@pytest.fixture
def jsc_tiny() -> nn.Module:
    return JSC_Tiny()


@pytest.fixture
def notebook(package: Callable[[str], Any]) -> Callable[..., dict[str, Any]]:
    """`notebook(cell, mg=mg)` runs a cell and returns its names.

    Every cell finds what the labs import from parts of MASE that are not here yet.
    """
    models: dict[str, type[nn.Module]] = {"jsc-tiny": JSC_Tiny}

    def get_model(name: str, task: str, dataset_info: Any, pretrained: bool) -> nn.Module:
        return models[name](dataset_info)

    def load_model(load_name: str, load_type: str, model: nn.Module) -> nn.Module:
        return model

    stand_ins = {
        "MaseDataModule": MaseDataModule,
        "InputGenerator": InputGenerator,
        "get_model_info": lambda name: SimpleNamespace(name=name),
        "get_model": get_model,
        "load_model": load_model,
        "PHYSICAL_MODELS": models,
    }

    def run(cell: str, **names: Any) -> dict[str, Any]:
        if "import pandas" in cell:
            package("pandas")
        namespace = {"__name__": "__main__", **stand_ins, **names}
        exec(compile(cell, "<seed>", "exec"), namespace)
        return namespace

    return run


@pytest.fixture
def graph_of() -> Callable[..., MaseGraph]:
    """A graph with common metadata, from a model and one batch."""

    def make(model: nn.Module, x: Tensor | None = None, **options: Any) -> MaseGraph:
        graph, _ = init_metadata_analysis_pass(MaseGraph(model=model), None)
        dummy_in = {"x": torch.randn(8, 16) if x is None else x}
        graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": dummy_in, **options})
        return graph

    return make


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples and, in its cache, a small JSC."""
    layouts = runpy.run_path(str(ROOT / "tests" / "dataset" / "layouts.py"))
    (tmp_path / "cache" / "jsc").mkdir(parents=True)
    layouts["write_cernbox"](tmp_path / "cache" / "jsc" / FILE, layouts["jets"]())
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.setenv("MASE_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def shell(lab: Path, here: Callable[..., tuple[object, str, str]]) -> Callable[[str], Any]:
    """`shell("./ch train …")` runs a line of a lab sheet in this process; what it printed."""

    def run(line: str) -> Any:
        name, *words = shlex.split(line)
        assert name == "./ch"
        code, out, err = here(*words, "--project-dir", lab / "out")
        assert code == 0, err
        return SimpleNamespace(stdout=out, stderr=err, both=out + err)

    return run


@pytest.fixture
def shell_process(lab: Path) -> Callable[[str], Any]:
    """Like `shell`, in a process of its own: for files of users, which register what they have."""

    def run(line: str) -> Any:
        name, *words = shlex.split(line)
        assert name == "./ch"
        command = [sys.executable, "-m", "chop", *words, "--project-dir", str(lab / "out")]
        done = subprocess.run(command, cwd=lab, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return SimpleNamespace(stdout=done.stdout, stderr=done.stderr)

    return run


@pytest.fixture
def ch(lab: Path, here: Callable[..., tuple[object, str, str]]) -> Callable[..., str]:
    """`ch("search", …)` in the folder of the lab; what it said."""

    def run(*words: object, check: int = 0) -> str:
        code, _, said = here(*words, "--project-dir", lab / "out", "--accelerator", "cpu")
        assert code == check, said
        return said

    return run
