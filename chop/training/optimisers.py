"""Optimisers by name, and learning rates as functions of the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from chop.registry import Registry
from chop.training.options import TrainOptions

Make = Callable[..., Optimizer]
Shape = Callable[[float], float]  # progress of the schedule, 0…1 -> factor of the learning rate

BETAS, EPSILON = (0.9, 0.999), 1e-8  # torch's defaults for Adam
MOMENTUM = 0.9  # of SGD

OPTIMIZERS: Registry[Make] = Registry("optimizer")
OPTIMIZERS.register("adam")(Adam)
OPTIMIZERS.register("adamw")(AdamW)
SCHEDULES: Registry[Shape] = Registry("schedule")
SCHEDULES.register("cosine")(lambda done: (1 + math.cos(math.pi * done)) / 2)
SCHEDULES.register("linear")(lambda done: 1 - done)
SCHEDULES.register("constant")(lambda done: 1.0)


@OPTIMIZERS.register("sgd")
def sgd(parameters: Iterable[nn.Parameter], **options: object) -> Optimizer:
    """SGD with a Nesterov momentum."""
    options.pop("capturable", None)  # SGD does not count steps on the host
    return SGD(parameters, momentum=MOMENTUM, nesterov=True, **options)  # type: ignore[arg-type]


def make_optimizer(
    model: nn.Module, options: TrainOptions, *, capturable: bool = False
) -> Optimizer:
    """Return the optimiser that `options` name, with one fused kernel for all parameters."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no trainable parameters; set requires_grad on some")
    rate: float | Tensor = options.learning_rate
    keywords: dict[str, object] = {"weight_decay": options.weight_decay, "fused": True}
    if capturable:  # a captured step reads its rate from the device
        rate = torch.tensor(rate, device=parameters[0].device)
        keywords["capturable"] = True
    return OPTIMIZERS[options.optimizer](parameters, lr=rate, **keywords)


def learning_rate(options: TrainOptions, *, epoch: int, step: int) -> float:
    """Return the learning rate of a step: the schedule changes it per epoch, warm-up per step.

    With `schedule_steps`, the schedule changes it per step, starting after the warm-up.
    """
    lowest = min(options.eta_min, options.learning_rate)
    shape = SCHEDULES[options.schedule]
    if options.schedule_steps is None:
        done = epoch / max(1, options.t_max or options.max_epochs)
    else:
        warmup = options.warmup_steps
        done = max(0, step - warmup) / max(1, options.schedule_steps - warmup)
    share = shape(min(1.0, done))
    rate = lowest + (options.learning_rate - lowest) * share
    if step < options.warmup_steps:
        rate *= (step + 1) / options.warmup_steps
    return rate


def set_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
