"""Sums of functions on edges by codes, as an op of autograd that works under vmap.

The number of codes depends on the numbers of bits, which vmap hides; a rule for vmap sees the
tensors of all networks, and computes them at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from chop.methods.edge_tables.edge_codes import EdgeGrid, code_gradients, code_sums
from chop.methods.edge_tables.edge_functions import EdgeFunction
from chop.methods.edge_tables.edge_sums import EdgeNumbers, Sums, direct_sums
from chop.methods.edge_tables.edge_training import trained_gradients, trained_sums

Maybe = Sequence[Tensor | None]


def sums_by_codes(x: Tensor, numbers: EdgeNumbers, function: EdgeFunction) -> Sums:
    """Return the sums for samples [batch, inputs], with gradients."""
    # a population of one
    tensors = (None if t is None else t.unsqueeze(0) for t in (x, *numbers.tensors))
    result = _sums(function, *tensors)
    y, mean, var = (each.squeeze(0) for each in result)
    return y.clone(), mean, var  # autograd forbids changing a view of a result in place


def _member(numbers: EdgeNumbers, number: int) -> EdgeNumbers:
    return EdgeNumbers.of([None if t is None else t[number] for t in numbers.tensors])


def _too_fine(numbers: EdgeNumbers) -> bool:
    return EdgeGrid.of(numbers.in_integer, numbers.in_frac) is None


def _alike(numbers: EdgeNumbers) -> list[Tensor]:
    """Return the members of a population in groups whose tables have about the same size."""
    bits = torch.nan_to_num((numbers.in_integer + numbers.in_frac).flatten(1).amax(1), nan=-1.0)
    return [torch.nonzero(bits == each).flatten() for each in sorted({*bits.tolist()})]


def _in_groups(
    work: Callable[..., Any], numbers: EdgeNumbers, *tensors: Tensor
) -> tuple[Tensor, ...]:
    """Return the results of a function of tensors and numbers, computed group by group."""
    groups = _alike(numbers)
    if len(groups) < 2:
        return tuple(work(*tensors, numbers))
    found = []
    for members in groups:
        part = EdgeNumbers.of([None if t is None else t[members] for t in numbers.tensors])
        found.append(work(*(t[members] for t in tensors), part))
    back = torch.cat(groups).argsort()
    return tuple(torch.cat(parts)[back] for parts in zip(*found, strict=True))


def _each_directly(x: Tensor, numbers: EdgeNumbers, function: EdgeFunction) -> Any:
    found = [direct_sums(part, _member(numbers, i), function) for i, part in enumerate(x)]
    return tuple(torch.stack(parts) for parts in zip(*found, strict=True))


def _direct_gradients(
    grad: Tensor, x: Tensor, numbers: EdgeNumbers, function: EdgeFunction
) -> tuple[Tensor, list[Tensor]]:
    """Return the gradients of sums whose grids are too fine for tables."""
    with torch.enable_grad():
        tensors = [
            None if t is None else t.detach().requires_grad_() for t in (x, *numbers.tensors)
        ]
        y, _, _ = _each_directly(tensors[0], EdgeNumbers.of(tensors[1:]), function)  # type: ignore[arg-type]
    wanted = [t for i, t in enumerate(tensors) if i not in (7, 8) and t is not None]
    x_grad, *others = torch.autograd.grad(y, wanted, grad)
    return x_grad, others


def _forward(function: EdgeFunction, x: Tensor, numbers: EdgeNumbers) -> Any:
    found = code_sums(x, numbers, function)
    return _each_directly(x, numbers, function) if found is None else found


def _backward(
    function: EdgeFunction, for_x: bool, grad: Tensor, x: Tensor, numbers: EdgeNumbers
) -> tuple[Tensor, ...]:
    """Return the gradients of x, or numbers without meaning in its place, and of the others."""
    if _too_fine(numbers):
        x_grad, others = _direct_gradients(grad, x, numbers, function)
        return x_grad, *others
    found, others = code_gradients(grad, x, numbers, function, for_x=for_x)
    return x.new_zeros(len(x)) if found is None else found, *others


class _CodeSums(torch.autograd.Function):
    """Sums for samples [networks, batch, inputs], and statistics, which have no gradient."""

    @staticmethod
    def forward(function: EdgeFunction, x: Tensor, *tensors: Tensor | None) -> Any:
        numbers = EdgeNumbers.of(tensors)
        found = trained_sums(x, numbers, function)
        return found or _in_groups(functools.partial(_forward, function), numbers, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.function = inputs[0]
        ctx.known = [tensor is not None for tensor in inputs[1:]]
        ctx.save_for_backward(*(tensor for tensor in inputs[1:] if tensor is not None))
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        saved = iter(ctx.saved_tensors)
        tensors = [next(saved) if known else None for known in ctx.known]
        for_x = ctx.needs_input_grad[1]
        found = _gradients(ctx.function, for_x, grads[0], *tensors)
        return None, found[0] if for_x else None, *found[1:7], None, None, *found[7:]

    @staticmethod
    def vmap(info: Any, in_dims: Any, function: EdgeFunction, *tensors: Tensor | None) -> Any:
        found = _sums(function, *_joined(info.batch_size, in_dims[1:], tensors))
        return _parted(found, info.batch_size), (0, 0, 0)


class _CodeGradients(torch.autograd.Function):
    """The gradients of `_CodeSums`, in an op of its own so that they work under vmap as well."""

    @staticmethod
    def forward(
        function: EdgeFunction, for_x: bool, grad: Tensor, x: Tensor, *tensors: Tensor | None
    ) -> Any:
        numbers = EdgeNumbers.of(tensors)
        found = trained_gradients(grad, x, numbers, function, for_x=for_x)
        if found is not None:
            return x.new_zeros(len(x)) if found[0] is None else found[0], *found[1]
        return _in_groups(functools.partial(_backward, function, for_x), numbers, grad, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError("tables on edges have no second derivatives")

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, function: EdgeFunction, for_x: bool, *tensors: Tensor | None
    ) -> Any:
        joined = _joined(info.batch_size, in_dims[2:], tensors)
        found = _gradients(function, for_x, *joined)
        return _parted(found, info.batch_size), (0,) * len(found)


_sums: Any = _CodeSums.apply
_gradients: Any = _CodeGradients.apply


def _joined(size: int, in_dims: Sequence[Any], tensors: Maybe) -> list[Tensor | None]:
    """Return tensors with the dimension of vmap as part of the first one."""
    return [
        None
        if tensor is None
        else (
            tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        ).flatten(0, 1)
        for tensor, dim in zip(tensors, in_dims, strict=True)
    ]


def _parted(tensors: Sequence[Tensor], size: int) -> tuple[Tensor, ...]:
    """Return tensors with the dimension of vmap as the first one again."""
    return tuple(tensor.view(size, -1, *tensor.shape[1:]) for tensor in tensors)
