"""Checks of sizes in a graph: what torch.export assumed of its inputs.

torch.export writes each assumption as Python, such as `L['ts'][0].size()[1] <= 20`. Here it becomes
nodes of the graph, so that other sizes are refused in one sentence.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind

BINARY: dict[type, tuple[Callable[..., Any], str]] = {
    ast.Add: (operator.add, "+"),
    ast.Sub: (operator.sub, "-"),
    ast.Mult: (operator.mul, "*"),
    ast.FloorDiv: (operator.floordiv, "//"),
    ast.Mod: (operator.mod, "%"),
    ast.Div: (operator.truediv, "/"),
}
# functions of sizes in torch's text
CALLED: dict[str, Callable[..., Any]] = {
    "math.trunc": math.trunc,
    "math.floor": math.floor,
    "math.ceil": math.ceil,
    "torch.sym_float": float,
    "max": max,
    "min": min,
    "round": round,
}
COMPARED: dict[type, tuple[Callable[..., Any], str]] = {
    ast.LtE: (operator.le, "<="),
    ast.Lt: (operator.lt, "<"),
    ast.GtE: (operator.ge, ">="),
    ast.Gt: (operator.gt, ">"),
    ast.Eq: (operator.eq, "=="),
    ast.NotEq: (operator.ne, "!="),
}


class _Other(ValueError):
    """An assumption that is not arithmetic on sizes."""


Size = tuple[int, int]  # the input's place among the tensors, and the dimension


class SizeCheck:
    """One assumption on sizes of the inputs: `left <= right`."""

    def __init__(self, tree: ast.AST) -> None:
        compared = isinstance(tree, ast.Compare) and len(tree.ops) == 1
        if not compared or type(tree.ops[0]) not in COMPARED:  # type: ignore[attr-defined]
            raise _Other
        assert isinstance(tree, ast.Compare)
        self.left, self.right = tree.left, tree.comparators[0]
        self.compare, self.sign = COMPARED[type(tree.ops[0])]
        self.sizes = [*_sizes(self.left), *_sizes(self.right)]
        self.fixed: int | None = None  # the size, if it can only be this one
        if self.sign == "==" and _size(self.left) and isinstance(self.right, ast.Constant):
            self.fixed = int(self.right.value)  # type: ignore[arg-type]

    @property
    def matters(self) -> bool:
        """Whether it may be a decision of forward(); others are details of kernels."""
        sizes = [_size(self.left), _size(self.right)]
        if all(sizes):
            return sizes[0] != sizes[1]
        if self.sign == "!=" and isinstance(self.right, ast.Constant):  # not `size == 5`
            return sizes[0] is not None and self.right.value > 1  # type: ignore[operator]
        return len(set(self.sizes)) == 1

    def text(self, names: Sequence[str]) -> str:
        """Return it in words of the model: `ids.shape[1] <= 20`."""
        return f"{_text(self.left, names)} {self.sign} {_text(self.right, names)}"

    def add_to(self, graph: fx.Graph, inputs: Mapping[int, fx.Node], names: Sequence[str]) -> None:
        """Add nodes that check it."""
        holds = graph.call_function(
            self.compare, (_node(self.left, graph, inputs), _node(self.right, graph, inputs))
        )
        message = f"this graph is only for inputs with {self.text(names)}"
        graph.call_function(torch._assert, (holds, message))


def size_checks(
    program: torch.export.ExportedProgram, fixed_sizes: Iterable[tuple[int, int, int]]
) -> list[SizeCheck]:
    """Return what an exported program assumed of the sizes of its inputs, each size once.

    `fixed_sizes` are those that were constants: the input's place, the dimension, the size.
    """
    checks: list[SizeCheck] = []
    constant = [f"L['ts'][{place}].size()[{dim}] == {n}" for place, dim, n in fixed_sizes]
    for code in (*getattr(program, "_guards_code", ()), *constant):
        for tree in _parts(ast.parse(code, mode="eval").body):
            try:
                checks.append(SizeCheck(tree))
            except _Other:  # the graph is then only for the sizes at hand
                checks += _pinned(program, tree)
    fixed = {check.sizes[0] for check in checks if check.fixed is not None}
    return [c for c in checks if c.fixed is not None or not set(c.sizes) <= fixed]


def _parts(tree: ast.AST) -> list[ast.AST]:
    """The assumptions in one that is joined by `and`."""
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        return [part for value in tree.values for part in _parts(value)]
    return [tree]


def _pinned(program: torch.export.ExportedProgram, tree: ast.AST) -> list[SizeCheck]:
    """Return checks that each size in an assumption is the one of the example inputs."""
    specs, nodes = program.graph_signature.input_specs, program.graph.find_nodes(op="placeholder")
    pairs = zip(specs, nodes, strict=True)
    shapes = [n.meta["val"].shape for spec, n in pairs if spec.kind is InputKind.USER_INPUT]
    found = {size for part in ast.walk(tree) if (size := _size(part))}
    codes = [
        f"L['ts'][{place}].size()[{dim}] == {shapes[place][dim].node.hint}"
        for place, dim in sorted(found)
        if isinstance(shapes[place][dim], torch.SymInt)
    ]
    return [SizeCheck(ast.parse(code, mode="eval").body) for code in codes]


def _size(tree: ast.AST) -> Size | None:
    """Return the size that `L['ts'][0].size()[1]` reads."""
    match tree:
        case ast.Subscript(
            value=ast.Call(
                func=ast.Attribute(
                    value=ast.Subscript(
                        value=ast.Subscript(), slice=ast.Constant(value=int(place))
                    ),
                    attr="size",
                )
            ),
            slice=ast.Constant(value=int(dim)),
        ):
            return place, dim
    return None


def _sizes(tree: ast.AST) -> list[Size]:
    size = _size(tree)
    if size:
        return [size]
    if isinstance(tree, ast.BinOp) and type(tree.op) in BINARY:
        return [*_sizes(tree.left), *_sizes(tree.right)]
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return _sizes(tree.operand)
    if isinstance(tree, ast.Call) and ast.unparse(tree.func) in CALLED and not tree.keywords:
        return [size for argument in tree.args for size in _sizes(argument)]
    if isinstance(tree, ast.Constant) and type(tree.value) in (int, float):
        return []
    raise _Other


def _text(tree: ast.AST, names: Sequence[str]) -> str:
    size = _size(tree)
    if size:
        return f"{names[size[0]]}.shape[{size[1]}]"
    if isinstance(tree, ast.BinOp):
        sign = BINARY[type(tree.op)][1]
        return f"({_text(tree.left, names)} {sign} {_text(tree.right, names)})"
    if isinstance(tree, ast.UnaryOp):
        return f"-{_text(tree.operand, names)}"
    if isinstance(tree, ast.Call):
        name = CALLED[ast.unparse(tree.func)].__name__
        return f"{name}({', '.join(_text(argument, names) for argument in tree.args)})"
    return ast.unparse(tree)


def _node(tree: ast.AST, graph: fx.Graph, inputs: Mapping[int, fx.Node]) -> Any:
    size = _size(tree)
    if size:
        return graph.call_method("size", (inputs[size[0]], size[1]))
    if isinstance(tree, ast.BinOp):
        sides = (_node(tree.left, graph, inputs), _node(tree.right, graph, inputs))
        return graph.call_function(BINARY[type(tree.op)][0], sides)
    if isinstance(tree, ast.UnaryOp):
        inner = _node(tree.operand, graph, inputs)
        return (
            -inner
            if isinstance(inner, int | float)
            else graph.call_function(operator.neg, (inner,))
        )
    if isinstance(tree, ast.Call):
        arguments = tuple(_node(argument, graph, inputs) for argument in tree.args)
        return graph.call_function(CALLED[ast.unparse(tree.func)], arguments)
    assert isinstance(tree, ast.Constant)
    return tree.value
