"""A layer of learned functions on edges, which become truth tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from chop.ir.graph.tensor_rules import TensorRule
from chop.ir.graph.tracer import Leaf
from chop.methods.edge_tables.edge_autograd import sums_by_codes
from chop.methods.edge_tables.edge_codes import EdgeGrid, table_entries
from chop.methods.edge_tables.edge_costs import edge_cost
from chop.methods.edge_tables.edge_functions import EdgeFunction, FunctionName, edge_function
from chop.methods.edge_tables.edge_sums import EdgeNumbers, direct_sums
from chop.methods.edge_tables.frozen_edges import (
    MAX_BITS,
    FrozenEdgeTable,
    checked_input,
    in_given_shape,
)
from chop.numerics.learned import Cost, LearnsBits, whole

FEW_SAMPLES = 256  # up to which codes do not pay
MOMENTUM = 0.05
DEVIATIONS, TINY = 3.0, 1e-30  # of the values of an edge, which its integer bits hold
WIDTHS = ("in_integer_bits", "in_frac_bits", "out_integer_bits", "out_frac_bits")


class EdgeTable(Leaf, LearnsBits, nn.Module):
    """y_o = Σ_i T_io(x_i), with a learned function T of one number on every edge.

    An edge rounds its input down to its own learned integer and fraction bits, applies its
    function, normalises by the mean and the variance of all values of its output, divides by
    the root of the number of inputs, and rounds to learned bits again, saturating symmetrically.
    So it is a truth table; `tables` returns all of them, and `frozen` the layer that has only
    these. Edges of no bits are pruned.

    `bits_in` and `bits_out` are the integer and fraction bits to start with, without the sign; an
    input never has more than `max_bits_in` bits, its sign included. `hidden` is the number of
    hidden units of "mlp", and of intervals of "spline".
    """

    mase_op, own_rounding = FrozenEdgeTable.mase_op, FrozenEdgeTable.own_rounding

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        function: FunctionName = "mlp",
        hidden: int = 8,
        bits_in: Sequence[float] = (2.0, 3.0),
        bits_out: Sequence[float] = (1.0, 4.0),
        max_bits_in: int = 8,
    ) -> None:
        super().__init__()
        _check_sizes(n_in=n_in, n_out=n_out, hidden=hidden)
        _check_bits(bits_in, bits_out, max_bits_in)
        self.n_in, self.n_out, self.hidden = n_in, n_out, hidden
        self.function, self.max_bits_in = function, max_bits_in
        self.bits = (*map(float, bits_in), *map(float, bits_out))  # to start with, as `WIDTHS`
        made = edge_function(function)
        for name, tensor in zip(made.names, made.initial(n_in, n_out, hidden), strict=True):
            self.register_parameter(name, nn.Parameter(tensor))
        for name, bits in zip(WIDTHS, self.bits, strict=True):
            self.register_parameter(name, nn.Parameter(torch.full((n_in, n_out), bits)))
        self.gain, self.shift = nn.Parameter(torch.ones(n_out)), nn.Parameter(torch.zeros(n_out))
        self.register_buffer("running_mean", torch.zeros(n_out))
        self.register_buffer("running_var", torch.ones(n_out))

    in_integer_bits: nn.Parameter  # [n_in, n_out], as the other three
    in_frac_bits: nn.Parameter
    out_integer_bits: nn.Parameter
    out_frac_bits: nn.Parameter
    running_mean: Tensor
    running_var: Tensor

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new functions, with the bits and statistics to start with."""
        made = self._function
        sizes = (self.n_in, self.n_out, self.hidden)
        for name, tensor in zip(made.names, made.initial(*sizes), strict=True):
            getattr(self, name).copy_(tensor)
        for name, bits in zip(WIDTHS, self.bits, strict=True):
            getattr(self, name).fill_(bits)
        for ones, zeros in ((self.gain, self.shift), (self.running_var, self.running_mean)):
            ones.fill_(1.0)
            zeros.fill_(0.0)

    def tensor_rules(self) -> dict[str, TensorRule]:
        """Return what the tensors must be like, as the kernels find them by these sizes."""
        edges, outputs = (self.n_in, self.n_out), TensorRule((self.n_out,))
        per_output = dict.fromkeys(("gain", "shift", "running_mean", "running_var"), outputs)
        sizes = self._function.sizes(self.hidden)
        return {
            **dict.fromkeys(WIDTHS, TensorRule(edges)),
            **per_output,
            **{name: TensorRule((*edges, size)) for name, size in sizes.items()},
        }

    @property
    def is_new(self) -> bool:
        """Whether it has the statistics, gains and shifts of a layer that was never trained."""
        ones, zeros = (self.gain, self.running_var), (self.shift, self.running_mean)
        return all(bool((t == 1).all()) for t in ones) and not any(bool(t.any()) for t in zeros)

    @torch.no_grad()
    def start_at(self, mean: Tensor, spread: Tensor) -> bool:
        """Begin with sums of that mean and standard deviation, and the integer bits for them."""
        if not self.is_new or len(mean) != self.n_out:
            return False
        root = math.sqrt(self.n_in)
        self.gain.copy_(spread)
        self.shift.copy_(mean / root)
        largest = (self.shift.abs() + DEVIATIONS * self.gain.abs()) / root  # of one edge
        bits = largest.clamp(min=TINY).log2().ceil().to(self.out_integer_bits)
        self.out_integer_bits.copy_(torch.maximum(self.out_integer_bits, bits))
        return True

    @classmethod
    def from_tables(
        cls,
        tables: Sequence[Sequence[Any]],
        input_formats: Sequence[Sequence[Any]],
        output_formats: Any,
        bias: Any = None,
    ) -> FrozenEdgeTable:
        """Return the layer of given tables; see `FrozenEdgeTable.from_tables`."""
        return FrozenEdgeTable.from_tables(tables, input_formats, output_formats, bias)

    def forward(self, x: Tensor) -> Tensor:
        checked_input(x, self.n_in)
        rows = x.reshape(-1, self.n_in)
        if not self.training:
            y, _, _ = self._sums(rows.double(), self._numbers(torch.float64, known=True))
            return in_given_shape(y.to(x.dtype), x)
        if len(rows) * self.n_in < 2:
            raise ValueError("an EdgeTable needs at least two values per output to train on")
        y, mean, var = self._sums(rows, self._numbers(rows.dtype, known=False))
        self._track(mean, var)
        return in_given_shape(y, x)

    def _sums(self, rows: Tensor, numbers: EdgeNumbers) -> tuple[Tensor, Tensor, Tensor]:
        """Compute by codes where that pays: on a CPU, for many samples, outside a compiler."""
        plain = rows.device.type != "cpu" or torch.compiler.is_compiling()
        if plain or len(rows) <= FEW_SAMPLES:
            return direct_sums(rows, numbers, self._function)
        return sums_by_codes(rows, numbers, self._function)

    @property
    def _function(self) -> EdgeFunction:
        return edge_function(self.function)

    def _numbers(self, dtype: torch.dtype, *, known: bool) -> EdgeNumbers:
        """Return what the layer computes with; `known`: with the statistics of its training."""
        parameters = [getattr(self, name) for name in self._function.names]
        statistics = [self.running_mean, self.running_var] if known else [None, None]
        tensors = [*self._bits(), self.gain, self.shift, *statistics]
        return EdgeNumbers.of([None if t is None else t.to(dtype) for t in (*tensors, *parameters)])

    def _bits(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return integers of bits, with those of inputs within their bound."""
        i_in, f_in, i_out, f_out = (whole(getattr(self, name)) for name in WIDTHS)
        return i_in, torch.minimum(f_in, self.max_bits_in - 1 - i_in), i_out, f_out

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor) -> None:
        for kept, new in ((self.running_mean, mean), (self.running_var, var)):
            kept.copy_(kept + MOMENTUM * (new.to(kept.dtype) - kept))

    def width_parameters(self) -> dict[str, nn.Parameter]:
        return {name: getattr(self, name) for name in WIDTHS}

    def bit_cost(self, cost: Cost, *, exact: bool = False) -> Tensor:
        i_in, f_in, i_out, f_out = self._bits()
        total = edge_cost(i_in + f_in, i_out + f_out, cost, exact=exact)
        return total.detach() if exact else total

    def live_edges(self) -> Tensor:
        """[n_in, n_out]: which edges have bits, before and after their functions."""
        i_in, f_in, i_out, f_out = (bits.detach() for bits in self._bits())
        return (i_in + f_in > 0) & (i_out + f_out > 0)

    def dead_outputs(self) -> list[int]:
        """Return the outputs without a live edge, which are constant."""
        return [o for o, live in enumerate(self.live_edges().any(0).tolist()) if not live]

    def tables(self) -> list[list[Tensor | None]]:
        """Return the codes of the results of each edge, by input and output, or None if pruned.

        An entry belongs to the code of the input that is its place minus half the length.
        """
        return self.frozen().tables()

    @torch.no_grad()
    def frozen(self) -> FrozenEdgeTable:
        """Return the layer of the truth tables as they are now; it gives the same results."""
        numbers = self._numbers(torch.float64, known=True)
        _check_finite(self)
        batched = EdgeNumbers.of([None if t is None else t.unsqueeze(0) for t in numbers.tensors])
        live = self.live_edges()
        # each edge alone has a grid, even where all of an input together have none
        i_in, f_in, i_out, f_out = (bits.round() for bits in numbers[:4])
        size = int(2 ** int(torch.where(live, i_in + f_in, torch.zeros_like(f_in)).max() + 1))
        grid = EdgeGrid.of_edges(batched.in_integer, batched.in_frac, size)
        values = table_entries(grid, batched, self._function)[0]  # [codes, n_in, n_out]
        codes = torch.where(live, values * torch.exp2(f_out), torch.zeros_like(values))
        if int(codes.abs().max()) >= 2**31:
            raise ValueError(
                "a table has results of more than 32 bits; train with a price on bits, or lower "
                "out_frac_bits"
            )
        # an edge without input bits has one value, which is zero without output bits
        bias = torch.where(live, torch.zeros_like(f_out), values[0]).sum(0)
        widths = [
            torch.where(live, bits, torch.zeros_like(bits)).int()
            for bits in (i_in + f_in + 1, f_in, i_out + f_out + 1, f_out)
        ]
        entries = codes.permute(1, 2, 0).round().int().contiguous()
        made = FrozenEdgeTable(entries, *widths, bias=bias)
        return made.to(self.gain.device).train(self.training)

    def extra_repr(self) -> str:
        return f"{self.n_in}, {self.n_out}, function={self.function!r}, hidden={self.hidden}"

    @classmethod
    def like(cls, linear: nn.Linear, **options: Any) -> Self:
        """Return a layer with the sizes of a linear layer."""
        new = cls(linear.in_features, linear.out_features, **options)
        return new.to(linear.weight.device, linear.weight.dtype).train(linear.training)


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} is {size!r}; give an integer of at least 1")


def _check_bits(bits_in: Sequence[float], bits_out: Sequence[float], most: int) -> None:
    for name, pair in (("bits_in", bits_in), ("bits_out", bits_out)):
        if len(pair) != 2 or not all(abs(bits) < 100 for bits in pair):  # NaN included
            raise ValueError(f"{name} is {pair!r}; give integer bits and fraction bits")
    if not 2 <= most <= MAX_BITS:
        raise ValueError(
            f"max_bits_in is {most}; give from 2 to {MAX_BITS} bits, as a table of more inputs "
            f"is too large"
        )
    if round(bits_in[0]) + round(bits_in[1]) + 1 > most:
        raise ValueError(
            f"bits_in are {sum(bits_in) + 1:g} bits with the sign; at most {most} are allowed: use "
            f"fewer, or raise max_bits_in to at most {MAX_BITS}"
        )
    if round(bits_out[0]) + round(bits_out[1]) + 1 > 2 * MAX_BITS:
        raise ValueError(
            f"bits_out are {sum(bits_out) + 1:g} bits with the sign; use at most {2 * MAX_BITS}"
        )


def _check_finite(layer: EdgeTable) -> None:
    for name, tensor in layer.state_dict().items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} has NaN or infinite numbers; train the layer again")
