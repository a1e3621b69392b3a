"""Recurrent layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.registry import writes
from chop.passes.graph.interface.export_onnx.values import OnnxTensor

# the order of the gates: torch's is i, f, g, o and r, z, n; ONNX's is i, o, f, c and z, r, h
ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


@writes("rnn", "lstm", "gru")
def recurrent(call: OpCall) -> Any:
    layer: Any = call.module
    call.rounding.check_whole(call)
    if not isinstance(call.arg(0, "input"), OnnxTensor) or call.rank != 3:
        raise call.refusal("takes packed sequences, or one sample without a batch; give a batch")
    if getattr(layer, "proj_size", 0):
        raise call.refusal("has proj_size; use a linear layer after it")
    x = call.x(0, "input")
    x = call.add("Transpose", x, perm=[1, 0, 2]) if layer.batch_first else x
    first_h, first_c = _first_states(call)
    count, hidden, cells = 2 if layer.bidirectional else 1, [], []
    for number in range(layer.num_layers):
        span = (number * count, (number + 1) * count)
        states = [_layers(call, state, span) for state in (first_h, first_c)]
        x, last, cell = _layer(call, x, number, states)
        hidden.append(last)
        cells.append(cell)
    y = call.add("Transpose", x, perm=[1, 0, 2]) if layer.batch_first else x
    joined = [call.add("Concat", *each, axis=0) if each[0] and len(each) > 1 else each[0]
              for each in (hidden, cells)]  # fmt: skip
    return (y, tuple(joined)) if call.op == "lstm" else (y, joined[0])


def _first_states(call: OpCall) -> tuple[str | None, str | None]:
    """Return the states that the layer starts with, or None for zeros."""
    given = call.arg(1, "hx", default=None)
    if given is None:
        return None, None
    if call.op == "lstm":
        return call.value(given[0]), call.value(given[1])
    return call.value(given), None


def _layers(call: OpCall, state: str | None, span: tuple[int, int]) -> str:
    """Return the states of one layer."""
    layer: Any = call.module
    if state is None or layer.num_layers == 1:
        return state or ""
    return call.add("Slice", state, call.ints(span[0]), call.ints(span[1]), call.ints(0))


def _layer(call: OpCall, x: str, number: int, states: list[str]) -> tuple[str, str, str]:
    """Return the results of one layer for all times, and its last states."""
    layer: Any = call.module
    op = {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN"}[call.op]
    w, r, b = _stored(call, op, number)
    both, size = layer.bidirectional, layer.hidden_size
    extra: dict[str, Any] = {"direction": "bidirectional" if both else "forward"}
    if op == "GRU":
        extra["linear_before_reset"] = 1
    if op == "RNN":
        extra["activations"] = [layer.nonlinearity.capitalize()] * (2 if both else 1)
    inputs = [x, w, r, b, "", *(states if op == "LSTM" else states[:1])]
    while inputs[-1] == "":
        inputs.pop()
    found = call.add_many(op, *inputs, count=3 if op == "LSTM" else 2, hidden_size=size, **extra)
    turned = call.add("Transpose", found[0], perm=[0, 2, 1, 3])  # times, samples, directions
    joined = call.add("Reshape", turned, call.ints(0, 0, size * (2 if both else 1)))
    return joined, found[1], found[2] if op == "LSTM" else ""


def _stored(call: OpCall, op: str, number: int) -> tuple[str, str, str]:
    """Return the weights of one layer in ONNX's order of gates, both directions together."""
    layer: Any = call.module
    ends = ["", "_reverse"] if layer.bidirectional else [""]

    def ordered(kind: str, end: str) -> Tensor:
        tensor = getattr(layer, f"{kind}_l{number}{end}", None)
        if tensor is None:
            size = len(ORDER[op]) * layer.hidden_size
            return torch.zeros(size, dtype=layer.weight_ih_l0.dtype)
        gates = tensor.detach().chunk(len(ORDER[op]))
        return torch.cat([gates[place] for place in ORDER[op]])

    w, r = (
        torch.stack([ordered(kind, end) for end in ends]) for kind in ("weight_ih", "weight_hh")
    )
    b = torch.stack([torch.cat([ordered("bias_ih", e), ordered("bias_hh", e)]) for e in ends])
    names = [f"{call.node.target}.{kind}_l{number}" for kind in ("weight_ih", "weight_hh", "bias")]
    return tuple(call.writer.stored(t, n) for t, n in zip((w, r, b), names, strict=True))  # type: ignore[return-value]


@writes("lstm_cell", "gru_cell", "rnn_cell")
def recurrent_cell(call: OpCall) -> Any:
    layer: Any = call.module
    call.rounding.check_whole(call)
    if call.rank != 2:
        raise call.refusal("takes one sample without a batch; give it a batch")
    op = {"lstm_cell": "LSTM", "gru_cell": "GRU", "rnn_cell": "RNN"}[call.op]
    names = [call.writer.stored(t, f"{call.node.target}.{n}") for n, t in _cell_weights(layer, op)]
    x = call.add("Unsqueeze", call.x(0, "input"), call.ints(0))
    given = call.arg(1, "hx", default=None)
    states = [] if given is None else [*given] if op == "LSTM" else [given]
    raised = [call.add("Unsqueeze", call.value(state), call.ints(0)) for state in states]
    extra: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {}
    if op == "RNN":
        extra["activations"] = [layer.nonlinearity.capitalize()]
    inputs = [x, *names, *(["", *raised] if raised else [])]
    found = call.add_many(
        op, *inputs, count=3 if op == "LSTM" else 2, hidden_size=layer.hidden_size, **extra
    )
    last = [call.add("Squeeze", name, call.ints(0)) for name in found[1:]]
    return tuple(last) if op == "LSTM" else last[0]


def _cell_weights(layer: Any, op: str) -> list[tuple[str, Tensor]]:
    def ordered(tensor: Tensor) -> Tensor:
        gates = tensor.detach().chunk(len(ORDER[op]))
        return torch.cat([gates[place] for place in ORDER[op]]).unsqueeze(0)

    found = [(name, ordered(getattr(layer, name))) for name in ("weight_ih", "weight_hh")]
    if layer.bias_ih is not None:
        bias = torch.cat([ordered(layer.bias_ih), ordered(layer.bias_hh)], 1)
        found.append(("bias", bias))
    return found
