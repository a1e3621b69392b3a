"""Functions of one number on every edge between inputs and outputs."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.registry import UnknownName

FunctionName = Literal["mlp", "spline"]
Differentiated = tuple[Tensor, Tensor, Callable[[Tensor], Sequence[Tensor]]]
REACH = 4.0  # a spline has its knots from -REACH to REACH


class EdgeFunction(abc.ABC):
    """A function with parameters of its own for every edge.

    The last dimension of a parameter holds the numbers of one edge; the dimensions before it
    broadcast to the arguments, of which the last two are inputs and outputs.
    """

    names: ClassVar[tuple[str, ...]]  # of the parameters

    @abc.abstractmethod
    def initial(self, num_inputs: int, num_outputs: int, size: int) -> Sequence[Tensor]:
        """Return new parameters; `size` is how many numbers a function consists of."""

    @abc.abstractmethod
    def sizes(self, size: int) -> dict[str, int]:
        """Return of how many numbers the parameters of one edge consist."""

    @abc.abstractmethod
    def values(self, u: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """Return the values of the functions for arguments [..., inputs, outputs]."""

    def differentiated(self, u: Tensor, parameters: Sequence[Tensor]) -> Differentiated:
        """Return the values and slopes for [networks, codes, inputs, outputs], and a function.

        The function takes gradients of the values, and returns those of the parameters, which are
        [networks, inputs, outputs, numbers].
        """
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            own = [p.detach().requires_grad_() for p in parameters]
            t = self.values(u, [p.unsqueeze(1) for p in own])
        (slope,) = torch.autograd.grad(t, u, torch.ones_like(t), retain_graph=True)
        return t.detach(), slope, lambda grad: torch.autograd.grad(t, own, grad)


class PerceptronOnEdge(EdgeFunction):
    """A network of one input, hidden units with tanh, and one output."""

    names = ("weight_in", "bias_in", "weight_out")

    def initial(self, num_inputs: int, num_outputs: int, size: int) -> Sequence[Tensor]:
        scales = (1.0, 0.5, size**-0.5)
        return [torch.randn(num_inputs, num_outputs, size) * scale for scale in scales]

    def sizes(self, size: int) -> dict[str, int]:
        return dict.fromkeys(self.names, size)

    def values(self, u: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        weight_in, bias_in, weight_out = parameters
        hidden = torch.tanh(u.unsqueeze(-1) * weight_in + bias_in)
        return (hidden * weight_out).sum(-1)

    def differentiated(self, u: Tensor, parameters: Sequence[Tensor]) -> Differentiated:
        # by edge, so that everything is a product of small matrices
        edges, codes = u.shape[0] * u.shape[2] * u.shape[3], u.shape[1]

        def by_edge(x: Tensor) -> Tensor:
            return x.permute(0, 2, 3, 1).reshape(edges, codes, 1)

        def by_code(x: Tensor) -> Tensor:
            return x.view(u.shape[0], *u.shape[2:], codes).permute(0, 3, 1, 2).contiguous()

        weight_in, bias_in, weight_out = (p.reshape(edges, 1, -1) for p in parameters)
        place = by_edge(u)
        hidden = torch.tanh(torch.addcmul(bias_in, place, weight_in))
        rates = torch.addcmul(weight_out, hidden * hidden, weight_out, value=-1)
        values, slope = hidden @ weight_out.mT, rates @ weight_in.mT

        def of_parameters(grad: Tensor) -> Sequence[Tensor]:
            of_code = by_edge(grad)
            found = ((of_code * place).mT @ rates, of_code.mT @ rates, of_code.mT @ hidden)
            return [t.view_as(p) for t, p in zip(found, parameters, strict=True)]

        return by_code(values), by_code(slope), of_parameters


class SplineOnEdge(EdgeFunction):
    """A cubic B-spline on an even grid from -4 to 4, plus a multiple of SiLU."""

    names = ("coefficients", "base")

    def initial(self, num_inputs: int, num_outputs: int, size: int) -> Sequence[Tensor]:
        coefficients, base = self.sizes(size).values()
        drawn = torch.randn(num_inputs, num_outputs, coefficients) * 0.5
        return [drawn, torch.randn(num_inputs, num_outputs, base)]

    def sizes(self, size: int) -> dict[str, int]:
        return {"coefficients": size + 3, "base": 1}

    def values(self, u: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        coefficients, base = parameters
        count = coefficients.shape[-1]
        step = 2 * REACH / (count - 3)
        places = torch.arange(count, device=u.device, dtype=u.dtype) - 1
        distance = ((u.unsqueeze(-1) + REACH) / step - places).abs()
        near = (2 - distance).clamp(min=0)
        # two cubes: of the distance from the outer knots, and from the inner ones
        basis = near**3 / 6 - (1 - distance).clamp(min=0) ** 3 * (2 / 3)
        return (basis * coefficients).sum(-1) + F.silu(u) * base.squeeze(-1)


FUNCTIONS: dict[str, EdgeFunction] = {"mlp": PerceptronOnEdge(), "spline": SplineOnEdge()}


def edge_function(name: str) -> EdgeFunction:
    """Return the function of a name."""
    if name not in FUNCTIONS:
        raise UnknownName("function on edges", name, sorted(FUNCTIONS))
    return FUNCTIONS[name]
