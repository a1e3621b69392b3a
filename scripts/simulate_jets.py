"""Simulate jets and write the sixteen observables of the JSC data set for each of them.

Proton–proton collisions at 13 TeV (Pythia 8) with a hard scattering at about 1 TeV make two gluons
(g), light quarks (q), top quarks (t), W (w) or Z bosons (z). The leading anti-kT jet of each is
groomed (mMDT, FastJet), and its observables become one row. No detector is simulated.

The work is cut into shards with a seed each, so the jets do not depend on the number of processes.
A finished shard is kept: call the same command again after an interruption, or with a larger
--jets, and only what is missing is made.

examples:
  python scripts/simulate_jets.py jets.npz --jets 1000
      1,000 jets of each class, in one process for each core
  python scripts/simulate_jets.py jets.npz --jets 200000 --processes 64 --shards /scratch/jets
      a million jets; the shards lie in a folder of their own
  python scripts/simulate_jets.py jets.npz --jets 200000 --shards /scratch/jets --merge
      only write the file, from the shards that are finished so far

The file has X float32[N, 16] in raw units, y uint8, features, classes, jet_pt_eta, scaler_mean and
scaler_scale, in random order: the layout of the data set jsc-sim.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = ("g", "q", "t", "w", "z")
FEATURES = (
    "zlogz", "c1_b0_mmdt", "c1_b1_mmdt", "c1_b2_mmdt", "c2_b1_mmdt", "c2_b2_mmdt", "d2_b1_mmdt",
    "d2_b2_mmdt", "d2_a1_b1_mmdt", "d2_a1_b2_mmdt", "m2_b1_mmdt", "m2_b2_mmdt", "n2_b1_mmdt",
    "n2_b2_mmdt", "mass_mmdt", "multiplicity",
)  # fmt: skip
NUM_COLUMNS = len(FEATURES) + 2  # a row of a shard ends with pT and eta of the jet

COLLISION = (
    "Print:quiet = on",
    "Beams:eCM = 13000.",
    "PhaseSpace:pTHatMin = 995.",
    "PhaseSpace:pTHatMax = 1005.",
    "24:onMode = off",  # W and Z decay into quarks
    "24:onIfAny = 1 2 3 4 5",
    "23:onMode = off",
    "23:onIfAny = 1 2 3 4 5",
    "Random:setSeed = on",
)
PROCESSES = {
    "g": ("HardQCD:gg2gg = on", "HardQCD:qqbar2gg = on"),
    "q": ("HardQCD:qq2qq = on", "HardQCD:gg2qqbar = on", "HardQCD:qqbar2qqbarNew = on"),
    "t": ("Top:gg2ttbar = on", "Top:qqbar2ttbar = on"),
    "w": ("WeakDoubleBoson:ffbar2WW = on",),
    "z": ("WeakDoubleBoson:ffbar2gmZgmZ = on", "WeakZ0:gmZmode = 2"),
}
BOSONS = {"w": 24, "z": 23}
NEUTRINOS = {12, 14, 16, 18}
PYTHIA_SEEDS = 900_000_000  # it takes seeds below this
MAX_FAILURES = 100  # in a row, then something is wrong with Pythia
MIN_JET_PT = 100.0  # GeV
Z_CUT = 0.1


@dataclass(frozen=True)
class Settings:
    """What the jets depend on; shards of other settings do not mix with these."""

    seed: int
    shard_size: int
    radius: float
    pythia: str = ""
    fastjet: str = ""


@dataclass(frozen=True)
class Shard:
    """`num_jets` jets of one class; a larger shard of the same seeds begins with the same jets."""

    jet_class: str
    index: int
    num_jets: int
    settings: Settings

    @property
    def name(self) -> str:
        return f"{self.jet_class}-{self.index:05d}"

    def seeds(self) -> tuple[int, int]:
        """For Pythia and for numpy."""
        entropy = [self.settings.seed, CLASSES.index(self.jet_class), self.index]
        first, second = np.random.SeedSequence(entropy).generate_state(2)
        return int(first) % (PYTHIA_SEEDS - 1) + 1, int(second)


Simulate = Callable[[Shard], np.ndarray]


# --- observables -------------------------------------------------------------------------------


def zlogz(energy: np.ndarray, jet_energy: float) -> float:
    """Σ x log x of the shares x of the constituents in the energy of the jet."""
    share = energy[energy > 0] / jet_energy
    return float((share * np.log(share)).sum())


def angles(rapidity: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """Distances ΔR between all constituents."""
    around = np.abs(phi[:, None] - phi)
    return np.hypot(rapidity[:, None] - rapidity, np.minimum(around, 2 * np.pi - around))


def two_point(z: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """e2 for β = 0, 1, 2: the sum over pairs of z z ΔR^β."""
    first, second = np.triu_indices(len(z), 1)
    weight, distance = z[first] * z[second], angle[first, second]
    return np.array([weight.sum(), weight @ distance, weight @ distance**2])


def three_point(z: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """ᵥe3 for v = 1, 2, 3 (rows), β = 1, 2: sums over triples of z z z (v smallest ΔR)^β."""
    total = np.zeros((3, 2))
    for i in range(len(z) - 2):
        rest = slice(i + 1, None)
        ij, ik, jk = angle[i, rest, None], angle[None, i, rest], angle[rest, rest]
        shorter, longer = np.minimum(ij, ik), np.maximum(ij, ik)
        shortest = np.minimum(shorter, jk)
        middle = np.maximum(shorter, np.minimum(longer, jk))
        # j and k come in both orders; where they are the same, the shortest distance is 0
        weight = z[i] / 2 * np.outer(z[rest], z[rest])
        for v, product in enumerate((shortest, shortest * middle, ij * ik * jk)):
            total[v] += np.vdot(weight, product), np.vdot(weight, product**2)
    return total


def correlation_ratios(pt: np.ndarray, rapidity: np.ndarray, phi: np.ndarray) -> list[float] | None:
    """The thirteen features C1 … N2 in the order of `FEATURES`; None if they are not defined."""
    if len(pt) < 3:
        return None
    z, angle = pt / pt.sum(), angles(rapidity, phi)
    e2 = two_point(z, angle)
    if not (e2 > 0).all():
        return None
    (m_1, m_2), (n_1, n_2), (e3_1, e3_2) = three_point(z, angle)
    _, e2_1, e2_2 = e2
    c2 = [e3_1 / e2_1**2, e3_2 / e2_2**2]
    d2 = [e3_1 / e2_1**3, e3_2 / e2_2**3, e3_1 / e2_1**3, e3_1 / e2_2**1.5]
    m2 = [m_1 / e2_1, m_2 / e2_2]
    n2 = [n_1 / e2_1**2, n_2 / e2_2**2]
    return [float(ratio) for ratio in (*e2, *c2, *d2, *m2, *n2)]


def mmdt(jet: Any, parents: Callable[[Any], tuple[Any, Any] | None], z_cut: float = Z_CUT) -> Any:
    """The jet without soft branches: undo clusterings until both parents carry enough pT."""
    while (pair := parents(jet)) is not None:
        harder, softer = sorted(pair, key=lambda branch: branch.pt(), reverse=True)
        if softer.pt() > z_cut * (harder.pt() + softer.pt()):
            break
        jet = harder
    return jet


def decay_cosine(boson: np.ndarray, quark: np.ndarray) -> float:
    """cos θ* of a quark (px, py, pz, E) to the flight of the boson, where the boson is at rest."""
    momentum = np.linalg.norm(boson[:3])
    mass = np.sqrt(max(boson[3] ** 2 - momentum**2, 1e-12))
    along = quark[:3] @ boson[:3] / momentum
    at_rest = (boson[3] * along - momentum * quark[3]) / mass
    energy = (boson[3] * quark[3] - momentum * along) / mass
    return float(np.clip(at_rest / max(energy, 1e-9), -1, 1))


# --- Pythia and FastJet ------------------------------------------------------------------------


def simulate(shard: Shard) -> np.ndarray:
    """Rows of a shard: the observables of the jets, then pT and eta."""
    pythia_seed, numpy_seed = shard.seeds()
    random = np.random.default_rng(numpy_seed)
    rows: list[list[float]] = []
    for event in events(shard.jet_class, pythia_seed):
        if len(rows) == shard.num_jets:
            break
        row = jet_row(event, shard, random)
        if row is not None:
            rows.append(row)
    return np.array(rows, np.float32)


def events(jet_class: str, seed: int) -> Iterator[Any]:
    """Collisions without end."""
    import pythia8mc

    pythia = pythia8mc.Pythia("", False)
    for line in (*COLLISION, *PROCESSES[jet_class], f"Random:seed = {seed}"):
        if not pythia.readString(line):
            raise RuntimeError(f"Pythia does not know the setting {line!r}")
    if not pythia.init():
        raise RuntimeError(f"Pythia cannot start the processes {PROCESSES[jet_class]}")
    failures = 0
    while failures < MAX_FAILURES:
        if pythia.next():
            failures = 0
            yield pythia.event
        else:
            failures += 1
    raise RuntimeError(f"Pythia failed {MAX_FAILURES} times in a row")


def jet_row(event: Any, shard: Shard, random: np.random.Generator) -> list[float] | None:
    """Observables, pT and eta of the leading jet; None if there is none, or it is not taken."""
    import fastjet._swig as fj  # the classes of FastJet as they are, without arrays on top

    particles = [
        fj.PseudoJet(p.px(), p.py(), p.pz(), p.e())
        for p in event
        if p.isFinal() and abs(p.id()) not in NEUTRINOS and p.e() > 1e-6 and p.pT() > 1e-6
    ]
    clusters = fj.ClusterSequence(
        particles, fj.JetDefinition(fj.antikt_algorithm, shard.settings.radius)
    )
    jets = fj.sorted_by_pt(clusters.inclusive_jets(MIN_JET_PT))
    if not jets:
        return None
    jet = jets[0]
    decays = boson_decays(event, BOSONS[shard.jet_class]) if shard.jet_class in BOSONS else []
    if decays and random.random() > isotropy(jet, decays, shard.settings.radius):
        return None
    row = observables(fj, jet)
    return None if row is None else [*row, jet.pt(), jet.eta()]


def observables(fj: Any, jet: Any) -> list[float] | None:
    """The sixteen features of a jet; None if too little is left of it after grooming."""
    constituents = list(jet.constituents())
    # mMDT undoes the clustering by angle alone (Cambridge/Aachen)
    clusters = fj.ClusterSequence(
        constituents, fj.JetDefinition(fj.cambridge_algorithm, fj.JetDefinition.max_allowable_R)
    )
    groomed = mmdt(fj.sorted_by_pt(clusters.inclusive_jets())[0], partial(parents_of, fj))
    left = groomed.constituents()
    pt, rapidity, phi = np.array([(p.pt(), p.rap(), p.phi()) for p in left]).T
    ratios = correlation_ratios(pt, rapidity, phi)
    if ratios is None:
        return None
    energy = np.array([p.e() for p in constituents])
    return [zlogz(energy, jet.e()), *ratios, groomed.m(), float(len(constituents))]


def parents_of(fj: Any, jet: Any) -> tuple[Any, Any] | None:
    """The two branches that were clustered into `jet`; None of a single particle."""
    one, other = fj.PseudoJet(), fj.PseudoJet()
    return (one, other) if jet.has_parents(one, other) else None


def boson_decays(event: Any, boson: int) -> list[tuple[float, float, float]]:
    """eta, phi and cos θ* of the W or Z bosons that decay into quarks."""
    decays = []
    for particle in event:
        first, last = particle.daughter1(), particle.daughter2()
        if abs(particle.id()) == boson and 0 < first < last and abs(event[first].id()) < 6:
            cosine = decay_cosine(four_momentum(particle), four_momentum(event[first]))
            decays.append((particle.eta(), particle.phi(), cosine))
    return decays


def four_momentum(particle: Any) -> np.ndarray:
    return np.array([particle.px(), particle.py(), particle.pz(), particle.e()])


def isotropy(jet: Any, decays: list[tuple[float, float, float]], radius: float) -> float:
    """The share of such jets to take so that bosons decay evenly into all directions.

    Pythia decays these transverse bosons by 1 + cos² θ*; the sample that JSC was made of did not.
    """
    eta, phi, cosine = np.array(decays).T
    around = (jet.phi_std() - phi + np.pi) % (2 * np.pi) - np.pi
    distance = np.hypot(jet.eta() - eta, around)
    nearest = distance.argmin()
    average = np.pi / 4  # for a jet of anything else
    return float(1 / (1 + cosine[nearest] ** 2) if distance[nearest] < radius else average)


# --- shards ------------------------------------------------------------------------------------


def plan(jets: int, settings: Settings) -> list[Shard]:
    """The shards of `jets` jets of each class, the classes in turn."""
    starts = range(0, jets, settings.shard_size)
    return [
        Shard(jet_class, index, min(settings.shard_size, jets - start), settings)
        for index, start in enumerate(starts)
        for jet_class in CLASSES
    ]


def shard_file(folder: Path, shard: Shard) -> Path:
    return folder / f"{shard.name}.npy"


def read_shard(folder: Path, shard: Shard) -> np.ndarray | None:
    """The rows of a finished shard; None if it is not there, too short or broken."""
    try:
        rows = np.load(shard_file(folder, shard))
    except (OSError, ValueError, EOFError):
        return None
    if rows.ndim != 2 or rows.shape[1] != NUM_COLUMNS or len(rows) < shard.num_jets:
        return None
    return rows[: shard.num_jets]


def make_shard(shard: Shard, folder: Path, simulate: Simulate) -> Shard:
    """Simulate a shard and keep it; a file under its name is always whole."""
    rows = simulate(shard)
    write(shard_file(folder, shard), lambda file: np.save(file, rows))
    return shard


def write(target: Path, save: Callable[[Any], None]) -> None:
    """Let `save` write into an open file that becomes `target` when it is complete."""
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            save(file)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def keep_settings(folder: Path, settings: Settings) -> None:
    """Write the settings beside the shards; refuse a folder that has shards of others."""
    file, mine = folder / "settings.json", vars(settings)
    folder.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        write(file, lambda f: f.write(json.dumps(mine, indent=2).encode()))
        return
    theirs = json.loads(file.read_text(encoding="utf-8"))
    other = [
        f"{key} {theirs.get(key)}, not {mine[key]}" for key in mine if theirs.get(key) != mine[key]
    ]
    if other:
        raise ValueError(
            f"the shards in {folder} were made with {'; '.join(other)}; "
            f"take these settings, or another folder with --shards"
        )


def make_all(shards: list[Shard], folder: Path, simulate: Simulate, processes: int) -> None:
    """Simulate the shards that are not finished, and say how far it is."""
    todo = [shard for shard in shards if read_shard(folder, shard) is None]
    if len(todo) < len(shards):
        say(f"{len(shards) - len(todo)} of {len(shards)} shards are finished already")
    began, made, total = time.monotonic(), 0, sum(shard.num_jets for shard in todo)
    work = partial(make_shard, folder=folder, simulate=simulate)
    for number, shard in enumerate(each(work, todo, processes), start=1):
        made += shard.num_jets
        seconds = time.monotonic() - began
        left = seconds / made * (total - made)
        say(
            f"[{number}/{len(todo)}] {shard.name}: {made:,} of {total:,} jets, "
            f"{made / seconds:.1f} jets/s, {left / 60:.1f} min left"
        )


def each(work: Callable[[Shard], Shard], shards: list[Shard], processes: int) -> Iterator[Shard]:
    """`work` of every shard, in whatever order they finish."""
    if processes == 1 or len(shards) < 2:
        yield from map(work, shards)
        return
    # a fresh interpreter for each worker: Pythia and FastJet have threads and global state
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(shards)), context, leave_interrupts) as pool:
        try:
            for future in as_completed([pool.submit(work, shard) for shard in shards]):
                yield future.result()
        except BaseException:
            say("waiting for the shards under way")
            pool.shutdown(cancel_futures=True)
            raise


def leave_interrupts() -> None:
    """Ctrl-C is for the parent, which lets workers finish their shards."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def merge(shards: list[Shard], folder: Path, out: Path) -> int:
    """Write all jets of the finished shards, shuffled, as one file; returns their number."""
    rows = [(shard, read_shard(folder, shard)) for shard in shards]
    finished = [(shard, row) for shard, row in rows if row is not None]
    if not finished:
        raise ValueError(f"no finished shard in {folder}; leave out --merge to simulate them")
    x = np.concatenate([row for _, row in finished])
    y = np.concatenate(
        [np.full(len(row), CLASSES.index(shard.jet_class), np.uint8) for shard, row in finished]
    )
    order = np.random.RandomState(shards[0].settings.seed).permutation(len(y))
    features = x[order, : len(FEATURES)]
    arrays = {
        "X": features,
        "y": y[order],
        "features": np.array(FEATURES),
        "classes": np.array(CLASSES),
        "jet_pt_eta": x[order, len(FEATURES) :],
        "scaler_mean": features.mean(axis=0, dtype=np.float64).astype(np.float32),
        "scaler_scale": features.std(axis=0, dtype=np.float64).astype(np.float32),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write(out, lambda file: np.savez_compressed(file, **arrays))
    return len(y)


# --- command line ------------------------------------------------------------------------------


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {number}")
    return number


def parse(arguments: list[str] | None) -> argparse.Namespace:
    what, _, more = (__doc__ or "").partition("examples:")
    parser = argparse.ArgumentParser(
        description=what,
        epilog=f"examples:{more}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    count = at_least_one
    parser.add_argument("out", type=Path, help="the .npz file to write")
    parser.add_argument("--jets", type=count, required=True, help="number of jets of each class")
    parser.add_argument(
        "--processes", type=count, default=os.cpu_count(), help="at a time (default: %(default)s)"
    )
    parser.add_argument("--shards", type=Path, help="folder of the shards (default: OUT.shards)")
    parser.add_argument(
        "--shard-size", type=count, default=200, help="jets in a shard (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything (default: %(default)s)")
    parser.add_argument(
        "--radius", type=float, default=0.4, help="R of the jets (default: %(default)s)"
    )
    parser.add_argument(
        "--merge", action="store_true", help="simulate nothing, write what is finished"
    )
    options = parser.parse_args(arguments)
    if options.out.suffix != ".npz":
        parser.error(f"the file to write ends in .npz, not {options.out.suffix!r}")
    if options.seed < 0:
        parser.error(f"--seed is at least 0, not {options.seed}")
    return options


def physics_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ModuleNotFoundError(
            f"simulating jets needs {package}: "
            '.venv/bin/pip install -c constraints.txt -e ".[physics]"'
        ) from None


def main(arguments: list[str] | None = None, simulate: Simulate = simulate) -> int:
    options = parse(arguments)
    folder = options.shards or options.out.with_suffix(".npz.shards")
    try:
        settings = Settings(
            options.seed,
            options.shard_size,
            options.radius,
            pythia=physics_version("pythia8mc"),
            fastjet=physics_version("fastjet"),
        )
        keep_settings(folder, settings)
        shards = plan(options.jets, settings)
        if not options.merge:
            make_all(shards, folder, simulate, options.processes)
        say(f"{options.out}: {merge(shards, folder, options.out):,} simulated jets")
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        say(f"simulate_jets: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the same command goes on with what is missing")
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
