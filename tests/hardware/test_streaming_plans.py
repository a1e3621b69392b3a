"""Plans of streaming circuits keep to their budget, and what cannot be built is named."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from chop.hardware.names import legal_name
from chop.hardware.streaming import COMPONENTS, Pointwise, Stream, component, streaming_circuit
from chop.hardware.streaming import emit as emit_module
from chop.hardware.streaming.component import Budget
from chop.hardware.streaming.folding import fold
from chop.hardware.streaming.plan import make_plan
from chop.hardware.streaming.stream import channels_last, in_lanes
from chop.integers import (
    AddCodes,
    ConcatCodes,
    ConstantCodes,
    LeakyReluCodes,
    PadCodes,
    PermuteCodes,
    ReluCodes,
    Requantize,
    ReshapeCodes,
    Scale,
)

from .streams import LeNet, Residual, ending, of_input, of_model, separable, word

SMALL = st.integers(1, 9)


@given(SMALL, st.integers(1, 3), SMALL, st.integers(1, 6), st.integers(1, 40), st.booleans())
def test_a_folded_sum_of_products_is_the_whole_one(rows, groups, beats, slots, most, plain):
    budget = Budget(most, plain=plain)
    folding = fold(rows, groups, beats, slots, 1, budget)
    draws = np.random.default_rng(rows * beats + slots)
    weight = draws.integers(-9, 9, (groups * rows, beats * slots))
    x = draws.integers(-9, 9, (groups, beats * slots))
    columns = np.broadcast_to(
        np.arange(beats * slots).reshape(1, beats, slots), (groups, beats, slots)
    )
    words = folding.weights(weight, columns)
    assert folding.multipliers <= most
    assert not (plain and rows % folding.lanes)
    loops = (
        groups,
        folding.passes,
        folding.words,
        folding.slices,
        folding.lanes,
        folding.multiplied,
    )
    read = np.zeros((groups, folding.words, folding.slices * folding.multiplied), np.int64)
    vector = np.zeros((groups, folding.words * folding.gather, slots), np.int64)
    vector[:, :beats] = x.reshape(groups, beats, slots)
    read[:, :, : folding.gather * slots] = vector.reshape(groups, folding.words, -1)
    slices = read.reshape(groups, 1, folding.words, folding.slices, 1, folding.multiplied)
    sums = (words.reshape(loops) * slices).sum((2, 3, 5)).reshape(groups, -1)[:, :rows]
    expected = np.einsum("gri,gi->gr", weight.reshape(groups, rows, -1), x)
    assert np.array_equal(sums, expected)


@pytest.fixture(scope="module")
def lenet():
    return of_model(LeNet(), (1, 28, 28))


@pytest.fixture(scope="module")
def residual():
    return of_model(Residual().eval(), (2, 8, 10))


@pytest.mark.parametrize("most", [1, 7, 64])
def test_no_layer_has_more_multipliers_than_allowed(residual, most):
    # a leaky relu or a requantisation has one or two per lane, and at least one lane
    costs = make_plan(residual, most).costs.values()
    assert max(cost.multipliers for cost in costs) <= max(most, 2)


def test_more_multipliers_make_a_circuit_quicker_until_the_image_is_the_limit(lenet):
    intervals = [make_plan(lenet, most).interval for most in (1, 4, 16, 64, 256)]
    assert intervals == sorted(intervals, reverse=True)
    assert intervals[0] == 5 * 5 * 4 * 8 * 10 * 10
    assert intervals[-1] == 32 * 32  # the padded image, one pixel per clock


def test_no_layer_has_more_multipliers_than_the_slowest_one_needs(lenet):
    costs = make_plan(lenet, 100).costs
    assert costs["conv2"].multipliers > costs["fc2"].multipliers == 1


@pytest.mark.parametrize("channels", [10, 16])
def test_depthwise_and_grouped_convolutions_are_built_at_every_parallelism(channels):
    graph = separable(channels)
    for most in (*range(1, 33), 64, 128, 256):
        plan = make_plan(graph, most)
        assert all(box.component.parameters() is not None for box in plan.boxes.values())
        assert plan.total.multipliers >= 1


def test_a_depthwise_convolution_of_an_input_with_empty_lanes_gets_full_ones():
    model = nn.Sequential(nn.Conv2d(6, 6, 1, groups=3), nn.ReLU(), nn.Conv2d(6, 6, 1, groups=2))
    graph = of_model(model.eval(), (6, 1, 1))
    for most in range(1, 9):
        assert streaming_circuit(graph, max_parallelism=most).interval >= 1


def test_the_same_network_gives_the_same_bytes(residual):
    one, other = (streaming_circuit(residual, max_parallelism=5) for _ in range(2))
    assert one == other
    assert one.digest == other.digest


def test_images_come_pixel_by_pixel_and_results_as_they_are(lenet):
    circuit = streaming_circuit(lenet, max_parallelism=16)
    (sent,), (got,) = circuit.inputs, circuit.outputs
    assert (sent.name, sent.value, sent.shape, sent.width) == (
        "data_in_0",
        "x_codes",
        (1, 28, 28),
        8,
    )
    assert (got.name, got.value, got.order) == ("data_out_0", "fc2", ())
    assert got.size % got.lanes == 0
    several = of_model(nn.Sequential(nn.Conv2d(3, 2, 3)), (3, 5, 5))
    assert streaming_circuit(several).inputs[0].order == (1, 2, 0)


def test_memories_have_the_names_and_the_codes_of_their_layers():
    model = nn.Sequential()
    model.add_module("fc1", nn.Linear(3, 2))
    graph = of_model(model, (3,))
    circuit = streaming_circuit(graph, max_parallelism=1)
    assert {"top.sv", "fixed_linear.sv", "fc1_weight_source.sv", "fc1_bias_rom.dat"} <= set(
        circuit.files
    )
    words = circuit.files["fc1_weight_rom.dat"].split()
    width = int(re.search(r"codes of (\d+) bits", circuit.files["fc1_weight_source.sv"])[1])
    codes = [int(word, 16) for word in words]
    signed = [code - (1 << width) * (code >> (width - 1)) for code in codes]
    assert signed == graph.nodes["fc1"].op.weight.flatten().tolist()
    for word_ in words:
        assert f"'h{word_};" in circuit.files["fc1_weight_source.sv"]


def test_names_that_are_keywords_or_clash_are_changed():
    graph = of_input(3)
    names = ["module", "out", "data_in_0", "clk", "x", "relu", "relu_out", "relu.out", "fixed_relu"]
    ending(graph, *(graph.add(name, ReluCodes(), ["x"], name) for name in names))
    text = streaming_circuit(graph).files["top.sv"]
    declared = re.findall(r"^    logic (?:\[\d+:0\] )?(\w+);", text, re.MULTILINE)
    declared += re.findall(r"^    \) (\w+) \($", text, re.MULTILINE)
    declared += re.findall(r"(\w+),?$", text.split(");")[0], re.MULTILINE)
    assert len({name.lower() for name in declared}) == len(declared)
    assert all(legal_name(name) == name for name in declared)


def test_everything_that_cannot_be_built_is_named_at_once():
    graph = of_input(2, 4, 4)
    first = graph.add("both", ConcatCodes(1), ["x", "x"], "both")
    second = graph.add("other", ConcatCodes(2), [first, first], "other")
    with pytest.raises(ValueError, match=r"'both' \(Concat\).*'other' \(Concat\).*'unrolled'"):
        streaming_circuit(ending(graph, second))
    deep = of_model(nn.Sequential(nn.Conv3d(1, 2, 2)), (1, 3, 3, 3))
    with pytest.raises(ValueError, match=r"'_0' .* three dimensions; at most two"):
        streaming_circuit(deep)


@pytest.mark.parametrize(
    ("options", "law"),
    [
        ({"max_parallelism": 0}, "max_parallelism must be at least 1, not 0"),
        ({"top": "module"}, "'module' is not a legal name of a module; use 'module_n'"),
        ({"top": "fixed_relu"}, "'fixed_relu' is the name of a component"),
    ],
)
def test_bad_options_are_one_sentence(options, law):
    graph = of_input(2)
    ending(graph, graph.add("relu", ReluCodes(), ["x"], "relu"))
    with pytest.raises(ValueError, match=re.escape(law)):
        streaming_circuit(graph, **options)


@pytest.mark.parametrize("ratio", [2.0**-20, 2.0**-34, 2.0**-50, 2.0**-90])
def test_scales_that_differ_too_much_are_refused_at_any_ratio(ratio):
    graph = of_input(2)
    far_apart = replace(word(6), scale=Scale.of(torch.tensor([0.3, 0.3 / ratio])))
    ending(graph, graph.add("far", Requantize(far_apart), ["x"], "far"))
    with pytest.raises(ValueError, match="has scales that differ too much between channels"):
        streaming_circuit(graph)


@pytest.mark.parametrize(("signed", "code"), [(False, -3), (False, 16), (True, 8), (True, -9)])
def test_padding_with_a_code_that_the_input_does_not_hold_is_refused(signed, code):
    graph = of_input(2, 5, width=4, frac=0, signed=signed)
    ending(graph, graph.add("pad", PadCodes((1, 1), code=code), ["x"], "pad"))
    with pytest.raises(ValueError, match=f"'pad' pads with the code {code}, which the 4"):
        streaming_circuit(graph)


def test_an_output_that_never_changes_is_refused():
    graph = of_input(2)
    graph.add("same", ConstantCodes(torch.ones(2, dtype=torch.int64), Scale.power(0)), [], "same")
    with pytest.raises(ValueError, match="the output 'same' is the same for every sample"):
        streaming_circuit(ending(graph, "x", "same"))


def test_a_constant_is_sent_in_the_order_of_each_reader():
    graph = of_input(3, 2)
    value = torch.arange(6).reshape(3, 2)
    same = graph.add("same", ConstantCodes(value, Scale.power(-4)), [], "same")
    one = graph.add("one", AddCodes(), ["x", same], "one")
    moved = graph.add("moved", PermuteCodes((0, 2, 1)), ["x"], "moved")
    turned = graph.add("turned", ConstantCodes(value.T, Scale.power(-4)), [], "turned")
    shape = graph.add("shape", ReshapeCodes((3, 2)), [moved], "shape")
    other = graph.add("other", AddCodes(), [shape, same], "other")
    third = graph.add("third", AddCodes(), [moved, turned], "third")
    files = streaming_circuit(ending(graph, one, other, third)).files
    words = [files[f"{name}_value_rom.dat"].split() for name in ("same", "same_1", "turned")]
    assert words == [[*"012345"], [*"031425"], [*"012345"]]


def test_weights_beyond_any_memory_are_refused(lenet, monkeypatch):
    monkeypatch.setattr(emit_module, "MAX_MEMORY_BITS", 1 << 13)
    with pytest.raises(ValueError, match=r"the weights need \d+ Mbit of memory"):
        streaming_circuit(lenet)


def test_a_branch_that_waits_has_a_queue():
    graph = of_model(Residual().eval(), (2, 8, 10))
    plan = make_plan(graph, 64)
    # x + wide(x + …): five rows of ten pixels with six channels, less what is there already
    (add,) = [n for n in plan.boxes if n == "add_1"]
    depth = max(plan.queues().get((add, index), 0) for index in (0, 1))
    assert depth * plan.streams["add_1"].lanes >= 4 * 10 * 6


@given(st.permutations([0, 1, 2]), st.integers(1, 3))
@settings(max_examples=20)
def test_a_port_tells_the_order_of_its_codes(order, lanes):
    graph = of_input(2, 3, 2)
    moved = torch.arange(12).reshape(2, 3, 2).permute(order).flatten().numpy()
    stream = Stream(graph.codes("x"), in_lanes(moved, lanes))
    port = stream.port("data_in_0", "x")
    codes = torch.arange(24).reshape(2, 2, 3, 2)
    beats = port.to_beats(codes)
    sent = [
        int(beats[1].flatten()[b]) >> (9 * i) & 511 for b in range(port.beats) for i in range(lanes)
    ]
    assert sent[:12] == (12 + torch.from_numpy(moved)).tolist()


def test_pixels_and_vectors_are_recognised():
    graph = of_input(2, 3, 2)
    codes = graph.codes("x")
    image = Stream(codes, in_lanes(channels_last((2, 3, 2)), 2))
    assert image.pixels(2).tolist() == [[0, 1]]
    assert image.vectors(2) is None
    rows = Stream(codes, in_lanes(np.arange(12), 1))
    assert rows.pixels(2) is None
    numbers, places = rows.vectors(2)
    assert numbers.tolist() == [0, 1, 2, 3, 4, 5]
    assert places.tolist() == [[0], [1]]


def test_a_component_of_a_user_takes_the_place_of_ours_only_if_asked():
    known = COMPONENTS[LeakyReluCodes]

    class Mine(Pointwise):
        module = "mine"
        template = "module mine #(parameter int LANES = 1) (input logic clk);\nendmodule\n"

    with pytest.raises(ValueError, match="registered twice"):
        component(LeakyReluCodes)(Mine)
    component(LeakyReluCodes, replace=True)(Mine)
    try:
        graph = of_input(2)
        ending(graph, graph.add("leaky", LeakyReluCodes(1, 8), ["x"], "leaky"))
        assert "mine.sv" in streaming_circuit(graph).files
    finally:
        component(LeakyReluCodes, replace=True)(known)


def test_two_texts_of_one_module_are_refused():
    known = COMPONENTS[LeakyReluCodes]
    clash = type("Clash", (Pointwise,), {"module": "fixed_relu", "template": "module fixed_relu;"})
    component(LeakyReluCodes, replace=True)(clash)
    try:
        graph = of_input(2)
        ending(graph, graph.add("relu", ReluCodes(), ["x"], "relu"))
        with pytest.raises(ValueError, match="two components define the module 'fixed_relu'"):
            streaming_circuit(graph)
    finally:
        component(LeakyReluCodes, replace=True)(known)


def test_a_stream_that_two_orders_meet_in_is_brought_into_one():
    graph = of_input(3, 2)
    moved = graph.add("moved", PermuteCodes((0, 2, 1)), ["x"], "moved")
    back = graph.add("back", PermuteCodes((0, 2, 1)), [moved], "back")
    graph.add("same", AddCodes(), ["x", back], "same")
    narrow = graph.add("narrow", Requantize(word(6, 2)), [moved], "narrow")
    plan = make_plan(ending(graph, "same", narrow), 4)
    assert "stream_reorder" not in {box.component.module for box in plan.boxes.values()}
    assert plan.streams["same"].lanes > 1
