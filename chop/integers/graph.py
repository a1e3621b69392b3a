"""A network in integers, and the interpreter that defines its results."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor

from chop.integers.codes import Codes, Word
from chop.integers.op import IntegerOp
from chop.integers.ops.requantize import QuantizeInput


@dataclass(frozen=True, eq=False)
class IntegerNode:
    """One op of an integer graph: its inputs by name, and what its result is.

    `source` is the node of the quantised graph that it came from.
    """

    name: str
    op: IntegerOp
    inputs: tuple[str, ...]
    codes: Codes
    source: str
    proven: bool  # float32 computes the same, for inputs that it holds exactly

    @property
    def accumulates(self) -> bool:
        """Whether the result is a sum of many terms."""
        return self.op.accumulates


@dataclass(repr=False, eq=False)
class IntegerGraph:
    """A quantised network in integers: the reference for everything that implements it.

    `run` gives codes and calling it gives floats; `report` lists the nodes. Inputs are floats,
    which the first nodes round. `notes` says what was left out, such as a softmax at the end, and
    `findings` which constants are clipped, and which sums may wrap in a runtime.
    """

    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    nodes: dict[str, IntegerNode] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)  # numbers that are lost, sums that may wrap
    # nodes of the quantised graph -> the node with their codes, or those with their rounded codes
    values: dict[str, str] = field(default_factory=dict)
    roundings: dict[str, list[tuple[str, Word]]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)  # nodes that the outputs do without

    def add(self, name: str, op: IntegerOp, inputs: Sequence[str], source: str) -> str:
        """Append a node and return its name, which is made unique."""
        taken = self.nodes.keys() | set(self.inputs)
        unique = name if name not in taken else next(self._numbered(name))
        codes = [self.nodes[i].codes for i in inputs if i in self.nodes]
        op = op.fitted(*codes)
        known = codes if not isinstance(op, QuantizeInput) else []
        result = op.result(*known)
        proven = op.exact_in_float(*known)
        node = IntegerNode(unique, op, tuple(inputs), result, source, proven)
        self.nodes[unique] = node
        return unique

    def _numbered(self, name: str) -> Iterator[str]:
        number = 1
        while True:
            if (unique := f"{name}_{number}") not in self.nodes and unique not in self.inputs:
                yield unique
            number += 1

    def codes(self, name: str) -> Codes:
        """Return the description of a value."""
        if name not in self.nodes:
            near = difflib.get_close_matches(name, self.nodes, 1)
            hint = f"did you mean {near[0]!r}?" if near else "report() lists them"
            raise ValueError(f"the graph has no node {name!r}; {hint}")
        return self.nodes[name].codes

    def trace(self, *inputs: Tensor, **named: Tensor) -> dict[str, Tensor]:
        """Return the codes of every node, for a batch of floats per input."""
        known = self._given(inputs, named)
        return dict(self._steps(known, keep=True))

    def run(self, *inputs: Tensor, **named: Tensor) -> Any:
        """Return the codes of the output, or a tuple of them, for a batch of floats per input.

        Inputs are given in order or by name.
        """
        known = self._given(inputs, named)
        found = {n: codes for n, codes in self._steps(known, keep=False) if n in self.outputs}
        results = tuple(found[name] for name in self.outputs)
        return results[0] if len(results) == 1 else results

    def __call__(self, *inputs: Tensor, **named: Tensor) -> Any:
        """Return the output in the dtype of the inputs, or a tuple of outputs."""
        found = self.run(*inputs, **named)
        dtype = next(iter((*inputs, *named.values()))).dtype
        codes = found if isinstance(found, tuple) else (found,)
        values = tuple(
            self.codes(name).values(x).to(dtype)
            for name, x in zip(self.outputs, codes, strict=True)
        )
        return values if isinstance(found, tuple) else values[0]

    def _given(self, inputs: Sequence[Tensor], named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a tensor for each input."""
        given = {**dict(zip(self.inputs, inputs, strict=False)), **named}
        if (wrong := self._wrong_names(inputs, named)) is not None:
            several = "inputs" if len(self.inputs) != 1 else "input"
            raise ValueError(f"the graph has the {several} {', '.join(self.inputs)}; {wrong}")
        shapes = {
            node.inputs[0]: node.op.shape
            for node in self.nodes.values()
            if isinstance(node.op, QuantizeInput)
        }
        for name in self.inputs:
            _check_input(name, given[name], shapes.get(name))
        sizes = list(dict.fromkeys(len(given[name]) for name in shapes if len(given[name]) != 1))
        if len(sizes) > 1:
            raise ValueError(
                f"the inputs have batches of {sizes[0]} and {sizes[1]} samples; give all the same"
            )
        return {name: given[name] for name in self.inputs}

    def _wrong_names(self, inputs: Sequence[Tensor], named: Mapping[str, Tensor]) -> str | None:
        """Return what is wrong with the number or the names of inputs, or None."""
        if len(inputs) > len(self.inputs):
            count = f"{len(self.inputs)} tensors" if len(self.inputs) != 1 else "one tensor"
            return f"give {count}, not {len(inputs)}"
        for name in named:
            if name not in self.inputs:
                return f"{name!r} is not one of them"
            if name in self.inputs[: len(inputs)]:
                return f"{name!r} is given twice"
        missing = [name for name in self.inputs[len(inputs) :] if name not in named]
        return f"{missing[0]!r} is missing" if missing else None

    @torch.no_grad()
    def _steps(self, known: dict[str, Tensor], keep: bool) -> Iterator[tuple[str, Tensor]]:
        """Run node by node; values that are not needed any more are freed unless `keep`."""
        device = next((x.device for x in known.values()), torch.device("cpu"))
        last = {i: node.name for node in self.nodes.values() for i in node.inputs}
        for node in self.nodes.values():
            result = node.op.run(*(known[i] for i in node.inputs))
            result = result if result.device == device else result.to(device)
            known[node.name] = result
            yield node.name, result
            for i in node.inputs if not keep else ():
                if last[i] == node.name:
                    known.pop(i, None)

    def with_argmax(self) -> IntegerGraph:
        """Return a copy that ends with the place of the largest output: the class of a sample."""
        from chop.integers.ops.argmax import ArgMaxCodes

        last = self.codes(self.outputs[0])
        if len(self.outputs) != 1 or len(last.shape) != 1:
            shapes = ", ".join(str(list(self.codes(name).shape)) for name in self.outputs)
            raise ValueError(f"argmax needs one output with a number per class, not {shapes}")
        if not last.scale.uniform:
            raise ValueError("argmax needs classes of one scale; quantise the weights per tensor")
        copy = replace(self, nodes=dict(self.nodes))
        source = self.nodes[self.outputs[0]].source
        copy.outputs = [copy.add("argmax", ArgMaxCodes(1), self.outputs, source)]
        return copy

    @property
    def accumulator_widths(self) -> Mapping[str, int]:
        """The bits of each accumulator, by node."""
        return {n.name: n.codes.width for n in self.nodes.values() if n.accumulates}

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the report, one per node."""
        return [
            {
                "Node": node.name,
                "Op": node.op.label,
                "Inputs": ", ".join(node.inputs),
                "Type": node.codes.kind,
                "Codes": f"{node.codes.lowest} … {node.codes.highest}",
                "Step": str(node.codes.scale),
                "Accumulator": node.codes.width if node.accumulates else "",
                "Float32": "proven" if node.proven else "",
            }
            for node in self.nodes.values()
        ]

    def report(self) -> str:
        """Return a table of all nodes: ops, widths, codes, steps and accumulator bits."""
        table = tabulate(self.rows(), headers="keys", disable_numparse=True)
        return "\n".join([table, *self.notes, *self.findings])

    def __repr__(self) -> str:
        widest = max(self.accumulator_widths.values(), default=0)
        return f"IntegerGraph({len(self.nodes)} nodes, widest accumulator {widest} bits)"

    def __str__(self) -> str:
        return self.report()


def _check_input(name: str, x: Any, shape: tuple[int, ...] | None) -> None:
    """Refuse what is not a batch of floats of the shape that the graph was made for."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        what = x.dtype if isinstance(x, Tensor) else type(x).__name__
        hint = "; give a dict as run(**inputs)" if isinstance(x, Mapping) else ""
        raise TypeError(f"the input {name!r} takes a tensor of floats, not {what}{hint}")
    if shape is not None and (not x.ndim or x.shape[1:] != shape):
        wanted = ", ".join(["batch", *map(str, shape)])
        raise ValueError(f"the input {name!r} has the shape [{wanted}], not {list(x.shape)}")
