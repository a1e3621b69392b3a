"""Widths of a network before it was redefined; all factors refer to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from chop.ir.graph.mase_graph import MaseGraph, set_model_attributes
from chop.passes.graph.transforms.pruning.channels import ChannelGraph

ATTRIBUTE = "original_architecture"


@dataclass(frozen=True)
class Original:
    """Outputs and inputs of layers, and current repeats of blocks, by dotted name.

    It is stored on the model as a plain dict, so copies and files of the graph have it.
    """

    outs: Mapping[str, int] = field(default_factory=dict)
    ins: Mapping[str, int] = field(default_factory=dict)
    repeats: Mapping[str, int] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)  # new layer -> original layer

    @classmethod
    def of(cls, graph: MaseGraph) -> Original:
        """The widths stored in `graph`; empty before it is first redefined."""
        known = getattr(graph.model, ATTRIBUTE, {})
        if not known.keys() <= {f.name for f in fields(cls)}:  # from an edited file
            text = f"{ATTRIBUTE} of the graph has keys that it may not have: {known!r:.60}"
            raise ValueError(text)
        return cls(**known)

    def keep(self, graph: MaseGraph) -> None:
        set_model_attributes(graph.model, {ATTRIBUTE: asdict(self)})

    def with_widths(self, channels: ChannelGraph) -> Original:
        """Return a copy that includes the widths of layers not yet known."""
        outs = {target: len(channels.outs[target]) for target in channels.producers}
        ins = {t: len(atoms) for t in outs if (atoms := channels.ins.get(t)) is not None}
        return replace(self, outs={**outs, **self.outs}, ins={**ins, **self.ins})

    def with_copies(self, renamed: Mapping[str, str]) -> Original:
        """Return a copy that includes copied layers, new name -> old, with the old's widths."""
        outs, ins = (
            {new: known[old] for new, old in renamed.items() if old in known}
            for known in (self.outs, self.ins)
        )
        copies = {**self.copies, **{n: self.copies.get(old, old) for n, old in renamed.items()}}
        return replace(self, outs={**self.outs, **outs}, ins={**self.ins, **ins}, copies=copies)

    def with_repeat(self, name: str, count: int) -> Original:
        return replace(self, repeats={**self.repeats, name: count})
