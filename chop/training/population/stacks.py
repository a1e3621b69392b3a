"""The parameters and buffers of many networks in a few tensors, padded with zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chop.passes.graph.transforms.pruning.masks import mask_name, masked_names
from chop.training.population.architecture import LayerCall, Family

ALIGNMENT = 4  # numbers: rows of parameters begin where vector instructions like it


@dataclass(frozen=True)
class Slot:
    """Where one parameter of all candidates lies in the rows of the population's parameters."""

    call: int
    name: str
    start: int
    shape: tuple[int, ...]  # the largest of the candidates, in each dimension

    @property
    def size(self) -> int:
        return torch.Size(self.shape).numel()

    def of(self, row: Tensor) -> Tensor:
        """This parameter in one candidate's row of numbers."""
        return row[self.start : self.start + self.size].view(self.shape)

    def stack(self, rows: Tensor) -> Tensor:
        """This parameter in the rows of all candidates."""
        return rows[:, self.start : self.start + self.size].view(-1, *self.shape)


@dataclass(frozen=True)
class StackPlan:
    """The places of everything that has one: learnt parameters in rows, the rest in stacks."""

    slots: tuple[Slot, ...]
    length: int  # of a row
    buffers: dict[tuple[int, str], tuple[int, ...]]  # padded shapes

    def pieces(self) -> tuple[list[int], list[int]]:
        """How a row is cut: the sizes of all pieces, and which of them are parameters."""
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
        every = [_tensors(call) for call in calls]
        for name, tensor in {n: t for own in every for n, t in own.items()}.items():
            shapes = [_tensor(call, name).shape for call in calls]
            shape = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
            if not _learns(tensor):
                buffers[number, name] = shape
                continue
            slots.append(Slot(number, name, at, shape))
            at += -(-slots[-1].size // ALIGNMENT) * ALIGNMENT
    return StackPlan(tuple(slots), at, buffers)


def _owners(family: Family) -> list[int]:
    """The first call of every module; a layer that is called twice has its parameters once."""
    first: dict[int, int] = {}
    for number, call in enumerate(family.first):
        if call.module is not None:
            first.setdefault(id(call.module), number)
    return list(first.values())


def owner_of(family: Family, number: int) -> int:
    """The first call of the module that call `number` calls."""
    module = family.first[number].module
    return next(i for i, call in enumerate(family.first) if call.module is module)


def _tensors(call: LayerCall) -> dict[str, Tensor]:
    """Parameters, statistics and masks; what has no dimensions only counts steps."""
    module: Any = call.module
    own = {**module._parameters, **module._buffers}
    return {name: t for name, t in own.items() if t is not None and t.dim() > 0}


def _tensor(call: LayerCall, name: str) -> Tensor:
    """A tensor of a layer; one that has no mask, where others have, computes with everything."""
    own = _tensors(call)
    if name in own:
        return own[name]
    return torch.ones_like(own[name.removesuffix(mask_name(""))], dtype=torch.bool)


def _learns(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and tensor.requires_grad


@dataclass
class State:
    """The numbers of a population: a row of learnt parameters each, and stacks of the rest."""

    values: Tensor  # [K, length]
    buffers: dict[tuple[int, str], Tensor]  # [K, …]

    def only(self, rows: Sequence[int], now: StackPlan, then: StackPlan) -> State:
        """The candidates at `rows`, whose padding is that of the plan `then`."""
        kept = torch.tensor(rows, device=self.values.device)
        buffers = {
            key: _narrowed(self.buffers[key].index_select(0, kept), shape).contiguous()
            for key, shape in then.buffers.items()
        }
        return State(chosen_rows(self.values.detach(), rows, now, then), buffers)

    def copy(self) -> State:
        """The same numbers in other memory."""
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


def chosen_rows(values: Tensor, rows: Sequence[int], now: StackPlan, then: StackPlan) -> Tensor:
    """The rows of some candidates, laid out by `now`, as `then` lays them out."""
    kept = values.index_select(0, torch.tensor(rows, device=values.device))
    laid = kept.new_zeros(len(rows), then.length)
    for old, new in zip(now.slots, then.slots, strict=True):
        new.stack(laid).copy_(_narrowed(old.stack(kept), new.shape))
    return laid


def _narrowed(stack: Tensor, shape: Sequence[int]) -> Tensor:
    """A stack without the padding that nobody needs any more."""
    return stack[(slice(None), *(slice(size) for size in shape))]


def _within(padded: Tensor, like: Tensor) -> Tensor:
    """The part of a padded tensor that a candidate's own fills."""
    return padded[tuple(slice(size) for size in like.shape)]


@torch.no_grad()
def gather(family: Family, plan: StackPlan, device: torch.device, dtype: torch.dtype) -> State:
    """The numbers of the candidates' layers, copied into stacks."""
    values = torch.zeros(len(family), plan.length, dtype=dtype)
    for slot in plan.slots:
        for row, call in zip(values, family.calls(slot.call), strict=True):
            own = _tensors(call)[slot.name]
            _within(slot.of(row), own).copy_(own)
    buffers = {}
    for (number, name), shape in plan.buffers.items():
        tensors = [_tensor(call, name) for call in family.calls(number)]
        kind = dtype if tensors[0].is_floating_point() else tensors[0].dtype
        stack = torch.zeros(len(family), *shape, dtype=kind)
        for row, own in zip(stack, tensors, strict=True):
            _within(row, own).copy_(own)
        buffers[number, name] = stack.to(device)
    return State(values.to(device), buffers)


@torch.no_grad()
def scatter(
    family: Family, plan: StackPlan, state: State, rows: Sequence[int], steps: Sequence[int]
) -> None:
    """Copy the numbers of the candidates at `rows` back into their layers, so many steps later."""
    chosen = list(rows)
    values = state.values.detach()[chosen].cpu()
    buffers = {key: stack[chosen].cpu() for key, stack in state.buffers.items()}
    for at, row in enumerate(chosen):
        member = family.members[row]
        for slot in plan.slots:
            own = _tensors(member[slot.call])[slot.name]
            own.copy_(_within(slot.of(values[at]), own))
        for (number, name), stack in buffers.items():
            there = _tensors(member[number])
            if name in there:
                there[name].copy_(_within(stack[at], there[name]))
        for number in _owners(family):
            tracked = getattr(member[number].module, "num_batches_tracked", None)
            if tracked is not None:
                tracked.add_(steps[at])


def is_masked(calls: Sequence[LayerCall], name: str) -> bool:
    """Whether a parameter is read through a mask by some candidate."""
    return any(name in masked_names(type(call.module)) for call in calls)
