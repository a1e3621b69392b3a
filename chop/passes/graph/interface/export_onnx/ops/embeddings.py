"""Embeddings and one-hot codes."""

from __future__ import annotations

import numpy as np

from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.registry import writes


@writes("embedding")
def embedding(call: OpCall) -> str:
    if call.module is not None:
        if getattr(call.module, "max_norm", None) is not None:
            raise call.refusal("has max_norm, which changes its table; normalise it once")
        return call.add("Gather", call.parameter("weight"), call.x(), axis=0)  # type: ignore[arg-type]
    if call.kwargs.get("max_norm") is not None:
        raise call.refusal("has max_norm, which changes its table; normalise it once")
    return call.add("Gather", call.x(1, "weight"), call.x(), axis=0)


@writes("one_hot")
def one_hot(call: OpCall) -> str:
    count = call.out.shape[-1]
    if count is None or call.arg(1, "num_classes", default=-1) == -1:
        raise call.refusal("counts the classes in its input; give num_classes")
    values = call.constant(np.array([0, 1], dtype=np.int64))
    return call.add("OneHot", call.x(), call.ints(count), values, axis=-1)
