"""Re-estimate the statistics of batch norms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph.describe.interpreter import evaluation_mode


def reestimate_batch_norm(model: MaseGraph | nn.Module, batches: Iterable[Any]) -> int:
    """Re-estimate the statistics of all batch norms over `batches`; return the number of batches.

    A batch is a tensor, a dict of inputs by name, or a list whose first item is one of these.
    Nothing else in the model changes: weights, mode and momentum stay.
    """
    net: nn.Module = model.model if isinstance(model, MaseGraph) else model
    norms = [m for m in net.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return 0
    saved = [{key: value.clone() for key, value in norm.named_buffers()} for norm in norms]
    count = 0
    try:
        count = _estimate(net, norms, batches)
    finally:
        if count == 0:  # no batch came, or one failed
            for norm, buffers in zip(norms, saved, strict=True):
                for key, value in buffers.items():
                    getattr(norm, key).copy_(value)
    if count == 0:
        raise ValueError("batches is empty; give at least one batch")
    return count


def _estimate(net: nn.Module, norms: list[_BatchNorm], batches: Iterable[Any]) -> int:
    momenta, count = [norm.momentum for norm in norms], 0
    with torch.no_grad(), evaluation_mode(net):
        try:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum, norm.training = None, True
            for batch in batches:
                _run(net, batch)
                count += 1
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
    return count


def _run(net: nn.Module, batch: Any) -> None:
    inputs = batch[0] if isinstance(batch, list | tuple) else batch
    device = next((p.device for p in net.parameters()), None)
    named = inputs if isinstance(inputs, Mapping) else {"": inputs}
    moved = {key: x.to(device) if isinstance(x, Tensor) else x for key, x in named.items()}
    net(**moved) if named is inputs else net(moved[""])
