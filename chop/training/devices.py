"""Where training runs: one device, several, or several machines, through lightning-fabric."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from chop.training.options import TrainOptions

ACCELERATORS = {"cuda": "gpu"}


@dataclass(frozen=True)
class Place:
    """One process of a run: its device, its number among `world`, and how they add up."""

    device: torch.device
    rank: int = 0
    world: int = 1
    fabric: Any = field(default=None, repr=False)

    @property
    def leads(self) -> bool:
        """Whether this process writes the files and speaks for all."""
        return self.rank == 0

    def wrapped(self, model: nn.Module) -> nn.Module:
        """The model whose gradients are averaged over all processes; alone, the model itself."""
        if self.world == 1:
            return model
        wrapped: nn.Module = self.fabric.strategy.setup_module(model)
        return wrapped

    def total(self, sums: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world == 1:
            return sums
        total: Tensor = self.fabric.all_reduce(sums, reduce_op="sum")
        return total

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process; all of them must ask."""
        if self.world == 1:
            return flag
        return bool(self.total(torch.tensor(float(flag), device=self.device)).item())

    def wait(self) -> None:
        if self.world > 1:
            self.fabric.barrier()


def take_place(options: TrainOptions) -> Place:
    """Start the processes that `options` ask for, and find this one's device."""
    alone = options.devices == 1 and options.num_nodes == 1
    kind = options.accelerator.partition(":")[0]
    if kind in ("gpu", "cuda") and not torch.cuda.is_available():
        raise ValueError(f"--accelerator {options.accelerator}: there is no GPU here; use cpu")
    if kind == "gpu" or (kind == "auto" and torch.cuda.is_available()):
        found = torch.cuda.device_count()
        if options.devices > found:
            raise ValueError(f"--gpu {options.devices}: this machine has {found}")
    if alone and options.strategy == "auto":
        return Place(_device(options.accelerator))
    from lightning_fabric import Fabric

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice about machines that nobody asked about
        fabric = Fabric(
            accelerator=ACCELERATORS.get(kind, kind),
            devices=options.devices,
            num_nodes=options.num_nodes,
            strategy="ddp" if options.strategy == "auto" else options.strategy,
        )
        fabric.launch()
    return Place(fabric.device, fabric.global_rank, fabric.world_size, fabric)


def _device(accelerator: str) -> torch.device:
    if accelerator == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    return torch.device("cuda:0" if accelerator == "gpu" else accelerator)
