"""The ways to run a network, and what a certificate says of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from chop.actions.certificate.vectors import Vectors
from chop.actions.samples import score_of
from chop.integers import IntegerGraph
from chop.integers.digest import graph_digest
from chop.ir.graph.mase_graph import MaseGraph
from chop.system.files import cache_folder
from chop.training.tasks import TrainingTask

__all__ = [
    "DEPLOYED",
    "PLAIN",
    "WAYS",
    "Column",
    "Compared",
    "Difference",
    "Subject",
    "Way",
    "compared",
    "inside",
    "shown",
    "way_of",
]

Way = Literal["simulation", "integers", "onnx", "verilog"]
WAYS: tuple[Way, ...] = get_args(Way)
DEPLOYED, PLAIN = "optimised", "not optimised"  # sessions of onnxruntime
LABELS: dict[Way, str] = {
    "simulation": "the float simulation",
    "integers": "the integer graph",
    "onnx": "the ONNX file",
    "verilog": "the circuit in",
}


@dataclass(frozen=True)
class Difference:
    """The first code that is not what the integer graph says; `vector` is a number of `Vectors`."""

    node: str
    vector: int
    place: tuple[int, ...]
    expected: float
    got: float
    module: str | None = None  # of a circuit, which computes the node

    def sentence(self, vectors: Vectors) -> str:
        """Return where it is, and both codes."""
        place = f" at {list(self.place)}" if self.place else ""
        codes = f"{shown(self.got)} instead of {shown(self.expected)}"
        module = f" (of the module {self.module})" if self.module else ""
        return f"node {self.node!r}{module} is {codes}{place} in {vectors.name(self.vector)}"


@dataclass(frozen=True)
class Column:
    """The results of one way: its score on the samples, and how it differs from the integers.

    `mismatches` counts codes: of the outputs or, in the simulation, of all layers. It is None for
    what was not compared. `faults` are reasons to distrust the files, whatever they compute.
    """

    way: Way
    file: str | None = None  # relative to the project
    session: str | None = None  # how onnxruntime ran it
    score: float | None = None
    mismatches: int | None = None
    wrong_vectors: int | None = None
    first: Difference | None = None
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    network: str | None = None  # the checksum that the files say they were made from

    @property
    def label(self) -> str:
        how = f" ({self.session})" if self.session == PLAIN else ""
        return LABELS[self.way] + (f" {self.file}" if self.file else "") + how

    @property
    def differs(self) -> bool:
        return bool(self.mismatches) or bool(self.faults)

    def sentence(self, vectors: Vectors) -> str:
        """Return the difference or the fault in one sentence."""
        if self.first is None:
            agrees = " (its codes agree)" if self.mismatches == 0 else ""
            return f"{self.label} {'; it '.join(self.faults)}{agrees}"
        count = f"{self.mismatches:,} codes"
        if self.wrong_vectors is not None:
            count += f" in {self.wrong_vectors:,} of {len(vectors):,} vectors"
        parts = (self.first.sentence(vectors) + f" ({count} differ)", *self.faults)
        return f"{self.label} differs from the integer graph: " + "; it ".join(parts)

    def described(self, vectors: Vectors) -> dict[str, Any]:
        """Return the column as a certificate records it."""
        record = asdict(self)
        if self.first is not None:
            record["first"]["vector"] = vectors.name(self.first.vector)
            record["first"]["place"] = list(self.first.place)
        return {**record, "faults": list(self.faults), "notes": list(self.notes)}


@dataclass(frozen=True)
class Compared:
    """How codes compare with those of the integer graph."""

    mismatches: int
    wrong_vectors: int
    vector: int | None  # the first that is wrong
    output: int = 0  # the number of the output in which it is wrong
    place: tuple[int, ...] = ()
    expected: float = 0
    got: float = 0

    def difference(self, node: str) -> Difference | None:
        if self.vector is None:
            return None
        return Difference(node, self.vector, self.place, self.expected, self.got)


def compared(
    expected: Sequence[Tensor], got: Sequence[Tensor], wrong: Sequence[Tensor] | None = None
) -> Compared:
    """Compare the codes of all outputs; `wrong` says where they differ, if equality does not."""
    wrong = wrong or [a != b for a, b in zip(expected, got, strict=True)]
    rows = torch.stack([x.reshape(len(x), -1).any(1) for x in wrong])
    by_vector = rows.any(0)
    count = sum(int(x.sum()) for x in wrong)
    if not count:
        return Compared(0, 0, None)
    vector = int(by_vector.nonzero()[0])
    output = int(rows[:, vector].nonzero()[0])
    place = tuple(wrong[output][vector].nonzero()[0].tolist())
    codes = (float(x[output][(vector, *place)]) for x in (expected, got))
    return Compared(count, int(by_vector.sum()), vector, output, place, *codes)


@dataclass(frozen=True, eq=False)
class Subject:
    """A quantised network, the vectors to run it on, and what its integers say."""

    graph: MaseGraph
    integers: IntegerGraph
    vectors: Vectors
    task: TrainingTask
    batch_size: int
    folder: Path  # of the project
    timeout: float | None = None
    file: Path | None = None  # the ONNX file that the network was read from

    @property
    def builds(self) -> Path:
        """The directory for runs and logs of simulators: not in the project, for its owner."""
        return cache_folder() / "simulations"

    @cached_property
    def digest(self) -> str:
        """The checksum of the network."""
        return graph_digest(self.integers)

    @cached_property
    def expected(self) -> list[Tensor]:
        """The codes of each output, by the integer graph."""
        results = [self.integers.run(**batch) for batch in self.vectors.batches()]
        rows = [x if isinstance(x, tuple) else (x,) for x in results]
        return [torch.cat(parts).cpu() for parts in zip(*rows, strict=True)]

    def score(self, outputs: Tensor) -> float:
        """Return the main metric of outputs for the samples; more rows are ignored."""
        labels = self.vectors.labels
        return score_of(self.task, outputs[: len(labels)], labels)

    def score_codes(self, codes: Tensor) -> float:
        """Return the main metric of codes of the first output."""
        return self.score(self.integers.codes(self.integers.outputs[0]).values(codes).float())

    def inside(self, path: Path) -> str:
        """Return a path relative to the project, or as it is."""
        return inside(path, self.folder) or str(path)


def inside(path: Path, folder: Path) -> str | None:
    """Return a path relative to the directory that it is in; None if it is elsewhere."""
    whole, root = path.absolute(), folder.absolute()
    return whole.relative_to(root).as_posix() if root in whole.parents else None


def way_of(column: Mapping[str, Any]) -> str:
    """Return what a column of a record is called."""
    way, session = column["way"], column["session"]
    return f"{way}, {session}" if session else str(way)


def shown(code: float) -> str:
    """Return a code for people: integers without a point."""
    return f"{int(code):,}" if float(code).is_integer() else f"{code:,.6g}"


def integers_column(subject: Subject) -> Column:
    """Return the column of the reference."""
    return Column(
        "integers", score=subject.score_codes(subject.expected[0]), network=subject.digest
    )
