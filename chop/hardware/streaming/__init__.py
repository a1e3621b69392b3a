"""Streaming circuits: components with valid and ready, multipliers that are shared, and ROMs."""

from chop.hardware.streaming.component import (
    COMPONENTS,
    Budget,
    Long,
    Natural,
    Pointwise,
    Stage,
    StreamComponent,
    StreamCost,
    component,
)
from chop.hardware.streaming.emit import streaming_circuit
from chop.hardware.streaming.memory import Memory
from chop.hardware.streaming.stream import Stream

__all__ = [
    "COMPONENTS",
    "Budget",
    "Long",
    "Memory",
    "Natural",
    "Pointwise",
    "Stage",
    "Stream",
    "StreamComponent",
    "StreamCost",
    "component",
    "streaming_circuit",
]
