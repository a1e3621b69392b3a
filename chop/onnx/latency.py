"""How long onnxruntime takes for a batch: median and quartiles, with fixed threads."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chop.onnx.runtime import Array, Runtime, input_dtype

__all__ = ["BatchLatency", "example_inputs", "measure_latency"]

WARM_UP, RUNS = 10, 50


@dataclass(frozen=True)
class BatchLatency:
    """Milliseconds for one batch: the quartiles of several runs."""

    batch_size: int
    lower: float
    median: float
    upper: float

    @property
    def per_sample(self) -> float:
        """The median for one sample of the batch."""
        return self.median / self.batch_size


def measure_latency(
    runtime: Runtime,
    *,
    batch_sizes: Sequence[int] = (1,),
    sample: Mapping[str, Array] | None = None,
    warm_up: int = WARM_UP,
    runs: int = RUNS,
) -> list[BatchLatency]:
    """Return the latency for each batch size, after `warm_up` runs that do not count.

    Batches repeat the samples of `sample`; without, they are random.
    """
    for name, number, least in (("warm_up", warm_up, 0), ("runs", runs, 1)):
        if number < least:
            raise ValueError(f"{name} must be at least {least}, not {number}")
    found = []
    for size in batch_sizes:
        inputs = example_inputs(runtime, size) if sample is None else _repeated(sample, size)
        for _ in range(warm_up):
            runtime.run(inputs)
        times = np.array([_milliseconds(runtime, inputs) for _ in range(runs)])
        found.append(BatchLatency(size, *(float(q) for q in np.quantile(times, (0.25, 0.5, 0.75)))))
    return found


def example_inputs(runtime: Runtime, batch_size: int) -> dict[str, Array]:
    """Return a random batch of the shapes that the model declares: floats of about 1, codes 0."""
    source = np.random.default_rng(0)
    found: dict[str, Array] = {}
    for name, declared in runtime.inputs.items():
        first, *rest = declared.shape
        if first != batch_size and isinstance(first, int):
            raise ValueError(
                f"the input {name!r} has batches of {first} only; measure with that batch size"
            )
        if not all(isinstance(size, int) for size in rest):
            raise ValueError(
                f"the input {name!r} has the shape {declared.shape}, in which more than the batch "
                f"is free; give a sample"
            )
        shape = (_positive(batch_size), *rest)
        dtype = input_dtype(declared.type)
        floats = np.issubdtype(dtype, np.floating)
        array = source.standard_normal(shape) if floats else np.zeros(shape)
        found[name] = array.astype(dtype)
    return found


def _repeated(sample: Mapping[str, Array], size: int) -> dict[str, Array]:
    places = np.arange(_positive(size))
    return {name: array[places % len(array)] for name, array in sample.items()}


def _positive(batch_size: int) -> int:
    if batch_size < 1:
        raise ValueError(f"a batch has at least one sample, not {batch_size}")
    return batch_size


def _milliseconds(runtime: Runtime, inputs: Mapping[str, Array]) -> float:
    start = time.perf_counter()
    runtime.run(inputs)
    return (time.perf_counter() - start) * 1e3
