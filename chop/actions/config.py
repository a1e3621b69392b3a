"""`RunConfig`: all options of a run."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from chop.actions.onnx_models import RunnableFormat
from chop.actions.options import ConfigError, ConfigOption, HelpPanel, Opt, config_options
from chop.hardware.emit import DEFAULT_PARALLELISM, Backend, EmitOptions
from chop.hardware.emit import Language as HardwareLanguage
from chop.hardware.synth_options import SynthOptions, Target
from chop.hardware.wave_format import WaveFormat
from chop.onnx.targets import EXPORT_FORMATS, ExportFormat, ExportOptions
from chop.options import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Share
from chop.system.files import default_project_dir, is_onnx_file
from chop.training.options import OTHER_DEFAULTS, Optimizer, Precision, Schedule, TrainOptions

__all__ = ["OPTIONS", "ConfigError", "HelpPanel", "RunConfig", "default_project_dir"]

Seed = Annotated[int, Ge(0), Le(2**32 - 1)]
Steps = Annotated[int, Ge(-1)]
Table = dict[str, Any]

TASKS = {
    "cls": "classification",
    "reg": "regression",
    "tran": "translation",
    "lm": "language_modeling",
}


Main = functools.partial(Opt, group=HelpPanel.MAIN, flags=())
General = functools.partial(Opt, group=HelpPanel.GENERAL)
Trainer = functools.partial(
    Opt, group=HelpPanel.TRAINER, only=("train", "test", "transform", "search")
)
OtherGeneral = functools.partial(General, row="when set")
OtherTrainer = functools.partial(Trainer, row="when set")
Runtime = functools.partial(Opt, group=HelpPanel.RUNTIME)
Language = functools.partial(Opt, group=HelpPanel.LANGUAGE)
Search = functools.partial(Opt, group=HelpPanel.SEARCH, row="when set", only=("search",))
Emission = functools.partial(
    Opt, group=HelpPanel.HARDWARE, row="when set", only=("emit", "simulate", "synth")
)
Simulated = functools.partial(Emission, only=("simulate",))
Synthesized = functools.partial(Emission, only=("synth",))
Verified = functools.partial(Emission, only=("verify",), group=HelpPanel.VERIFICATION)
Deployed = functools.partial(Opt, group=HelpPanel.RUNTIME, row="when set", only=("test",))
Exported = functools.partial(Opt, group=HelpPanel.EXPORT, row="when set", only=("export",))
InProject = functools.partial(Opt, group=HelpPanel.PROJECT)
Information = functools.partial(Opt, group=HelpPanel.INFORMATION, row="when set")
InFile = functools.partial(Opt, group=HelpPanel.FILE, flags=(), row="never")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The options of a run; the order of the fields is the order of the printed table."""

    config: Annotated[
        Path | None,
        General(
            "TOML configuration file, or example:NAME (ch list examples); its keys are the option "
            "names in the table it prints.",
            row="never",
            exists=True,
        ),
    ] = None
    task: Annotated[
        Literal[
            "classification",
            "cls",
            "regression",
            "reg",
            "dense",
            "translation",
            "tran",
            "language_modeling",
            "lm",
        ],
        General("Task of the model; cls, reg, tran and lm are abbreviations."),
    ] = "classification"
    load_name: Annotated[
        str | None,
        General(
            "Checkpoint file or directory to load.", flags=("--load",), metavar="PATH", exists=True
        ),
    ] = None
    load_type: Annotated[
        Literal["pt", "pl", "mz", "hf"],
        General(
            "Checkpoint type: pt (state dict), pl (saved by `ch train`), "
            "mz (saved graph, from `ch transform`), hf (Hugging Face name or directory)."
        ),
    ] = "mz"
    batch_size: Annotated[PositiveInt, General("Batch size.")] = 128
    to_debug: Annotated[
        bool,
        General(
            "Log everything, train on a single batch, and open a debugger on failure.",
            flags=("--debug",),
        ),
    ] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"], General("Log level.")
    ] = "info"
    report_to: Annotated[
        Literal["wandb", "tensorboard"], General("Where to log training curves.")
    ] = "tensorboard"
    seed: Annotated[Seed, General("Random seed; the same seed reproduces the same run.")] = 0
    quant_config: Annotated[
        Path | None,
        General(
            "TOML file with number formats, for models that are built already quantised.",
            metavar="TOML",
            exists=True,
        ),
    ] = None

    training_optimizer: Annotated[Optimizer, Trainer("Optimizer.")] = "adam"
    trainer_precision: Annotated[
        Precision, Trainer("Training precision; with 16-mixed, a CPU trains in float32.")
    ] = OTHER_DEFAULTS["ch train"]["precision"]
    learning_rate: Annotated[PositiveFloat, Trainer("Initial learning rate.")] = (
        TrainOptions.learning_rate
    )
    weight_decay: Annotated[NonNegativeFloat, Trainer("Weight decay (L2).")] = 0
    max_epochs: Annotated[PositiveInt, Trainer("Maximum number of training epochs.")] = (
        TrainOptions.max_epochs
    )
    max_steps: Annotated[
        Steps | None, Trainer("Stop after this many steps; -1 means no limit.")
    ] = -1
    accumulate_grad_batches: Annotated[
        PositiveInt, Trainer("Number of batches to accumulate gradients over.")
    ] = TrainOptions.accumulate_grad_batches
    log_every_n_steps: Annotated[PositiveInt, Trainer("Number of steps between log entries.")] = (
        TrainOptions.log_every_n_steps
    )

    num_workers: Annotated[
        NonNegativeInt,
        Runtime(
            "Data loader processes; 0 loads data in the main process.",
            flags=("--cpu", "--num-workers"),
            default="one per core",
        ),
    ] = field(default_factory=lambda: os.cpu_count() or 1)
    num_devices: Annotated[
        PositiveInt, Runtime("Number of devices per machine.", flags=("--gpu", "--num-devices"))
    ] = 1
    num_nodes: Annotated[PositiveInt, Runtime("Number of machines.", flags=("--nodes",))] = 1
    accelerator: Annotated[
        Literal["auto", "cpu", "gpu", "cuda", "mps"],
        Runtime("Device type; auto uses a GPU if one is available."),
    ] = "auto"
    strategy: Annotated[
        Literal["auto", "ddp", "ddp_find_unused_parameters_true"], Runtime("Multi-device strategy.")
    ] = "auto"
    is_to_auto_requeue: Annotated[
        bool,
        Runtime(
            "Let SLURM requeue the job when it reaches its time limit.", flags=("--auto-requeue",)
        ),
    ] = False
    disable_dataset_cache: Annotated[
        bool, Runtime("Prepare the data again instead of using the cache.")
    ] = False

    is_pretrained: Annotated[
        bool, Language("Load the model's published weights.", flags=("--pretrained",))
    ] = False
    max_token_len: Annotated[
        PositiveInt, Language("Maximum number of tokens; longer texts are truncated.")
    ] = 512

    project_dir: Annotated[
        Path, InProject("Directory that holds all runs.", metavar="DIR", default="mase_output")
    ] = field(default_factory=default_project_dir)
    project: Annotated[
        str | None,
        InProject(
            "Name of this run's directory (default: MODEL_TASK_DATASET_DATE).", metavar="NAME"
        ),
    ] = None

    model: Annotated[
        str | None, Main("Model name (`ch --info model` lists all), or path of an .onnx file.")
    ] = None
    dataset: Annotated[
        str | None, Main("Data set name; `ch --info dataset` lists all data sets.")
    ] = None

    # The labs' table ends here: the options below have a row only when they are set.
    data_path: Annotated[
        Path | None, OtherGeneral("File or directory to read the data set from.", exists=True)
    ] = None
    imports: Annotated[
        tuple[Path, ...],
        OtherGeneral(
            "Python file that registers your own models, data sets, passes, metrics or samplers "
            "(may be repeated).",
            flags=("--import",),
            exists=True,
        ),
    ] = ()
    size: Annotated[
        tuple[str, ...],
        OtherGeneral(
            "Size of a free dimension of an .onnx file, such as time=32 (may be repeated).",
            metavar="NAME=N",
        ),
    ] = ()
    allow_nonfinite: Annotated[
        bool,
        OtherGeneral("Continue even if some weights are NaN or infinite.", only=("test", "search")),
    ] = False
    legacy_val: Annotated[
        bool,
        OtherGeneral(
            "Validate on training or test data, as the labs did, instead of a held-out split."
        ),
    ] = False

    standardize: Annotated[
        Literal["auto", "own", "off"],
        OtherGeneral(
            "How to standardise tables: auto (with the scaler of the loaded checkpoint; without "
            "one, as the data set does), own (with the statistics of this data set), off (use "
            "the features as they are)."
        ),
    ] = "auto"
    front_end: Annotated[
        Literal["auto", "fx", "export"],
        OtherGeneral(
            "How the model becomes a graph: with torch.fx, with torch.export, "
            "or with torch.fx where it works.",
            only=("transform", "search", "emit", "simulate", "synth", "export", "verify"),
        ),
    ] = "auto"

    resume: Annotated[bool, OtherTrainer("Resume the project's last run.")] = False
    schedule: Annotated[Schedule, OtherTrainer("Learning rate schedule.")] = "cosine"
    warmup_steps: Annotated[
        NonNegativeInt, OtherTrainer("Number of learning rate warm-up steps.")
    ] = TrainOptions.warmup_steps
    t_max: Annotated[
        PositiveInt | None,
        OtherTrainer("Epochs until the cosine schedule reaches its minimum (default: all epochs)."),
    ] = None
    eta_min: Annotated[
        NonNegativeFloat, OtherTrainer("Minimum learning rate of the cosine schedule.")
    ] = TrainOptions.eta_min
    gradient_clip: Annotated[PositiveFloat | None, OtherTrainer("Clip gradients to this norm.")] = (
        None
    )
    early_stopping: Annotated[
        PositiveInt | None,
        OtherTrainer("Stop after this many epochs without a lower validation loss."),
    ] = None
    checkpoint_every: Annotated[
        PositiveInt | None,
        OtherTrainer("Number of steps between checkpoints, in addition to one after each epoch."),
    ] = None
    compile: Annotated[
        bool,
        OtherTrainer(
            "Compile the training step: slower to start, but may be faster for large networks."
        ),
    ] = False

    to_test: Annotated[
        bool,
        OtherGeneral(
            "Test the model before and after the passes, and show the difference.",
            flags=("--test",),
            only=("transform",),
        ),
    ] = False

    n_trials: Annotated[
        PositiveInt | None, Search("Number of trials (default: that of the file).")
    ] = None
    workers: Annotated[
        PositiveInt | None, Search("Number of worker processes on this machine.")
    ] = None
    storage: Annotated[
        str | None,
        Search(
            "Where to store the study: a journal file, sqlite:///FILE or postgresql://… "
            "(default: a journal in the project).",
            metavar="URL",
        ),
    ] = None
    study: Annotated[str | None, Search("Name of the study in the storage.")] = None
    engine: Annotated[
        Literal["local", "ray"],
        Search("Where to run trials: in processes on this machine, or as tasks on a Ray cluster."),
    ] = "local"
    ray_address: Annotated[
        str | None,
        Search(
            "Address of the Ray cluster, as HOST:PORT (default: RAY_ADDRESS, or a local Ray).",
            metavar="ADDRESS",
        ),
    ] = None
    apply: Annotated[
        str | None,
        Search(
            "Build and save the design of this trial (a number, or best) instead of searching.",
            metavar="TRIAL",
        ),
    ] = None

    backend: Annotated[
        Backend | None,
        Emission(
            "Kind of circuit: unrolled (one result per clock, every multiplication in hardware of "
            "its own) or streaming (smaller and slower, with handshakes).",
            default=EmitOptions.backend,
        ),
    ] = None
    clock: Annotated[
        PositiveFloat | None,
        Emission(
            "Clock period in ns; an unrolled circuit gets as many pipeline stages as it needs.",
            default=str(EmitOptions.clock),
        ),
    ] = None
    language: Annotated[
        HardwareLanguage | None, Emission("Language of the sources.", default=EmitOptions.language)
    ] = None
    max_parallelism: Annotated[
        PositiveInt | None,
        Emission(
            "Maximum number of multipliers per layer of a streaming circuit.",
            default=str(DEFAULT_PARALLELISM),
        ),
    ] = None
    max_adders: Annotated[
        PositiveInt | None,
        Emission(
            "Refuse unrolled circuits with more than this many adders (estimated).",
            default=str(EmitOptions.max_adders),
        ),
    ] = None
    argmax: Annotated[
        bool, Emission("Output the class index (argmax) instead of a number per class.")
    ] = False
    run_emit: Annotated[bool, Emission("Emit the circuit first.", only=("simulate", "synth"))] = (
        False
    )
    skip_build: Annotated[
        bool, Simulated("Use the simulator built earlier, and fail if there is none.")
    ] = False
    skip_test: Annotated[bool, Simulated("Only build the simulator.")] = False
    max_samples: Annotated[
        PositiveInt | None,
        Simulated("Maximum number of test samples to simulate.", default="all"),
    ] = None
    waves: Annotated[
        bool, Simulated("Write the waves of a few samples to hardware/sim/waves.vcd.")
    ] = False
    wave_format: Annotated[
        WaveFormat | None,
        Simulated("Format of --waves; fst files are smaller, and need lz4.", default="vcd"),
    ] = None

    target: Annotated[
        Target | None,
        Synthesized(
            "FPGA family to synthesise for: xilinx (UltraScale+, LUT6) or ecp5 (LUT4).",
            default=SynthOptions.target,
        ),
    ] = None
    place: Annotated[
        bool, Synthesized("Place and route with nextpnr, for a clock rate; needs --target ecp5.")
    ] = False
    timeout: Annotated[
        PositiveFloat | None,
        Synthesized("Timeout per tool, in seconds.", default=f"{SynthOptions.timeout:g}"),
    ] = None
    reports: Annotated[
        tuple[Path, ...],
        Synthesized(
            "Report of Vivado or Quartus to show beside the result (may be repeated).",
            flags=("--report",),
            exists=True,
        ),
    ] = ()

    against: Annotated[
        tuple[Literal["simulation", "integers", "onnx", "verilog"], ...],
        Verified(
            "What to compare: simulation, integers, onnx or verilog (may be repeated).",
            metavar="WAY",
            default="all that the project has",
        ),
    ] = ()
    samples: Annotated[
        PositiveInt, Verified("Number of samples of the test split to compare on.")
    ] = 1024
    random_vectors: Annotated[
        NonNegativeInt, Verified("Number of random vectors to compare on, besides the samples.")
    ] = 1024
    again: Annotated[
        bool,
        Verified(
            "Repeat the certificate of the project, and fail if a file or a result has changed; "
            "nothing is written."
        ),
    ] = False
    runtime: Annotated[
        Literal["torch", "onnxruntime"],
        Deployed(
            "What runs the network: torch, or onnxruntime on the CPU. The latter runs an ONNX file "
            "(MODEL or --load) as it is, and exports any other network to a temporary one."
        ),
    ] = "torch"
    export_format: Annotated[
        RunnableFormat | None,
        Deployed(
            "Format of the file that --runtime onnxruntime exports (default: integer for a "
            "quantised network, onnx for one in float)."
        ),
    ] = None
    threads: Annotated[PositiveInt, Deployed("Threads of --runtime onnxruntime.")] = 1
    format: Annotated[
        ExportFormat | None,
        Exported(
            "Kind of file: "
            + "; ".join(f"{name} ({about})" for name, about in EXPORT_FORMATS.items())
            + ".",
            default=ExportOptions.format,
        ),
    ] = None
    accuracy: Annotated[
        Share | None,
        Exported(
            "Accuracy to write to the metadata of the file (default: that of the project's latest "
            "`ch test` of this checkpoint, if there is one)."
        ),
    ] = None

    profile: Annotated[bool, Information("Print a profile of the run when it ends.")] = False
    no_warnings: Annotated[bool, Information("Hide Python warnings.")] = False
    no_progress: Annotated[bool, Information("Hide progress bars.")] = False

    model_args: Annotated[
        Table, InFile("Keyword arguments for the function that builds the model.", row="when set")
    ] = field(default_factory=dict)
    dataset_args: Annotated[
        Table, InFile("Keyword arguments for the function that loads the data set.", row="when set")
    ] = field(default_factory=dict)
    cf_args: Annotated[Table, InFile("Arguments of `forward` to fix when the model is traced.")] = (
        field(default_factory=dict)
    )
    passes: Annotated[
        Table, InFile("Passes for `ch transform` and their options, in order.", repeats=True)
    ] = field(default_factory=dict)
    transform: Annotated[Table, InFile("Settings for `ch transform` as a whole.")] = field(
        default_factory=dict
    )
    search: Annotated[Table, InFile("Search space and strategy for `ch search`.")] = field(
        default_factory=dict
    )

    emit: Annotated[Table, InFile("Settings for `ch emit`: the hardware options.")] = field(
        default_factory=dict
    )
    synth: Annotated[Table, InFile("Settings for `ch synth`: target, place, timeout.")] = field(
        default_factory=dict
    )

    export: Annotated[Table, InFile("Settings for `ch export`: format, accuracy.")] = field(
        default_factory=dict
    )

    @property
    def has_weights(self) -> bool:
        """Whether the model comes with weights: a checkpoint, published ones, or an ONNX file."""
        return self.load_name is not None or self.is_pretrained or is_onnx_file(self.model)

    @property
    def task_in_full(self) -> str:
        """The full name of the task: `classification` for `cls`."""
        return TASKS.get(self.task, self.task)


OPTIONS: Mapping[str, ConfigOption] = config_options(RunConfig)
