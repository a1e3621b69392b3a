"""A population on disk: tensors and plain values, from which it goes on as if never stopped."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from chop.checkpoints import read_torch_file
from chop.training.fields import TrainingProgress
from chop.training.population.population import PopulationMember, PopulationOutcome, Population
from chop.training.population.stacks import State
from chop.version import __version__

KEY = "mase_population"


def snapshot_of(population: Population) -> dict[str, Any]:
    """Everything that the population consists of: those that learn, and those that are done."""
    done = population.outcomes
    return {
        KEY: __version__,
        "who": population.fingerprints,
        "batch_size": population.batch_size,
        "samples": len(population.train),
        "progress": {
            "epoch": population.epoch,
            "step": population.step,
            "step_in_epoch": population.step_in_epoch,
            "seconds": population.seconds,
        },
        "active": [_books(candidate) for candidate in population.active],
        **_numbers(population.state),
        "best": None if population.best is None else _numbers(population.best),
        "moments": population.moments,
        "finite": population.finite,
        "done": [
            [asdict(outcome), population.models[number].state_dict()]
            for number, outcome in done.items()
        ],
    }


def _numbers(state: State) -> dict[str, Any]:
    return {
        "values": state.values.detach(),
        "buffers": [[*key, stack] for key, stack in state.buffers.items()],
    }


def _state(saved: dict[str, Any]) -> State:
    """The inverse of `_numbers`."""
    return State(saved["values"], {(call, name): stack for call, name, stack in saved["buffers"]})


def _books(candidate: PopulationMember) -> dict[str, Any]:
    return {
        "number": candidate.number,
        "progress": asdict(candidate.progress),
        "loss": candidate.loss,
        "accuracy": candidate.accuracy,
    }


def read_snapshot(file: Path) -> dict[str, Any]:
    """What `snapshot_of` made and somebody wrote."""
    saved = read_torch_file(file)
    if not isinstance(saved, dict) or KEY not in saved:
        raise ValueError(f"{file} is not a snapshot of a population; remove it to start again")
    return saved


def restore(population: Population, saved: dict[str, Any]) -> None:
    """Bring a fresh population of the same candidates to where `saved` was written."""
    _check(population, saved)
    for outcome, state in saved["done"]:
        population.models[outcome["candidate"]].load_state_dict(state)
        population.outcomes[outcome["candidate"]] = PopulationOutcome(**outcome)
    books = {each["number"]: each for each in saved["active"]}
    progress = saved["progress"]
    population.epoch, population.step = progress["epoch"], progress["step"]
    population.step_in_epoch = progress["step_in_epoch"]
    population.began -= progress["seconds"]
    population.keep([row for row, c in enumerate(population.active) if c.number in books])
    for candidate in population.active:
        own = books[candidate.number]
        candidate.progress = TrainingProgress(**own["progress"])
        candidate.loss, candidate.accuracy = own["loss"], own["accuracy"]
    if population.active:
        best = _state(saved["best"]) if population.best is not None else None
        population.go_on_from(_state(saved), best, saved["moments"], saved["finite"])


def _check(population: Population, saved: dict[str, Any]) -> None:
    """Refuse another population than the one that was saved."""
    now = {
        "batch_size": population.batch_size,
        "samples": len(population.train),
        "number of candidates": len(population.fingerprints),
        "keep_best": population.best is not None,
    }
    before = {
        **saved,
        "number of candidates": len(saved["who"]),
        "keep_best": saved.get("best") is not None,
    }
    for what, value in now.items():
        if before[what] != value:
            raise ValueError(
                f"the resumed population has {what} = {before[what]}, not {value}; use the same "
                f"value, or remove its snapshot to start again"
            )
    pairs = enumerate(zip(saved["who"], population.fingerprints, strict=True))
    changed = [number for number, (was, is_now) in pairs if was != is_now]
    if changed:
        raise ValueError(
            f"candidate {changed[0]} differs from the saved one in its layers, formats, seed or "
            f"optimizer; use the same ones, or remove the snapshot to start again"
        )
