"""Low-rank adapters beside linear layers: insert them, train them, fuse them."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

from annotated_types import Ge, Lt
from torch import Tensor, nn
from torch.nn.utils import parametrize

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.tracer import Leaf
from chop.log import show_logs_unless_configured
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.transforms import metadata_sync as sync
from chop.passes.graph.transforms.adapters import ADAPTED_OP
from chop.passes.options import NodeChoice, Problem, choices
from chop.passes.select import select

logger = logging.getLogger(__name__)


class LoRALinear(Leaf, nn.Module):
    """y = W x + b + (alpha / rank) B A dropout(x), where only A and B are trained.

    B starts at zero: a new adapter changes nothing.
    """

    mase_op = ADAPTED_OP

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


@graph_pass("insert_lora_adapter", "transform", needs=("common",))
def insert_lora_adapter_transform_pass(
    graph: MaseGraph,
    *,
    rank: Annotated[int, Ge(1)],
    lora_alpha: float = 0.5,
    lora_dropout: Annotated[float, Ge(0), Lt(1)] = 0.0,
    alpha: float | None = None,
    dropout: Annotated[float, Ge(0), Lt(1)] | None = None,
    nodes: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Add a low-rank adapter beside every linear layer and freeze the layer's parameters.

    `alpha` and `dropout` are shorter names of `lora_alpha` and `lora_dropout`. `nodes` are regular
    expressions on names of nodes: only those get an adapter. Quantized layers stay quantized
    beside it. A new adapter changes nothing: its second matrix is zero.
    """
    if nodes is not None:
        chosen = set(select(graph, "regex_name", nodes))
    read = sync.read_modules(graph)
    alpha = lora_alpha if alpha is None else alpha
    dropout = lora_dropout if dropout is None else dropout
    adapters: dict[nn.Module, LoRALinear] = {}
    callers = sync.calls(graph)
    for layer, users in callers.items():
        if not isinstance(layer, nn.Linear) or (nodes is not None and not chosen & set(users)):
            continue
        if layer in read:
            logger.warning("Linear weights are read elsewhere. Skipped! (node %r)", users[0].name)
            continue
        adapters[layer] = LoRALinear.from_linear(layer, rank, alpha, dropout)
    show_logs_unless_configured()
    for layer, adapter in adapters.items():
        sync.exchange(graph, callers[layer], adapter)
        for node in callers[layer]:
            message = "Replaced node: %s, target: %s with LoRALinear module."
            logger.info(message, node.name, node.target)
    sync.finish(graph)
    return {"inserted": [node.name for layer in adapters for node in callers[layer]]}


@insert_lora_adapter_transform_pass.law
def _laws(options: Mapping[str, Any]) -> Iterator[Problem]:
    """Check that options are not given under both their short and long names."""
    for name, default in (("alpha", 0.5), ("dropout", 0.0)):
        short, long = options[name], options[f"lora_{name}"]
        if short is not None and long not in (default, short):
            text = f"{name} = {short} and lora_{name} = {long} contradict; give one"
            yield Problem(name, text)


@insert_lora_adapter_transform_pass.chooses
def _chosen(options: Mapping[str, Any]) -> Iterator[NodeChoice]:
    yield from choices("nodes", "regex_name", options["nodes"])


@graph_pass("fuse_lora_weights", "transform", needs=("common",))
def fuse_lora_weights_transform_pass(graph: MaseGraph) -> dict[str, Any]:
    """Merge each adapter and its base into one linear layer, trainable if the base was."""
    callers = {m: users for m, users in sync.calls(graph).items() if isinstance(m, LoRALinear)}
    fused: dict[nn.Module, nn.Module] = {}
    for adapter, users in callers.items():
        try:
            fused[adapter] = adapter.fuse()
        except ValueError as error:
            raise PassArgsError(f"node {users[0].name!r}: {error}") from None
    show_logs_unless_configured()
    for adapter, users in callers.items():
        sync.exchange(graph, users, fused[adapter])
        logger.info("Fusing LoRALinear weights for %s.", users[0].target)
    sync.finish(graph)
    return {"fused": [node.name for users in callers.values() for node in users]}
