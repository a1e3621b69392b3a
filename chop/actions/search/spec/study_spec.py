"""A study as it is set up: settings, space, runners and sampler, built once and handed on."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import pickle
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from chop.actions.config import ConfigError
from chop.actions.search.metrics.base import Runner, RunnerContext
from chop.actions.search.metrics.groups import GroupRunner
from chop.actions.search.metrics.tasks import TASK_METRICS, TaskRunner
from chop.actions.search.samplers.base import SamplerContext, Strategy
from chop.actions.search.samplers.optuna import hide_messages
from chop.actions.search.space.base import Parent, Space
from chop.actions.search.space.calibration import calibrated_parent
from chop.actions.search.space.learned import LearnedSpace
from chop.actions.search.space.learned_names import designs_beside
from chop.actions.search.space.registry import space_of
from chop.actions.search.space.uniform import uniform_designs
from chop.actions.search.space.untraced import UntracedModel
from chop.actions.search.spec.settings import Settings, settings_of
from chop.checkpoints import load_graph
from chop.dataset.nested import on_device
from chop.devices import parse_accelerator
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.saved_files import is_saved_graph
from chop.passes.graph.transforms.quantize.output_error import INPUTS
from chop.registry import UnknownName
from chop.training.devices import fixed_threads

RETRAIN_SPLITS = ("validation", "test")


@contextlib.contextmanager
def config_errors(where: str = "") -> Iterator[None]:
    """Raise errors of the body as errors of the user's file, which `where` names."""
    try:
        yield
    except (ValueError, UnknownName) as error:
        text = str(error)
        if isinstance(error, ConfigError) and (not where or text.startswith(where)):
            raise
        raise ConfigError(f"{where}{text}") from error


@dataclass(frozen=True)
class StudySpec:
    """Everything that a study needs; `build_spec` makes one."""

    parent: Parent
    tables: Mapping[str, Any]  # of the file: other processes build their spec from them
    settings: Settings
    space: Space
    context: RunnerContext
    runners: tuple[Runner, ...]  # in the order in which they are called
    model_name: str | None = None
    imports: tuple[Path, ...] = ()  # files of the user that registered something
    given_space: Space | None = None  # one that does not come from the tables
    where: str = ""  # the file of the tables, as messages begin

    @property
    def group_runner(self) -> GroupRunner | None:
        return next((r for r in self.runners if isinstance(r, GroupRunner)), None)

    @property
    def group_size(self) -> int:
        """The number of designs that are trained together."""
        runner = self.group_runner
        return 1 if runner is None else runner.group_size

    @cached_property
    def sampler_context(self) -> SamplerContext:
        settings, objectives = self.settings, self.settings.objectives
        facts = (objectives.directions, settings.n_trials, self.parent.seed)
        choices = self.space.choices
        uniform = uniform_designs(choices) if settings.uniform_first else ()
        listed = self.space.listed if isinstance(self.space, LearnedSpace) else None
        return SamplerContext(choices, *facts, bool(objectives.constraints), uniform, listed)

    @cached_property
    def strategy(self) -> Strategy:
        """The sampler, which is not made in processes that only measure designs."""
        hide_messages()
        with config_errors(self.where):
            return self.settings.strategy(self.sampler_context, **self.settings.sampler_options)

    def packed(self, accelerator: str, folder: Path | None) -> bytes:
        """Return the spec for a process of this machine or cluster; it is never written to a file.

        It holds the tables, as classes made by `@metric` cannot be pickled.
        """
        files = [str(file) for file in self.imports]
        bare = dataclasses.replace(self.parent, accelerator=accelerator, graph=None)  # type: ignore[arg-type]
        try:
            kept = self.parent.graph.meta.get(INPUTS)
            inner = pickle.dumps((bare, self.tables, self.given_space, folder, kept))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"this data set cannot be sent to other processes ({error}); define its classes "
                f"in a file, not in a notebook or a function, or search with one worker"
            ) from error
        graph = self.parent.graph
        is_traced = not isinstance(graph, UntracedModel)
        return pickle.dumps((files, is_traced, _bytes_of(graph, is_traced=is_traced), inner))


def unpacked(packed: bytes) -> StudySpec:
    """Import the user's files, then build the spec that `packed` describes."""
    from chop.user_code import import_user_file

    files, is_traced, content, inner = pickle.loads(packed)
    for file in files:
        import_user_file(Path(file))
    parent, tables, space, folder, kept = pickle.loads(inner)
    graph = _graph_from(content, parent.accelerator, is_traced=is_traced)
    if kept is not None:
        graph.meta[INPUTS] = on_device(kept, parse_accelerator(parent.accelerator))
    parent = dataclasses.replace(parent, graph=graph)
    settings = settings_of(tables, own=_no_strategy)
    return build_spec(parent, tables, settings, folder=folder, given_space=space)


def _no_strategy(context: SamplerContext, **options: Any) -> Strategy:
    """Stand for the sampler, which only the process that runs the loop makes and checks."""
    raise AssertionError("this process only measures designs")


def build_spec(
    parent: Parent,
    tables: Mapping[str, Any],
    settings: Settings,
    *,
    model_name: str | None = None,
    imports: Sequence[Path] = (),
    folder: Path | None = None,
    given_space: Space | None = None,
    where: str = "",
) -> StudySpec:
    """Build a study from the checked tables; what does not suit the network or data is refused.

    Runners write their checkpoints to `folder`; messages begin with `where`.
    """
    if given_space is None:
        with fixed_threads(settings.threads), config_errors(where):
            parent = calibrated_parent(settings.space, parent)
    context = _runner_context(parent, folder)
    with fixed_threads(settings.threads), config_errors(where):
        space = given_space or space_of(settings.space, parent)
        if isinstance(space, LearnedSpace):
            space.folder = designs_beside(folder) if folder is not None else None
        runners = [cls(context, **options) for cls, options in settings.runners]
        _refuse_without_graph(parent, runners)
        if any(runner.trains for runner in runners):
            space.expect_training()
    # early stopping needs the cost of a design before it is trained, and metrics of its weights
    # are those of trained ones, whatever the order of the tables in the file
    runners.sort(key=lambda runner: (runner.side == "software", not runner.trains))
    facts = (space, context, tuple(runners), model_name, tuple(imports), given_space, where)
    spec = StudySpec(parent, tables, settings, *facts)
    with config_errors(where):
        if spec.group_runner is not None:
            spec.group_runner.check_trials(settings.n_trials)
        _check_measured(spec)
        if settings.retrain is not None:
            check_retrain_splits(parent.data_module)
        _check_circuits(parent, settings)
        _check_gradient(parent, settings)
    groups = math.ceil(settings.in_flight / spec.group_size)  # designs are asked for by the group
    settings = settings.model_copy(update={"in_flight": groups * spec.group_size})
    return dataclasses.replace(spec, settings=settings)


def _runner_context(parent: Parent, folder: Path | None) -> RunnerContext:
    parameter, data = next(parent.graph.model.parameters(), None), parent.data_module
    device = parameter.device if parameter is not None else torch.device("cpu")
    facts = (parent.graph, parent.model_info, parent.task, data, data.dataset_info)
    return RunnerContext(*facts, device, parent.seed, folder)


def _check_measured(spec: StudySpec) -> None:
    """Refuse objectives and constraints that the runners measure for another task only."""
    by_task = [runner for runner in spec.runners if isinstance(runner, TaskRunner)]
    measured = {metric for runner in spec.runners for metric in getattr(runner, "metrics", ())}
    for name in spec.settings.objectives.metrics:
        if by_task and name in TASK_METRICS and name not in measured:
            task = by_task[0].task
            raise ConfigError(
                f"search.strategy: {name} is not a metric of the task {task.name}; use "
                f"{', '.join(task.directions)}, or another `task`"
            )


def _check_circuits(parent: Parent, settings: Settings) -> None:
    """Refuse circuits that could not be made at the end, for lack of a graph or of a tool."""
    tables = {"search.emit": settings.emit, "search.synthesize": settings.synthesize}
    wanted = [name for name, table in tables.items() if table is not None]
    if not wanted:
        return
    if isinstance(parent.graph, UntracedModel):
        raise ConfigError(f"{wanted[0]} needs a graph, which the module style does not have")
    from chop.hardware.synthesis.programs import find_yosys
    from chop.hardware.tools import need_package

    need_package("alkaid", wanted[0])
    if settings.synthesize is not None:
        find_yosys()


def _check_gradient(parent: Parent, settings: Settings) -> None:
    """Refuse a front that could not be trained."""
    how, where = settings.gradient, "search.strategy.gradient"
    if how is None:
        return
    if how.teacher is not None and not how.front.distill:
        raise ConfigError(f"{where}.teacher requires distill; set distill = 0.5")
    if how.teacher is not None and not is_saved_graph(how.teacher):
        raise ConfigError(
            f"{where}.teacher: {how.teacher} is not a saved graph; give the folder "
            f"transformed_ckpt of a ch transform, or trial_<n> of ch search --apply"
        )
    if how.front.distill and how.teacher is None and not parent.trained:
        raise ConfigError(
            f"{where}.distill learns from a trained network, and the parent is not trained; set "
            f"train_parent = true in [search], use --load, or name a saved graph as teacher"
        )
    splits = parent.data_module.dataset_info.available_splits
    if "validation" not in splits:
        raise ConfigError(
            f"{where}: designs are compared on a validation split, which the data set "
            f"{parent.data_module.name!r} does not have; use another data set"
        )


def check_retrain_splits(data_module: Any) -> None:
    """Refuse a data set without the splits that `search.retrain` needs."""
    splits = data_module.dataset_info.available_splits
    missing = [split for split in RETRAIN_SPLITS if split not in splits]
    if missing:
        raise ConfigError(
            f"search.retrain needs the {missing[0]} split, which the data set "
            f"{data_module.name!r} does not have; omit the table, or use another data set"
        )


def _refuse_without_graph(parent: Parent, runners: Sequence[Runner]) -> None:
    """Refuse runners that cannot measure a model without a graph."""
    needing = [runner.name for runner in runners if getattr(runner, "needs_graph", False)]
    if needing and isinstance(parent.graph, UntracedModel):
        raise ConfigError(
            f"{needing[0]} needs a graph, which a search in the module style does not have; use "
            f"average_bitwidth or model_size"
        )


def _bytes_of(graph: Any, *, is_traced: bool) -> bytes:
    """Return a graph as an archive of its files, or a model without a graph as a pickle."""
    if is_traced:
        return _graph_bytes(graph)
    try:
        return pickle.dumps(graph)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"this model cannot be sent to other processes ({error}); define its classes in a "
            f"file, not in a notebook or a function, or search with one worker"
        ) from error


def _graph_bytes(graph: MaseGraph) -> bytes:
    """Return the files of a saved graph as one archive."""
    with tempfile.TemporaryDirectory() as folder, io.BytesIO() as buffer:
        saved = graph.export(Path(folder) / "graph")
        with zipfile.ZipFile(buffer, "w") as archive:
            for file in saved.iterdir():
                archive.write(file, file.name)
        return buffer.getvalue()


def _graph_from(content: bytes, accelerator: str, *, is_traced: bool) -> Any:
    """Return what `_bytes_of` packed, on its device."""
    if not is_traced:
        untraced = pickle.loads(content)
        untraced.model.to(parse_accelerator(accelerator))
        return untraced
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(folder)
        return load_graph(folder, parse_accelerator(accelerator))
