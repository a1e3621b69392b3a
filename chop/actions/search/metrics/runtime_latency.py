"""`runtime_latency`: the time that onnxruntime takes for the ONNX file of a design."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from chop.actions.onnx_models import RunnableFormat, exported, runtime_for
from chop.actions.search.metrics.base import (
    Direction,
    Metrics,
    Runner,
    RunnerContext,
    Trial,
    register_runner,
)
from chop.options import NonNegativeInt, PositiveInt
from chop.passes.base import PassArgsError

NAME = "runtime_latency"
QUARTILES: dict[str, Direction] = {f"{NAME}_lower": "minimize", f"{NAME}_upper": "minimize"}
FURTHER = re.compile(rf"{NAME}_(\d+)(_lower|_upper)?")  # of another batch size


@register_runner(NAME, "hardware", **{NAME: "minimize", **QUARTILES})
class RuntimeLatency(Runner):
    """Milliseconds that onnxruntime takes for a batch on the CPU: the median and both quartiles.

    The design is exported as `export_format`. `warmup` runs precede the `repeats` that are
    measured, with `threads` threads. The metrics are those of the first of `batch_sizes`; those of
    others end in the size, as in `runtime_latency_32` and `runtime_latency_32_lower`.
    """

    needs_graph: ClassVar[bool] = True

    def __init__(
        self,
        context: RunnerContext,
        *,
        export_format: RunnableFormat = "integer",
        batch_sizes: tuple[PositiveInt, ...] = (1,),
        threads: PositiveInt = 1,
        warmup: NonNegativeInt = 10,
        repeats: PositiveInt = 50,
    ) -> None:
        super().__init__(context)
        if not batch_sizes:
            raise ValueError(f"{NAME}: batch_sizes must have at least one size")
        self._format, self._sizes, self._threads = export_format, tuple(batch_sizes), threads
        self._warmup, self._repeats = warmup, repeats
        self.metrics = {name: "minimize" for size in self._sizes for name in self._names(size)}

    def _names(self, size: int) -> tuple[str, str, str]:
        name = NAME if size == self._sizes[0] else f"{NAME}_{size}"
        return name, f"{name}_lower", f"{name}_upper"

    @classmethod
    def direction_of(cls, metric: str, options: Mapping[str, Any]) -> Direction | None:
        if (further := FURTHER.fullmatch(metric)) is None:
            return cls.metrics.get(metric)
        sizes = list(options.get("batch_sizes", ()))[1:]
        return "minimize" if int(further[1]) in sizes else None

    def __call__(self, trial: Trial) -> Metrics:
        from chop.onnx.latency import measure_latency

        runtime = runtime_for(trial.graph, self._format, threads=self._threads)
        found = measure_latency(
            runtime, batch_sizes=self._sizes, warm_up=self._warmup, runs=self._repeats
        )
        return {
            name: value
            for latency in found
            for name, value in zip(
                self._names(latency.batch_size),
                (latency.median, latency.lower, latency.upper),
                strict=True,
            )
        }

    def check(self, trial: Trial) -> None:
        with tempfile.TemporaryDirectory() as folder:
            exported(trial.graph, self._format, Path(folder))

    def parent_metrics(self, trial: Trial) -> Metrics:
        """Return nothing for a parent that has no such file, as one in float."""
        try:
            return self(trial)
        except PassArgsError:
            return {}
