"""Run several passes in order; the options of all are checked before the first one runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import PASSES, GraphPass, Info, Pass, pass_name, run_pass
from chop.registry import UnknownName

Step = str | Pass | GraphPass | tuple[str | Pass | GraphPass, Mapping[str, Any] | None]


class Pipeline:
    """Passes in order: names, passes, plain functions, or pairs of one of these and its options.

    >>> prepare = Pipeline(["init_metadata", ("add_common_metadata", {"add_value": False})])
    >>> prepare
    Pipeline(init_metadata -> add_common_metadata)

    Options may come with the step or with the call, `pipeline(graph, {"add_common_metadata":
    {"dummy_in": …}})`; those of the call win key by key.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps: list[tuple[GraphPass | Pass, dict[str, Any]]] = []
        self.timing: dict[str, float] = {}
        if isinstance(steps, str):
            raise TypeError(f"Pipeline takes a list of steps: Pipeline([{steps!r}])")
        for step in steps:
            if isinstance(step, tuple) and len(step) != 2:
                raise TypeError(f"a step must be a pass, or (pass, options), not {step!r:.60}")
            run, options = step if isinstance(step, tuple) else (step, None)
            self.steps.append((PASSES[run] if isinstance(run, str) else run, dict(options or {})))

    def __call__(
        self, graph: MaseGraph, pass_args: Mapping[str, Mapping[str, Any]] | None = None
    ) -> tuple[MaseGraph, dict[str, Info]]:
        """Run all steps; returns the graph and each step's info by its name.

        A pass that comes again is listed as `name_1`, `name_2`. Seconds are in `timing`.
        """
        planned = self._plan(pass_args or {})
        infos: dict[str, Info] = {}
        self.timing = {}
        for label, run, options in planned:
            start = time.perf_counter()
            try:
                graph, infos[label] = run_pass(run, graph, options)
            except Exception as error:
                done = ", ".join(infos) or "none"
                error.add_note(f"in step {label!r} of {self}; done before it: {done}")
                raise
            self.timing[label] = time.perf_counter() - start
        return graph, infos

    def _plan(
        self, pass_args: Mapping[str, Mapping[str, Any]]
    ) -> list[tuple[str, GraphPass | Pass, dict[str, Any] | None]]:
        known = {name for run, _ in self.steps for name in _names(run)}
        for name in pass_args:
            if name not in known:
                raise UnknownName("step of the pipeline", name, sorted(known))
        planned, seen = [], Counter[str]()
        for run, options in self.steps:
            merged = dict(options)
            for name in _names(run):
                merged |= pass_args.get(name, {})
            if isinstance(run, GraphPass):
                run.check(merged)
            name = pass_name(run)
            planned.append((f"{name}_{seen[name]}" if seen[name] else name, run, merged or None))
            seen[name] += 1
        return planned

    def __repr__(self) -> str:
        return f"Pipeline({' -> '.join(pass_name(run) for run, _ in self.steps)})"


def _names(run: GraphPass | Pass) -> tuple[str, ...]:
    """The names by which options address a step: its short name and its function's name."""
    return tuple(dict.fromkeys((pass_name(run), str(getattr(run, "__name__", "")))))
