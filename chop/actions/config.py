"""Every option of a run, once: `RunConfig`."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

import chop
from chop.actions.options import ConfigError, Opt, Option, options_of

__all__ = ["OPTIONS", "ConfigError", "Group", "RunConfig"]

Seed = Annotated[int, Ge(0), Le(2**32 - 1)]
Steps = Annotated[int, Ge(-1)]
Natural = Annotated[int, Ge(0)]
Count = Annotated[int, Ge(1)]
NonNegative = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Table = dict[str, Any]

TASKS = {"cls": "classification", "tran": "translation", "lm": "language_modeling"}


def default_num_workers() -> int:
    """As many as there are cores."""
    return os.cpu_count() or 1


def default_project_dir() -> Path:
    """`mase_output` in the clone that runs, or in the present folder when MASE is installed."""
    clone = Path(chop.__file__).resolve().parents[1]
    return (clone if (clone / "ch").is_file() else Path.cwd()) / "mase_output"


class Group:
    """The panels of `--help`, in their order."""

    MAIN = "Main arguments"
    GENERAL = "General options"
    TRAINER = "Trainer options"
    RUNTIME = "Runtime environment options"
    HARDWARE = "Hardware generation options"
    LANGUAGE = "Language model options"
    SEARCH = "Search options"
    PROJECT = "Project options"
    INFORMATION = "Information"
    FILE = "Tables of the TOML file"


Main = functools.partial(Opt, group=Group.MAIN, flags=())
General = functools.partial(Opt, group=Group.GENERAL)
Trainer = functools.partial(Opt, group=Group.TRAINER)
Runtime = functools.partial(Opt, group=Group.RUNTIME)
Hardware = functools.partial(Opt, group=Group.HARDWARE)
Language = functools.partial(Opt, group=Group.LANGUAGE)
Search = functools.partial(Opt, group=Group.SEARCH)
InProject = functools.partial(Opt, group=Group.PROJECT)
Information = functools.partial(Opt, group=Group.INFORMATION)
InFile = functools.partial(Opt, group=Group.FILE, flags=(), row="never")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What a run was asked to do. The order of the fields is the order of the printed table."""

    config: Annotated[
        Path | None,
        General(
            "TOML file with any of these options, by their names in the table.",
            row="never",
            exists=True,
        ),
    ] = None
    task: Annotated[
        Literal["classification", "cls", "translation", "tran", "language_modeling", "lm"],
        General("What the model is for; cls, tran and lm are short forms."),
    ] = "classification"
    load_name: Annotated[
        str | None,
        General(
            "Checkpoint to start from: a file or a folder.",
            flags=("--load",),
            metavar="PATH",
            exists=True,
        ),
    ] = None
    load_type: Annotated[
        Literal["pt", "pl", "mz", "hf"],
        General(
            "What the checkpoint is: pt a state dict, pl what `ch train` saves, "
            "mz a transformed model, hf a Hugging Face name or folder."
        ),
    ] = "mz"
    batch_size: Annotated[Count, General("Samples in one step.")] = 128
    to_debug: Annotated[
        bool,
        General(
            "Log everything, train on one batch only, and open a debugger where it fails.",
            flags=("--debug",),
        ),
    ] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"],
        General("Least severe message that is shown."),
    ] = "info"
    report_to: Annotated[Literal["wandb", "tensorboard"], General("Where curves are drawn.")] = (
        "tensorboard"
    )
    seed: Annotated[
        Seed, General("Seed of all random numbers; the same seed gives the same run.")
    ] = 0
    quant_config: Annotated[
        Path | None,
        General(
            "TOML file with number formats for models that are built quantised.",
            metavar="TOML",
            exists=True,
        ),
    ] = None

    training_optimizer: Annotated[
        Literal["adam", "sgd", "adamw"], Trainer("How weights are updated.")
    ] = "adam"
    trainer_precision: Annotated[
        Literal["16-mixed", "32", "64", "bf16"],
        Trainer("Numbers to train in; 16-mixed is for GPUs."),
    ] = "16-mixed"
    learning_rate: Annotated[Positive, Trainer("Size of the first steps.")] = 1e-5
    weight_decay: Annotated[NonNegative, Trainer("Pull of all weights towards zero.")] = 0
    max_epochs: Annotated[Count, Trainer("Passes over the training data.")] = 20
    max_steps: Annotated[Steps | None, Trainer("Stop after so many steps; -1 is no limit.")] = -1
    accumulate_grad_batches: Annotated[
        Count, Trainer("Batches whose gradients are added up for one step.")
    ] = 1
    log_every_n_steps: Annotated[Count, Trainer("Steps between two points of a curve.")] = 50

    num_workers: Annotated[
        Natural,
        Runtime(
            "Processes that prepare data; 0 does it in the main one.",
            flags=("--cpu", "--num-workers"),
            default="one per core",
        ),
    ] = field(default_factory=default_num_workers)
    num_devices: Annotated[
        Count, Runtime("Devices per machine to run on.", flags=("--gpu", "--num-devices"))
    ] = 1
    num_nodes: Annotated[Count, Runtime("Machines to run on.", flags=("--nodes",))] = 1
    accelerator: Annotated[
        Literal["auto", "cpu", "gpu", "cuda", "mps"],
        Runtime("Kind of device; auto takes a GPU if there is one."),
    ] = "auto"
    strategy: Annotated[
        Literal["auto", "ddp", "ddp_find_unused_parameters_true"],
        Runtime("How several devices share the work."),
    ] = "auto"
    is_to_auto_requeue: Annotated[
        bool,
        Runtime("Have SLURM start the job again when its time is over.", flags=("--auto-requeue",)),
    ] = False
    github_ci: Annotated[bool, Runtime("Run as on a small continuous-integration machine.")] = False
    disable_dataset_cache: Annotated[
        bool, Runtime("Prepare the data anew, whatever an earlier run has kept.")
    ] = False

    target: Annotated[str, Hardware("FPGA part to generate hardware for.", metavar="STR")] = (
        "xcu250-figd2104-2L-e"
    )
    num_targets: Annotated[Count, Hardware("FPGAs to spread the design over.")] = 100
    run_emit: Annotated[
        bool,
        Hardware("Generate the hardware before simulating it.", row="when set", only=("simulate",)),
    ] = False
    skip_build: Annotated[
        bool, Hardware("Simulate what was built the last time.", row="when set", only=("simulate",))
    ] = False
    skip_test: Annotated[
        bool,
        Hardware("Build the simulation and do not run it.", row="when set", only=("simulate",)),
    ] = False

    is_pretrained: Annotated[
        bool, Language("Start from the published weights of the model.", flags=("--pretrained",))
    ] = False
    max_token_len: Annotated[Count, Language("Longest text in tokens; the rest is cut off.")] = 512

    project_dir: Annotated[
        Path,
        InProject("Folder for the folders of all runs.", metavar="DIR", default="mase_output"),
    ] = field(default_factory=default_project_dir)
    project: Annotated[
        str | None,
        InProject(
            "Name of this run's folder; without it: model, task, data set and date.", metavar="NAME"
        ),
    ] = None

    model: Annotated[str | None, Main("Model to work on; `ch --info model` lists them.")] = None
    dataset: Annotated[
        str | None, Main("Data set to work with; `ch --info dataset` lists them.")
    ] = None

    # The labs' table ends here: what follows has a row when it is set.
    data_path: Annotated[
        Path | None,
        General(
            "Your own file or folder that the data set is read from.", row="when set", exists=True
        ),
    ] = None
    imports: Annotated[
        tuple[Path, ...],
        General(
            "Python file that registers models, data sets, passes, metrics or samplers of yours; "
            "can be repeated.",
            flags=("--import",),
            row="when set",
            exists=True,
        ),
    ] = ()
    allow_nonfinite: Annotated[
        bool,
        General(
            "Go on although some weights are nan or infinite.",
            row="when set",
            only=("test", "search"),
        ),
    ] = False
    legacy_val: Annotated[
        bool,
        General(
            "Validate on the training data, as the labs did, where the data set splits its own.",
            row="when set",
        ),
    ] = False

    resume: Annotated[
        bool, Trainer("Go on where the last run of the same project stopped.", row="when set")
    ] = False
    schedule: Annotated[
        Literal["cosine", "constant", "linear"],
        Trainer("How the learning rate changes over the run.", row="when set"),
    ] = "cosine"
    warmup_steps: Annotated[
        Natural,
        Trainer("Steps over which the learning rate first rises from zero.", row="when set"),
    ] = 0
    t_max: Annotated[
        Count | None,
        Trainer(
            "Epochs until the cosine schedule reaches its floor; without it, all of them.",
            row="when set",
        ),
    ] = None
    eta_min: Annotated[NonNegative, Trainer("Floor of the cosine schedule.", row="when set")] = 1e-6
    gradient_clip: Annotated[
        Positive | None, Trainer("Longest gradient that is not scaled down.", row="when set")
    ] = None
    early_stopping: Annotated[
        Count | None,
        Trainer("Stop after so many epochs without a lower validation loss.", row="when set"),
    ] = None
    checkpoint_every: Annotated[
        Count | None,
        Trainer("Steps between checkpoints, besides those after each epoch.", row="when set"),
    ] = None
    compile: Annotated[
        bool,
        Trainer(
            "Compile the training step: slow to start, may pay for larger networks.", row="when set"
        ),
    ] = False

    to_test: Annotated[
        bool,
        General(
            "Score the model before and after the passes, and show the difference.",
            flags=("--test",),
            row="when set",
            only=("transform",),
        ),
    ] = False

    workers: Annotated[
        Count | None,
        Search("Processes that try designs on this machine.", row="when set", only=("search",)),
    ] = None
    storage: Annotated[
        str | None,
        Search(
            "Where the study is kept: a file for a journal, sqlite:///FILE or postgresql://…; "
            "without it, a journal in the project.",
            metavar="URL",
            row="when set",
            only=("search",),
        ),
    ] = None
    study: Annotated[
        str | None,
        Search("Name of the study in its storage.", row="when set", only=("search",)),
    ] = None
    engine: Annotated[
        Literal["local", "ray"],
        Search(
            "Where trials run: in processes of this machine, or as tasks of a Ray cluster.",
            row="when set",
            only=("search",),
        ),
    ] = "local"
    apply: Annotated[
        str | None,
        Search(
            "Build the design of this trial, or the best, and save it; nothing is searched.",
            metavar="TRIAL",
            row="when set",
            only=("search",),
        ),
    ] = None

    profile: Annotated[
        bool, Information("Show afterwards which functions took how long.", row="when set")
    ] = False
    no_warnings: Annotated[bool, Information("Hide the warnings of Python.", row="when set")] = (
        False
    )
    no_progress: Annotated[bool, Information("Show no progress bars.", row="when set")] = False

    model_args: Annotated[
        Table, InFile("Keywords for the function that builds the model.", row="when set")
    ] = field(default_factory=dict)
    dataset_args: Annotated[
        Table, InFile("Keywords for the function that loads the data set.", row="when set")
    ] = field(default_factory=dict)
    cf_args: Annotated[
        Table, InFile("Arguments of `forward` that are fixed when the model is traced.")
    ] = field(default_factory=dict)
    passes: Annotated[
        Table,
        InFile("Passes for `ch transform`, in their order, with their options.", repeats=True),
    ] = field(default_factory=dict)
    transform: Annotated[Table, InFile("Settings of `ch transform` as a whole.")] = field(
        default_factory=dict
    )
    search: Annotated[Table, InFile("Search space and strategy for `ch search`.")] = field(
        default_factory=dict
    )

    @property
    def task_in_full(self) -> str:
        """`classification` for `cls`, and so on."""
        return TASKS.get(self.task, self.task)


OPTIONS: Mapping[str, Option] = options_of(RunConfig)
