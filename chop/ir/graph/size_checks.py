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

from chop.ir.graph.decisions import Decision, Size
from chop.ir.graph.trace_errors import UnsupportedTorch

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


FIX = "for other sizes, make another graph with an example of that size in dummy_in"


class _Other(ValueError):
    """An assumption that is not arithmetic on sizes."""


def refusal_of_one(size: Size, decision: Decision, names: Sequence[str]) -> str:
    """Return a sentence on a size that may not be one, as a decision would change, with the fix."""
    text = f"{names[size[0]]}.shape[{size[1]}]"
    return (
        f"this graph is only for inputs with {text} >= 2, as forward() takes another branch for "
        f"{text} == 1 ({decision.where}); {FIX}"
    )


class SizeCheck:
    """One assumption on sizes of the inputs: `left <= right`."""

    def __init__(self, tree: ast.AST, decision: Decision | None = None) -> None:
        self.decision = decision
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
        if self.fixed is not None:
            message += f"; {FIX}"
        if self.decision is not None:
            message = refusal_of_one(self.sizes[0], self.decision, names)
        graph.call_function(torch._assert, (holds, message))


def input_shapes(program: torch.export.ExportedProgram) -> list[Any]:
    """Return the shapes of the inputs; sizes that are free are symbols."""
    specs = program.graph_signature.input_specs
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    pairs = zip(specs, nodes, strict=True)
    shapes = [n.meta["val"].shape for spec, n in pairs if spec.kind is InputKind.USER_INPUT]
    return [tuple(map(_plain, shape)) for shape in shapes]


def _plain(size: Any) -> Any:
    """Return a number for a symbol that forward() fixed, as `len` of a tensor does."""
    fixed = isinstance(size, torch.SymInt) and size.node.expr.is_number
    return int(size.node.expr) if fixed else size


def size_checks(
    program: torch.export.ExportedProgram,
    fixed_sizes: Iterable[tuple[int, int, int]],
    not_one: Mapping[Size, Decision],
) -> list[SizeCheck]:
    """Return what an exported program assumed of the sizes of its inputs, each size once.

    `fixed_sizes` are those that were constants: the input's place, the dimension, the size.
    Those in `not_one` must be two or more, as the decision would change for one.
    """
    checks: list[SizeCheck] = []
    constant = [_compared(size[:2], "==", size[2]) for size in fixed_sizes]
    for code in (*guards(program), *constant):
        for tree in _parts(ast.parse(code, mode="eval").body):
            try:
                checks.append(SizeCheck(tree))
            except _Other:  # the graph is then only for the sizes at hand
                checks += _pinned(program, tree)
    for size, decision in not_one.items():
        code = _compared(size, ">=", 2)
        checks.append(SizeCheck(ast.parse(code, mode="eval").body, decision))
    fixed = {check.sizes[0] for check in checks if check.fixed is not None}
    return [c for c in checks if c.fixed is not None or not set(c.sizes) <= fixed]


def guards(program: torch.export.ExportedProgram) -> list[str]:
    """Return what torch.export assumed of the inputs, as Python.

    There is no public name for it: the code that `program.module()` generates is made of it.
    """
    try:
        return list(program._guards_code)
    except AttributeError:
        raise UnsupportedTorch(
            f"torch {torch.__version__} has no ExportedProgram._guards_code, without which a graph "
            f"would be wrong for other sizes; install a version of torch that pyproject.toml allows"
        ) from None


def _compared(size: Size, sign: str, number: int) -> str:
    """Return a comparison of a size with a number, as torch.export writes it."""
    return f"L['ts'][{size[0]}].size()[{size[1]}] {sign} {number}"


def _parts(tree: ast.AST) -> list[ast.AST]:
    """The assumptions in one that is joined by `and`."""
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        return [part for value in tree.values for part in _parts(value)]
    return [tree]


def _pinned(program: torch.export.ExportedProgram, tree: ast.AST) -> list[SizeCheck]:
    """Return checks that each size in an assumption is the one of the example inputs."""
    shapes = input_shapes(program)
    found = {size for part in ast.walk(tree) if (size := _size(part))}
    codes = [
        _compared((place, dim), "==", shapes[place][dim].node.hint)
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
