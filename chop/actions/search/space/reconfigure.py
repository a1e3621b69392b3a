"""A network that takes on any choice of number formats without being rebuilt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import fx, nn

from chop.actions.search.space.pass_spaces import frozen
from chop.ir.graph.mase_graph import MaseGraph
from chop.numerics.weight_cache import CachedWeight, ObservedParameter, TrackedWeights
from chop.passes.graph.transforms.quantize.quantize import (
    call_instead,
    node_config,
    note_quantized,
    quantized_form,
)
from chop.passes.graph.transforms.quantize.quantized_funcs import QuantizedFunction
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.graph.utils import get_parent_name
from chop.system.caches import Lru

MAX_BYTES = 1 << 30  # of cached weights, over all layers
MAX_FORMS = 64  # cached for each node
Key = tuple[Any, ...]
Form = nn.Module | QuantizedFunction


class _Entry(NamedTuple):
    """A rounded parameter, the parameter it was rounded from, and its version then."""

    cached: CachedWeight
    observed: ObservedParameter | None
    version: int


class _WeightCache(Lru[Key, _Entry]):
    """Rounded weights by layer, parameter and format."""

    # torch's fused optimisers write without counting versions: then the bits are compared
    trained = False

    def __init__(self) -> None:
        super().__init__(MAX_BYTES)

    def _weight(self, entry: _Entry) -> int:
        return entry.cached.rounded.nbytes


class _LayerWeights(TrackedWeights):
    """The weights of one layer in the cache of the whole network."""

    layer: Quantized

    def __init__(self, cache: _WeightCache, node: str, layer: Quantized) -> None:
        super().__init__()
        self.layer, self._cache, self._node = layer, cache, node

    def _key(self, name: str) -> Key:
        return self._node, name, self.layer.formats.get(self.layer.operand_of(name))

    def tracks(self, name: str) -> bool:
        return not self._cache.trained and super().tracks(name)

    def unchanged(self, name: str) -> CachedWeight | None:
        entry, parameter = self._cache.get(self._key(name)), self.layer._parameters[name]
        if entry is None or entry.observed is None or not entry.observed.is_still(parameter):
            return None
        return entry.cached if entry.version == entry.observed.parameter._version else None

    def get(self, name: str, default: Any = None) -> Any:
        entry = self._cache.get(self._key(name))
        return default if entry is None else entry.cached

    def __setitem__(self, name: str, cached: CachedWeight) -> None:
        observed = ObservedParameter.of(self.layer, name) if super().tracks(name) else None
        version = 0 if observed is None else observed.parameter._version
        self._cache.put(self._key(name), _Entry(cached, observed, version))


@dataclass
class _Slot:
    """A node, what it was in the parent, and its forms in other designs."""

    node: fx.Node
    original: tuple[str, Any, tuple[Any, ...], dict[str, Any]]  # op, target, args, kwargs
    layer: nn.Module | None
    forms: Lru[Key, Form] = field(default_factory=lambda: Lru(MAX_FORMS))
    table: Any = None
    current: Key = ()
    noted: Key = ()  # the form that the metadata describe


class ReconfigurableGraph:
    """A copy of the parent's graph, which each `apply` turns into another design."""

    def __init__(self, parent: MaseGraph) -> None:
        self.parent = parent
        self.graph = parent.clone()
        self._cache = _WeightCache()
        self._slots: dict[str, _Slot] = {}
        self._nodes = {node.name: node for node in self.graph.nodes}
        self._layers = dict(self.graph.modules)  # of the parent, by the name that nodes call
        tensors = [*self.graph.model.parameters(), *self.graph.model.buffers()]
        originals = [*parent.model.parameters(), *parent.model.buffers()]
        self._pairs = list(zip(tensors, originals, strict=True))
        self._versions = self._version()

    def apply(self, config: Mapping[str, Any]) -> None:
        """Give each node its format in `config`; with None it stays in float."""
        stale = False
        for name, table in config.items():
            slot = self._slot(name)
            if table is not slot.table:  # equal tables are mostly the same object
                slot.table = table
                stale |= self._put(slot, table["config"])
        if stale:
            self.graph.fx_graph.lint()
            self.graph.model.recompile()
        if self._cache.trained or self._version() != self._versions:
            self._restore()

    def expect_training(self) -> None:
        """Start each design from the parent's weights, as the network will be trained."""
        self._cache.trained = True

    def _restore(self) -> None:
        """Copy the weights and statistics of the parent."""
        import torch

        with torch.no_grad():
            for tensor, original in self._pairs:
                tensor.copy_(original)
        for slot in self._slots.values():
            if isinstance(form := slot.forms.get(slot.current), Quantized):
                form.reset_tensors()  # which may have been trained too
        self._versions = self._version()

    def noted(self) -> MaseGraph:
        """Return the graph with up-to-date metadata."""
        for slot in self._slots.values():
            if slot.noted != slot.current:
                note_quantized(self.graph, slot.node)
                slot.noted = slot.current
        return self.graph

    def _version(self) -> int:
        return sum(tensor._version for tensor, _ in self._pairs)

    def _slot(self, name: str) -> _Slot:
        if name not in self._slots:
            node = self._nodes[name]
            original = (node.op, node.target, node.args, dict(node.kwargs))
            layer = self._layers[str(node.target)] if node.op == "call_module" else None
            self._slots[name] = _Slot(node, original, layer)
        return self._slots[name]

    def _put(self, slot: _Slot, config: Mapping[str, Any]) -> bool:
        """Change the form of a node; return whether the graph has to be compiled again."""
        key = frozen(config) if config["name"] is not None else ()
        if key == slot.current:
            return False
        slot.current, node = key, slot.node
        if slot.layer is not None:
            self._install(slot, slot.layer)  # forms are made from the layer, not from each other
        else:
            node.op, node.target, node.args, node.kwargs = slot.original
        form = self._form(slot, key, config) if key else None
        if isinstance(form, nn.Module):
            self._install(slot, form)
        elif form is not None:
            call_instead(node, form, node_config(node.name, {"config": dict(config)}))
        return slot.layer is None

    def _install(self, slot: _Slot, layer: nn.Module) -> None:
        parent, name = get_parent_name(str(slot.node.target))
        self.graph.modules[parent]._modules[name] = layer
        layer.training = self.graph.model.training

    def _form(self, slot: _Slot, key: Key, config: Mapping[str, Any]) -> Form:
        form = slot.forms.get(key)
        if form is None:
            checked = node_config(slot.node.name, {"config": dict(config)})
            form = slot.forms.put(key, quantized_form(self.graph, slot.node, checked))
            if isinstance(form, Quantized):
                # weights are rounded once for each format, for all designs
                vars(form)["_kept"] = _LayerWeights(self._cache, slot.node.name, form)
        return form
