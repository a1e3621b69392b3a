"""Snapshots of a population on disk, from which it resumes exactly."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from chop.checkpoints import read_torch_file
from chop.methods.population.population import Population, PopulationOutcome
from chop.methods.population.stacks import State
from chop.training.fields import TrainingProgress
from chop.version import __version__

KEY = "mase_population"
COUNTS = ("epoch", "step", "step_in_epoch")


def snapshot_of(population: Population) -> dict[str, Any]:
    """Return the complete state of a population: active candidates and outcomes."""
    return {
        KEY: __version__,
        "who": population.fingerprints,
        "batch_size": population.batch_size,
        "samples": len(population.train),
        "progress": {name: getattr(population, name) for name in (*COUNTS, "seconds")},
        "active": [
            {"number": c.number, "progress": asdict(c.progress)}
            | {"loss": c.loss, "accuracy": c.accuracy}
            for c in population.active
        ],
        **_tensors(population.state),
        "best": None if population.best is None else _tensors(population.best),
        "moments": population.moments,
        "finite": population.finite,
        "done": [
            [asdict(outcome), population.models[number].state_dict()]
            for number, outcome in population.outcomes.items()
        ],
    }


def _tensors(state: State) -> dict[str, Any]:
    return {
        "values": state.values.detach(),
        "buffers": [[*key, stack] for key, stack in state.buffers.items()],
    }


def _state(saved: dict[str, Any]) -> State:
    """The inverse of `_tensors`."""
    return State(saved["values"], {(call, name): stack for call, name, stack in saved["buffers"]})


def read_snapshot(file: Path) -> dict[str, Any]:
    """Read a snapshot that `snapshot_of` returned."""
    saved = read_torch_file(file)
    if not isinstance(saved, dict) or KEY not in saved:
        raise ValueError(f"{file} is not a snapshot of a population; delete it to start again")
    return saved


def restore(population: Population, saved: dict[str, Any]) -> None:
    """Restore the state of a snapshot in a new population of the same candidates."""
    _check(population, saved)
    for outcome, state in saved["done"]:
        population.models[outcome["candidate"]].load_state_dict(state)
        population.outcomes[outcome["candidate"]] = PopulationOutcome(**outcome)
    active = {each["number"]: each for each in saved["active"]}
    progress = saved["progress"]
    for name in COUNTS:
        setattr(population, name, progress[name])
    population.began -= progress["seconds"]
    population.keep([row for row, c in enumerate(population.active) if c.number in active])
    for candidate in population.active:
        values = active[candidate.number]
        candidate.progress = TrainingProgress(**values["progress"])
        candidate.loss, candidate.accuracy = values["loss"], values["accuracy"]
    if population.active:
        best = _state(saved["best"]) if population.best is not None else None
        population.go_on_from(_state(saved), best, saved["moments"], saved["finite"])


def _check(population: Population, saved: dict[str, Any]) -> None:
    """Refuse a snapshot of a different population."""
    now = {
        "batch_size": population.batch_size,
        "samples": len(population.train),
        "number of candidates": len(population.fingerprints),
        "keep_best": population.best is not None,
    }
    then = {
        **saved,
        "number of candidates": len(saved["who"]),
        "keep_best": saved.get("best") is not None,
    }
    for name, value in now.items():
        if then[name] != value:
            raise ValueError(
                f"the resumed population has {name} = {then[name]}, not {value}; use the same "
                f"value, or delete its snapshot to start again"
            )
    pairs = enumerate(zip(saved["who"], population.fingerprints, strict=True))
    changed = [number for number, (was, is_now) in pairs if was != is_now]
    if changed:
        raise ValueError(
            f"candidate {changed[0]} differs from the saved one in its layers, formats, seed or "
            f"optimizer; use the same ones, or delete the snapshot to start again"
        )
