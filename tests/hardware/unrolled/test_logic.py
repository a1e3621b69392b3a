"""Traced logic: saturation, rounding, wide constants and tables, for every code."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chop.hardware.tools import ToolError
from chop.hardware.unrolled import layer_logic, layers_of, symbols
from chop.hardware.unrolled.checking import expected_codes, logic_codes
from chop.hardware.unrolled.ops.requantize import shifted
from chop.hardware.unrolled.registry import unrolls
from chop.integers import (
    ArgMaxCodes,
    ChannelAffine,
    ClampCodes,
    IntegerOp,
    LeakyReluCodes,
    LinearCodes,
    Lookup,
    MaxPoolCodes,
    MultiplyCodes,
    Refine,
    Requantize,
    ReshapeCodes,
    Scale,
    Word,
)

from .graphs import of_input, perceptron, word

pytestmark = pytest.mark.rtl
ROUNDINGS, OVERFLOWS = ("even", "up", "floor"), ("saturate", "symmetric", "wrap")
widths = st.integers(2, 8)
words = st.builds(
    word,
    widths,
    st.integers(-4, 6),
    rounding=st.sampled_from(ROUNDINGS),
    overflow=st.sampled_from(OVERFLOWS),
)


def every_code(graph):
    """All codes of an input of one element."""
    codes = graph.codes("x_codes")
    return torch.arange(codes.lowest, codes.highest + 1).view(-1, *[1] * len(codes.shape))


def wrong(graph, codes):
    """Return how many results of the only layer differ from those of the integer ops."""
    (layer,) = layers_of(graph)
    made = layer_logic(graph, layer)
    inputs = {"x_codes": codes.expand(len(codes), *graph.codes("x_codes").shape)}
    found = logic_codes(layer, made.logic, made.constants, inputs)
    return int((found != expected_codes(layer, inputs)).sum())


def after(graph, *ops):
    """Add ops one after the other; the last is the result."""
    last = "x_codes"
    for op in ops:
        last = graph.add("op", op, [last], "op")
    graph.outputs.append(last)
    return graph


@given(widths, words)
def test_requantisation_of_fixed_point(width, target):
    graph = after(of_input(width, (1,)), Requantize(target))
    assert wrong(graph, every_code(graph)) == 0


@given(widths, words, st.floats(0.01, 50), st.integers(-3, 3))
def test_requantisation_of_float_scales_and_zero_points(width, target, scale, point):
    low, high = target.low - point, target.high - point
    new = Word(low, high, Scale.of(scale), target.width, target.signed, zero_point=point)
    graph = after(of_input(width, (1,)), Requantize(new))
    assert wrong(graph, every_code(graph)) == 0


@given(widths, words, st.integers(1, 40), st.integers(-40, 40))
def test_requantisation_of_fractions(width, target, denominator, numerator):
    graph = after(of_input(width, (1,)), LeakyReluCodes(numerator, denominator), Requantize(target))
    assert wrong(graph, every_code(graph)) == 0


factors = st.integers(-(2**32), 2**32)


@settings(max_examples=min(40, settings().max_examples))  # of large adder graphs
@given(widths, factors, st.integers(-(2**40), 2**40), words)
def test_batch_norms_with_factors_of_32_bits(width, factor, offset, target):
    numbers = torch.tensor([factor]), torch.tensor([offset])
    affine = ChannelAffine(*numbers, Scale.power(-30))
    for ops in ([affine], [affine, Requantize(target)]):
        graph = after(of_input(width, (1,)), *ops)
        assert wrong(graph, every_code(graph)) == 0


@given(widths, st.integers(-300, 300), st.integers(0, 300))
def test_clamps_to_any_range(width, low, size):
    graph = after(of_input(width, (1,)), ClampCodes(low, low + size))
    assert wrong(graph, every_code(graph)) == 0


@given(st.data(), st.integers(2, 6), st.sampled_from([4, 12, 30]))
def test_tables_of_any_entries(data, width, bits):
    top = 2 ** (bits - 1)
    size = 2**width
    entries = data.draw(st.lists(st.integers(-top, top - 1), min_size=size, max_size=size))
    target = Word(-top, top - 1, Scale.power(0), bits, True)
    graph = after(of_input(width, (1,)), Lookup(torch.tensor(entries), -size // 2, target))
    assert wrong(graph, every_code(graph)) == 0


def test_weights_and_biases_of_many_bits():
    weight = torch.tensor([[2**33 + 12345, -(2**21) - 1], [0, 0], [3, 2**20]])
    bias = torch.tensor([2**41 + 7, -5, 2**30 + 1])
    graph = after(of_input(6, (2,)), LinearCodes(weight, bias, Scale.power(0), 36))
    codes = torch.cartesian_prod(torch.arange(-32, 32), torch.arange(-32, 32))
    assert wrong(graph, codes) == 0


def test_the_first_of_equal_codes_is_the_largest():
    graph = after(of_input(2, (5,)), ArgMaxCodes(1))
    codes = torch.cartesian_prod(*[torch.arange(-2, 2)] * 5)
    assert wrong(graph, codes) == 0


@pytest.mark.parametrize("op", [ArgMaxCodes(2), MaxPoolCodes((2,), (2,), (0,), (1,))])
@pytest.mark.parametrize("factors", [(2, 1), (1, 3)])
def test_the_larger_of_two_multiples_of_one_code(op, factors):
    """alkaid would take the highest bit of their difference, which has no sign, for a sign."""
    sums = LinearCodes(torch.tensor(factors).reshape(2, 1), None, Scale.power(0), 4)
    graph = after(of_input(4, (1,), signed=False), sums, ReshapeCodes((1, 2)), op)
    assert wrong(graph, torch.arange(16).reshape(-1, 1)) == 0


def test_a_square_and_a_finer_grid():
    graph = of_input(5, (1,))
    graph.add("square", MultiplyCodes(), ["x_codes", "x_codes"], "square")
    finer = Refine(torch.tensor([2**22 + 3]))
    graph.outputs.append(graph.add("finer", finer, ["square"], "finer"))
    assert wrong(graph, every_code(graph)) == 0


def test_equal_layers_are_traced_once_whatever_their_names():
    first, second = perceptron([4, 4, 3], ["a", "b"]), perceptron([4, 4, 3], ["c", "d"])
    ours, theirs = ([layer_logic(g, layer) for layer in layers_of(g)] for g in (first, second))
    assert all(a is b for a, b in zip(ours, theirs, strict=True))
    other = perceptron([4, 4, 3], seed=1)
    assert layer_logic(other, layers_of(other)[0]) is not ours[0]


@pytest.mark.parametrize("period", [1.5, 2.0, 5.0, 100.0])
def test_stages_are_as_short_as_the_clock_and_compute_the_same(period):
    graph = perceptron([8, 6, 4])
    layer = layers_of(graph)[0]
    made = layer_logic(graph, layer)
    assert made.schedule(period).longest <= period
    assert made.latency(period) >= made.delay / period
    codes = torch.randint(-16, 16, (100, 8))
    values = codes.double().numpy()
    for stage in made.stages(period):
        values = stage.predict(values)
    inputs = {"x_codes": codes}
    expected = logic_codes(layer, made.logic, {}, inputs)
    assert torch.equal(torch.from_numpy(values).long(), expected)


def test_a_layer_of_wires_takes_no_clock():
    graph = after(of_input(4, (2,)), Refine(torch.tensor(4)))
    made = layer_logic(graph, layers_of(graph)[0])
    assert made.latency(5.0) == made.register_bits(5.0) == 0
    assert made.cost == 0


def test_logic_that_differs_from_the_integer_op_is_refused(monkeypatch):
    graph = perceptron([3, 3], ["wrong"], seed=9)
    monkeypatch.setattr(LinearCodes, "run", lambda self, x: x.sum(1, keepdim=True).expand(-1, 3))
    with pytest.raises(ToolError, match=r"traced for wrong gives .* wrong results out of"):
        layer_logic(graph, layers_of(graph)[0])


def test_bounds_of_each_element_count():
    """An element that has fewer codes takes fewer bits."""
    weight = torch.tensor([[1, 0], [7, 7]])
    graph = after(of_input(4, (2,)), LinearCodes(weight, None, Scale.power(0), 4))
    logic = layer_logic(graph, layers_of(graph)[0]).logic
    assert logic.out_kifs.sum(0).tolist() == [4, 8]


def test_an_op_of_ones_own_needs_one_function():
    class AbsoluteCodes(IntegerOp):
        def run(self, *inputs):
            return inputs[0].abs()

        def result(self, *codes):
            (x,) = codes
            return x.within(0 * x.low, x.low.abs().maximum(x.high.abs()))

    @unrolls(AbsoluteCodes)
    def absolute(op, inputs, codes):
        return symbols.each(abs, inputs[0])

    graph = after(of_input(5, (1,)), AbsoluteCodes())
    assert wrong(graph, every_code(graph)) == 0
    with pytest.raises(ValueError, match=r"'AbsoluteCodes' registered twice: .*; keep one"):
        unrolls(AbsoluteCodes)(absolute)


@pytest.mark.parametrize("count", [1, 6, 7, 20])
def test_sums_of_single_signed_bits(count):
    draws = torch.Generator().manual_seed(count)
    weight = torch.randint(-7, 8, (3, count), generator=draws)
    op = LinearCodes(weight, None, Scale.power(0), 4)
    graph = after(of_input(1, (count,)), op)
    assert (graph.codes("x_codes").lowest, graph.codes("x_codes").highest) == (-1, 0)
    x = torch.randint(-1, 1, (500, count), generator=draws)
    assert wrong(graph, x) == 0


def test_sums_of_wider_inputs_of_which_one_bit_is_left():
    """Their codes are -4 and 0: the analysis of intervals and steps finds a single bit."""
    graph = of_input(3, (8,))
    sign = graph.add("sign", Requantize(word(1, -2, rounding="floor")), ["x_codes"], "sign")
    weight = torch.arange(-8, 16).reshape(3, 8)
    graph.add("sums", LinearCodes(weight, None, Scale.power(0), 5), [sign], "sums")
    graph.outputs.append("sums")
    layers = layers_of(graph)
    draws = torch.Generator().manual_seed(0)
    codes = {"x_codes": torch.randint(-4, 4, (500, 8), generator=draws)}
    for layer in layers:
        made = layer_logic(graph, layer)
        known = {name: codes[name] for name in layer.inputs}
        assert torch.equal(
            logic_codes(layer, made.logic, made.constants, known), expected_codes(layer, known)
        )
        if layer is layers[0] and len(layers) > 1:
            codes[sign] = expected_codes(layer, known).reshape(-1, 8)


def test_alkaid_still_reads_signs_as_addresses_of_tables():
    """The fault that `Solver.products` avoids; once this fails, the detour can go."""
    from alkaid.trace import FVArray

    signs = FVArray.from_kif(*(np.full(7, n) for n in (1, 0, 0)), hwconf=symbols.HARDWARE)
    with pytest.raises(AssertionError, match="does not cover all values"):
        signs @ np.ones((7, 1))


def test_alkaid_still_takes_a_bit_of_a_shifted_value_for_its_highest():
    """The fault that `symbols.wrapped` avoids; once this fails, the detour can go."""
    from alkaid.trace import FVArray, trace

    (x,) = symbols.flat(
        FVArray.from_kif(*(np.array([n]) for n in (0, 2, 0)), hwconf=symbols.HARDWARE)
    )
    even = (x * 0.5).quantize(0, 2, 0, "WRAP", "RND_CONV")  # 0, 0, 1, 2

    def lowest_bits(cut):
        logic = trace([x], [cut(even, 0, 1, 0)])
        return logic.predict(np.arange(4.0)[:, None]).ravel().tolist()

    assert lowest_bits(symbols.wrapped) == [0, 0, 1, 0]
    assert lowest_bits(lambda y, *kif: y.quantize(*kif, "WRAP", "TRN")) == [0, 0, 0, 1]


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5])
def test_codes_rounded_to_even_may_be_cut_and_clamped(shift, bits):
    from alkaid.trace import FVArray, trace

    for signed, gain in itertools.product((0, 1), (1, 2, 3)):
        kif = (np.array([n]) for n in (signed, bits, 0))
        (x,) = symbols.flat(FVArray.from_kif(*kif, hwconf=symbols.HARDWARE))
        even = shifted(x * float(gain), shift, "even")
        codes = np.arange(-(2**bits) * signed, 2.0**bits)
        rounded = np.round(codes * gain / 2**shift)
        results = {
            "cut to 1 bit": (symbols.cut(even, 1), rounded % 2),
            "cut to 2 bits": (symbols.cut(even, 2), rounded % 4),
            "clamped": (symbols.clamped(even, -2, 1), rounded.clip(-2, 1)),
            "negated": (symbols.cut(-even, 2), -rounded % 4),
        }
        for name, (symbol, expected) in results.items():
            found = trace([x], [symbol]).predict(codes[:, None]).ravel()
            assert found.tolist() == expected.tolist(), (name, signed, gain)


def test_alkaid_still_takes_the_highest_bit_of_a_difference_for_its_sign():
    """The fault that `symbols.largest` avoids; once this fails, the detour can go."""
    from alkaid.trace import FVArray, trace

    (x,) = symbols.flat(
        FVArray.from_kif(*(np.array([n]) for n in (0, 4, 0)), hwconf=symbols.HARDWARE)
    )
    codes = np.arange(16.0)
    for symbol, is_right in (((x * 2.0).max_of(x), False), (symbols.largest([x * 2.0, x]), True)):
        found = trace([x], [symbol]).predict(codes[:, None]).ravel()
        assert np.array_equal(found, 2 * codes) == is_right


def test_alkaid_still_holds_wide_bounds_as_single_floats():
    """The fault that `symbols.clamped` avoids; once this fails, the detour can go."""
    from alkaid.trace import FVArray, trace

    (x,) = symbols.flat(
        FVArray.from_kif(*(np.array([n]) for n in (0, 32, 0)), hwconf=symbols.HARDWARE)
    )
    bound = 2314820017
    codes = np.array([0.0, bound - 1, bound, bound + 1, 2.0**32 - 1])
    for symbol, is_right in ((x.min_of(bound), False), (symbols.clamped(x, 0, bound), True)):
        found = trace([x], [symbol]).predict(codes[:, None]).ravel()
        assert np.array_equal(found, codes.clip(0, bound)) == is_right
