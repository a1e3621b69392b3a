"""Tables on edges in integers: equal to the layer, bit for bit."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from chop.integers import Codes, Scale
from chop.ir import MaseGraph
from chop.methods.edge_tables import EdgeTable
from chop.methods.edge_tables.ops import EdgeRounding, EdgeTables
from chop.numerics.integer import Integer
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    load_mase_graph_interface_pass,
    save_mase_graph_interface_pass,
    verify_integers_analysis_pass,
)


def graph_of(model, shape):
    graph = MaseGraph(model.eval())
    init_metadata_analysis_pass(graph)
    (name,) = (str(node.target) for node in graph.nodes if node.op == "placeholder")
    add_common_metadata_analysis_pass(graph, {"dummy_in": {name: torch.randn(4, *shape)}})
    return graph


def network(*sizes, function="mlp", seed=0):
    """A network of tables with edges of many widths, after a few batches."""
    torch.manual_seed(seed)
    layers = [EdgeTable(a, b, function=function) for a, b in itertools.pairwise(sizes)]
    model = nn.Sequential(*layers)
    for layer in layers:
        for bits in layer.width_parameters().values():
            bits.data += 3 * torch.rand(bits.shape) - 2.6
    for _ in range(3):
        model(torch.randn(400, sizes[0]))
    return model.eval()


def given_tables(widths, fracs, outs, *, seed=0, **rule):
    """A layer of random tables in formats by input and output; no bits: pruned."""
    source = torch.Generator().manual_seed(seed)
    tables, formats, results = [], [], []
    for row in zip(widths, fracs, outs, strict=True):
        edges = list(zip(*row, strict=True))
        drawn = [
            torch.randint(-8, 8, (2**w,), generator=source) if w else None for w, _, _ in edges
        ]
        tables.append(drawn)
        formats.append([Integer(w, f, **rule) if w else None for w, f, _ in edges])
        results.append([Integer(4, f) if w else None for w, _, f in edges])
    bias = torch.arange(len(widths[0])) * 0.25 - 0.5
    return EdgeTable.from_tables(tables, formats, results, bias)


@pytest.mark.parametrize("function", ["mlp", "spline"])
def test_a_network_of_learned_tables_is_proven_and_equal_on_ten_thousand_vectors(function):
    model = network(6, 8, 3, function=function)
    graph = graph_of(model, (6,))
    info = verify_integers_analysis_pass(graph, num_samples=256, silent=True)[1]
    assert (info["mismatches"], info["output_mismatches"], info["observed"]) == (0, 0, 0)
    x = 3 * torch.randn(10_000, 6)
    with torch.no_grad():
        assert torch.equal(graph.to_integers()(x), model(x))


def test_the_frozen_network_has_the_same_integer_graph():
    model = network(4, 5, 2)
    frozen = nn.Sequential(*(layer.frozen() for layer in model))
    one, other = (graph_of(m, (4,)).to_integers() for m in (model, frozen))
    assert one.report() == other.report()
    x = 3 * torch.randn(1000, 4)
    assert torch.equal(one.run(x), other.run(x))


BITS = st.integers(0, 4)


@given(
    st.lists(BITS, min_size=6, max_size=6),
    st.lists(st.integers(-2, 4), min_size=6, max_size=6),
    st.lists(st.integers(-2, 3), min_size=6, max_size=6),
    st.sampled_from(["floor", "up"]),
    st.sampled_from(["saturate", "symmetric", "wrap"]),
    st.booleans(),
)
def test_any_tables_equal_the_layer(widths, fracs, outs, rounding, overflow, signed):
    if overflow == "symmetric" and signed:
        widths = [0 if width == 1 else width for width in widths]
    rows = [[part[i : i + 2] for i in (0, 2, 4)] for part in (widths, fracs, outs)]
    rule = {"rounding": rounding, "overflow": overflow, "signed": signed}
    first = given_tables(*rows, **rule)
    second = given_tables([[3, 2], [2, 4]], [[1, 0], [-1, 2]], [[0, 1], [1, 0]], **rule)
    model = nn.Sequential(first, second).eval()
    x = torch.cat([4 * torch.randn(300, 3), torch.arange(-60, 60).view(-1, 3) / 8])
    integers = graph_of(model, (3,)).to_integers()
    assert torch.equal(integers(x), model(x))
    for name, codes in integers.trace(x).items():
        described = integers.codes(name)
        assert bool(((codes >= described.low) & (codes <= described.high)).all()), name


def op_of(tables, *, width=2, exponent=0, bias=0):
    """Edges from the inputs of the same number to one output."""
    tables = torch.tensor(tables)
    edges = torch.arange(len(tables))
    rounding = EdgeRounding(torch.full_like(edges, width), torch.full_like(edges, exponent))
    bias = torch.tensor([bias])
    return EdgeTables(edges, torch.zeros_like(edges), rounding, tables, bias, Scale.power(0))


def codes_of(low, high):
    low, high = torch.tensor(low), torch.tensor(high)
    return Codes.reaching((len(low),), low, high, Scale.power(0))


def test_constant_parts_of_tables_go_into_the_bias_unless_that_saves_nothing():
    x = codes_of([-2, -2], [1, 1])
    op = op_of([[100, 101, 102, 103], [7, 7, 7, 7]], bias=-5).fitted(x)
    assert op.reads.tolist() == [0]
    low, high = op.reached_entries(x)
    assert (high - low).tolist() == [3]
    assert int(low) + int(op.bias) == 100 + 7 - 5
    assert op.run(torch.tensor([[-2, 0], [1, 1]])).flatten().tolist() == [102, 105]


def test_entries_that_no_input_reaches_do_not_count():
    op = op_of([[900, 1, 2, -900]])
    x = codes_of([-1], [0])
    result = op.fitted(x).result(x)
    assert (result.lowest, result.highest) == (1, 2)
    assert op.fitted(x).reached(x).tolist() == [[False, True, True, False]]


def test_an_output_without_edges_is_its_bias():
    op = op_of([[3, 3, 3, 3]], bias=2).fitted(codes_of([-2], [1]))
    assert len(op.reads) == 0
    assert op.run(torch.zeros(4, 1).long()).tolist() == [[5]] * 4


def test_features_keep_to_the_range_that_their_edges_have():
    layer = given_tables([[3, 2], [4, 4], [0, 0]], [[1, 0], [2, 0], [0, 0]], [[0, 0]] * 3,
                         rounding="floor")  # fmt: skip
    integers = graph_of(nn.Sequential(layer), (3,)).to_integers()
    codes = next(iter(integers.nodes.values())).codes
    assert codes.low.tolist() == [-8, -32, 0]
    assert codes.high.tolist() == [7, 31, 0]


def test_a_saved_graph_of_tables_gives_equal_results(tmp_path):
    model = network(4, 3, 2)
    model = nn.Sequential(model[0], model[1].frozen())
    graph = graph_of(model, (4,))
    save_mase_graph_interface_pass(graph, str(tmp_path / "net"))
    loaded = load_mase_graph_interface_pass(graph.clone(), str(tmp_path / "net"))[0]
    x = 3 * torch.randn(500, 4)
    with torch.no_grad():
        assert torch.equal(loaded.model.eval()(x), model(x))
    assert torch.equal(loaded.to_integers().run(x), graph.to_integers().run(x))
    layer = loaded.modules["0"].train()  # which goes on training
    layer(x).sum().backward()
    assert layer.in_frac_bits.grad is not None


def far_steps():
    return given_tables([[2], [2]], [[0], [0]], [[-30], [30]], rounding="floor")


def several_grids():
    return given_tables([[2, 3]], [[0, 1]], [[0, 0]], rounding="even")


def with_nan():
    layer = EdgeTable(2, 2)
    layer.shift.data[0] = torch.nan
    return layer


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (far_steps, "node '_0' adds tables whose steps differ by 60 bits; use closer formats"),
        (several_grids, "node '_0' rounds one float to several grids with ties to even; use"),
        (with_nan, "node '_0' has no tables: shift has NaN or infinite numbers; train the"),
    ],
)
def test_what_has_no_integers_is_refused_in_one_sentence(make, said):
    layer = make()
    graph = graph_of(nn.Sequential(layer), (layer.n_in,))
    with pytest.raises(TypeError, match=said):
        graph.to_integers()
