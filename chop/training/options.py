"""How to train: one set of names, types and defaults for every command and table that trains."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from chop.options import (
    NonNegativeFloat,
    NonNegativeInt,
    Older,
    Option,
    Options,
    PositiveFloat,
    PositiveInt,
    options_of,
)

Optimizer = Literal["adam", "sgd", "adamw"]
Schedule = Literal["cosine", "constant", "linear"]
Precision = Literal["16-mixed", "32", "64", "bf16"]
# Lightning's and the labs' names of precisions
PRECISIONS: dict[Any, Precision] = {
    16: "16-mixed",
    32: "32",
    64: "64",
    "16": "16-mixed",
    "32-true": "32",
    "64-true": "64",
    "bf16-mixed": "bf16",
}
# Other names and spellings that commands, files and scripts may use
OLDER: Mapping[str, Older] = {
    "max_steps": Older(values={-1: None}),
    "optimizer": Older(("training_optimizer",)),
    "schedule": Older(("lr_scheduler",), {"constant_with_warmup": "constant"}),
    "warmup_steps": Older(("num_warmup_steps",)),
    "accumulate_grad_batches": Older(("gradient_accumulation_steps",)),
    "gradient_clip": Older(("gradient_clip_val",)),
    "precision": Older(("trainer_precision",), PRECISIONS),
    "fast_dev_run": Older(("to_debug",)),
    "devices": Older(("num_devices",)),
    "auto_requeue": Older(("is_to_auto_requeue",)),
}
# types in files, where Python takes more: no epochs at all, and optimisers that users register
IN_FILES = {"max_epochs": PositiveInt, "optimizer": Optimizer, "schedule": Schedule}
# the training options of a table, in the order in which they are listed
CANDIDATE = (
    *("max_epochs", "max_steps", "max_seconds", "optimizer", "learning_rate", "weight_decay"),
    *("schedule", "eta_min", "warmup_steps", "accumulate_grad_batches", "gradient_clip"),
)
RETRAIN = (
    *("max_epochs", "early_stopping", "learning_rate", "optimizer", "weight_decay"),
    *("schedule", "warmup_steps", "gradient_clip"),
)
# The only defaults that differ from those of `TrainOptions`. The labs' command line computes in
# half precision and learns slowly; a candidate is trained for as long as its table says, at a rate
# that falls to zero by the step (None: linear where the end is known, else constant).
OTHER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "ch train": {"precision": "16-mixed"},
    "basic_train": {"max_epochs": None, "learning_rate": 1e-3, "schedule": None, "eta_min": 0.0},
    "search.retrain": {"max_epochs": 50, "learning_rate": 1e-3},
}


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How to train; `OLDER` lists other names that are accepted."""

    max_epochs: NonNegativeInt = 20
    # optimiser steps; None: as many as the epochs have
    max_steps: PositiveInt | None = None
    max_seconds: PositiveFloat | None = None  # the step that runs then is the last
    optimizer: str = "adam"  # of `OPTIMIZERS`, where users may register their own
    learning_rate: PositiveFloat = 1e-5
    weight_decay: NonNegativeFloat = 0.0
    schedule: str = "cosine"  # of `SCHEDULES`
    t_max: PositiveInt | None = None  # epochs until the lowest rate; None: max_epochs
    # steps until the lowest rate; None: it moves by the epoch
    schedule_steps: PositiveInt | None = None
    eta_min: NonNegativeFloat = 1e-6  # the lowest rate
    warmup_steps: NonNegativeInt = 0
    accumulate_grad_batches: PositiveInt = 1
    gradient_clip: PositiveFloat | None = None
    early_stopping: PositiveInt | None = None  # epochs without a lower validation loss
    precision: Precision = "32"
    seed: int = 0
    log_every_n_steps: PositiveInt = 50
    checkpoint_every: PositiveInt | None = None  # steps; None: after each epoch only
    compile: bool = False
    # one batch of each kind: does it run at all?
    fast_dev_run: bool = False
    accelerator: str = "auto"
    devices: PositiveInt = 1
    num_nodes: PositiveInt = 1
    strategy: str = "auto"
    auto_requeue: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        checked = Options("", train_options(), "key", finite=True).check(vars(self))
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        self._check_registered()

    def _check_registered(self) -> None:
        """Refuse names that are neither ours nor registered by the user."""
        is_ours = self.optimizer in get_args(Optimizer) and self.schedule in get_args(Schedule)
        if not is_ours:
            from chop.training.optimisers import OPTIMIZERS, SCHEDULES

            _ = OPTIMIZERS[self.optimizer], SCHEDULES[self.schedule]

    @classmethod
    def of(cls, owner: str, values: Mapping[str, Any]) -> TrainOptions:
        """Return the options under their present or older names; messages name the `owner`."""
        return cls(**Options(owner, train_options(), "key", finite=True).check(values))

    @classmethod
    def from_trainer_args(cls, trainer_args: Mapping[str, Any], **others: Any) -> TrainOptions:
        """From the labs' `plt_trainer_args`; keys that only Lightning knows are refused."""
        unset = ("devices", "log_every_n_steps", "max_epochs", "max_steps")  # where None or 0
        args = {k: v for k, v in trainer_args.items() if k != "logger" and (v or k not in unset)}
        args["fast_dev_run"] = bool(args.get("fast_dev_run"))
        return cls.of("plt_trainer_args", args | others)


@functools.cache
def train_options() -> Mapping[str, Option]:
    """Return the fields of `TrainOptions` as options."""
    options = options_of(TrainOptions)
    return {name: replace(o, older=OLDER.get(name, Older())) for name, o in options.items()}


def spellings() -> dict[str, str]:
    """Return every name that an option may have -> its present name."""
    older = {old: name for name, o in train_options().items() for old in o.older.names}
    return {name: name for name in train_options()} | older


def table_options(table: str, names: Iterable[str]) -> dict[str, Option]:
    """Return the training options of a table of a file, with its defaults."""
    options = {name: train_options()[name] for name in names}
    for name, hint in IN_FILES.items():
        options[name] = replace(options[name], hint=hint)
    for name, default in OTHER_DEFAULTS[table].items():
        hint = options[name].hint
        hint = hint | None if default is None else hint
        options[name] = replace(options[name], hint=hint, default=default)
    return options
