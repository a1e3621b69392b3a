"""What a training run is asked to do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

Precision = Literal["32", "64", "16-mixed", "bf16"]
PRECISIONS: dict[str, Precision] = {
    "32": "32",
    "32-true": "32",
    "64": "64",
    "64-true": "64",
    "16": "16-mixed",
    "16-mixed": "16-mixed",
    "bf16": "bf16",
    "bf16-mixed": "bf16",
}


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How to train; every field has the name of its option in `ch train` where there is one."""

    max_epochs: int = 20
    max_steps: int | None = None  # optimiser steps; None: as many as the epochs have
    max_seconds: float | None = None  # the step that runs then is the last
    optimizer: str = "adam"
    learning_rate: float = 1e-5
    weight_decay: float = 0.0
    schedule: str = "cosine"
    t_max: int | None = None  # epochs until the lowest rate; None: max_epochs
    schedule_steps: int | None = None  # steps until the lowest rate; None: it moves by the epoch
    eta_min: float = 1e-6  # the lowest rate
    warmup_steps: int = 0
    accumulate_grad_batches: int = 1
    gradient_clip: float | None = None
    early_stopping: int | None = None  # epochs without a lower validation loss
    precision: Precision = "32"
    seed: int = 0
    log_every_n_steps: int = 50
    checkpoint_every: int | None = None  # steps; None: after each epoch only
    compile: bool = False
    fast_dev_run: bool = False  # one batch of each kind: does it run at all?
    accelerator: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"
    auto_requeue: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        at_least_one = ("accumulate_grad_batches", "log_every_n_steps", "devices", "num_nodes")
        for name in (
            *at_least_one,
            "early_stopping",
            "checkpoint_every",
            "t_max",
            "max_steps",
            "schedule_steps",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is at least 1, not {value}")
        for name in ("max_epochs", "warmup_steps", "weight_decay"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is not negative, unlike {getattr(self, name)}")
        if self.max_seconds is not None and self.max_seconds <= 0:
            raise ValueError(f"max_seconds is a positive number, not {self.max_seconds}")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"learning_rate is a positive number, not {self.learning_rate}")

    @classmethod
    def from_trainer_args(cls, trainer_args: dict[str, Any], **others: Any) -> TrainOptions:
        """From the labs' `plt_trainer_args`; keys that only Lightning knows are refused."""
        args = dict(trainer_args)
        args.pop("logger", None)
        args["precision"] = precision_named(args.pop("precision", "32"))
        args["fast_dev_run"] = bool(args.get("fast_dev_run", False))
        args["max_steps"] = positive_or_none(args.get("max_steps"))
        args["devices"] = args.get("devices") or 1
        args["log_every_n_steps"] = args.get("log_every_n_steps") or 50
        args["max_epochs"] = args.get("max_epochs") or cls.max_epochs
        unknown = sorted(args.keys() - cls.__dataclass_fields__.keys())
        if unknown:
            raise ValueError(
                f"plt_trainer_args has {unknown[0]!r}, which is not a training option; "
                f"options are {', '.join(sorted(cls.__dataclass_fields__))}"
            )
        return cls(**(args | others))


def precision_named(name: Any) -> Precision:
    """The precision that Lightning or the labs call `name`."""
    if str(name) not in PRECISIONS:
        raise ValueError(f"precision is one of {', '.join(PRECISIONS)}, not {name!r}")
    return PRECISIONS[str(name)]


def positive_or_none(value: int | None) -> int | None:
    """-1 and None both mean "no limit"."""
    return value if value is not None and value > 0 else None
