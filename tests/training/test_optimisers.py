"""Learning rates are those of torch's schedulers, as functions of the step."""

from pathlib import Path

import pytest
import torch
from torch import nn

import chop
from chop.actions.config import OPTIONS
from chop.training.optimisers import OPTIMIZERS, learning_rate, make_optimizer, set_rate
from chop.training.options import (
    CANDIDATE,
    OTHER_DEFAULTS,
    RETRAIN,
    TrainOptions,
    spellings,
    table_options,
    train_options,
)


def test_cosine_is_torchs_cosine_annealing_by_the_epoch():
    options = TrainOptions(max_epochs=12, learning_rate=3e-3, eta_min=1e-6)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12, eta_min=1e-6)
    for epoch in range(12):
        ours = learning_rate(options, epoch=epoch, step=epoch * 100 + 7)
        assert ours == pytest.approx(schedule.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        schedule.step()


def test_linear_ends_at_the_floor_and_constant_stays():
    linear = TrainOptions(max_epochs=10, learning_rate=1.0, eta_min=0.2, schedule="linear")
    assert learning_rate(linear, epoch=0, step=0) == 1.0
    assert learning_rate(linear, epoch=5, step=0) == pytest.approx(0.6)
    assert learning_rate(linear, epoch=10, step=0) == pytest.approx(0.2)
    constant = TrainOptions(learning_rate=0.3, schedule="constant")
    assert {learning_rate(constant, epoch=e, step=e) for e in range(20)} == {0.3}


def test_warm_up_rises_to_the_rate_in_equal_parts():
    options = TrainOptions(learning_rate=1.0, schedule="constant", warmup_steps=4)
    assert [learning_rate(options, epoch=0, step=s) for s in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]


def test_the_rate_never_rises_to_a_floor_above_it():
    options = TrainOptions(max_epochs=4, learning_rate=1e-8)
    assert learning_rate(options, epoch=4, step=0) == 1e-8


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_weight_decay_and_rate_reach_the_optimizer(name):
    options = TrainOptions(optimizer=name, learning_rate=0.5, weight_decay=0.25)
    optimizer = make_optimizer(nn.Linear(2, 2), options)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.5, 0.25)
    set_rate(optimizer, 0.125)
    assert group["lr"] == 0.125


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learning_rate": 0.0}, "learning_rate: should be greater than 0, not 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate: should be a finite number"),
        ({"max_seconds": 0}, "max_seconds: should be greater than 0"),
        ({"accumulate_grad_batches": 0}, "accumulate_grad_batches: should be .* equal to 1, not 0"),
        ({"max_epochs": -1}, "max_epochs: should be greater than or equal to 0"),
        ({"early_stopping": 0}, "early_stopping: should be greater than or equal to 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        TrainOptions(**changes)


def test_trainer_args_of_the_labs_are_understood():
    trainer_args = {"max_epochs": 4, "max_steps": -1, "devices": 1, "num_nodes": 1}
    trainer_args |= {"accelerator": "auto", "strategy": "auto", "fast_dev_run": False}
    trainer_args |= {"precision": "16-mixed", "accumulate_grad_batches": 2, "log_every_n_steps": 50}
    options = TrainOptions.from_trainer_args(trainer_args, learning_rate=0.1)
    assert (options.max_epochs, options.max_steps, options.precision) == (4, None, "16-mixed")
    with pytest.raises(ValueError, match="plt_trainer_args has no key 'callbacks'"):
        TrainOptions.from_trainer_args({"callbacks": []})


def test_an_unknown_precision_lists_those_there_are():
    assert TrainOptions(precision=32).precision == "32"
    with pytest.raises(ValueError, match=r"precision: should be '16-mixed', '32', .* not '8'"):
        TrainOptions(precision="8")


def test_a_schedule_by_the_step_begins_after_the_warm_up_and_ends_at_its_end():
    options = TrainOptions(
        learning_rate=1.0, schedule="linear", eta_min=0.0, warmup_steps=2, schedule_steps=6
    )
    rates = [learning_rate(options, epoch=0, step=s) for s in range(8)]
    assert rates == pytest.approx([0.5, 1, 1, 0.75, 0.5, 0.25, 0, 0])


def test_every_option_has_the_same_default_everywhere_but_where_it_is_listed():
    names = spellings()
    for key, option in OPTIONS.items():
        if key in names and key != "max_steps":
            name = names[key]
            other = OTHER_DEFAULTS["ch train"].get(name, train_options()[name].default)
            assert option.default == other, key
    for table, taken in (("basic_train", CANDIDATE), ("search.retrain", RETRAIN)):
        for name, option in table_options(table, taken).items():
            other = OTHER_DEFAULTS[table].get(name, train_options()[name].default)
            assert option.default == other, name


def test_every_name_of_an_option_is_in_the_table_of_the_documentation():
    page = (Path(chop.__file__).parents[1] / "docs/training.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for spelling, name in spellings().items():
        assert any(f"`{spelling}`" in row and f"`{name}`" in row for row in rows), spelling


@pytest.mark.parametrize(
    ("older", "present"),
    [
        ({"training_optimizer": "sgd"}, {"optimizer": "sgd"}),
        ({"lr_scheduler": "constant_with_warmup"}, {"schedule": "constant"}),
        ({"num_warmup_steps": 3}, {"warmup_steps": 3}),
        ({"gradient_accumulation_steps": 2}, {"accumulate_grad_batches": 2}),
        ({"gradient_clip_val": 0.5}, {"gradient_clip": 0.5}),
        ({"trainer_precision": "32-true"}, {"precision": 32}),
        ({"max_steps": -1}, {}),
    ],
)
def test_older_names_mean_the_same(older, present):
    assert TrainOptions.of("", older) == TrainOptions.of("", present) == TrainOptions(**present)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"optimizer": "adma"}, r"unknown optimizer 'adma'; did you mean 'adam'\? \(known: adam, "),
        ({"schedule": "cosin"}, r"unknown schedule 'cosin'; did you mean 'cosine'\?"),
    ],
)
def test_a_name_that_nothing_is_registered_under_is_refused_at_once(options, sentence):
    with pytest.raises(KeyError, match=sentence):
        TrainOptions(**options)


def test_an_optimiser_of_the_user_may_be_named():
    OPTIMIZERS.register("mine")(torch.optim.RMSprop)
    try:
        assert TrainOptions(optimizer="mine").optimizer == "mine"
    finally:
        OPTIMIZERS._items.pop("mine")
