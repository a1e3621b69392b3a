"""Sums that may not fit where a runtime adds, though they fit everywhere else."""

from __future__ import annotations

from collections.abc import Iterator

from chop.integers.codes import bits_for
from chop.integers.graph import IntegerGraph
from chop.integers.ops.weighted import WeightedOp

KERNEL_BITS = 8  # of the codes that runtimes have integer kernels for
RUNTIME_BITS = 32  # of the sums of these kernels


def sums_that_may_wrap(integers: IntegerGraph) -> Iterator[str]:
    """Yield a sentence for each sum of 8-bit products that 32 bits do not hold.

    Interval analysis bounds them with the actual weights. A bias on a finer grid is added apart.
    """
    for node in integers.nodes.values():
        if not isinstance(node.op, WeightedOp):
            continue
        taken = integers.codes(node.inputs[0]).width
        ends = (node.codes.lowest >> node.op.shift, node.codes.highest >> node.op.shift)
        bits = bits_for(min(-1, ends[0]), ends[1])  # the sums of runtimes have a sign
        if max(taken, node.op.weight_width) <= KERNEL_BITS and bits > RUNTIME_BITS:
            yield (
                f"node {node.source!r}: its sum may need {bits} bits, and onnxruntime adds 8-bit "
                f"products in {RUNTIME_BITS}, so that the files qdq and qcdq may wrap there; use "
                f"`format='integer'`, or larger weight steps"
            )
