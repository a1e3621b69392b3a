"""Tables that are looked up give what their polynomials give, bit for bit."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from chop.nn.quantized.modules.conv2d import Conv2dLUT
from chop.nn.quantized.modules.linear import LinearBinaryResidualSign, LinearLUT
from chop.passes import quantize_transform_pass, verify_metadata_analysis_pass
from chop.passes.graph.transforms.pruning.masks import attach_mask, masks_of
from chop.tools.utils import generate_truth_table, init_Conv2dLUT_weight, init_LinearLUT_weight

RESIDUAL = ("width", "stochastic", "bipolar")


def config(k=2, levels=2, binarized=1, **others):
    numbers = {"data_in_k": k, "data_in_levels": levels, "data_in_binarization_level": binarized}
    return {"name": "lutnet", **numbers, **others}


def signs_of(x, means):
    """What each level adds, without the means: 1 from zero up."""
    found, rest = [], x
    for mean in means:
        found.append(torch.where(rest >= 0, 1.0, -1.0))
        rest = rest - found[-1] * mean
    return found


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("binarized", [0, 1])
def test_looking_up_gives_what_polynomials_give_for_all_inputs(k, levels, binarized):
    layer = LinearLUT.from_float(nn.Linear(3, 4), config(k, levels, binarized)).eval()
    nn.init.normal_(layer.weight)
    # all combinations of signs on all levels, as inputs that lie there
    means = layer.means.tolist()
    values = [
        sum(s * m for s, m in zip(ss, means, strict=True))
        for ss in itertools.product((-1, 1), repeat=levels)
    ]
    x = torch.tensor(list(itertools.product(values, repeat=3)))
    looked_up = layer(x)
    layer.is_lut_inference = False
    assert torch.equal(looked_up, layer(x))
    assert torch.equal(looked_up, layer.train()(x))


@pytest.mark.parametrize("num_inputs", [8, 33, 200])
def test_sums_of_many_numbers_are_made_in_the_same_order(num_inputs):
    layer = LinearLUT.from_float(nn.Linear(num_inputs, 4), config(3, binarized=0)).eval()
    nn.init.normal_(layer.weight)
    x = torch.randn(50, num_inputs)
    assert torch.equal(layer(x), layer.train()(x))


def test_new_tables_compute_what_signs_of_the_weights_would():
    """Sums of signs are integers, so only the scales at the end are rounded."""
    linear = nn.Linear(6, 5)
    layer = LinearLUT.from_float(linear, config(k=3)).eval()
    x = torch.randn(50, 6)
    expected = linear.bias.clone()
    for sign, mean in zip(signs_of(x, [2 / 3, 1 / 3]), (2 / 3, 1 / 3), strict=True):
        weight = torch.where(linear.weight >= 0, 1.0, -1.0) * linear.weight.abs().mean()
        expected = expected + nn.functional.linear(sign, weight) * mean
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


def test_pruned_connections_add_nothing():
    linear = nn.Linear(6, 5)
    linear.weight.data[:, 1:] = 0
    layer = LinearLUT.from_float(linear, config(k=1)).eval()
    x = torch.randn(50, 6)
    changed = x.clone()
    changed[:, 1:] *= -1
    assert torch.equal(layer(x), layer(changed))


def test_what_a_mask_pruned_lives_on_in_the_tables_of_others():
    linear = nn.Linear(2, 1)
    linear.weight.data = torch.tensor([[0.5, -0.75]])
    linear.pruning_masks = torch.tensor([[1.0, 0.0]])
    layer = LinearLUT.from_float(linear, config(k=2, levels=1))
    # of the connection of input 0: 0.5 d0 - 0.75 d1 at (-,-), (-,+), (+,-), (+,+)
    assert layer.weight[0].tolist() == [0.25, -1.25, 1.25, -0.25]
    assert torch.equal(layer.pruning_masks, torch.tensor([[1.0, 0.0]]))


def test_an_attached_mask_becomes_that_of_the_tables():
    linear, kept = nn.Linear(6, 5), nn.Linear(6, 5)
    mask = torch.rand(5, 6) < 0.5
    kept.load_state_dict(linear.state_dict())
    kept.pruning_masks = mask.float()
    attach_mask(linear, "weight", mask)
    layer = LinearLUT.from_float(linear, config(k=3)).eval()
    assert type(layer) is LinearLUT
    assert torch.equal(layer.pruning_masks, mask.float())
    x = torch.randn(9, 6)
    assert torch.equal(layer(x), LinearLUT.from_float(kept, config(k=3)).eval()(x))
    assert torch.equal(masks_of(linear)["weight"], mask)  # the original keeps its own


def test_every_table_sees_its_own_input_and_distinct_others():
    layer = LinearLUT.from_float(nn.Linear(5, 3), config(k=4))
    seen = layer.input_mask.view(3, 5, 4)
    assert torch.equal(seen[..., 0], torch.arange(5).expand(3, 5))
    assert all(len(set(row.tolist())) == 4 for row in seen.flatten(0, 1))
    assert layer.weight.shape == (2 * 3 * 5, 2**4)


def test_making_a_layer_draws_no_random_numbers_of_others():
    linear, before = nn.Linear(5, 3), torch.get_rng_state()
    layer = LinearLUT.from_float(linear, config())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(layer.input_mask, LinearLUT.from_float(linear, config()).input_mask)


def test_tables_scales_and_means_are_trained():
    layer = LinearLUT.from_float(nn.Linear(5, 3), config()).train()
    x = torch.randn(20, 5, requires_grad=True)
    layer(x).pow(2).sum().backward()
    for name, p in layer.named_parameters():
        assert p.grad is not None, name
        assert p.grad.abs().sum() > 0, name
    assert x.grad.abs().sum() > 0


def test_copies_and_saved_layers_are_equal():
    layer = LinearLUT.from_float(nn.Linear(5, 3), config()).eval()
    other = LinearLUT.from_float(nn.Linear(5, 3), config()).eval()
    x = torch.randn(20, 5)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert torch.equal(layer(x.view(4, 5, 5)), layer(x).view(4, 5, 3))


def test_the_quantize_pass_makes_the_layer(ready, row):
    x = torch.randn(2, 5)
    graph = ready(row(nn.Linear(5, 3), nn.ReLU()), x)
    others = {"data_in_dim": "NA", "weight_k": "NA", "weight_width": 8, "weight_frac_width": 4}
    quantize_transform_pass(graph, by="name", layers_0={"config": config(**others)})
    assert isinstance(graph.modules["layers.0"], LinearLUT)
    graph.model(x)
    assert verify_metadata_analysis_pass(graph)[1] == {}
    logicnets = {"name": "logicnets", "data_in_width": 2, "data_in_frac_width": 1}
    logicnets |= {"data_out_width": 2, "data_out_frac_width": 1}
    with pytest.raises(TypeError, match="the layer is lutnet already"):
        quantize_transform_pass(graph, by="name", layers_0={"config": logicnets})


SMALL, MASKED = nn.Linear(5, 3), nn.Linear(5, 3)
parametrize.register_parametrization(MASKED, "weight", nn.Identity())


@pytest.mark.parametrize(
    ("layer", "given", "message"),
    [
        (SMALL, config(k=9), "data_in_k of lutnet must be an integer from 1 to 8, not 9"),
        (SMALL, config(levels=0), "data_in_levels of lutnet must be an integer from 1"),
        (SMALL, config(kk=1), "unknown key of lutnet 'kk'"),
        (nn.Linear(2, 3), config(k=3), "a table of 3 inputs needs a layer with as many, not 2"),
        (nn.Linear(1024, 1024), config(k=4), r"with 2\^4 entries are 33554432 numbers to train"),
        (MASKED, config(), "make it permanent"),
    ],
)
def test_what_cannot_be_is_refused(layer, given, message):
    with pytest.raises((ValueError, KeyError), match=message):
        LinearLUT.from_float(layer, given)
    with pytest.raises(TypeError, match="needs config"):
        LinearLUT(3, 4)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_truth_table_has_all_signs_in_order_for_each_table(k):
    table = generate_truth_table(k, 4, "cpu")
    assert table.shape == (4, 2**k, k)
    assert table[3].tolist() == [list(row) for row in itertools.product((-1, 1), repeat=k)]


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize(
    ("layer", "cls", "initial"),
    [
        (nn.Linear(6, 5), LinearLUT, init_LinearLUT_weight),
        (nn.Conv2d(2, 3, 2), Conv2dLUT, init_Conv2dLUT_weight),
    ],
)
def test_initial_tables_are_those_of_a_layer_made_from_the_weight(layer, cls, initial, pruned):
    source = copy.deepcopy(layer)
    mask = torch.rand(source.weight.shape) > 0.5
    weight = source.weight.detach().clone()
    if pruned:
        attach_mask(source, "weight", mask)
    made = cls.from_float(source, config(k=2))
    other = cls.from_float(copy.deepcopy(layer), config(k=2))
    tables, masks = initial(other, weight, mask if pruned else None)
    assert torch.equal(tables, made.weight)
    assert torch.equal(masks, made.pruning_masks)


def test_a_weight_that_does_not_fit_has_no_tables():
    made = LinearLUT.from_float(nn.Linear(6, 5), config())
    with pytest.raises(ValueError, match=r"weight of shape \[5, 7\] does not fit LinearLUT"):
        init_LinearLUT_weight(made, torch.randn(5, 7))
    with pytest.raises(ValueError, match=r"mask of shape \[6, 5\] does not fit LinearLUT"):
        init_LinearLUT_weight(made, torch.randn(5, 6), torch.ones(6, 5))


@pytest.mark.parametrize(
    ("cls", "shape"), [(LinearLUT, (3, 4)), (Conv2dLUT, (1, 2, 2))], ids=["linear", "conv2d"]
)
def test_the_trained_tables_are_found_under_the_name_of_the_labs(cls, shape):
    layer = cls(*shape, config=config())
    assert layer.trainer.weight is layer.weight
    assert "trainer" not in {name for name, _ in layer.named_modules()}


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_a_layer_of_residual_signs_says_which_sum_it_computes(levels):
    operands = ("data_in", "weight", "bias")
    keys = {f"{o}_{k}": v for o in operands for k, v in zip(RESIDUAL, (1, 0, 1), strict=True)}
    layer = LinearBinaryResidualSign(4, 3, config={**keys, "data_in_levels": levels}).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    assert (layer.levels, len(layer.means), layer.gamma.item()) == (levels, levels, 1.0)
    expected, rest = torch.zeros_like(x), x
    for mean in layer.means:
        expected, rest = expected + rest.sign() * mean, rest - rest.sign() * mean
    torch.testing.assert_close(layer.q("data_in", x), expected)
    assert not {"means", "gamma"} & layer.state_dict().keys()
