"""The parameters and buffers of many networks, stacked in a few tensors padded with zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chop.methods.population.architecture import Family, LayerCall
from chop.passes.graph.transforms.pruning.masks import mask_name, masked_names

ALIGNMENT = 4  # numbers, to align parameters for vector instructions


@dataclass(frozen=True)
class Slot:
    """The position of one parameter in the rows of all candidates' parameters."""

    call: int
    name: str
    start: int
    shape: tuple[int, ...]  # maximum over the candidates in each dimension

    @property
    def size(self) -> int:
        return torch.Size(self.shape).numel()

    def of(self, row: Tensor) -> Tensor:
        """Return this parameter as a view of one candidate's row."""
        return row[self.start : self.start + self.size].view(self.shape)

    def stack(self, rows: Tensor) -> Tensor:
        """Return this parameter as a view of all candidates' rows."""
        return rows[:, self.start : self.start + self.size].view(-1, *self.shape)


@dataclass(frozen=True)
class StackPlan:
    """The layout of all tensors: trainable parameters in rows, the others in stacks."""

    slots: tuple[Slot, ...]
    length: int  # of a row
    buffers: dict[tuple[int, str], tuple[int, ...]]  # padded shapes

    def pieces(self) -> tuple[list[int], list[int]]:
        """Return the sizes of the pieces of a row, and the indices of those that are parameters."""
        sizes, chosen, at = [], [], 0
        for slot in self.slots:
            if slot.start > at:
                sizes.append(slot.start - at)
            chosen.append(len(sizes))
            sizes.append(slot.size)
            at = slot.start + slot.size
        return [*sizes, self.length - at], chosen


def plan_of(family: Family) -> StackPlan:
    slots: list[Slot] = []
    buffers: dict[tuple[int, str], tuple[int, ...]] = {}
    at = 0
    for number in _owners(family):
        calls = family.calls(number)
        named = {n: t for call in calls for n, t in _tensors(call).items()}
        for name, tensor in named.items():
            shapes = [_tensor(call, name).shape for call in calls]
            shape = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
            if not (isinstance(tensor, nn.Parameter) and tensor.requires_grad):
                buffers[number, name] = shape
                continue
            slots.append(Slot(number, name, at, shape))
            at += -(-slots[-1].size // ALIGNMENT) * ALIGNMENT
    return StackPlan(tuple(slots), at, buffers)


def _owners(family: Family) -> list[int]:
    """Return the first call of every module, which owns its parameters."""
    first: dict[int, int] = {}
    for number, call in enumerate(family.first):
        if call.module is not None:
            first.setdefault(id(call.module), number)
    return list(first.values())


def owner_of(family: Family, number: int) -> int:
    """Return the first call of the module that call `number` uses."""
    module = family.first[number].module
    return next(i for i, call in enumerate(family.first) if call.module is module)


def _tensors(call: LayerCall) -> dict[str, Tensor]:
    """Return parameters, statistics and masks, without scalars, which only count steps."""
    module: Any = call.module
    tensors = {**module._parameters, **module._buffers}
    return {name: t for name, t in tensors.items() if t is not None and t.dim() > 0}


def _tensor(call: LayerCall, name: str) -> Tensor:
    """Return a tensor of a layer; a missing mask, which other candidates have, is all True."""
    tensors = _tensors(call)
    if name in tensors:
        return tensors[name]
    return torch.ones_like(tensors[name.removesuffix(mask_name(""))], dtype=torch.bool)


@dataclass
class State:
    """The tensors of a population: a row of trainable parameters each, and stacks of the rest."""

    values: Tensor  # [K, length]
    buffers: dict[tuple[int, str], Tensor]  # [K, …]

    def only(self, rows: Sequence[int], old: StackPlan, new: StackPlan) -> State:
        """Return the state of the candidates at `rows`, moved from plan `old` to plan `new`."""
        kept = torch.tensor(rows, device=self.values.device)
        buffers = {
            key: _within(self.buffers[key].index_select(0, kept), shape).contiguous()
            for key, shape in new.buffers.items()
        }
        return State(chosen_rows(self.values.detach(), rows, old, new), buffers)

    def copy(self) -> State:
        """Return a copy of all tensors."""
        buffers = {key: stack.clone() for key, stack in self.buffers.items()}
        return State(self.values.detach().clone(), buffers)

    def take(self, other: State, rows: Sequence[int]) -> None:
        """Copy the candidates at `rows` from a state of the same plan."""
        chosen = torch.tensor(rows, dtype=torch.int64, device=self.values.device)
        pairs = [(self.values, other.values.detach())]
        pairs += [(stack, other.buffers[key]) for key, stack in self.buffers.items()]
        for mine, theirs in pairs:
            mine.index_copy_(0, chosen, theirs.index_select(0, chosen))

    def to(self, device: torch.device) -> State:
        buffers = {key: stack.to(device) for key, stack in self.buffers.items()}
        return State(self.values.to(device), buffers)


def chosen_rows(values: Tensor, rows: Sequence[int], old: StackPlan, new: StackPlan) -> Tensor:
    """Return the rows of some candidates, moved from plan `old` to plan `new`."""
    kept = values.index_select(0, torch.tensor(rows, device=values.device))
    moved = kept.new_zeros(len(rows), new.length)
    for source, target in zip(old.slots, new.slots, strict=True):
        target.stack(moved).copy_(_within(source.stack(kept), target.shape))
    return moved


def _within(padded: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the part of a padded tensor, or of a stack of them, that has `shape`."""
    index: tuple[Any, ...] = (..., *(slice(size) for size in shape))
    return padded[index]


@torch.no_grad()
def gather(family: Family, plan: StackPlan, device: torch.device, dtype: torch.dtype) -> State:
    """Copy the tensors of the candidates' layers into stacks."""
    values = torch.zeros(len(family), plan.length, dtype=dtype)
    for slot in plan.slots:
        for row, call in zip(values, family.calls(slot.call), strict=True):
            tensor = _tensors(call)[slot.name]
            _within(slot.of(row), tensor.shape).copy_(tensor)
    buffers = {}
    for (number, name), shape in plan.buffers.items():
        tensors = [_tensor(call, name) for call in family.calls(number)]
        kind = dtype if tensors[0].is_floating_point() else tensors[0].dtype
        stack = torch.zeros(len(family), *shape, dtype=kind)
        for row, tensor in zip(stack, tensors, strict=True):
            _within(row, tensor.shape).copy_(tensor)
        buffers[number, name] = stack.to(device)
    return State(values.to(device), buffers)


@torch.no_grad()
def scatter(
    family: Family, plan: StackPlan, state: State, rows: Sequence[int], steps: Sequence[int]
) -> None:
    """Copy the tensors of the candidates at `rows` back to their layers, and add their `steps`."""
    chosen = list(rows)
    values = state.values.detach()[chosen].cpu()
    buffers = {key: stack[chosen].cpu() for key, stack in state.buffers.items()}
    for at, row in enumerate(chosen):
        member = family.members[row]
        for slot in plan.slots:
            tensor = _tensors(member[slot.call])[slot.name]
            tensor.copy_(_within(slot.of(values[at]), tensor.shape))
        for (number, name), stack in buffers.items():
            tensors = _tensors(member[number])
            if name in tensors:
                tensors[name].copy_(_within(stack[at], tensors[name].shape))
        for number in _owners(family):
            tracked = getattr(member[number].module, "num_batches_tracked", None)
            if tracked is not None:
                tracked.add_(steps[at])


def is_masked(calls: Sequence[LayerCall], name: str) -> bool:
    """Whether any candidate masks a parameter."""
    return any(name in masked_names(type(call.module)) for call in calls)
