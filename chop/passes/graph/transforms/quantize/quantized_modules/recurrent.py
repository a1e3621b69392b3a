"""Recurrent layers and cells, computed step by step: the hidden state is rounded at each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from chop.passes.graph.transforms.quantize.quantized_modules import base
from chop.passes.graph.transforms.quantize.quantized_modules.several_weights import SeveralWeights
from chop.registry import not_defined

State = tuple[Tensor, ...]  # the hidden state, and the cell state of an LSTM


class _StepWeights(NamedTuple):
    """The rounded parameters that every step multiplies the hidden state with."""

    hidden: Tensor
    bias: Tensor | None
    projection: Tensor | None = None


class _Recurrence(SeveralWeights):
    """What layers and cells share: one step. `x` is the input times its weight, with a bias."""

    def step(self, x: Tensor, state: State, weights: _StepWeights) -> State:
        """Return the next state."""
        raise not_defined(self, "step", "recurrent layer")

    def rounded(self, name: str) -> Any:
        """Return a parameter in its format; None without biases."""
        return self.q_parameter(name) if name in self._parameters else None


class _Tanh(_Recurrence):
    """A step of an RNN, of tanh or relu."""

    nonlinearity: str

    def step(self, x: Tensor, state: State, weights: _StepWeights) -> State:
        total = x + F.linear(self.q("data_in", state[0]), weights.hidden, weights.bias)
        return (torch.relu(total) if self.nonlinearity == "relu" else torch.tanh(total),)


class _LSTM(_Recurrence):
    def step(self, x: Tensor, state: State, weights: _StepWeights) -> State:
        hidden, cell = state
        gates = x + F.linear(self.q("data_in", hidden), weights.hidden, weights.bias)
        taken, kept, new, shown = gates.chunk(4, -1)
        cell = torch.sigmoid(kept) * cell + torch.sigmoid(taken) * torch.tanh(new)
        hidden = torch.sigmoid(shown) * torch.tanh(cell)
        if weights.projection is not None:
            hidden = F.linear(self.q("data_in", hidden), weights.projection)
        return hidden, cell


class _GRU(_Recurrence):
    def step(self, x: Tensor, state: State, weights: _StepWeights) -> State:
        hidden = self.q("data_in", state[0])
        x_reset, x_kept, x_new = x.chunk(3, -1)
        h_reset, h_kept, h_new = F.linear(hidden, weights.hidden, weights.bias).chunk(3, -1)
        new = torch.tanh(x_new + torch.sigmoid(x_reset + h_reset) * h_new)
        return (new + torch.sigmoid(x_kept + h_kept) * (hidden - new),)


class _QuantRecurrentLayer(_Recurrence):
    """Layers and directions of steps over sequences, padded or packed."""

    num_layers: int
    bidirectional: bool
    batch_first: bool
    dropout: float
    hidden_size: int
    proj_size: int

    @classmethod
    def from_float(cls, layer: nn.Module, config: Any) -> Self:
        new: Any = super().from_float(layer, config)
        new._init_flat_weights()  # torch's list of parameters, which the two would share
        return new  # type: ignore[no-any-return]

    def forward(self, input: Any, hx: Any = None) -> Any:
        layer: Any = self
        if not self.formats:
            return layer.float_class.forward(self, input, hx)
        if isinstance(input, PackedSequence):
            data, sizes, order, back = input
            state = self._initial(data, int(sizes[0]), layer.permute_hidden, hx, order)
            layer.check_forward_args(data, self._as_given(state), sizes)
            out, last = self._run(data, state, sizes.tolist())
            packed = PackedSequence(self.q("data_out", out), sizes, order, back)
            return packed, layer.permute_hidden(self._as_given(last), back)
        if input.dim() not in (2, 3):
            raise ValueError(f"the input has 2 or 3 dimensions, not {input.dim()}; give it those")
        batched, batch_dim = input.dim() == 3, 0 if self.batch_first else 1
        if not batched:
            input = input.unsqueeze(batch_dim)
            hx = None if hx is None else tuple(h.unsqueeze(1) for h in _as_state(hx))
        state = self._initial(input, input.size(batch_dim), layer.permute_hidden, hx, None)
        layer.check_forward_args(input, self._as_given(state), None)
        time_first = input.transpose(0, 1) if self.batch_first else input
        out, last = self._run(time_first, state, None)
        out = self.q("data_out", out.transpose(0, 1) if self.batch_first else out)
        if batched:
            return out, self._as_given(last)
        return out.squeeze(batch_dim), self._as_given(tuple(h.squeeze(1) for h in last))

    def _initial(self, x: Tensor, batch: int, permute: Any, hx: Any, order: Any) -> State:
        """Return the state before the first step: that given, in the batch's order, or zeros."""
        if hx is not None:
            return _as_state(permute(self._as_given(_as_state(hx)), order))
        rows = self.num_layers * (2 if self.bidirectional else 1)
        widths = (self.proj_size or self.hidden_size, self.hidden_size)
        count = 2 if isinstance(self, nn.LSTM) else 1
        return tuple(x.new_zeros(rows, batch, width) for width in widths[:count])

    def _as_given(self, state: State) -> Any:
        """Return a state as torch's layer takes and returns it: a tuple for an LSTM only."""
        return state if isinstance(self, nn.LSTM) else state[0]

    def _run(self, x: Tensor, initial: State, sizes: Sequence[int] | None) -> tuple[Tensor, State]:
        """Return the output of the last layer and the states after the last step.

        `x` has the steps first; with `sizes`, it holds the rows of all steps, one after another.
        """
        directions = 2 if self.bidirectional else 1
        ends: list[State] = []
        for depth in range(self.num_layers):
            x = self._rounded_input(x, packed=sizes is not None)
            outputs = []
            for direction in range(directions):
                start = tuple(state[len(ends)] for state in initial)
                suffix = f"_l{depth}{'_reverse' if direction else ''}"
                out, end = self._run_direction(x, start, sizes, suffix, backwards=direction == 1)
                outputs.append(out)
                ends.append(end)
            x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
            if depth < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x, tuple(torch.stack(states) for states in zip(*ends, strict=True))

    def _rounded_input(self, x: Tensor, packed: bool) -> Tensor:
        """Round with samples first, so that blocks of a format never span them."""
        if packed:
            return self.q("data_in", x)  # type: ignore[no-any-return]
        return self.q("data_in", x.transpose(0, 1)).transpose(0, 1)  # type: ignore[no-any-return]

    def _run_direction(
        self, x: Tensor, start: State, sizes: Sequence[int] | None, suffix: str, backwards: bool
    ) -> tuple[Tensor, State]:
        """Return the outputs of all steps of one layer in one direction, and its last state."""
        x = F.linear(x, self.rounded(f"weight_ih{suffix}"), self.rounded(f"bias_ih{suffix}"))
        weights = _StepWeights(
            *(self.rounded(f"{name}{suffix}") for name in ("weight_hh", "bias_hh", "weight_hr"))
        )
        steps = list(x.unbind(0) if sizes is None else torch.split(x, list(sizes)))
        if not steps:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        outputs, finished = [], []
        state = tuple(s[: len(steps[-1])] for s in start) if backwards else start
        for x_step in reversed(steps) if backwards else steps:
            rows, running = len(x_step), len(state[0])
            if rows < running:  # sequences that end before this step
                finished.append(tuple(s[rows:] for s in state))
                state = tuple(s[:rows] for s in state)
            elif rows > running:  # sequences that begin here in a run backwards
                pairs = zip(state, start, strict=True)
                state = tuple(torch.cat([s, first[running:rows]]) for s, first in pairs)
            state = self.step(x_step, state, weights)
            outputs.append(state[0])
        columns = zip(state, *reversed(finished), strict=True)
        outputs = outputs[::-1] if backwards else outputs
        out = torch.stack(outputs) if sizes is None else torch.cat(outputs)
        return out, tuple(torch.cat(parts) if len(parts) > 1 else parts[0] for parts in columns)


class _QuantCell(_Recurrence):
    """A single step."""

    hidden_size: int

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        if not self.formats:
            return self.float_class.forward(self, input, hx)
        if input.dim() not in (1, 2):
            raise ValueError(f"the input has 1 or 2 dimensions, not {input.dim()}; give it those")
        rows = input.unsqueeze(0) if input.dim() == 1 else input
        lstm = isinstance(self, nn.LSTMCell)
        if hx is None:
            state: State = (rows.new_zeros(len(rows), self.hidden_size),) * (2 if lstm else 1)
        else:
            state = tuple(h.unsqueeze(0) if h.dim() == 1 else h for h in _as_state(hx))
        weight, bias = self.rounded("weight_ih"), self.rounded("bias_ih")
        x = F.linear(self.q("data_in", rows), weight, bias)
        weights = _StepWeights(self.rounded("weight_hh"), self.rounded("bias_hh"))
        hidden, *cell = self.step(x, state, weights)
        new = (self.q("data_out", hidden), *cell)
        if input.dim() == 1:
            new = tuple(s.squeeze(0) for s in new)
        return new if lstm else new[0]


def _as_state(hx: Any) -> State:
    return (hx,) if isinstance(hx, Tensor) else tuple(hx)


class QuantRNN(_QuantRecurrentLayer, _Tanh, nn.RNN): ...


class QuantLSTM(_QuantRecurrentLayer, _LSTM, nn.LSTM): ...


class QuantGRU(_QuantRecurrentLayer, _GRU, nn.GRU): ...


class QuantRNNCell(_QuantCell, _Tanh, nn.RNNCell): ...


class QuantLSTMCell(_QuantCell, _LSTM, nn.LSTMCell): ...


class QuantGRUCell(_QuantCell, _GRU, nn.GRUCell): ...


LAYERS = base.layers_in(globals())
__getattr__ = base.variants(*LAYERS)
