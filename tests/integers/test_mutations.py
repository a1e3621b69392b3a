"""Faults planted in the interpreter, one at a time, are all found by the check of the ops."""

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch

from chop import integers
from chop.integers import codes, rounding
from chop.integers.ops import requantize, weighted
from chop.methods.lutnet.ops import ResidualSigns

from .checking import BY_NAME, CASES, RULES, cached, mismatches

COUNT = 60


def after(change):
    """Change the result of a method."""
    return lambda original: lambda self, *x: change(original(self, *x))


def instead(function):
    return lambda original: function


def ties(other):
    """Round as another rule does, where it says `even`."""
    return lambda original: lambda x, s, rule: original(x, s, other if rule == "even" else rule)


def rule_as(now, then):
    return lambda original: lambda x, s, rule: original(x, s, then if rule == now else rule)


def down_on_ties(original):
    return lambda x, s, rule: (
        (x + (1 << (s - 1)) - 1) >> s if rule == "even" else original(x, s, rule)
    )


def towards_zero(original):
    def shift(x, s, rule):
        return x.sign() * (x.abs() >> s) if rule == "floor" else original(x, s, rule)

    return shift


def lost_carry(original):
    def sums(function, x, reach, weight_reach):
        if reach < rounding.DOUBLE:
            return original(function, x, reach, weight_reach)
        total = original(function, x, reach, weight_reach)
        return total & ~(1 << 30)  # a bit that the lower limb carries

    return sums


def dropped_sign(original):
    return lambda self, x: original(self, x.abs())


def short_word(key, by):
    """Saturate one code too early."""

    def change(original):
        def wrapped(self, whole):
            result = original(self, whole)
            end = getattr(self, key)
            return torch.where(result == end, end + by, result) if not self.wraps else result

        return wrapped

    return change


def wrap_as_unsigned(original):
    def wrapped(self, whole):
        return whole & ((1 << self.width) - 1) if self.wraps else original(self, whole)

    return wrapped


def wrap_as_saturate(original):
    return lambda self, whole: whole.clamp(self.low, self.high)


def symmetric_as_saturate(original):
    def wrapped(self, whole):
        lower = self.low - (self.overflow == "symmetric" and self.signed)
        return whole.clamp(lower, self.high) if not self.wraps else original(self, whole)

    return wrapped


def with_field(name, change):
    """Run an op as if one of its fields were another."""

    def wrap(original):
        def run(self, *x):
            before = getattr(self, name)
            object.__setattr__(self, name, change(before))
            try:
                return original(self, *x)
            finally:
                object.__setattr__(self, name, before)

        return run

    return wrap


def without_bias(original):
    def products(self, x, weight, bias=None):
        return original(self, x, weight, None if bias is None else -bias)

    return products


def flipped_weight(dim):
    return lambda original: (
        lambda self, x, weight, bias=None: original(self, x, weight.flip(dim), bias)
    )


def padding_is_first(original):
    """Read the first input where there is none."""

    def looked_up(self, x):
        places = self.reads.clamp(min=0)
        other = replace(self, reads=places)
        return original(other, x)

    return looked_up


MUTATIONS: dict[str, tuple[Any, str, Any]] = {
    "a tie goes up": (requantize, "rounded_shift", ties("up")),
    "a tie goes down": (requantize, "rounded_shift", down_on_ties),
    "a tie is cut off": (requantize, "rounded_shift", ties("floor")),
    "up becomes even": (requantize, "rounded_shift", rule_as("up", "even")),
    "floor goes towards zero": (requantize, "rounded_shift", towards_zero),
    "a quotient is cut off": (requantize, "rounded_division", ties("floor")),
    "a tie of a quotient goes up": (requantize, "rounded_division", ties("up")),
    "an input's tie goes up": (
        integers.QuantizeInput,
        "_rounded",
        instead(lambda self, x: (x + 0.5).floor()),
    ),
    "the highest code is one short": (codes.Word, "wrapped", short_word("high", -1)),
    "the lowest code is one short": (codes.Word, "wrapped", short_word("low", 1)),
    "symmetric has one code more": (codes.Word, "wrapped", symmetric_as_saturate),
    "wrapping loses the sign": (codes.Word, "wrapped", wrap_as_unsigned),
    "wrapping saturates": (codes.Word, "wrapped", wrap_as_saturate),
    "the sign of a bias": (integers.LinearCodes, "products", without_bias),
    "swapped outputs": (integers.LinearCodes, "run", after(lambda y: y.flip(-1))),
    "swapped inputs": (integers.LinearCodes, "products", flipped_weight(1)),
    "a shift of the products is lost": (
        integers.LinearCodes,
        "run",
        with_field("shift", lambda s: 0),
    ),
    "a flipped kernel": (integers.ConvCodes, "products", flipped_weight(-1)),
    "swapped channels of a convolution": (integers.ConvCodes, "run", after(lambda y: y.roll(1, 1))),
    "a lost carry between limbs": (weighted, "exact_sums", lost_carry),
    "the offset of a batch norm is lost": (
        integers.ChannelAffine,
        "run",
        instead(lambda self, x: x * self.multiplier.view(-1, 1, 1)),
    ),
    "relu keeps -1": (integers.ReluCodes, "run", instead(lambda self, x: x.clamp(min=-1))),
    "leaky relu loses a sign": (integers.LeakyReluCodes, "run", dropped_sign),
    "a clamp is one too high": (
        integers.ClampCodes,
        "run",
        with_field("high", lambda high: high + 1),
    ),
    "a table is read one too early": (
        integers.Lookup,
        "run",
        instead(lambda self, x: self.entries[(x - self.lowest - 1).clamp(min=0)]),
    ),
    "a finer grid is forgotten": (integers.Refine, "run", instead(lambda self, x: x)),
    "an addition loses its carries": (integers.AddCodes, "run", instead(lambda self, a, b: a ^ b)),
    "a difference is swapped": (integers.SubtractCodes, "run", instead(lambda self, a, b: b - a)),
    "a product loses its sign": (
        integers.MultiplyCodes,
        "run",
        instead(lambda self, a, b: a * b.abs()),
    ),
    "joined in the wrong order": (
        integers.ConcatCodes,
        "run",
        instead(lambda self, *x: torch.cat(x[::-1], self.dim)),
    ),
    "padding on the wrong side": (
        integers.PadCodes,
        "run",
        with_field("pads", lambda pads: pads[::-1]),
    ),
    "max pool takes the first": (integers.MaxPoolCodes, "run", dropped_sign),
    "avg pool loses a carry": (integers.AvgPoolCodes, "run", after(lambda y: y & ~4)),
    "permuted the other way": (
        integers.PermuteCodes,
        "run",
        instead(lambda self, x: x.transpose(1, 2).permute(self.dims)),
    ),
    "picks from the other end": (
        integers.PickCodes,
        "run",
        instead(lambda self, x: x.flatten(1).flip(1)[:, self.places]),
    ),
    "tables read their inputs from the other end": (
        integers.NeuronTables,
        "_looked_up",
        lambda original: lambda self, x: original(self, x.flip(1)),
    ),
    "tables of other neurons": (integers.NeuronTables, "run", after(lambda y: y.roll(1, 1))),
    "a table loses the sign of its results": (integers.NeuronTables, "run", after(torch.abs)),
    "padding is not the code 0": (integers.NeuronTables, "_looked_up", padding_is_first),
    "a threshold is reached too late": (
        ResidualSigns,
        "run",
        lambda original: lambda self, x: original(self, x - 1),
    ),
    "levels of signs are swapped": (ResidualSigns, "run", after(lambda y: y.flip(1))),
    "argmax takes the last of equals": (
        integers.ArgMaxCodes,
        "run",
        instead(lambda self, x: x.shape[1] - 1 - x.flip(1).argmax(1)),
    ),
}


@functools.cache
def prepared():
    """Every op with two rules of rounding and overflow, and those that depend on them with all."""
    chosen = [cached(case, "even", "saturate", COUNT) for case in CASES]
    chosen += [cached(BY_NAME["two linear"], *rule, COUNT) for rule in RULES]
    return [*chosen, *(cached(BY_NAME["avg pool of nine"], *rule, COUNT) for rule in RULES[:2])]


def first_caught():
    """The first network that the check finds wrong, or None; a crash counts as found."""
    for case in prepared():
        try:
            if mismatches(case):
                return case.name
        except (RuntimeError, IndexError):
            return case.name
    return None


@pytest.mark.slow
def test_there_are_at_least_twenty_and_the_interpreter_itself_passes():
    assert len(MUTATIONS) >= 20
    assert first_caught() is None


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_planted_fault_is_caught(mutation, monkeypatch):
    home, name, change = MUTATIONS[mutation]
    prepared()  # before the fault, so that bounds and expected values are right
    monkeypatch.setattr(home, name, change(getattr(home, name)))
    assert first_caught() is not None
