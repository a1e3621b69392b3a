"""Random quantised networks: all ways to compute one must agree, or say in a sentence why not.

`python -m tests.oracles.random_networks --seed 0 --count 100` tries the networks of 100 seeds, and
prints the smallest network that still differs as a call of `check`.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from chop.hardware.circuit import Backend
from chop.hardware.simulation import build

from .network_circuits import Part, part_of, simulated
from .network_drawing import Model, Network, Step, drawn
from .network_ways import REFUSALS, WAYS, Difference, Subject

__all__ = ["Finding", "Network", "Step", "Tally", "check", "differences", "smallest", "tried"]

BACKENDS: tuple[Backend, ...] = ("streaming", "unrolled")
SMALLEST_TRIES = 200  # networks that are tried to find a smaller one
# compiling takes longer than running so few samples
QUICKLY: dict[Backend, str] = {"streaming": "-O0", "unrolled": "-O0"}


@dataclass(frozen=True)
class Finding:
    """A seed whose network differs."""

    seed: int
    way: str
    network: Network
    difference: Difference

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.difference}\ncheck({self.network})"


@dataclass
class Tally:
    """What came of many networks: by way, those that were equal, and those that were refused."""

    equal: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def note(self, way: str, seed: int, subject: Subject, found: Difference | None) -> None:
        """Count what a way came to for a network."""
        if found is None:
            self.equal[way] += 1
        elif found.refusal:
            self.refused[way] += 1
        else:
            self.findings.append(Finding(seed, way, subject.network, found))

    def __str__(self) -> str:
        ways = dict.fromkeys([*self.equal, *self.refused])
        rows = [f"{way:>10}: {self.equal[way]} equal, {self.refused[way]} refused" for way in ways]
        return "\n".join(rows)


def outcome(way: str, call: Callable[..., Difference | None], *args: Any) -> Difference | None:
    """Return a difference; an error is one, unless it refuses in a sentence."""
    try:
        return call(*args)
    except REFUSALS as error:
        text = str(error)
        return Difference(way, text, refusal="\n" not in text and " " in text)
    except Exception as error:
        return Difference(way, f"{type(error).__name__}: {error}")


def tried(
    seeds: Iterable[int],
    *,
    ways: Sequence[str] = tuple(WAYS),
    streaming: int = 0,
    unrolled: int = 0,
) -> Tally:
    """Try the networks of seeds; the first `streaming` and `unrolled` of them in Verilator, too."""
    tally, subjects = Tally(), list[tuple[int, Subject]]()
    for seed in seeds:
        network = drawn(seed)
        subject, found = prepared(network)
        if found is not None:
            tally.refused["graph"] += found.refusal
            tally.findings += [] if found.refusal else [Finding(seed, "graph", network, found)]
        if subject is None:
            continue
        subjects.append((seed, subject))
        for way in ways:
            tally.note(way, seed, subject, outcome(way, WAYS[way], subject))
    for backend, count in zip(BACKENDS, (streaming, unrolled), strict=True):
        _simulate(backend, subjects[:count], tally)
    return tally


def prepared(network: Network) -> tuple[Subject | None, Difference | None]:
    """Return what the ways take, or why there is none."""
    made = list[Subject]()
    found = outcome("graph", lambda: made.append(Subject(network)))
    return (made[0] if made else None), found


def _simulate(backend: Backend, subjects: Sequence[tuple[int, Subject]], tally: Tally) -> None:
    """Simulate the circuits of networks together, and alone if that fails."""
    way, parts, seeds = f"{backend} in Verilator", list[Part](), list[int]()
    for seed, subject in subjects:
        found = outcome(way, _append_part, parts, subject, backend)
        if found is None:
            seeds.append(seed)
        else:
            tally.note(backend, seed, subject, found)
    for number, found in enumerate(_together(parts, way)):
        tally.note(backend, seeds[number], parts[number].subject, found)


def _append_part(parts: list[Part], subject: Subject, backend: Backend) -> None:
    parts.append(part_of(subject, backend, len(parts)))


def _together(parts: Sequence[Part], way: str) -> list[Difference | None]:
    if not parts:
        return []
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(build.OPTIMISED, QUICKLY):
        try:
            return simulated(parts, Path(folder))
        except Exception as error:
            if len(parts) == 1:
                return [Difference(way, f"{type(error).__name__}: {error}")]
    middle = len(parts) // 2
    return [*_together(parts[:middle], way), *_together(parts[middle:], way)]


def differences(
    network: Network, ways: Sequence[str] = (*WAYS, *BACKENDS), *, refusals: bool = False
) -> Iterator[Difference]:
    """Yield what differs for a network; with `refusals`, also what is refused."""
    subject, found = prepared(network)
    every = [outcome(way, _one_way, way, subject) for way in ways] if subject is not None else []
    yield from (each for each in [found, *every] if each is not None and each.refusal <= refusals)


def _one_way(way: str, subject: Subject) -> Difference | None:
    if way in WAYS:
        return WAYS[way](subject)
    backend: Backend = "streaming" if way == "streaming" else "unrolled"
    return _together([part_of(subject, backend, 0)], way)[0]


def check(network: Network) -> None:
    """Raise an error that says how the ways to compute a network differ."""
    found = [str(each) for each in differences(network)]
    assert not found, "\n".join(found)


# --- smaller networks that still differ


def smallest(network: Network, way: str) -> Network:
    """Return a network that differs in the same way, with fewer layers and simpler ones."""
    kinds = {found.kind for found in differences(network, [way])}
    tries = iter(range(SMALLEST_TRIES))
    progress = True
    while progress:
        progress = False
        for simpler in simplified(network):
            if next(tries, None) is None:
                return network
            if _differs(simpler, way, kinds):
                network, progress = simpler, True
                break
    return network


def _differs(network: Network, way: str, kinds: set[str]) -> bool:
    try:
        Model(network)
    except Exception:  # torch cannot compute it
        return False
    return any(found.kind in kinds for found in differences(network, [way]))


def simplified(network: Network) -> Iterator[Network]:
    """Yield networks that are a little simpler."""
    for number in reversed(range(len(network.steps))):
        yield from _without(network, number)
    for dim, size in enumerate(network.shape):
        if size > 1:
            shape = (*network.shape[:dim], size - 1, *network.shape[dim + 1 :])
            yield replace(network, shape=shape)
    for number, step in enumerate(network.steps):
        for simpler in _simpler_steps(step):
            steps = (*network.steps[:number], simpler, *network.steps[number + 1 :])
            yield replace(network, steps=steps)
    if len(network.returns) > 1:
        for one in network.returns:
            yield replace(network, returns=(one,))
    if network.parallelism > 1:
        yield replace(network, parallelism=1)


def _without(network: Network, number: int) -> Iterator[Network]:
    """Yield the network without a layer, whose readers take one of its operands."""
    for operand in dict.fromkeys(network.steps[number].takes):

        def moved(value: int, operand: int = operand) -> int:
            return operand if value == number + 1 else value - (value > number + 1)

        steps = [
            replace(step, takes=tuple(moved(value) for value in step.takes))
            for i, step in enumerate(network.steps)
            if i != number
        ]
        returns = tuple(moved(value) for value in network.returns)
        if steps and 0 not in returns:
            yield replace(network, steps=tuple(steps), returns=returns)


PLAIN = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "bias": False, "ceil_mode": False}
DROPPED = ("padding_mode", "divisor_override", "value")
SHRUNK = ("out_features", "out_channels", "kernel_size")
EASIER = {"rounding": "even", "overflow": "saturate", "weight_axis": None, "data_in_axis": None}


def _simpler_steps(step: Step) -> Iterator[Step]:
    options = step.options
    for key, value in options.items():
        if key in PLAIN and value != PLAIN[key]:
            yield replace(step, options={**options, key: PLAIN[key]})
        if key in DROPPED:
            yield replace(step, options={k: v for k, v in options.items() if k != key})
        if key in SHRUNK and isinstance(value, int) and value > 1:
            yield replace(step, options={**options, key: value - 1})
        if isinstance(value, tuple) and len({*value}) > 1 and key in (*PLAIN, *SHRUNK):
            yield replace(step, options={**options, key: value[0]})
    if step.weights != "even":
        yield replace(step, weights="even")
    if step.format is None:
        return
    if not KINDS_NEED_FORMAT.intersection({step.kind}):
        yield replace(step, format=None)
    for key, value in step.format.items():
        if key in EASIER and value != EASIER[key]:
            yield replace(step, format={k: v for k, v in step.format.items() if k != key})
        if key.endswith("_width") and "frac" not in key and value > 2:
            yield replace(step, format={**step.format, key: max(2, value // 2)})
        if key == "data_in_scale" and isinstance(value, float) and math.log2(value) % 1:
            yield replace(step, format={**step.format, key: 2.0 ** round(math.log2(value))})
        if key.endswith("zero_point") and value:
            yield replace(step, format={k: v for k, v in step.format.items() if k != key})


KINDS_NEED_FORMAT = {"linear", "conv", "depthwise", "conv3d"}


def main() -> None:
    """Try the networks of many seeds."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=100, help="how many seeds")
    parser.add_argument("--ways", nargs="*", default=[*WAYS], choices=[*WAYS], help="default: all")
    parser.add_argument("--streaming", type=int, default=0, help="networks of 20 in Verilator")
    parser.add_argument("--unrolled", type=int, default=0, help="networks of 20 in Verilator")
    parser.add_argument("--as-found", action="store_true", help="do not look for smaller networks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    whole = Tally()
    for first in range(options.seed, options.seed + options.count, 20):
        seeds = range(first, min(first + 20, options.seed + options.count))
        circuits = {"streaming": options.streaming, "unrolled": options.unrolled}
        tally = tried(seeds, ways=options.ways, **circuits)
        for key in ("equal", "refused"):
            getattr(whole, key).update(getattr(tally, key))
        for found in tally.findings:
            if not options.as_found:
                found = replace(found, network=smallest(found.network, found.way))
            print(found, flush=True)
        whole.findings += tally.findings
    print(f"seeds {options.seed} to {options.seed + options.count - 1}\n{whole}")
    raise SystemExit(bool(whole.findings))


if __name__ == "__main__":
    main()
