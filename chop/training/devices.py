"""Devices that training runs on: one, or several on one or more machines (lightning-fabric)."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.devices import parse_accelerator
from chop.numerics.compiled import KERNELS
from chop.numerics.fused import fused_mode
from chop.numerics.learned import LearnsBits
from chop.system.processes import note_joined, same_import_path
from chop.training.options import TrainOptions

# environment variables through which processes find each other
MEETING_POINTS = ("MASTER_ADDR", "SLURM_JOB_ID", "SLURM_JOBID")
# texts that identify communication errors, which may be plain RuntimeErrors
TRANSPORTS = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
# batch size times parameters below which one thread is used: there, several gain little on a free
# machine and lose a lot on a busy one (docs/performance.md)
SMALL = 20_000_000


@dataclass(frozen=True)
class Place:
    """One process of a run: its device, its rank among `world` processes, and their reductions."""

    device: torch.device
    rank: int = 0
    world: int = 1
    fabric: Any = field(default=None, repr=False)

    @property
    def leads(self) -> bool:
        """Whether this process writes the files and logs for all."""
        return self.rank == 0

    def wrapped(self, model: nn.Module) -> nn.Module:
        """Return a model that averages gradients over all processes; the model itself if alone."""
        if self.world == 1:
            return model
        wrapped: nn.Module = self.fabric.strategy.setup_module(model)
        return wrapped

    def total(self, sums: Tensor) -> Tensor:
        """Return the sums over all processes, padding those that are shorter."""
        if self.world == 1:
            return sums
        missing = self.largest(len(sums)) - len(sums)
        total = F.pad(sums.to(self.device), (0, missing))
        torch.distributed.all_reduce(total)
        return total

    def largest(self, number: int) -> int:
        """Return the largest number of any process; all processes must call this."""
        if self.world == 1:
            return number
        largest = torch.tensor(number, device=self.device)
        torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
        return int(largest.item())

    def same_buffers(self, model: nn.Module) -> None:
        """Copy the running statistics of the first process, which are saved, to all others."""
        if self.world > 1:
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def leave(self) -> None:
        """Wait for the other processes and leave the group."""
        if self.world > 1:
            self.fabric.barrier()
            torch.distributed.destroy_process_group()


@contextlib.contextmanager
def together(advice: str) -> Iterator[None]:
    """Context in which losing another process raises one sentence that ends with `advice`."""
    try:
        yield
    except RuntimeError as error:
        kind: Any = getattr(torch.distributed, "DistError", ())
        if not (isinstance(error, kind) or any(sign in str(error) for sign in TRANSPORTS)):
            raise
        raise ConnectionError(
            f"another process of this run has ended or cannot be reached; {advice}"
        ) from error


@contextlib.contextmanager
def fixed_threads(number: int) -> Iterator[None]:
    """Compute with `number` threads, which decides the order of sums and so the last bits."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def threads_for(work: int, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """One thread for small work: several wait for each other, long on a busy machine.

    `work` is batch times parameters. The rule looks at sizes only, so that a run is repeated with
    the same rounding.
    """
    small = device.type == "cpu" and work < SMALL
    return fixed_threads(1 if small else torch.get_num_threads())


def settle_kernels(model: nn.Module, device: torch.device) -> None:
    """Wait for the C++ kernels of layers that learn their bits.

    Sums of their gradients have other last bits by kernels, so a run may not change from one way to
    the other at a step that depends on the time.
    """
    learns = any(isinstance(layer, LearnsBits) for layer in model.modules())
    if learns and device.type == "cpu" and fused_mode() != "off":
        KERNELS.settle()


def take_place(options: TrainOptions) -> Place:
    """Start the processes that `options` ask for, and return the place of this one."""
    _check_launcher(options)
    device = parse_accelerator(options.accelerator)
    if options.accelerator == "auto" and device.type == "cpu" and options.devices > 1:
        raise ValueError(
            f"`devices={options.devices}`: this machine has no GPU; for {options.devices} "
            f"processes on the CPU, add `accelerator='cpu'`"
        )
    num_gpus = torch.cuda.device_count()
    if device.type == "cuda" and options.devices > num_gpus:
        raise ValueError(
            f"`devices={options.devices}` is too many for this machine; "
            f"use at most `devices={num_gpus}`"
        )
    if options.devices == options.num_nodes == 1 and options.strategy == "auto":
        return Place(device)
    from lightning_fabric import Fabric

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice about SLURM and unused GPUs
        fabric = Fabric(
            accelerator=device.type,
            devices=options.devices,
            num_nodes=options.num_nodes,
            strategy="ddp" if options.strategy == "auto" else options.strategy,
        )
        with same_import_path():
            fabric.launch()
    note_joined()
    return Place(fabric.device, fabric.global_rank, fabric.world_size, fabric)


def _check_launcher(options: TrainOptions) -> None:
    """Refuse processes that would overwrite each other's files or wait for ever."""
    wanted = options.devices * options.num_nodes
    if options.num_nodes > 1 and not any(name in os.environ for name in MEETING_POINTS):
        raise ValueError(
            f"`num_nodes={options.num_nodes}` needs a process on every machine; start it there "
            f"with torchrun or srun, or set MASTER_ADDR, MASTER_PORT and NODE_RANK"
        )
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1 and started != wanted:
        raise ValueError(
            f"{started} processes were started (WORLD_SIZE), but the options need {wanted}; "
            f"set `devices` and `num_nodes` so that their product is {started}"
        )
