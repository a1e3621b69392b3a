"""What a layer of tables on edges consists of, and costs."""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch

from chop.hardware.estimate.coefficients import FORMULA as K
from chop.hardware.estimate.cost import Cost
from chop.hardware.estimate.formula import LUT_INPUTS, table_luts
from chop.hardware.estimate.ops import Result, Site, has_formula, span_of
from chop.integers import Codes
from chop.integers.codes import bits_for
from chop.methods.edge_tables.ops import EdgeTables


@has_formula(EdgeTables)
def edge_tables(site: Site) -> Result:
    """A table for each edge, and adders of their results; a register precedes them."""
    node, op, x = site.node, site.op, site.x
    result = span_of(node.codes, layer=node.source)
    rows = math.prod(node.codes.shape[:-1])
    held = float(x.size * x.bits if x.layer else 0)
    if not len(op.reads):
        return result._replace(ready=math.ceil(x.ready)), Cost(ff=held)
    facts = edge_facts(op, site.codes[0])
    delay = (K.chosen * facts.table_depth / 2 + K.addition * facts.depth) / site.period
    ready = math.ceil(x.ready) + delay
    adder_bits = rows * facts.adder_bits
    held += K.held * delay * adder_bits / max(1, facts.depth)
    lut = K.neuron * rows * facts.table_luts + K.adder * adder_bits
    return result._replace(ready=ready), Cost(0, adder_bits, lut, held)


class EdgeFacts(NamedTuple):
    """The LUTs of all tables, the bits of all adders, and how many follow each other."""

    table_luts: float
    adder_bits: int
    depth: int  # levels of adders
    table_depth: int  # levels of a table


def edge_facts(op: EdgeTables, x: Codes) -> EdgeFacts:
    """Return the facts of the tables and adders for inputs of this description."""
    reached = op.reached(x)
    bits = [max(1, int(n - 1).bit_length()) for n in reached.sum(1).tolist()]
    least, most = op.reached_entries(x)
    steps = torch.where(reached, op.tables - least[:, None], 0)
    tops = [bits_for(0, span) for span in (most - least).tolist()]
    places = list(zip((_zeros(row) for row in steps.tolist()), tops, strict=True))
    luts = sum(table_luts(m, top - low) for m, (low, top) in zip(bits, places, strict=True))
    terms: list[list[tuple[int, int]]] = [[] for _ in op.bias]
    for output, place in zip(op.writes.tolist(), places, strict=True):
        terms[output].append(place)
    # an output without edges is a constant, which nothing is added to
    biases = (b for b, row in zip(op.bias.tolist(), terms, strict=True) if b and row)
    of_bias = sum(bits_for(-abs(b), abs(b)) for b in biases)
    depth = math.ceil(math.log2(max(1, *(len(row) for row in terms))))
    table_depth = max(1, max(bits) - LUT_INPUTS)
    return EdgeFacts(luts, sum(map(_added, terms)) + of_bias, depth, table_depth)


def _zeros(numbers: Sequence[int]) -> int:
    """Return how many of the lowest bits all numbers have as zero."""
    used = reduce(operator.or_, numbers)
    return (used & -used).bit_length() - 1


def _added(places: Sequence[tuple[int, int]]) -> int:
    """Return the bits of adders that add the narrowest numbers first; a bit alone needs none."""
    row = [(high - low, low, high) for low, high in places]
    heapq.heapify(row)
    total = 0
    while len(row) > 1:
        (_, low, high), (_, other, top) = heapq.heappop(row), heapq.heappop(row)
        total += max(0, max(high, top) - max(low, other))
        low, high = min(low, other), max(high, top) + 1
        heapq.heappush(row, (high - low, low, high))
    return total
