"""What is searched: the parent with its data, from which any process can make a worker."""

from __future__ import annotations

import contextlib
import io
import pickle
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.config import ConfigError
from chop.actions.search.metrics.base import RunnerContext
from chop.actions.search.run.worker import Worker, fixed_threads
from chop.actions.search.samplers.base import MakeStrategy
from chop.actions.search.space.base import Space
from chop.actions.search.space.registry import space_of
from chop.actions.search.spec.settings import Settings, settings_of
from chop.registry import UnknownName

if TYPE_CHECKING:
    from chop.ir.graph.mase_graph import MaseGraph


@contextlib.contextmanager
def wrong_usage() -> Iterator[None]:
    """What is refused meanwhile is refused because of the file."""
    try:
        yield
    except ConfigError:
        raise
    except (ValueError, UnknownName) as error:
        raise ConfigError(str(error)) from error


@dataclass(frozen=True)
class Problem:
    """A search as it was set up; what follows from it is made where it is needed."""

    graph: MaseGraph  # the parent, with metadata, on its device
    model_info: Any
    task: str
    data_module: Any  # prepared and set up
    search: Mapping[str, Any]  # the tables of the file
    accelerator: str = "auto"
    seed: int = 0
    imports: Sequence[Path] = ()  # files of the user that registered something
    trained: bool = True  # whether the parent has weights that somebody has trained
    own_space: Any = None  # a space that was made by hand
    own_strategy: MakeStrategy | None = None
    folder: Path | None = None  # for what runners keep until a trial is recorded

    def settings(self) -> Settings:
        return settings_of(self.search, own=self.own_strategy)

    def space(self) -> Space:
        if self.own_space is not None:
            space: Space = self.own_space
            return space
        return space_of(self.settings().space, self)

    def runner_context(self) -> RunnerContext:
        import torch

        parameter = next(self.graph.model.parameters(), None)
        return RunnerContext(
            self.graph,
            self.model_info,
            self.task,
            self.data_module,
            self.data_module.dataset_info,
            parameter.device if parameter is not None else torch.device("cpu"),
            self.seed,
            self.folder,
        )

    def worker(self) -> Worker:
        """What measures designs, with everything that it needs in memory."""
        settings, context = self.settings(), self.runner_context()
        with fixed_threads(settings.threads), wrong_usage():
            return Worker(self.space(), context, settings, trained=self.trained)

    def packed(self) -> bytes:
        """For another process of this machine or cluster, never for a file."""
        files = [str(file) for file in self.imports]
        bare = replace(self, imports=(), graph=None)  # type: ignore[arg-type]
        try:
            return pickle.dumps((files, graph_bytes(self.graph), pickle.dumps(bare)))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"this data set cannot be sent to other processes ({error}); define its classes "
                f"in a file, not in a notebook or a function, or search with one worker"
            ) from error


def unpacked(packed: bytes) -> Problem:
    """The inverse of `packed`, after the user's files have registered what they have."""
    from chop.user_code import import_user_file

    files, graph, inner = pickle.loads(packed)
    for file in files:
        import_user_file(Path(file))
    problem: Problem = pickle.loads(inner)
    return replace(problem, graph=graph_from(graph, problem.accelerator))


def graph_bytes(graph: MaseGraph) -> bytes:
    """A graph as the files that it is saved as, in one archive."""
    with tempfile.TemporaryDirectory() as folder, io.BytesIO() as buffer:
        saved = graph.export(Path(folder) / "graph")
        with zipfile.ZipFile(buffer, "w") as archive:
            for file in saved.iterdir():
                archive.write(file, file.name)
        return buffer.getvalue()


def graph_from(content: bytes, accelerator: str) -> MaseGraph:
    """The inverse of `graph_bytes`."""
    from chop.checkpoints import load_graph
    from chop.devices import parse_accelerator

    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(folder)
        return load_graph(folder, parse_accelerator(accelerator))
