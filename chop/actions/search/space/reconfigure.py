"""One prepared network that takes on any choice of number formats, without being rebuilt."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import fx, nn

from chop.actions.search.space.pass_spaces import frozen
from chop.ir.graph.mase_graph import MaseGraph
from chop.numerics.weight_cache import CachedWeight as Kept
from chop.numerics.weight_cache import ObservedParameter as Seen
from chop.numerics.weight_cache import TrackedWeights as Vouched
from chop.passes.graph.transforms.quantize.quantize import (
    call_instead,
    node_config,
    note_quantized,
    quantized_form,
)
from chop.passes.graph.transforms.quantize.quantized_funcs import QuantizedFunction
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.graph.utils import get_parent_name

KEPT_BYTES = 1 << 30  # of rounded weights, over all layers
KEPT_FORMS = 64  # of each node
Key = tuple[Any, ...]


class _Counted(NamedTuple):
    """A rounded parameter, which one it was, and how often it had been written to."""

    kept: Kept
    seen: Seen | None
    version: int


class Shelf(OrderedDict[tuple[Any, ...], _Counted]):
    """Rounded weights by layer, parameter and format; the oldest go when there are too many."""

    def __init__(self, budget: int = KEPT_BYTES) -> None:
        super().__init__()
        self.budget, self.used = budget, 0
        # torch's fused optimisers write without counting: then only the bits themselves tell
        self.trained = False

    def put(self, key: tuple[Any, ...], counted: _Counted) -> None:
        if key in self:
            self.used -= self.pop(key).kept.rounded.nbytes
        self[key] = counted
        self.used += counted.kept.rounded.nbytes
        while self.used > self.budget and len(self) > 1:
            _, oldest = self.popitem(last=False)
            self.used -= oldest.kept.rounded.nbytes


class _Corner(Vouched):
    """The part of a shelf that one layer sees, in place of what it keeps itself."""

    layer: Quantized

    def __init__(self, shelf: Shelf, place: str, layer: Quantized) -> None:
        super().__init__()
        self.layer, self._shelf, self._place = layer, shelf, place

    def _key(self, name: str) -> tuple[Any, ...]:
        return self._place, name, self.layer.formats.get(name)

    def tracks(self, name: str) -> bool:
        return not self._shelf.trained and super().tracks(name)

    def unchanged(self, name: str) -> Kept | None:
        found, parameter = self._shelf.get(self._key(name)), self.layer._parameters[name]
        if found is None or found.seen is None or not found.seen.is_still(parameter):
            return None
        return found.kept if found.version == found.seen.parameter._version else None

    def get(self, name: str, default: Any = None) -> Any:
        found = self._shelf.get(self._key(name))
        return default if found is None else found.kept

    def __setitem__(self, name: str, kept: Kept) -> None:
        seen = Seen.of(self.layer, name) if super().tracks(name) else None
        version = 0 if seen is None else seen.parameter._version
        self._shelf.put(self._key(name), _Counted(kept, seen, version))


@dataclass
class _Slot:
    """A node, what it was, and what it has been in other designs."""

    node: fx.Node
    was: tuple[str, Any, tuple[Any, ...], dict[str, Any]]  # op, target, args, kwargs
    layer: nn.Module | None
    forms: OrderedDict[Key, nn.Module | QuantizedFunction] = field(default_factory=OrderedDict)
    table: Any = None
    now: Key = ()
    noted: Key = ()


class InPlace:
    """The graph is a copy of the parent's; it is lent out, and is another after each `apply`."""

    def __init__(self, parent: MaseGraph) -> None:
        self.parent = parent
        self.graph = parent.clone()
        self._shelf = Shelf()
        self._slots: dict[str, _Slot] = {}
        self._nodes = {node.name: node for node in self.graph.nodes}
        self._layers = dict(self.graph.modules)  # as they were, by the name that nodes call
        tensors = [*self.graph.model.parameters(), *self.graph.model.buffers()]
        originals = [*parent.model.parameters(), *parent.model.buffers()]
        self._pairs = list(zip(tensors, originals, strict=True))
        self._versions = self._version()

    def apply(self, config: Mapping[str, Any]) -> None:
        """Put each node into the format that `config` has for it; None leaves it in float."""
        stale = False
        for name, table in config.items():
            slot = self._slot(name)
            if table is not slot.table:  # equal tables are mostly the same object
                slot.table = table
                stale |= self._put(slot, table["config"])
        if stale:
            self.graph.fx_graph.lint()
            self.graph.model.recompile()
        if self._shelf.trained or self._version() != self._versions:
            self.restore()

    def expect_training(self) -> None:
        """Somebody is going to train the network: give it its parent's weights each time."""
        self._shelf.trained = True

    def restore(self) -> None:
        """Give the network the weights and statistics of its parent again."""
        import torch

        with torch.no_grad():
            for tensor, original in self._pairs:
                tensor.copy_(original)
        self._versions = self._version()

    def noted(self) -> MaseGraph:
        """The graph, with metadata that are up to date."""
        for slot in self._slots.values():
            if slot.noted != slot.now:
                note_quantized(self.graph, slot.node)
                slot.noted = slot.now
        return self.graph

    def _version(self) -> int:
        return sum(tensor._version for tensor, _ in self._pairs)

    def _slot(self, name: str) -> _Slot:
        if name not in self._slots:
            node = self._nodes[name]
            was = (node.op, node.target, node.args, dict(node.kwargs))
            layer = self._layers[str(node.target)] if node.op == "call_module" else None
            self._slots[name] = _Slot(node, was, layer)
        return self._slots[name]

    def _put(self, slot: _Slot, config: Mapping[str, Any]) -> bool:
        """Whether the code of the graph has to be made anew."""
        key = frozen(config) if config["name"] is not None else ()
        if key == slot.now:
            return False
        slot.now = key
        if slot.layer is not None:
            self._swap(slot, key, config)
            return False
        node = slot.node
        node.op, node.target, node.args, node.kwargs = slot.was
        if key:
            form = self._form(slot, key, config)
            assert isinstance(form, QuantizedFunction)
            call_instead(node, form, node_config(node.name, {"config": dict(config)}))
        return True

    def _swap(self, slot: _Slot, key: Key, config: Mapping[str, Any]) -> None:
        assert slot.layer is not None
        self._install(slot, slot.layer)  # a form is made of the layer itself, not of another form
        if key:
            form = self._form(slot, key, config)
            assert isinstance(form, nn.Module)
            self._install(slot, form)

    def _install(self, slot: _Slot, layer: nn.Module) -> None:
        parent, name = get_parent_name(str(slot.node.target))
        self.graph.modules[parent]._modules[name] = layer
        layer.training = self.graph.model.training

    def _form(
        self, slot: _Slot, key: Key, config: Mapping[str, Any]
    ) -> nn.Module | QuantizedFunction:
        if key in slot.forms:
            slot.forms.move_to_end(key)
        else:
            checked = node_config(slot.node.name, {"config": dict(config)})
            form = quantized_form(self.graph, slot.node, checked)
            if isinstance(form, Quantized):
                # weights are rounded once for each format, whatever else a design chooses
                vars(form)["_kept"] = _Corner(self._shelf, slot.node.name, form)
            slot.forms[key] = form
            if len(slot.forms) > KEPT_FORMS:
                slot.forms.popitem(last=False)
        return slot.forms[key]
