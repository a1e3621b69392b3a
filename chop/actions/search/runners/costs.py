"""Costs that are counted, not measured: `flops`, `macs`, `bitops`, `model_size`, …"""

from __future__ import annotations

from torch import fx

from chop.actions.search.runners.base import Trial, metric
from chop.passes.base import has_metadata
from chop.passes.graph.analysis.cost.ledger import Numbers, ledger_of


def costs_of(trial: Trial) -> Numbers:
    """The costs of a candidate in its present formats; all runners share one calculation."""
    model = trial.model
    if isinstance(model, fx.GraphModule) and _is_described(model):
        return ledger_of(model).read()
    return ledger_of(trial.graph.model).read()


def _is_described(model: fx.GraphModule) -> bool:
    """Whether the nodes say what they are; all of them do, or none."""
    return has_metadata(next(iter(model.graph.nodes)), "common")


@metric("flops", side="hardware", better="minimize", counted=True, additive=True)
def flops(trial: Trial) -> float:
    """Floating-point operations for one sample; a multiply-accumulate is two."""
    return costs_of(trial).flops


@metric("macs", side="hardware", better="minimize", counted=True, additive=True)
def macs(trial: Trial) -> float:
    """Multiply-accumulates for one sample."""
    return costs_of(trial).macs


@metric("bitops", side="hardware", better="minimize", counted=True, additive=True)
def bitops(trial: Trial) -> float:
    """Bit operations for one sample: multiplications in their widths, and their accumulation."""
    return costs_of(trial).bit_ops


@metric("model_size", side="hardware", better="minimize", counted=True, additive=True)
def model_size(trial: Trial) -> float:
    """Bytes of all parameters and buffers that are saved, in their formats."""
    return costs_of(trial).saved_bits / 8


@metric("activation_memory", side="hardware", better="minimize", counted=True)
def activation_memory(trial: Trial) -> float:
    """Bytes that the activations of one sample take at most at one time, in their formats."""
    return costs_of(trial).peak_activation_bits / 8
