"""Any function of a code as a table."""

from __future__ import annotations

from chop.hardware.streaming.component import Long, Pointwise, component
from chop.hardware.streaming.memory import Memory
from chop.integers import Lookup


@component(Lookup)
class LookupComponent(Pointwise):
    """A ROM with one entry per code, which all lanes read."""

    module = "fixed_lookup"
    delay = 2

    @property
    def table(self) -> Lookup:
        assert isinstance(self.node.op, Lookup)
        return self.node.op

    def memories(self) -> tuple[Memory, ...]:
        entries = self.table.entries.numpy()[:, None]
        return (Memory("entry", entries, self.output.width, ports=self.input.lanes),)

    def parameters(self) -> dict[str, int]:
        (memory,) = self.memories()
        own = {"LOWEST": Long(self.table.lowest), "ENTRY_ADDRESS": memory.address_bits}
        return super().parameters() | own
