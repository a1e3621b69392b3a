"""The inputs of a certificate: samples of the data, random vectors and boundary vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.integers import IntegerGraph
from chop.integers.vectors import boundary_inputs, input_words, random_inputs

__all__ = ["BATCH", "Vectors", "checksum"]

BATCH = 256  # vectors that are run at once


@dataclass(frozen=True, eq=False)
class Vectors:
    """A batch of floats per input, and the labels of the samples, which come first.

    Random vectors follow the samples, and boundary vectors are the last.
    """

    inputs: Mapping[str, Tensor]
    labels: Tensor
    split: str
    random: int
    seed: int

    @classmethod
    def made(
        cls,
        integers: IntegerGraph,
        samples: Mapping[str, Tensor],
        labels: Tensor,
        *,
        split: str,
        random: int,
        seed: int,
    ) -> Vectors:
        """Return samples with random vectors and boundary vectors for a network."""
        words = input_words(integers)
        source = torch.Generator().manual_seed(seed)
        parts = [random_inputs([*words.values()], random, source)] if random else []
        parts.append(boundary_inputs([*words.values()]))
        more = {
            name: torch.cat([part[place] for part in parts]) for place, name in enumerate(words)
        }
        count = len(next(iter(more.values())))
        inputs = {
            # an input that no node rounds has no codes of its own
            name: torch.cat([x, more[name] if name in more else x[:1].expand(count, *x.shape[1:])])
            for name, x in samples.items()
        }
        return cls(inputs, labels, split, random, seed)

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    @property
    def samples(self) -> int:
        """The number of samples of the data."""
        return len(self.labels)

    @property
    def boundary(self) -> int:
        """The number of boundary vectors."""
        return len(self) - self.samples - self.random

    def name(self, number: int) -> str:
        """Return what a vector is called in messages; all kinds count from 0."""
        if number < self.samples:
            return f"sample {number} of the {self.split} split"
        number -= self.samples
        if number < self.random:
            return f"random vector {number}"
        return f"boundary vector {number - self.random}"

    def batches(self) -> Iterator[dict[str, Tensor]]:
        """Yield the inputs, a few vectors at a time."""
        for start in range(0, len(self), BATCH):
            yield {name: x[start : start + BATCH] for name, x in self.inputs.items()}

    def only(self, number: int) -> dict[str, Tensor]:
        """Return the inputs of one vector."""
        return {name: x[number : number + 1] for name, x in self.inputs.items()}

    def data(self) -> dict[str, Tensor]:
        """Return the inputs of the samples."""
        return {name: x[: self.samples] for name, x in self.inputs.items()}

    def described(self) -> dict[str, Any]:
        """Return what a certificate says of its vectors."""
        return {
            "split": self.split,
            "samples": self.samples,
            "random": self.random,
            "seed": self.seed,
            "boundary": self.boundary,
            "total": len(self),
            "sha256": checksum(self.inputs.values()),
        }


def checksum(tensors: Iterable[Tensor] | Sequence[Tensor]) -> str:
    """Return the SHA-256 of the content of tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        array = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{array.dtype} {array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
