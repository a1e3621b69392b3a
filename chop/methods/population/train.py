"""`train_population`: trains many networks at once, each as `Training` would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from chop.dataset.tensors import TensorSplit
from chop.devices import parse_accelerator
from chop.methods.population.architecture import Family, Unfit, check_traces, family_of
from chop.methods.population.population import Population, PopulationOutcome, Report
from chop.methods.population.snapshots import read_snapshot, restore, snapshot_of
from chop.methods.population.updates import UPDATES
from chop.training.check import check_fit, float_type
from chop.training.devices import Place, threads_for
from chop.training.feed import Feed
from chop.training.options import TrainOptions
from chop.training.saving import write_atomically

OnEpoch = Callable[[Sequence[Report]], None]
ShouldStop = Callable[[Report], bool]


def train_population(
    models: Sequence[nn.Module],
    data: tuple[TensorSplit, TensorSplit | None],
    options: TrainOptions | Sequence[TrainOptions],
    *,
    batch_size: int,
    seeds: Sequence[int] | None = None,
    shared_order: bool = False,
    device: str = "cpu",
    max_seconds: float | None = None,
    on_epoch: OnEpoch | None = None,
    should_stop: ShouldStop | None = None,
    snapshot: Path | None = None,
    resume: bool = False,
    keep_best: bool = False,
) -> list[PopulationOutcome]:
    """Train all `models` at once on (training, validation) data, each as `Training` would.

    `options` are for all models, or one per model; `seeds`, by default those of the options, set
    each candidate's order of samples, and with `shared_order` all use that of the first. A
    candidate ends after its epochs, steps or patience, or when `should_stop` returns True at the
    end of one of its epochs; all end after `max_seconds`. The models then have the weights of
    their last epoch or, with `keep_best`, of the epoch with the lowest loss. The file `snapshot`
    is written whenever an epoch or a candidate ends; with `resume`, the population resumes from it
    if it exists.
    """
    chosen = [options] * len(models) if isinstance(options, TrainOptions) else list(options)
    orders = [each.seed for each in chosen] if seeds is None else list(seeds)
    family = _checked(models, data, chosen, orders)
    if shared_order:
        orders = [orders[0]] * len(orders)
    if chosen[0].precision == "64":
        for model in models:
            model.double()
    place = parse_accelerator(device)
    _check_members(models, data[0], batch_size)
    population = Population(
        models,
        data,
        chosen,
        orders,
        batch_size=batch_size,
        device=place,
        family=family,
        keep_best=keep_best,
    )
    work = population.work  # of all candidates, so that a resumed population rounds the same way
    saved = read_snapshot(snapshot) if resume and snapshot and snapshot.exists() else None
    if saved is not None:
        restore(population, saved)
    with threads_for(work, place):
        for _ in _run(population, max_seconds, on_epoch, should_stop):
            if snapshot is not None:
                write_atomically(snapshot_of(population), snapshot)
    return [population.outcomes[number] for number in range(len(models))]


def _run(
    population: Population,
    max_seconds: float | None,
    on_epoch: OnEpoch | None,
    should_stop: ShouldStop | None,
) -> Iterator[None]:
    """Train until no candidate is left; yield when an epoch has ended for some of them."""
    at_once = [row for row, c in enumerate(population.active) if c.stopped()]
    population.score(at_once)
    population.finish(dict.fromkeys(at_once, "budget"))
    while population.active:
        in_time = population.advance(max_seconds)
        ending = population.enter_scores(all_of_them=not in_time)
        reports = [population.active[row].report for row in ending]
        if on_epoch is not None:
            on_epoch(reports)
        done: dict[int, str] = {}
        for row, report in zip(ending, reports, strict=True):
            why = population.active[row].stopped() or ("budget" if not in_time else None)
            if why is None and should_stop is not None and should_stop(report):
                why = "asked"
            done |= {row: why} if why else {}
        population.finish(done)
        yield


def _checked(
    models: Sequence[nn.Module],
    data: tuple[TensorSplit, TensorSplit | None],
    options: Sequence[TrainOptions],
    seeds: Sequence[int],
) -> Family:
    """Return the family of the networks; refuse what cannot be trained."""
    for name, values in (("options", options), ("seeds", seeds)):
        if len(values) != len(models):
            raise ValueError(f"expected {len(models)} {name} (one per model), got {len(values)}")
    if data[1] is None and any(each.early_stopping is not None for each in options):
        raise ValueError("early_stopping needs a validation split")
    if not isinstance(data[0].x, Tensor):
        raise Unfit("the data set has several inputs; train these networks one by one")
    try:
        return _family(models, options)
    except Unfit as error:
        raise Unfit(f"{error}; train these networks one by one") from error


def _family(models: Sequence[nn.Module], options: Sequence[TrainOptions]) -> Family:
    for each in options:
        _check_options(each, options[0])
    return family_of(models)


def _check_members(models: Sequence[nn.Module], split: TensorSplit, batch_size: int) -> None:
    """Check each network separately, as padding would hide a layer that does not fit."""
    feeds: dict[torch.device, Feed] = {}
    for model in models:
        home = next(model.parameters()).device
        if home not in feeds:
            feeds[home] = Feed(split, batch_size, Place(home), float_type(model))
        check_fit(model, feeds[home])
    check_traces(models, feeds[home].few()[0])


def reason_against(
    models: Sequence[nn.Module], options: TrainOptions | Sequence[TrainOptions] = ()
) -> str | None:
    """Return why these networks cannot be trained as one population; None if they can."""
    try:
        _family(models, [options] if isinstance(options, TrainOptions) else options)
    except Unfit as error:
        return str(error)
    return None


def _check_options(options: TrainOptions, first: TrainOptions) -> None:
    if options.precision not in ("32", "64") or options.precision != first.precision:
        raise Unfit(f"a population needs one precision, 32 or 64, not {options.precision}")
    if options.accumulate_grad_batches != 1 or options.fast_dev_run or options.devices > 1:
        raise Unfit(
            "a population does not support accumulate_grad_batches, fast_dev_run or several devices"
        )
    if options.optimizer not in UPDATES:
        known = ", ".join(UPDATES)
        raise Unfit(f"populations do not support the optimizer {options.optimizer}; use {known}")
