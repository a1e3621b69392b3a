"""The tensors of a node that have statistics."""

from __future__ import annotations

from torch import fx

from chop.ir.graph.mase_metadata import mase

NOT_A_STATISTIC = "num_batches_tracked"  # BatchNorm's counter of steps


def tensors_in(node: fx.Node) -> list[str]:
    """Return the tensors that a node takes or owns: arguments, parameters, buffers."""
    meta = mase(node)
    if node.op == "output":  # it takes what it returns
        return [name.replace("data_out", "data_in") for name, _ in meta.common.results.tensors()]
    names = [name for name, _ in meta.common.args.tensors()]
    if meta.module is not None:
        names += [name for name, _ in meta.module.named_buffers()]
    return [name for name in names if not name.endswith(NOT_A_STATISTIC)]
