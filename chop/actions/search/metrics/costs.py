"""Costs that are counted, not measured: `flops`, `macs`, `bitops`, `model_size`, …"""

from __future__ import annotations

from dataclasses import replace

from torch import fx, nn

from chop.actions.search.metrics.base import Trial, metric
from chop.actions.search.space.untraced import UntracedModel
from chop.passes.base import has_metadata
from chop.passes.graph.analysis.cost.cost import cost_of
from chop.passes.graph.analysis.cost.ledger import Numbers, ledger_of
from chop.passes.graph.transforms.pruning.masks import masks_of


def costs_of(trial: Trial, *, sparse: bool = False) -> Numbers:
    """Return the costs of a candidate in its formats; all runners share one calculation.

    With `sparse`, weights that are zero cost nothing, which is counted for each candidate.
    """
    model = trial.model
    if not isinstance(model, fx.GraphModule) or not _has_metadata(model):
        if isinstance(trial.graph, UntracedModel):
            return _without_graph(model, sparse)
        model = trial.graph.model
    numbers = ledger_of(model).read()
    return _without_zeros(trial, numbers) if sparse else numbers


def _without_graph(model: nn.Module, sparse: bool) -> Numbers:
    if sparse:
        raise ValueError("sparse costs need a graph; omit sparse in the module style")
    from chop.passes.module.cost import module_bits

    return module_bits(model)


def _has_metadata(model: fx.GraphModule) -> bool:
    return has_metadata(next(iter(model.graph.nodes)), "common")  # all nodes have them, or none


def _without_zeros(trial: Trial, numbers: Numbers) -> Numbers:
    graph = trial.graph
    total = cost_of(graph, sparse=True, per_sample=True)["total"]
    bits = total["weight_bits"]
    masks = [mask for layer in graph.model.modules() for mask in masks_of(layer).values()]
    rest = numbers.saved_bits - numbers.parameter_bits - sum(8 * mask.nbytes for mask in masks)
    return replace(
        numbers,
        macs=total["macs"],
        flops=total["flops"],
        bit_ops=total["bit_ops"],
        parameter_bits=bits,
        saved_bits=rest + bits,
    )


@metric("flops", side="hardware", better="minimize", needs_graph=True)
def flops(trial: Trial, *, sparse: bool = False) -> float:
    """Floating-point operations for one sample; a multiply-accumulate is two.

    With `sparse`, weights that are zero take none.
    """
    return costs_of(trial, sparse=sparse).flops


@metric("macs", side="hardware", better="minimize", needs_graph=True)
def macs(trial: Trial, *, sparse: bool = False) -> float:
    """Multiply-accumulates for one sample; with `sparse`, of weights that are not zero."""
    return costs_of(trial, sparse=sparse).macs


@metric("bitops", side="hardware", better="minimize", needs_graph=True)
def bitops(trial: Trial, *, sparse: bool = False) -> float:
    """Bit operations for one sample: multiplications in their widths, and their accumulation.

    With `sparse`, weights that are zero take none.
    """
    return costs_of(trial, sparse=sparse).bit_ops


@metric("model_size", side="hardware", better="minimize")
def model_size(trial: Trial, *, sparse: bool = False) -> float:
    """Bytes of all parameters and buffers that are saved, in their formats.

    With `sparse`, parameters that are zero take none; the positions of the others do not count.
    """
    return costs_of(trial, sparse=sparse).saved_bits / 8


@metric("activation_memory", side="hardware", better="minimize", needs_graph=True)
def activation_memory(trial: Trial) -> float:
    """Peak bytes of the activations of one sample, in their formats."""
    return costs_of(trial).peak_activation_bits / 8
