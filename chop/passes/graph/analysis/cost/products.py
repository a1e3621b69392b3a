"""Costs of ops that multiply and accumulate: linear layers, convolutions, matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from chop.passes.graph.analysis.cost.call import (
    Call,
    Count,
    Product,
    Shape,
    per_dimension,
    plain,
    rule,
    size,
)


def _with_bias(call: Call, product: Product) -> Count:
    """One addition per result, and one per gradient of the bias."""
    added = 0 if call.shape("bias") is None else size(call.out)
    return Count((product,), added, added)


def _weight(call: Call) -> str:
    return f"{call.prefix}weight"


@rule("linear")
def linear(call: Call) -> Count:
    weight = call.required("weight")
    rows = size(call.out) // weight[0] if len(weight) > 1 else size(call.out)
    return _with_bias(call, Product(rows * size(weight), "data_in_0", _weight(call), weight[-1]))


@rule("bilinear")
def bilinear(call: Call) -> Count:
    """The weight times one input, then times the other."""
    _, first, second = call.required("weight")
    big = Product(size(call.out) * first * second, "data_in_1", _weight(call), second)
    small = Product(size(call.out) * first, "data_in_0", None, first)
    return _with_bias(call, big) + Count((small,))


@rule("conv1d", "conv2d", "conv3d")
def convolution(call: Call) -> Count:
    """Each result is a sum over a window; zeros of the padding are multiplied too."""
    window = size(call.required("weight")[1:])
    return _with_bias(call, Product(size(call.out) * window, "data_in_0", _weight(call), window))


@rule("convtranspose1d", "convtranspose2d", "convtranspose3d")
def transposed_convolution(call: Call) -> Count:
    """Each input is spread over a window; what the padding cuts off is computed too."""
    weight = call.required("weight")
    strides = per_dimension(call.option("stride", 1), len(weight) - 2)
    overlap = math.prod(-(-k // s) for k, s in zip(weight[2:], strides, strict=True))
    macs = size(call.required("data_in_0")) * size(weight[1:])
    depth = weight[0] // call.option("groups", 1) * overlap
    return _with_bias(call, Product(macs, "data_in_0", _weight(call), depth))


@rule("convolution")
def any_convolution(call: Call) -> Count:
    return (transposed_convolution if call.option("transposed", False) else convolution)(call)


@rule("matmul", "mm", "bmm", "mv", "dot", "vdot", "inner", "gemm")
def matrix_product(call: Call) -> Count:
    return _product(call, "data_in_0", "data_in_1")


@rule("addmm", "baddbmm", "addmv")
def matrix_product_and_sum(call: Call) -> Count:
    return _product(call, "data_in_1", "data_in_2") + plain(size(call.out))


def _product(call: Call, left: str, right: str) -> Count:
    """Rows times columns, of any rank: each result is a sum over the last dimension."""
    depth = call.required(left)[-1] if call.required(left) else 1
    return Count((Product(size(call.out) * depth, left, right, depth),))


@rule("addbmm")
def sum_of_matrix_products(call: Call) -> Count:
    batch, _, inner = call.required("data_in_1")
    macs = size(call.out) * batch * inner
    return Count((Product(macs, "data_in_1", "data_in_2", batch * inner),)) + plain(size(call.out))


@rule("tensordot")
def tensordot(call: Call) -> Count:
    """From f·c and g·c elements come f·g, so c follows without knowing the dimensions."""
    first, second = (size(shape) for shape in call.data)
    depth = math.isqrt(first * second // max(size(call.out), 1))
    return Count((Product(size(call.out) * depth, "data_in_0", "data_in_1", depth),))


@rule("multi_dot")
def matrix_chain(call: Call) -> Count:
    """Product in the cheapest order, as torch chooses it."""
    shapes = call.data
    first = (1, *shapes[0]) if len(shapes[0]) == 1 else shapes[0]
    last = (*shapes[-1], 1) if len(shapes[-1]) == 1 else shapes[-1]
    sides = [first[0], *(shape[0] for shape in shapes[1:]), last[1]]

    @cache
    def best(i: int, j: int) -> int:
        splits = (best(i, k) + best(k, j) + sides[i] * sides[k] * sides[j] for k in range(i + 1, j))
        return min(splits, default=0)

    return Count((Product(best(0, len(shapes)), None, None, max(sides[1:-1])),))


@rule("einsum")
def einsum(call: Call) -> Count:
    """Operands are contracted from left to right; indices of one operand are summed out first."""
    shapes = call.data
    terms, result = _letters(str(call.arguments["equation"]), shapes)
    sides: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, side in zip(term, shape, strict=True):
            sides[letter] = max(side, sides.get(letter, 1))
    total, left, left_name = Count(), terms[0], "data_in_0"
    for i, term in enumerate(terms):
        elsewhere = set(result).union(*terms[i + 1 :])
        others = elsewhere if i == 0 else elsewhere | set(left)
        kept = [letter for letter in dict.fromkeys(term) if letter in others]
        if len(kept) < len(set(term)):
            total += plain(size(shapes[i]))
        if i == 0:
            left = kept
            continue
        alone = [letter for letter in left if letter not in elsewhere | set(kept)]
        total += plain(size([sides[letter] for letter in left])) if alone else Count()
        both = list(dict.fromkeys([*(letter for letter in left if letter not in alone), *kept]))
        summed = [sides[letter] for letter in both if letter not in elsewhere]
        macs, name = size([sides[letter] for letter in both]), f"data_in_{i}"
        total += Count((Product(macs, left_name or None, name, size(summed)),))
        left, left_name = [letter for letter in both if letter in elsewhere], ""
    return total


def _letters(equation: str, shapes: Sequence[Shape]) -> tuple[list[list[str]], list[str]]:
    """The letters of each operand and of the result; an ellipsis becomes numbers."""
    operands, arrow, result = equation.replace(" ", "").partition("->")
    terms = operands.split(",")
    pairs = zip(terms, shapes, strict=True)
    hidden = [len(shape) - len(term.replace("...", "")) for term, shape in pairs]
    widest = max([n for n, term in zip(hidden, terms, strict=True) if "..." in term], default=0)

    def spelt(term: str, count: int) -> list[str]:
        left, dots, right = term.partition("...")
        numbers = [str(i) for i in range(widest - count, widest)] if dots else []
        return [*left, *numbers, *right]

    letters = [spelt(term, n) for term, n in zip(terms, hidden, strict=True)]
    if arrow:
        return letters, spelt(result, widest)
    once = sorted(c for c in set(operands) - {",", "."} if operands.count(c) == 1)
    return letters, [*(str(i) for i in range(widest)), *once]


@rule("scaled_dot_product_attention")
def attention(call: Call) -> Count:
    """Scores, softmax, and the weighted values; a causal mask saves nothing.

    Probabilities are as wide as queries: both are rounded to the format of `data_in`.
    """
    query, key, value = call.data[:3]
    rows = size(call.out) // value[-1]
    scores = rows * key[-2]
    products = (
        Product(scores * query[-1], "data_in_0", "data_in_1", query[-1]),
        Product(scores * value[-1], "data_in_0", "data_in_2", key[-2]),
    )
    masked = scores if len(call.data) > 3 or call.option("is_causal", False) else 0
    return Count(products, 6 * scores + masked, 5 * scores)  # scaling is one, the softmax five
