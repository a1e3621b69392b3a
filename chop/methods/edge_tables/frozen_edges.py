"""A layer of truth tables on edges, without anything that is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from chop.ir.graph.tensor_rules import TensorRule
from chop.ir.graph.tracer import Leaf
from chop.methods.edge_tables.edge_costs import edge_cost
from chop.numerics.grid import Overflow, Rounding
from chop.numerics.integer import Integer
from chop.numerics.learned import Cost

MAX_BITS = 12  # of the input of a table
MAX_RESULT_BITS = 31
MAX_BIAS_BITS = 48  # fraction bits of a bias
AT_A_TIME = 2**22  # results of edges that are computed at a time


class FrozenEdgeTable(Leaf, nn.Module):
    """y_o = bias_o + Σ_i T_io(x_i), with a truth table T on every edge.

    An edge rounds its input to a code of its own format, and takes the entry at this code, counted
    from the lowest code of the format; entries are codes as well. Edges whose input has no
    bits are pruned. All sums are exact.
    """

    mase_op, own_rounding = "edge_table", "tables on edges"

    def __init__(
        self,
        entries: Tensor,
        in_width: Tensor,
        in_frac: Tensor,
        out_width: Tensor,
        out_frac: Tensor,
        *,
        bias: Tensor | None = None,
        signed: bool = True,
        rounding: Rounding = "floor",
        overflow: Overflow = "saturate",
    ) -> None:
        """Create the layer of `entries` [n_in, n_out, codes] and widths [n_in, n_out]."""
        super().__init__()
        self.n_in, self.n_out = in_width.shape
        self.signed, self.rounding, self.overflow = signed, rounding, overflow
        self.register_buffer("entries", entries.int())
        for name, bits in (("in_width", in_width), ("in_frac", in_frac)):
            self.register_buffer(name, bits.int())
        for name, bits in (("out_width", out_width), ("out_frac", out_frac)):
            self.register_buffer(name, bits.int())
        codes, self.bias_frac = _bias_codes(bias, self.n_out)
        self.register_buffer("bias_codes", codes)

    entries: Tensor
    in_width: Tensor
    in_frac: Tensor
    out_width: Tensor
    out_frac: Tensor
    bias_codes: Tensor

    def tensor_rules(self) -> dict[str, TensorRule]:
        """Return what the tensors must be like, as results are looked up by these numbers."""
        edges = (self.n_in, self.n_out)
        codes = self.entries.shape[-1].bit_length() - 1 if self.entries.dim() else 0
        rules = dict.fromkeys(("in_frac", "out_width", "out_frac"), TensorRule(edges, "whole"))
        rules["entries"] = TensorRule((*edges, None), "whole")
        rules["bias_codes"] = TensorRule((self.n_out,), "whole")
        return {**rules, "in_width": TensorRule(edges, "whole", 0, codes)}

    @classmethod
    def from_tables(
        cls,
        tables: Sequence[Sequence[Any]],
        input_formats: Any,
        output_formats: Any,
        bias: Any = None,
    ) -> FrozenEdgeTable:
        """Return the layer of tables that are given as arrays, by input and then by output.

        A table has an entry for every code of its input, from the lowest, and its entries are
        codes of its output; None stands for a pruned edge. Formats are `Integer`, one for all
        edges or as the tables are; those of inputs have the same signs, rounding and overflow.
        `bias` has a number per output.
        """
        n_in, n_out = len(tables), len(tables[0]) if len(tables) else 0
        if not n_out or any(len(row) != n_out for row in tables):
            raise ValueError("the tables are not a matrix of inputs and outputs; give equal rows")
        formats = [
            _matrix(f, n_in, n_out, w)
            for f, w in ((input_formats, "input"), (output_formats, "output"))
        ]
        places = [(i, o) for i in range(n_in) for o in range(n_out) if tables[i][o] is not None]
        rule = _common_rule([formats[0][i][o] for i, o in places])
        widths = torch.zeros(4, n_in, n_out, dtype=torch.int32)
        size = max((2 ** formats[0][i][o].width for i, o in places), default=1)
        entries = torch.zeros(n_in, n_out, size, dtype=torch.int32)
        for i, o in places:
            source, target = formats[0][i][o], formats[1][i][o]
            table = _checked_table(tables[i][o], source, target, f"edge {i} to {o}")
            entries[i, o, : len(table)] = table
            bits = (source.width, source.frac_width, target.width, target.frac_width)
            widths[:, i, o] = torch.tensor(bits)
        bias = None if bias is None else torch.as_tensor(bias, dtype=torch.float64)
        return cls(entries, *widths, bias=bias, **rule).eval()

    def forward(self, x: Tensor) -> Tensor:
        checked_input(x, self.n_in)
        rows = x.reshape(-1, self.n_in)
        parts = torch.split(rows, max(1, AT_A_TIME // self.in_width.numel()))
        y = torch.cat([self._sums(part) for part in parts])
        y = torch.where(rows.isnan().any(-1, keepdim=True), torch.nan, y.to(x.dtype))
        return in_given_shape(y, x)

    def _sums(self, x: Tensor) -> Tensor:
        index = self.indices(x)
        flat = torch.arange(self.in_width.numel(), device=x.device).view_as(self.in_width)
        found = self.entries.flatten()[flat * self.entries.shape[2] + index].long()
        most = self.result_frac()
        sums = (found << (most - self.out_frac).long()).sum(1)
        sums = sums + (self.bias_codes << (most - self.bias_frac))
        return sums.double() * 2.0**-most

    def indices(self, x: Tensor) -> Tensor:
        """[batch, n_in, n_out]: the place in its table that each edge reads."""
        steps = torch.nan_to_num(x).double().unsqueeze(-1) * torch.exp2(self.in_frac.double())
        if self.rounding == "even":
            codes = steps.round()
        else:
            codes = torch.floor(steps + 0.5 if self.rounding == "up" else steps)
        size = torch.exp2(self.in_width.double())
        first = -size / 2 if self.signed else torch.zeros_like(size)
        if self.overflow == "wrap":
            place = torch.remainder(codes - first, size)
        else:
            low = 1.0 if self.overflow == "symmetric" and self.signed else 0.0
            place = torch.minimum((codes - first).clamp(min=low), size - 1)
        return torch.where(self.in_width > 0, place, torch.zeros_like(place)).long()

    def result_frac(self) -> int:
        """Return the fraction bits of the sums."""
        live = self.out_frac[self.in_width > 0]
        return max(self.bias_frac, int(live.max()) if len(live) else 0)

    def frozen(self) -> Self:
        """Return the layer itself, as `EdgeTable.frozen` returns its tables."""
        return self

    def tables(self) -> list[list[Tensor | None]]:
        """Return the entries of each edge, by input and output, or None if it is pruned."""
        widths = self.in_width.tolist()
        return [
            [self.entries[i, o, : 2**w].clone() if w else None for o, w in enumerate(row)]
            for i, row in enumerate(widths)
        ]

    def bit_cost(self, cost: Cost, *, exact: bool = True) -> Tensor:
        """Return what the layer costs for one sample, as `EdgeTable.bit_cost` counts."""
        widths = (self.in_width.float() - 1, self.out_width.float() - 1)
        return edge_cost(*widths, cost, exact=exact)

    def dead_outputs(self) -> list[int]:
        """Return the outputs without an edge, which are constant."""
        return [o for o, live in enumerate((self.in_width > 0).any(0).tolist()) if not live]

    def extra_repr(self) -> str:
        return f"{self.n_in}, {self.n_out}, edges={int((self.in_width > 0).sum())}"


def checked_input(x: Tensor, n_in: int) -> None:
    """Refuse an input of another shape."""
    if not x.ndim or x.shape[-1] != n_in:
        raise ValueError(f"the layer takes {n_in} inputs in the last dimension, not {[*x.shape]}")


def in_given_shape(y: Tensor, x: Tensor) -> Tensor:
    """Return results [batch, outputs] in the shape of the input."""
    return y.view(*x.shape[:-1], y.shape[-1])


def _matrix(formats: Any, n_in: int, n_out: int, what: str) -> Sequence[Sequence[Any]]:
    """Return a format for each edge."""
    if isinstance(formats, Integer):
        return [[formats] * n_out for _ in range(n_in)]
    if len(formats) != n_in or any(len(row) != n_out for row in formats):
        raise ValueError(
            f"the {what} formats are not {n_in} by {n_out} as the tables; give one each"
        )
    return list(formats)


def _common_rule(formats: Sequence[Integer]) -> dict[str, Any]:
    """Return the sign, the rounding and the overflow of all inputs."""
    rules = {(f.signed, f.rounding, f.overflow) for f in formats}
    if len(rules) > 1:
        raise ValueError("the inputs differ in sign, rounding or overflow; give all edges the same")
    values: Iterator[Any] = iter(rules.pop() if rules else (True, "floor", "saturate"))
    return dict(zip(("signed", "rounding", "overflow"), values, strict=True))


def _checked_table(table: Any, source: Integer, target: Integer, where: str) -> Tensor:
    """Return a table as codes, if it fits its formats."""
    if source.width > MAX_BITS:
        raise ValueError(
            f"{where}: its input has {source.width} bits; a table has at most {MAX_BITS}, so "
            f"round its input to fewer"
        )
    if target.width > MAX_RESULT_BITS:
        raise ValueError(
            f"{where}: its output has {target.width} bits; use at most {MAX_RESULT_BITS}"
        )
    numbers = torch.as_tensor(table, dtype=torch.float64).flatten()
    if len(numbers) != 2**source.width:
        raise ValueError(
            f"{where}: its table has {len(numbers)} entries; an input of {source.width} bits needs "
            f"{2**source.width}"
        )
    if not bool((numbers == numbers.round()).all()):  # NaN included
        raise ValueError(f"{where}: its table has NaN or fractions; give codes of the output")
    low, high = target.codes
    if not bool(((numbers >= low) & (numbers <= high)).all()):
        raise ValueError(f"{where}: its table has codes beyond {low} … {high}; use a wider format")
    return numbers.int()


def _bias_codes(bias: Tensor | None, n_out: int) -> tuple[Tensor, int]:
    """Return a bias as integers and their fraction bits."""
    if bias is None:
        return torch.zeros(n_out, dtype=torch.int64), 0
    numbers = bias.detach().double().cpu()
    if numbers.shape != (n_out,):
        raise ValueError(f"the bias has the shape {[*numbers.shape]}; give {n_out} numbers")
    for frac in range(MAX_BIAS_BITS + 1):
        codes = numbers * 2.0**frac
        if bool((codes == codes.round()).all()):
            return codes.long(), frac
    raise ValueError(
        f"the bias has NaN or numbers of more than {MAX_BIAS_BITS} fraction bits; round it"
    )
