"""Which circuit to write: the options of `ch emit`, and the backend that follows them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from chop.options import PositiveFloat, PositiveInt

if TYPE_CHECKING:  # the command line reads the options without importing torch
    from chop.hardware.circuit import Circuit
    from chop.integers import IntegerGraph

__all__ = ["DEFAULT_PARALLELISM", "Backend", "EmitOptions", "Language", "emit_circuit"]

Backend = Literal["unrolled", "streaming"]
Language = Literal["verilog", "vhdl"]
DEFAULT_PARALLELISM = 16  # multipliers of a layer in a streaming circuit, at most

MAX_ADDERS = 100_000


@dataclass(frozen=True, kw_only=True)
class EmitOptions:
    """What `ch emit` and the table `[emit]` set.

    `clock` is the period in ns. `max_parallelism` bounds the multipliers of a layer in a streaming
    circuit; an unrolled one of more than about `max_adders` adders is refused. With `argmax`, the
    result is the class instead of a number per class.
    """

    backend: Backend = "unrolled"
    clock: PositiveFloat = 5.0
    language: Language = "verilog"
    max_parallelism: PositiveInt | None = None
    max_adders: PositiveInt = MAX_ADDERS
    argmax: bool = False

    def __post_init__(self) -> None:
        if self.backend == "streaming" and self.max_adders != MAX_ADDERS:
            raise ValueError(
                "`max_adders` is a limit of unrolled circuits; omit it, or use `max_parallelism` "
                "for the multipliers of a streaming layer"
            )
        if self.backend == "streaming" and self.language != "verilog":
            raise ValueError(
                "streaming circuits are SystemVerilog; use `language='verilog'`, or "
                "`backend='unrolled'` for VHDL"
            )
        if self.backend == "unrolled" and self.max_parallelism is not None:
            raise ValueError(
                "an unrolled circuit computes everything at once; omit `max_parallelism`, or use "
                "`backend='streaming'`"
            )


def emit_circuit(graph: IntegerGraph, options: EmitOptions, *, progress: bool = True) -> Circuit:
    """Return the circuit of a network in integers; a terminal shows the progress."""
    from chop.integers.digest import graph_digest

    network = graph_digest(graph)
    whole = graph.with_argmax() if options.argmax else graph
    return replace(_written(whole, options, progress), network=network)


def _written(graph: IntegerGraph, options: EmitOptions, progress: bool) -> Circuit:
    if options.backend == "unrolled":
        from chop.hardware.unrolled import unrolled_circuit

        return unrolled_circuit(
            graph,
            clock_period=options.clock,
            language=options.language,
            max_adders=options.max_adders,
            progress=progress,
        )
    from chop.hardware.streaming.emit import streaming_circuit

    most = options.max_parallelism or DEFAULT_PARALLELISM
    return streaming_circuit(graph, clock_period=options.clock, max_parallelism=most)
