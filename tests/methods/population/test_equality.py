"""What a candidate learns in a population is what it learns alone.

In float64, so that a difference is an error and not the rounding of sums, which formats enlarge: a
number that lies on the border between two of a grid is rounded to either.
"""

import random

import pytest
import torch
from torch import nn

from chop.actions.train import best_weights
from chop.methods.population import train_population
from chop.training.names import Names

TOLERANCE = 1e-8  # rounding of sums, after a few steps of Adam


def assert_as_alone(family, models, chosen, splits=None):
    return family.assert_as_alone(models, chosen, splits or family.splits)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(16))
def test_random_pairs_learn_as_alone(family, seed):
    draw = random.Random(seed)
    shape = {
        "norm": draw.random() < 0.5,
        "residual": draw.random() < 0.5,
        "activation": draw.choice([nn.ReLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.Softplus]),
    }
    depth = draw.randint(1, 3)

    def member(number):
        widths = [draw.randint(1, 9) for _ in range(depth)]
        width = draw.randint(3, 8)
        fixed = family.integer(width, draw.randint(1, width), ste=draw.choice(["identity", "clip"]))
        other = family.of_format(draw.choice(family.smooth))
        config = draw.choice([None, fixed, fixed, other])
        return family.mlp(widths, seed=number, config=config, **shape)

    def own(number):
        return family.options(
            optimizer=draw.choice(["adam", "adamw", "sgd"]),
            learning_rate=10 ** draw.uniform(-3, -1.5),
            weight_decay=draw.choice([0.0, 0.01]),
            schedule=draw.choice(["cosine", "linear", "constant"]),
            schedule_steps=draw.choice([None, 6]),
            warmup_steps=draw.choice([0, 3]),
            gradient_clip=draw.choice([None, 0.05]),
            max_epochs=draw.randint(1, 3),
            max_steps=draw.choice([None, 4, 7]),
            seed=draw.randint(0, 3),
        )

    count = draw.randint(2, 4)
    assert_as_alone(family, [member(i) for i in range(count)], [own(i) for i in range(count)])


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow) for seed in range(16, 80)]
)
def test_many_more_pairs(family, seed):
    test_random_pairs_learn_as_alone(family, seed)


@pytest.mark.slow
def test_the_best_epoch_is_kept_as_its_checkpoint_would_be(family, tmp_path):
    own = [
        family.options(
            max_epochs=16, schedule="constant", learning_rate=rate, max_steps=steps, seed=seed
        )
        for seed, (rate, steps) in enumerate([(0.1, None), (0.001, 7), (0.2, 57), (0.3, 33)])
    ]
    models = [family.mlp([9 + i, 8], seed=i) for i in range(4)]
    apart = [family.copy(model) for model in models]
    outcomes = train_population(models, family.splits, own, batch_size=32, keep_best=True)
    assert any(out.best_epoch < out.epochs - 1 for out in outcomes), "else the last is the best"
    for number, (model, single) in enumerate(zip(models, apart, strict=True)):
        names = Names(tmp_path / str(number))
        family.alone(single, family.splits, own[number], names=names)
        with best_weights(single, names):
            assert family.distance(model, single) < TOLERANCE


FORMATS = ["minifloat_ieee", "log", "block_fp", "binary", "ternary", "scale_integer", "fp8"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FORMATS)
def test_each_format_learns_as_alone_beside_others(family, name):
    configs = [family.of_format(name), family.integer(6, 3), None, family.of_format(name)]
    models = [
        family.mlp([width, 4], seed=width, norm=False, config=config)
        for width, config in zip((3, 5, 7, 6), configs, strict=True)
    ]
    assert_as_alone(family, models, [family.options()] * 4)


REFINEMENTS = [
    *({"floor": True}, {"rounding": "up"}, {"overflow": "symmetric"}, {"overflow": "wrap"}),
    *({"signed": False}, {"data_out_width": 6, "data_out_frac_width": 3}),
]


@pytest.mark.parametrize("others", REFINEMENTS)
def test_refinements_of_integers_are_kept(family, others):
    configs = [family.integer(6, 3), family.integer(5, 3, **others)]
    models = [family.mlp([width], config=c) for width, c in zip((3, 5), configs, strict=True)]
    assert_as_alone(family, models, [family.options()] * 2)


def test_padding_stays_exactly_zero(family):
    models = [family.mlp([width, width], activation=nn.Sigmoid, seed=width) for width in (2, 7)]
    data = family.splits
    run = population(models, data, [family.options(weight_decay=0.1)] * 2, [0, 1], batch_size=32)
    run.advance()
    for slot in run.network.plan.slots:
        own = dict(run.network.family.members[0][slot.call].module.named_parameters())[slot.name]
        padded = slot.of(run.state.values[0].detach()).clone()
        padded[tuple(slice(size) for size in own.shape)] = 0
        assert not padded.any()
        assert not slot.of(run.moments[0, 0])[tuple(slice(size, None) for size in own.shape)].any()


def test_padding_goes_with_the_widest(family):
    models = [family.mlp([width], seed=width) for width in (2, 9, 3)]
    run = population(models, family.splits, [family.options()] * 3, [0, 1, 2], batch_size=32)
    before = run.state.values.shape[1]
    run.keep([0, 2])
    assert run.state.values.shape[0] == 2
    assert run.state.values.shape[1] < before
    assert run.moments.shape[1:] == run.state.values.shape


def population(models, data, chosen, seeds, *, batch_size):
    from chop.methods.population.population import Population

    return Population(
        [model.double() for model in models],
        data,
        chosen,
        seeds,
        batch_size=batch_size,
        device=torch.device("cpu"),
    )


def test_early_stopping_is_each_candidates_own(family):
    chosen = [
        family.options(max_epochs=12, early_stopping=patience, learning_rate=rate)
        for patience, rate in ((1, 0.2), (3, 0.05), (None, 0.01))
    ]
    models = [family.mlp([width], seed=width) for width in (3, 8, 5)]
    outcomes = assert_as_alone(family, models, chosen)
    assert outcomes[0].stopped == "patience"
    assert outcomes[2].epochs == 12


def test_one_order_for_all_is_that_of_the_first_seed(family):
    models = [family.mlp([4], seed=i) for i in range(3)]
    apart = [family.copy(model) for model in models]
    train_population(
        models, family.splits, family.options(), batch_size=32, seeds=[5, 6, 7], shared_order=True
    )
    for model, single in zip(models, apart, strict=True):
        family.alone(single, family.splits, family.options(seed=5))
        assert family.distance(model, single) < TOLERANCE


def test_without_validation_the_last_batch_speaks(family):
    splits = (family.splits[0], None)
    models = [family.mlp([width]) for width in (3, 5)]
    outcomes = assert_as_alone(family, models, [family.options()] * 2, splits)
    assert outcomes[0].accuracy is None
    assert outcomes[0].loss > 0


def test_masked_and_frozen_parameters_stay_so(family):
    from chop.passes.graph.transforms.pruning.masks import attach_mask

    models = [family.mlp([width], norm=False, config=family.integer(6, 3)) for width in (3, 5)]
    for model in models:
        mask = torch.rand(model[0].weight.shape, generator=torch.Generator().manual_seed(1)) < 0.5
        attach_mask(model[0], "weight", mask)
        model[2].weight.requires_grad_(False)
    before = models[0][2].weight.detach().double().clone()
    assert_as_alone(family, models, [family.options(weight_decay=0.1, optimizer="adamw")] * 2)
    assert torch.equal(models[0][2].weight, before)


def test_only_some_are_masked(family):
    from chop.passes.graph.transforms.pruning.masks import attach_mask

    models = [family.mlp([width], seed=width, config=family.integer(6, 3)) for width in (7, 3, 5)]
    attach_mask(models[1][0], "weight", torch.rand(models[1][0].weight.shape) < 0.5)
    assert_as_alone(family, models, [family.options(weight_decay=0.1)] * 3)
    assert [hasattr(model[0], "weight_mask") for model in models] == [False, True, False]


def test_float32_scores_are_those_of_alone_too(family):
    models = [family.mlp([width], seed=width) for width in (3, 8)]
    chosen = [family.options(precision="32", max_epochs=1)] * 2
    apart = [family.copy(model) for model in models]
    outcomes = train_population(models, family.splits, chosen, batch_size=32)
    for single, outcome in zip(apart, outcomes, strict=True):
        fitted = family.alone(single, family.splits, chosen[0])
        assert outcome.loss == pytest.approx(fitted.validation.loss, rel=1e-4)  # a few steps' sums
