"""Recurrent layers, of one layer each as ONNX has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from chop.onnx.reading.reader import Reader
from chop.onnx.reading.registry import OnnxNode, reads
from chop.onnx.reading.values import OnnxValue

# order of the gates in torch, by their place in ONNX: i o f c -> i f c o, and z r h -> r z h
GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
LAYERS: dict[str, type[Any]] = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
ACTIVATIONS = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}


@reads("LSTM", "GRU", "RNN")
def recurrent(reader: Reader, node: OnnxNode) -> list[OnnxValue | None]:
    """Read a recurrent layer without peepholes or lengths; initial states may be given."""
    _check(node)
    both, bias = node.attribute("direction", "forward") == "bidirectional", node.constant(3, "bias")
    hidden = _hidden(node, bias, 2 if both else 1)
    first = bool(node.attribute("layout", 0))
    more = {"nonlinearity": _activations(node)[0]} if node.op == "RNN" else {}
    layer = LAYERS[node.op](
        node[1].tensor.shape[2], hidden, bidirectional=both, bias=bias is not None,
        batch_first=first, device="meta", **more,
    )  # fmt: skip
    tensors = _tensors(node, bias, hidden)
    states = _states(reader, node, batch_first=first)
    found = reader.layer(layer, node[0], *states, weights=tensors)
    directions = 2 if both else 1
    return _results(reader, node, found, directions, hidden, batch_first=first)


def _hidden(node: OnnxNode, bias: OnnxValue | None, directions: int) -> int:
    """Return the size of the state, after a look at the shapes of the weights."""
    shapes = [list(node[place].tensor.shape) for place in (1, 2)]
    if any(
        node.constant(place, "weight") is None or len(shapes[place - 1]) != 3 for place in (1, 2)
    ):
        raise node.wrong("has weights that are not of three dimensions; export it again")
    hidden, inputs = shapes[1][2], shapes[0][2]
    rows = hidden * len(GATES[node.op])
    wanted = [[directions, rows, inputs], [directions, rows, hidden]]
    fits = shapes == wanted and hidden > 0 and inputs > 0
    if not fits or (bias is not None and list(bias.tensor.shape) != [directions, 2 * rows]):
        raise node.wrong(f"has weights of shapes {shapes}, which do not fit; export it again")
    return hidden


def _activations(node: OnnxNode) -> list[str]:
    return [str(a, "utf-8").lower() if isinstance(a, bytes) else str(a).lower()
            for a in node.attribute("activations") or ACTIVATIONS[node.op]]  # fmt: skip


def _check(node: OnnxNode) -> None:
    """Refuse what torch's layers do not have."""
    way, names = node.attribute("direction", "forward"), _activations(node)
    usual = ACTIVATIONS[node.op]
    relu = node.op == "RNN" and set(names) == {"relu"}
    problems = {
        "runs backwards only": way == "reverse",
        "has other activations than torch's": not relu and names not in (usual, usual * 2),
        "clips its cells": node.has("clip"),
        "couples its gates": bool(node.attribute("input_forget", 0)),
        "applies the reset gate before the product": node.op == "GRU"
        and not node.attribute("linear_before_reset", 0),
        "has lengths of sequences": not _is_absent(node.get(4), node),
        "has one initial state of two": node.op == "LSTM" and _has_one_state(node),
        "has peepholes": not _is_zero(node.get(7)),
    }
    for problem, holds in problems.items():
        if holds:
            raise node.wrong(f"{problem}, which cannot be read; export the network without that")


def _has_one_state(node: OnnxNode) -> bool:
    given = [node.get(place) for place in (5, 6)]
    return any(value is None for value in given) and not all(_is_zero(value) for value in given)


def _states(
    reader: Reader, node: OnnxNode, *, batch_first: bool
) -> list[OnnxValue | tuple[OnnxValue, ...]]:
    """Return the initial states as torch's layers take them; none if all are zero."""
    places = (5, 6) if node.op == "LSTM" else (5,)
    if all(_is_zero(node.get(place)) for place in places):
        return []
    states = [node[place] for place in places]
    if batch_first:
        states = [reader.call(torch.transpose, state, 0, 1) for state in states]
    return [tuple(states)] if node.op == "LSTM" else [states[0]]


def _is_zero(value: OnnxValue | None) -> bool:
    return value is None or (value.is_known and not any(t.any() for t in value.samples))


def _is_absent(lengths: OnnxValue | None, node: OnnxNode) -> bool:
    """Whether lengths are left out, or are those of whole sequences."""
    if lengths is None:
        return True
    steps = node[0].tensor.shape[1 if node.attribute("layout", 0) else 0]
    return lengths.is_known and all(bool((t == steps).all()) for t in lengths.samples)


def _tensors(node: OnnxNode, bias: OnnxValue | None, hidden: int) -> dict[str, Tensor]:
    """Return the weights under torch's names, with the gates in its order."""
    tensors: dict[str, Tensor] = {}
    order = GATES[node.op]
    for direction in range(node[1].tensor.shape[0]):
        end = "_l0" + ("_reverse" if direction else "")
        tensors[f"weight_ih{end}"] = _turned(node[1].tensor[direction], order, hidden)
        tensors[f"weight_hh{end}"] = _turned(node[2].tensor[direction], order, hidden)
        if bias is not None:
            halves = bias.tensor[direction].reshape(2, -1)
            tensors[f"bias_ih{end}"] = _turned(halves[0], order, hidden)
            tensors[f"bias_hh{end}"] = _turned(halves[1], order, hidden)
    return tensors


def _turned(weight: Tensor, order: tuple[int, ...], hidden: int) -> Tensor:
    return torch.cat([weight[gate * hidden : (gate + 1) * hidden] for gate in order])


def _results(
    reader: Reader, node: OnnxNode, found: Any, directions: int, hidden: int, *, batch_first: bool
) -> list[OnnxValue | None]:
    """Return the sequence with a dimension of directions, and the last states."""
    wanted = [place < len(node.outputs) and bool(node.outputs[place]) for place in range(3)]
    results: list[OnnxValue | None] = [None, None, None]
    if wanted[0]:
        sequence: OnnxValue = found[0]
        sizes = [*sequence.sizes[:2], (directions, directions), (hidden, hidden)]
        if directions == 1:
            axis = 2 if batch_first else 1
            results[0] = reader.call(torch.unsqueeze, sequence, axis)
        else:
            split = reader.reshaped(sequence, sizes)
            results[0] = split if batch_first else reader.call(torch.permute, split, (0, 2, 1, 3))
    if wanted[1] or wanted[2]:
        states = found[1]
        pair = [states[0], states[1]] if node.op == "LSTM" else [states, None]
        if batch_first:
            pair = [s and reader.call(torch.transpose, s, 0, 1) for s in pair]
        results[1:] = pair
    return results
