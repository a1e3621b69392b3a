"""A linear layer with a low-rank adapter."""

from __future__ import annotations

import copy
import math
from typing import Any, Self

from torch import Tensor, nn
from torch.nn.utils import parametrize

from chop.ir.graph.tracer import Leaf
from chop.methods.lora.rows import ADAPTED
from chop.passes.graph.transforms import metadata_sync as sync

__all__ = ["LoRALinear"]


class LoRALinear(Leaf, nn.Module):
    """y = W x + b + (alpha / rank) B A dropout(x), where only A and B are trained.

    B starts at zero: a new adapter changes nothing.
    """

    mase_op = ADAPTED

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        rank: int,
        alpha: float = 0.5,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self._adapt(nn.Linear(in_dim, out_dim, bias), rank, alpha, dropout)

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, rank: int, alpha: float = 0.5, dropout: float = 0.0
    ) -> Self:
        """Create an adapter beside a linear layer, quantized or not, sharing its parameters.

        The layer itself stays unchanged.
        """
        new = cls.__new__(cls)
        nn.Module.__init__(new)
        new._adapt(linear, rank, alpha, dropout)
        return new.train(linear.training)

    def _adapt(self, linear: nn.Linear, rank: int, alpha: float, dropout: float) -> None:
        if rank < 1:
            raise ValueError(f"the rank of an adapter is {rank}; give an integer of at least 1")
        if not 0 <= dropout < 1:
            raise ValueError(
                f"the dropout of an adapter is {dropout}; give a number from 0 to below 1"
            )
        like: Any = {"dtype": linear.weight.dtype, "device": linear.weight.device}
        self.rank, self.alpha = rank, float(alpha)
        # so that fusing restores requires_grad
        self.was_trained = {name: p.requires_grad for name, p in linear.named_parameters()}
        self.linear = frozen(linear)
        self.lora_a = nn.Linear(linear.in_features, rank, bias=False, **like)
        self.lora_b = nn.Linear(rank, linear.out_features, bias=False, **like)
        self.dropout = nn.Dropout(dropout)
        nn.init.kaiming_uniform_(self.lora_a.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_b.weight)

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) + self.scale * self.lora_b(self.lora_a(self.dropout(x)))
        return y

    def fused_weight(self) -> Tensor:
        """W + (alpha / rank) B A, computed in float64 and rounded once."""
        down, up = self.lora_a.weight.detach().double(), self.lora_b.weight.detach().double()
        weight = self.linear.weight.detach()
        return (weight.double() + self.scale * (up @ down)).to(weight.dtype)

    def fuse(self) -> nn.Linear:
        """Return one linear layer that computes the same, up to rounding."""
        base = self.linear
        masked = any(name.endswith("_mask") for name, _ in base.named_buffers())
        plain = type(base).forward is nn.Linear.forward and not parametrize.is_parametrized(base)
        if masked or not plain:
            raise ValueError(
                f"its base is a {type(base).__name__}, which would change the "
                f"fused weight; fuse before quantizing, and make masks permanent first"
            )
        new = sync.own_copy(base)
        assert isinstance(new, nn.Linear)
        values = {name: p.detach() for name, p in base.named_parameters()}
        for name, value in (values | {"weight": self.fused_weight()}).items():
            trained = self.was_trained.get(name, True)
            new.register_parameter(name, nn.Parameter(value, requires_grad=trained))
        return new.train(self.training)

    def extra_repr(self) -> str:
        return f"rank={self.rank}, alpha={self.alpha}"


def frozen(layer: nn.Linear) -> nn.Linear:
    """Return the same layer with frozen parameters that share the numbers."""
    new = sync.own_copy(layer)
    assert isinstance(new, nn.Linear)
    for name, child in new.named_children():  # parametrizations, such as masks
        new._modules[name] = copy.deepcopy(child).requires_grad_(False)
    for name, p in list(new._parameters.items()):
        if p is not None:
            new._parameters[name] = nn.Parameter(p.detach(), requires_grad=False)
    return new
