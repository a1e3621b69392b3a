"""Faults planted in the product, one at a time, are all found by the first random networks."""

import dataclasses
from dataclasses import replace

import pytest
import torch

from chop import integers
from chop.hardware.streaming.components.pool import PoolComponent
from chop.hardware.streaming.components.requantize import RequantizeComponent
from chop.hardware.streaming.memory import Memory
from chop.hardware.streaming.modules import module_text
from chop.hardware.unrolled import logic, symbols
from chop.hardware.unrolled.ops import moving as unrolled_moving
from chop.hardware.unrolled.ops import requantize as unrolled_requantize
from chop.integers import codes
from chop.integers.ops import requantize
from chop.onnx.integers.ops import requantize as onnx_requantize
from chop.onnx.integers.ops import weighted as onnx_weighted
from chop.passes.graph.interface.export_onnx import qdq
from chop.passes.graph.transforms.integers import weighted_rules

from .random_networks import tried

NETWORKS = 200  # of the seeds from 0, within which each fault is found
AT_ONCE = 10
SIMULATION, INTEGER, FILE, UNROLLED = (["simulation"], ["integer"], ["qcdq"], ["unrolled"])
STREAMING = list[str]()  # circuits of Verilator only


def after(change):
    """Change the result of a function."""
    return lambda original: lambda *x, **options: change(original(*x, **options))


def before(change):
    """Change the arguments of a function."""
    return lambda original: lambda *x: original(*change(*x))


def without(key, value):
    """Run an op as if one of its options had another value."""
    return before(lambda op, *x: (replace(op, **{key: value(getattr(op, key))}), *x))


def instead(text, other):
    """Replace a part of the text of a module."""

    def change(template):
        assert text in template
        return template.replace(text, other)

    return change


def rotated(words):
    return [*words[1:], words[0]]


def even_goes_up(x, shift, rule):
    return x, shift, "up" if rule == "even" else rule


def saturating(word, whole):
    return (replace(word, overflow="saturate"), whole)


def one_short(original):
    return lambda word, whole: original(word, whole) - (whole >= word.high) * (not word.wraps)


def no_zero_point(original):
    def of(grid, rank):
        word = original(grid, rank)
        return replace(word, low=word.low + word.zero_point, high=word.high + word.zero_point)

    return of


def shifted_fraction(original):
    def of(grid, rank=1):
        finer = grid.is_fixed_point and grid.width > 2
        half = (grid.scales[0] / 2,)
        return original(replace(grid, scales=half) if finer else grid, rank)

    return of


def bias_off_by_one(original):
    def made(*x):
        shift, bias = original(*x)
        return shift, bias if bias is None else bias + 1

    return made


def rolled(scale):
    return codes.Scale(*(p.roll(1, 0) if p.ndim else p for p in scale.parts))


def next_channel(original):
    def weight_codes(values, fmt):
        numbers, scale, width = original(values, fmt)
        return numbers, rolled(scale), width

    return weight_codes


def higher_bound(original):
    def shifted(grid, by):
        made = original(grid, by)
        return dataclasses.replace(made, high=made.high - 1, low=made.low + 1)

    return shifted


def bias_codes_plus_one(original):
    def coded(*x):
        found = original(*x)
        return found if found is None else dataclasses.replace(found, codes=found.codes + 1)

    return coded


FAULTS = {
    # integers
    "ties go up instead of to even codes": (
        SIMULATION, requantize, "rounded_shift", before(even_goes_up)),
    "a quotient's ties go up": (INTEGER, requantize, "rounded_division", before(even_goes_up)),
    "a zero point is dropped": (SIMULATION, codes.Word, "of", no_zero_point),
    "a fraction is off by one": (SIMULATION, codes.Word, "of", shifted_fraction),
    "wrapping saturates": (SIMULATION, codes.Word, "wrapped", before(saturating)),
    "the highest code is cut off": (SIMULATION, codes.Word, "wrapped", one_short),
    "a bias is off by one": (SIMULATION, weighted_rules, "_bias_codes", bias_off_by_one),
    "scales of the next channel": (SIMULATION, weighted_rules, "weight_codes", next_channel),
    "dilations are ignored": (
        SIMULATION, integers.ConvCodes, "products", without("dilation", lambda d: (1,) * len(d))),
    "ceil_mode is ignored": (
        SIMULATION, integers.MaxPoolCodes, "_pooled", without("ceil", lambda ceil: False)),
    "padding counts in a mean": (
        SIMULATION, integers.AvgPoolCodes, "counts", without("count_padding", lambda count: True)),
    "padding has another value": (
        SIMULATION, integers.PadCodes, "run", without("code", lambda code: code + 1)),
    "values are joined in another order": (
        SIMULATION, integers.ConcatCodes, "meaning",
        before(lambda op, b, *x: (op, b, *x[::-1]))),
    "a difference is turned round": (
        SIMULATION, integers.SubtractCodes, "meaning",
        before(lambda op, b, *x: (op, b, *x[::-1]))),
    "the last entry of a table": (
        SIMULATION, integers.Lookup, "run",
        without("entries", lambda entries: torch.cat([entries[:-1], entries[-1:] + 1]))),
    # files
    "integer: ties go up": (
        INTEGER, onnx_requantize, "quotient",
        before(lambda *x: (*x[:2], *even_goes_up(*x[2:])))),
    "integer: a limb of the weights is lost": (
        INTEGER, onnx_weighted, "_weight_limbs", after(lambda limbs: limbs[:1])),
    "qcdq: the lowest and the highest code are cut off": (
        FILE, qdq.Grid, "shifted", higher_bound),
    "qcdq: a bias is off by one": (FILE, qdq, "_coded_bias", bias_codes_plus_one),
    # circuits
    "unrolled: ties go up": (
        UNROLLED, unrolled_requantize, "ROUND_MODES", lambda modes: {**modes, "even": "RND"}),
    "unrolled: saturation is one bit late": (
        UNROLLED, symbols, "_clamped_above", before(lambda symbol, bits: (symbol, bits + 1))),
    "unrolled: padding of a pool is an element": (
        UNROLLED, unrolled_moving, "OUTSIDE", lambda outside: -2),
    "streaming: ties go up": (
        STREAMING, RequantizeComponent, "template", instead("+ WIDE'(x[RIGHT])", "+ WIDE'(1)")),
    "streaming: saturation wraps": (
        STREAMING, RequantizeComponent, "template", instead("if (WRAPS != 0)", "if (1)")),
    "streaming: weights of the next word": (
        STREAMING, Memory, "words", lambda words: property(after(rotated)(words.func))),
    "streaming: padding of a pool is zero": (
        STREAMING, PoolComponent, "template", instead("IN_WIDTH'(LEAST)", "IN_WIDTH'(0)")),
}  # fmt: skip


@pytest.mark.rtl
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, monkeypatch, tmp_path, package):
    for name in ("onnx", "onnxruntime", "alkaid", "verilator"):
        package(name)
    ways, home, name, change = FAULTS[fault]
    monkeypatch.setenv("MASE_CACHE", str(tmp_path))
    logic.forget_logic()
    original = module_text(home.module) if name == "template" else home.__dict__[name]
    bound = isinstance(original, classmethod)
    planted = change(getattr(home, name) if bound else original)
    monkeypatch.setattr(home, name, staticmethod(planted) if bound else planted)
    try:
        assert any(_found(first, ways) for first in range(0, NETWORKS, AT_ONCE))
    finally:
        logic.forget_logic()


def _found(first, ways):
    seeds = range(first, first + AT_ONCE)
    return bool(tried(seeds, ways=ways, streaming=0 if ways else AT_ONCE).findings)


def test_at_least_twenty_faults_are_planted():
    assert len(FAULTS) >= 20
