"""Learned functions on edges: values, gradients, costs, populations and truth tables."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from chop.methods.edge_tables import EdgeTable, FrozenEdgeTable, edge_rows
from chop.methods.edge_tables.edge_autograd import sums_by_codes
from chop.methods.edge_tables.edge_sums import EdgeNumbers, cell_centres, direct_sums
from chop.methods.edge_tables.edge_training import trained_sums
from chop.numerics.fast.mode import fused_mode, set_fused
from chop.numerics.integer import Integer
from chop.numerics.learned import LearnsBits


def layer_of(function="mlp", n_in=6, n_out=4, seed=0):
    """A layer in float64 with edges of many widths, some of no bits."""
    torch.manual_seed(seed)
    layer = EdgeTable(n_in, n_out, function=function, hidden=5).double()
    for bits in layer.width_parameters().values():
        bits.data += torch.randint(-2, 2, bits.shape) + 0.3 * torch.rand(bits.shape)
    layer.in_frac_bits.data[0, 0] = -5
    layer.in_frac_bits.data[3] = -9
    layer.out_frac_bits.data[1, 1] = -7
    for tensor in (layer.gain, layer.shift):
        nn.init.normal_(tensor)
    return layer


def cost_of(layer, cost, **options):
    return layer.bit_cost(cost, **options).item()


def samples(count=300, n_in=6, seed=1):
    source = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(count, n_in, generator=source, dtype=torch.float64)
    x[0] = math.inf
    x[1] = -math.inf
    x[2, :6] = torch.tensor([-4.0, 4.0, 2.0, 0.0, 0.125, -0.125])[:n_in]
    return x


def computed(way, layer, x, known):
    """Results and all gradients of one way to compute."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y, mean, var = way(x, layer._numbers(x.dtype, known=known), layer._function)
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    grads = {name: p.grad.clone() for name, p in layer.named_parameters()}
    return y.detach(), {"mean": mean, "var": var, "x": x.grad} | grads


@pytest.mark.parametrize("function", ["mlp", "spline"])
@pytest.mark.parametrize("known", [False, True])
def test_results_by_codes_equal_those_by_samples_and_gradients_agree(function, known):
    layer, x = layer_of(function), samples()
    layer.running_mean.normal_()
    expected, of_samples = computed(direct_sums, layer, x, known)
    found, of_codes = computed(sums_by_codes, layer, x, known)
    assert torch.equal(found, expected)
    for name, value in of_samples.items():
        scale = float(value.abs().max()) or 1.0
        assert float((value - of_codes[name]).abs().max()) <= 1e-10 * scale, name


def test_grids_that_are_too_fine_are_computed_sample_by_sample():
    layer, x = layer_of(), samples()
    layer.in_integer_bits.data[2, 0], layer.in_frac_bits.data[2, 0] = 9, -4
    layer.in_integer_bits.data[2, 1], layer.in_frac_bits.data[2, 1] = -4, 9
    expected, of_samples = computed(direct_sums, layer, x, False)
    found, of_codes = computed(sums_by_codes, layer, x, False)
    assert torch.equal(found, expected)
    assert all(torch.allclose(of_codes[name], value) for name, value in of_samples.items())


def test_the_gradient_of_fraction_bits_is_that_of_the_mean_distance_from_cell_centres():
    x = torch.linspace(-2.5, 2.5, 40_001, dtype=torch.float64)
    weight = torch.cos(x)  # a slope that cells average

    def mean(frac):
        i, f = torch.tensor(1.0, dtype=torch.float64), torch.tensor(frac, dtype=torch.float64)
        f.requires_grad_()
        u = cell_centres(x, i, f)
        (u * weight).mean().backward()
        return u.detach(), f.grad

    u, found = mean(3.0)
    inside, step = x.abs() < 2, 2.0**-3
    error = torch.where(inside, x - u, torch.sign(x) * step / 2)
    assert torch.allclose(found, math.log(2) * (error * weight).mean())
    assert u.unique().numel() == 2**5
    assert float(u.abs().max()) == 2 - step / 2


@pytest.fixture
def in_torch():
    mode = fused_mode()
    set_fused("off")
    yield
    set_fused(mode)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_tables_are_added_alike_in_c_plus_plus_and_in_torch(dtype, request):
    torch.manual_seed(0)
    rows, grads = torch.randn(50, 7, dtype=dtype), torch.randn(2, 90, 7, dtype=dtype)
    index, weights = torch.randint(50, (2, 90, 4)), torch.randn(2, 90, 4, dtype=dtype)
    index[1] = torch.randint(25, 50, (90, 4))
    index[0] -= index[0] // 25 * 25  # rows of different networks are different ones

    def computed():
        total, weighted = edge_rows.collected(grads, weights, index, 50)
        products = edge_rows.multiplied(rows, grads, index)
        return edge_rows.summed(rows, index), total, weighted, products

    expected = rows[index].sum(2)
    compiled = computed()
    request.getfixturevalue("in_torch")
    for one, other in zip(compiled, computed(), strict=True):
        assert torch.allclose(one, other, atol=1e-4)
    assert torch.allclose(compiled[0], expected, atol=1e-5)
    assert torch.allclose(compiled[3], (rows[index] * grads.unsqueeze(2)).sum(-1), atol=1e-5)


@pytest.mark.parametrize("sizes", [(6, 4), (6, 20), (7, 9)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_training_step_in_c_plus_plus_has_the_results_and_gradients_of_torch(
    sizes, seed, request
):
    layer, x = layer_of("mlp", *sizes, seed=seed).float(), samples(500, sizes[0]).float()
    numbers = layer._numbers(x.dtype, known=False)
    batched = EdgeNumbers.of([None if t is None else t.unsqueeze(0) for t in numbers.tensors])
    assert trained_sums(x.unsqueeze(0), batched, layer._function) is not None, "it was not built"
    found, ours = computed(sums_by_codes, layer, x, known=False)
    request.getfixturevalue("in_torch")
    expected, theirs = computed(sums_by_codes, layer, x, known=False)
    assert torch.equal(found, expected)
    for name, value in theirs.items():
        scale = float(value.abs().max()) or 1.0
        assert float((value - ours[name]).abs().max()) <= 2e-6 * scale, name


def test_units_that_overflow_are_saturated_in_c_plus_plus_as_in_torch(request):
    layer, x = layer_of().float(), samples().float()[3:]
    layer.in_integer_bits.data[4, 2], layer.in_frac_bits.data[4, 2] = 2, 3
    layer.weight_in.data[4, 2, 0] = 3e38  # times the centre of a cell it is infinite
    numbers = layer._numbers(x.dtype, known=False)
    found, _, _ = sums_by_codes(x, numbers, layer._function)
    request.getfixturevalue("in_torch")
    expected, _, _ = sums_by_codes(x, numbers, layer._function)
    assert expected.isfinite().all()
    assert torch.equal(found, expected)


def test_results_do_not_depend_on_the_number_of_threads():
    layers = [layer_of(seed=seed).float() for seed in range(3)]
    each = [layer._numbers(torch.float32, known=False).tensors for layer in layers]
    stacked = [None if t[0] is None else torch.stack(t) for t in zip(*each, strict=True)]
    x = torch.stack([samples(seed=seed).float() for seed in range(3)])
    threads, found = torch.get_num_threads(), []
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append(trained_sums(x, EdgeNumbers.of(stacked), layers[0]._function))
    torch.set_num_threads(threads)
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("count", [300, 20])
def test_a_population_under_vmap_has_the_results_of_each_network(count):
    torch.manual_seed(0)
    networks = [nn.Sequential(EdgeTable(3, 4), EdgeTable(4, 2)) for _ in range(3)]
    for number, network in enumerate(networks):
        network[0].in_frac_bits.data -= number
    parameters, buffers = stack_module_state(networks)
    base = copy.deepcopy(networks[0])
    x = torch.randn(3, count, 3)

    def loss(p, b, x):
        return functional_call(base, (p, b), (x,)).square().mean()

    losses = vmap(loss)(parameters, buffers, x)
    losses.sum().backward()
    inside = vmap(grad(loss))({k: p.detach() for k, p in parameters.items()}, buffers, x)
    for number, network in enumerate(networks):
        alone = network(x[number]).square().mean()
        alone.backward()
        assert torch.allclose(losses[number], alone, atol=1e-6)
        for name, p in network.named_parameters():
            assert torch.allclose(parameters[name].grad[number], p.grad, atol=1e-5), name
            assert torch.allclose(inside[name][number], p.grad, atol=1e-5), name


def test_training_updates_the_statistics_of_every_network_of_a_population():
    networks = [EdgeTable(3, 2) for _ in range(2)]
    parameters, buffers = stack_module_state(networks)
    base = copy.deepcopy(networks[0])
    x = torch.randn(2, 300, 3)
    vmap(lambda p, b, x: functional_call(base, (p, b), (x,)))(parameters, buffers, x)
    for number, network in enumerate(networks):
        network(x[number])
        assert torch.allclose(buffers["running_mean"][number], network.running_mean, atol=1e-6)
        assert torch.allclose(buffers["running_var"][number], network.running_var, atol=1e-6)


def test_nan_in_one_network_leaves_the_others_alone():
    networks = [EdgeTable(3, 2) for _ in range(2)]
    parameters, buffers = stack_module_state(networks)
    base = copy.deepcopy(networks[0])
    x = torch.randn(2, 300, 3)
    expected = networks[1](x[1])
    x[0, 7, 1] = math.nan
    y = vmap(lambda p, b, x: functional_call(base, (p, b), (x,)))(parameters, buffers, x)
    assert y[0].isnan().all()
    assert torch.allclose(y[1], expected, atol=1e-6)


def test_widths_that_are_nan_in_one_network_leave_the_others_alone():
    networks = [EdgeTable(3, 2) for _ in range(3)]
    parameters, buffers = stack_module_state(networks)
    base = copy.deepcopy(networks[0])
    x = torch.randn(3, 300, 3)
    expected = networks[2](x[2])
    parameters["in_frac_bits"].data[0, 1, 1] = math.nan
    parameters["in_frac_bits"].data[1] = -9  # all edges pruned
    y = vmap(lambda p, b, x: functional_call(base, (p, b), (x,)))(parameters, buffers, x)
    y.sum().backward()
    networks[0].in_frac_bits.data[1, 1] = math.nan
    assert math.isnan(cost_of(networks[0], "lut"))  # which tells
    assert y[1].isfinite().all()
    assert torch.allclose(y[2], expected, atol=1e-6)
    assert parameters["gain"].grad[1:].isfinite().all()


def test_costs_under_vmap_and_their_gradients():
    networks = [layer_of(seed=seed) for seed in range(3)]
    parameters, _ = stack_module_state(networks)
    base = copy.deepcopy(networks[0])

    class Costs(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = base

        def forward(self, cost):
            return self.layer.bit_cost(cost)

    named = {f"layer.{k}": v for k, v in parameters.items()}
    for cost in ("lut", "ebops", "bitops", "model_size"):
        found = vmap(lambda p, cost=cost: functional_call(Costs(), p, (cost,)))(named)
        assert torch.allclose(found, torch.stack([n.bit_cost(cost) for n in networks]))
    found = networks[0].bit_cost("lut")
    found.backward()
    assert bool((networks[0].in_frac_bits.grad >= 0).all())
    assert networks[0].in_frac_bits.grad[0, 0] == 0  # pruned


def test_costs_are_those_of_tables_and_adders():
    layer = EdgeTable(2, 1, bits_in=(1, 2), bits_out=(0, 2))  # 4 bits in, 3 out
    assert isinstance(layer, LearnsBits)
    assert cost_of(layer, "lut") == pytest.approx(2 * (0.5 * 4 / 5 * 3 + 3))
    assert cost_of(layer, "lut", exact=True) == 2 * (0.5 * 3) + 3
    layer.in_frac_bits.data[0] = 5  # 7 bits
    expected = 0.5 * 4 * 3 + 0.5 * 4 / 5 * 3 + 2 * 3
    assert cost_of(layer, "lut") == pytest.approx(expected)
    assert cost_of(layer, "ebops") == 7 * 3 + 4 * 3
    assert cost_of(layer, "model_size") == 2**7 * 3 + 2**4 * 3
    layer.out_frac_bits.data.fill_(-1)
    assert cost_of(layer, "lut") == cost_of(layer, "lut", exact=True) == 0
    assert layer.dead_outputs() == [0]


def trained(function="mlp", sizes=(6, 4)):
    """A layer that has seen batches, so that its statistics are its own."""
    layer = layer_of(function, *sizes).float()
    for seed in range(5):
        layer(samples(seed=seed, n_in=sizes[0])[3:].float())
    return layer.eval()


@pytest.mark.parametrize("function", ["mlp", "spline"])
def test_the_frozen_layer_gives_equal_bits_and_costs_the_same(function):
    layer = trained(function)
    frozen = layer.frozen()
    x = samples(2000).float()
    assert torch.equal(frozen(x), layer(x))
    assert cost_of(frozen, "lut") == cost_of(layer, "lut", exact=True)
    tables = layer.tables()
    assert tables[3] == [None] * 4
    assert tables[1][1] is None
    widths = layer.in_integer_bits.round() + layer.in_frac_bits.round() + 1
    assert all(
        len(table) == 2 ** int(widths[i, o])
        for i, row in enumerate(tables)
        for o, table in enumerate(row)
        if table is not None
    )


def test_an_edge_without_input_bits_adds_its_one_value_to_the_bias():
    layer = trained()
    layer.in_frac_bits.data.fill_(-9)
    frozen = layer.frozen()
    x = samples().float()
    assert torch.equal(frozen(x), layer(x))
    assert bool(frozen.bias_codes.any())
    assert frozen.dead_outputs() == [0, 1, 2, 3]


def test_widths_stay_below_their_bound():
    layer = EdgeTable(3, 2, max_bits_in=5, bits_in=(2, 2))
    layer.in_frac_bits.data.fill_(30.0)
    assert all(len(table) == 2**5 for row in layer.eval().tables() for table in row)
    x = torch.randn(300, 3)
    assert torch.equal(layer.frozen()(x), layer(x))


def test_training_lowers_the_loss_and_a_price_lowers_the_cost():
    torch.manual_seed(0)
    x = torch.randn(1000, 4)
    target = (x[:, :1] * 2).sin() + x[:, 1:2].abs()
    layer = EdgeTable(4, 1)
    optimiser = torch.optim.Adam(layer.parameters(), 0.05)
    first, price = None, cost_of(layer, "lut")
    for _ in range(60):
        error = (layer(x) - target).square().mean()
        first = first or error.item()
        optimiser.zero_grad()
        (error + 1e-3 * layer.bit_cost("lut")).backward()
        optimiser.step()
    assert error.item() < 0.4 * first
    assert cost_of(layer, "lut") < price


def test_a_layer_that_works_in_place_may_follow():
    model = nn.Sequential(EdgeTable(3, 4), nn.ReLU(inplace=True), EdgeTable(4, 2))
    model(torch.randn(300, 3)).square().sum().backward()
    assert model[0].gain.grad.abs().sum() > 0


@pytest.mark.parametrize("function", ["mlp", "spline"])
def test_new_parameters_are_those_of_a_new_layer(function):
    options = {"function": function, "bits_in": (1, 2), "bits_out": (0, 3)}
    layer = EdgeTable(3, 2, **options)
    layer(torch.randn(300, 3))
    for parameter in layer.parameters():
        parameter.data.add_(1)
    torch.manual_seed(5)
    layer.reset_parameters()
    torch.manual_seed(5)
    new = EdgeTable(3, 2, **options).state_dict()
    assert all(torch.equal(tensor, new[name]) for name, tensor in layer.state_dict().items())


def test_other_shapes_keep_their_leading_dimensions():
    layer = trained()
    x = samples(24).float()
    assert torch.equal(layer(x.view(2, 3, 4, 6)), layer(x).view(2, 3, 4, 4))
    frozen = layer.frozen()
    assert torch.equal(frozen(x.view(2, 3, 4, 6)), frozen(x).view(2, 3, 4, 4))
    assert frozen(x[:0]).shape == layer(x[:0]).shape == (0, 4)


def spelt(width, frac, **rule):
    """A table whose entries are the codes of its input."""
    fmt = Integer(width, frac, **rule)
    first = -(2 ** (width - 1)) if fmt.signed else 0
    return list(range(first, first + 2**width)), fmt


@pytest.mark.parametrize("rounding", ["even", "up", "floor"])
@pytest.mark.parametrize("overflow", ["saturate", "symmetric", "wrap"])
@pytest.mark.parametrize("signed", [True, False])
def test_given_tables_of_all_codes_round_as_the_format_does(rounding, overflow, signed):
    table, fmt = spelt(4, 2, rounding=rounding, overflow=overflow, signed=signed)
    layer = EdgeTable.from_tables([[table, None]], fmt, Integer(6, 2), bias=[0.5, -0.125])
    x = torch.linspace(-7, 7, 4001).unsqueeze(1)
    assert torch.equal(layer(x)[:, :1], fmt(x) + 0.5)
    assert torch.equal(layer(x)[:, 1:], torch.full_like(x, -0.125))


def test_tables_of_a_layer_can_be_given_again():
    frozen = trained().frozen()
    formats = [
        [
            [
                Integer(int(w), int(f), rounding="floor") if w else None
                for w, f in zip(*row, strict=True)
            ]
            for row in zip(widths.tolist(), fracs.tolist(), strict=True)
        ]
        for widths, fracs in (
            (frozen.in_width, frozen.in_frac),
            (frozen.out_width, frozen.out_frac),
        )
    ]
    bias = frozen.bias_codes * 2.0**-frozen.bias_frac
    again = EdgeTable.from_tables(frozen.tables(), *formats, bias)
    x = samples().float()
    assert torch.equal(again(x), frozen(x))
    assert cost_of(again, "lut") == cost_of(frozen, "lut")


TWO = Integer(2, 0, rounding="floor")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: EdgeTable(0, 2), "n_in is 0; give an integer of at least 1"),
        (lambda: EdgeTable(2, 2, function="mpl"), "unknown function on edges 'mpl'; did you mean"),
        (lambda: EdgeTable(2, 2, max_bits_in=13), "max_bits_in is 13; give from 2 to 12 bits"),
        (lambda: EdgeTable(2, 2, bits_in=(6, 6)), "bits_in are 13 bits with the sign; at most 8"),
        (lambda: EdgeTable(2, 2, bits_out=(math.nan, 2)), "give integer bits and fraction bits"),
        (lambda: EdgeTable(3, 2)(torch.zeros(4, 2)), "the layer takes 3 inputs in the last dim"),
        (lambda: EdgeTable.from_tables([[[0]], []], TWO, TWO), "not a matrix of inputs and"),
        (lambda: EdgeTable.from_tables([[[0, 1, 0]]], TWO, TWO), "3 entries; an input of 2 bits"),
        (lambda: EdgeTable.from_tables([[[0, 1, 0, 9]]], TWO, TWO), "beyond -2 … 1; use a wider"),
        (lambda: EdgeTable.from_tables([[[0, 1, 0, math.nan]]], TWO, TWO), "NaN or fractions"),
        (
            lambda: EdgeTable.from_tables([[[0] * 2**13]], Integer(13, 0), TWO),
            "its input has 13 bits; a table has at most 12, so round its input to fewer",
        ),
        (
            lambda: EdgeTable.from_tables([[[0] * 4]], TWO, TWO, [math.nan]),
            "the bias has NaN or numbers of more than 48 fraction bits; round it",
        ),
        (lambda: EdgeTable.from_tables([[[0] * 4]], TWO, TWO, [0, 1]), "give 1 numbers"),
        (lambda: EdgeTable.from_tables([[[0] * 4]], [[TWO], [TWO]], TWO), "are not 1 by 1"),
        (
            lambda: EdgeTable.from_tables([[[0] * 4] * 2], [[TWO, Integer(2, 0)]], TWO),
            "the inputs differ in sign, rounding or overflow; give all edges the same",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(make, said):
    with pytest.raises((ValueError, KeyError), match=said):
        make()


def test_a_layer_with_nan_is_not_frozen():
    layer = EdgeTable(2, 2)
    layer.gain.data[0] = math.nan
    with pytest.raises(ValueError, match="gain has NaN or infinite numbers; train the layer again"):
        layer.frozen()


def test_frozen_layers_have_no_parameters():
    frozen = trained().frozen()
    assert isinstance(frozen, FrozenEdgeTable)
    assert not list(frozen.parameters())
    assert not frozen.training
