"""Which channels of a network depend on each other and must be removed together.

Every output channel of a layer is an atom. Atoms are followed along the graph: an addition ties
the channels of its operands to each other, a concatenation lists them one after the other, a
flattening repeats each. A node that cannot be made smaller freezes the atoms that reach it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

from torch import fx, nn
from torch.nn.modules.conv import _ConvNd

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import has_trait, ops_with
from chop.passes.graph.transforms.pruning.channel_atoms import (
    Atoms,
    ChannelAxis,
    Obstacle,
    Split,
    shared_parameters,
)

# reshapes to sizes that come from elsewhere and would not follow
OTHER_SIZES = ("unflatten", "view_as", "reshape_as")
REDUCTIONS = frozenset({"mean", "sum", "amax", "amin"})


class ChannelGraph:
    """The channels of a graph as atoms: those that each module gives (`outs`) and takes (`ins`)."""

    def __init__(self, graph: MaseGraph) -> None:
        self.graph, self.atoms = graph, Atoms()
        self.axes: dict[fx.Node, ChannelAxis | None] = {}
        self.outs: dict[str, list[int]] = {}
        self.ins: dict[str, list[int] | None] = {}
        self.producers: dict[str, fx.Node] = {}  # layers that create channels
        self.resized: dict[fx.Node, tuple[int, int]] = {}  # view and reshape: argument, dimension
        self.splits: dict[fx.Node, Split] = {}
        self.attributes: dict[str, list[int]] = {}  # tensors with one number per channel
        self._shared = shared_parameters(graph)
        for node in graph.nodes:
            self.axes[node] = self._follow(node)

    def _follow(self, node: fx.Node) -> ChannelAxis | None:
        if node.op in ("placeholder", "get_attr"):
            return None
        rule = _rule(mase(node).common.mase_op)
        if node.op == "output" or rule is None or not (_is_tensor(node) or rule is _sizes):
            return self.block(node, _why(node))
        return rule(self, node)

    def axis(self, node: Any) -> ChannelAxis | None:
        return self.axes.get(node) if isinstance(node, fx.Node) else None

    def block(
        self, node: fx.Node, why: str, inputs: Iterable[fx.Node] | None = None
    ) -> ChannelAxis | None:
        """Freeze the channels that arrive at `node`; they are not followed further."""
        for source in node.all_input_nodes if inputs is None else inputs:
            if (axis := self.axes[source]) is not None:
                self.atoms.freeze(axis.atoms, Obstacle(node, why))
        return None

    def take(self, node: fx.Node, target: str, axis: ChannelAxis | None, dim: int) -> bool:
        """Record that a module reads channels along `dim`; return whether it can."""
        if axis is not None and axis.dim != dim:
            self.block(node, "reads them along another dimension")
            axis = None
        if target in self.ins and (axis is None or self.ins[target] is None):
            why = "calls a module to which another node passes channels that must stay"
            known = self.ins[target] or []
            self.atoms.freeze([*known, *(axis.atoms if axis else [])], Obstacle(node, why))
        elif target in self.ins and axis is not None:
            self.atoms.tie(self.ins[target] or [], axis.atoms)
        self.ins.setdefault(target, axis.atoms if axis else None)
        return axis is not None

    def give(self, node: fx.Node, atoms: list[int]) -> list[int]:
        """Record the channels that a module gives; repeated calls give the same."""
        target = str(node.target)
        if target in self.outs:
            self.atoms.tie(self.outs[target], atoms)
        self.outs.setdefault(target, atoms)
        self.check_shared(node)
        return self.outs[target]

    def check_shared(self, node: fx.Node) -> None:
        """Freeze the channels of a parameter that other modules or nodes read too."""
        module, target = self.graph.modules[str(node.target)], str(node.target)
        if any(id(p) in self._shared for p in module._parameters.values()):
            obstacle = Obstacle(node, "shares a parameter with others")
            known = [*(self.ins.get(target) or []), *self.outs.get(target, [])]
            self.atoms.freeze(known, obstacle)


Rule = Callable[[ChannelGraph, fx.Node], ChannelAxis | None]


def _rule(op: str) -> Rule | None:
    if has_trait(op, "pointwise"):
        return _elementwise
    if has_trait(op, "reshape") and op not in OTHER_SIZES:
        return _reshape
    if op in REDUCTIONS:
        return _reduction
    if has_trait(op, "pool"):
        return _spatial
    return RULES.get(op)


def _of_first_input(rule: Callable[[ChannelGraph, fx.Node, ChannelAxis], Any]) -> Rule:
    """Call a rule with the channel axis of the first input; without one nothing is followed."""

    @functools.wraps(rule)
    def follow(channels: ChannelGraph, node: fx.Node) -> ChannelAxis | None:
        axis = channels.axis(node.all_input_nodes[0])
        return None if axis is None else rule(channels, node, axis)

    return follow


def _why(node: fx.Node) -> str:
    if node.op == "output":
        return "gives them away as results"
    return f"({mase(node).common.mase_op}) has no rule for fewer channels"


def _layer(channels: ChannelGraph, node: fx.Node) -> ChannelAxis | None:
    """Linear and convolutional layers, which consume their input channels and create new ones."""
    module: Any = mase(node).module
    if not isinstance(module, nn.Linear | _ConvNd) or module._parameters.get("weight") is None:
        return channels.block(node, "computes with a weight that belongs to no layer")
    target, dim = str(node.target), len(_shape(node)) - 1
    if isinstance(module, _ConvNd):
        dim -= len(module.kernel_size)
        if module.groups > 1:
            return _grouped(channels, node, module, dim)
    channels.take(node, target, channels.axis(_input(node)), dim)
    if target not in channels.outs:
        channels.outs[target] = channels.atoms.fresh(_shape(node)[dim])
        channels.producers[target] = node
    channels.check_shared(node)
    return ChannelAxis(dim, channels.outs[target])


def _grouped(channels: ChannelGraph, node: fx.Node, module: Any, dim: int) -> ChannelAxis | None:
    """Grouped convolution: a channel is removed at the same position in every group."""
    target, axis = str(node.target), channels.axis(_input(node))
    if module.groups == module.in_channels and axis is not None:
        return _depthwise(channels, node, module, axis, dim)
    if channels.take(node, target, axis, dim):
        assert axis is not None
        first, *others = _chunks(axis.atoms, module.groups)
        for other in others:
            channels.atoms.tie(first, other)
    if target not in channels.outs:
        each = module.out_channels // module.groups
        channels.outs[target] = channels.atoms.fresh(each) * module.groups
        channels.producers[target] = node
        if each == 1 or (module.transposed and module.groups == module.in_channels):
            why = f"convolves in {module.groups} groups of one channel each"
            channels.atoms.freeze(channels.outs[target], Obstacle(node, why))
    channels.check_shared(node)
    return ChannelAxis(dim, channels.outs[target])


def _chunks(atoms: list[int], count: int) -> list[list[int]]:
    size = len(atoms) // count
    return [atoms[i * size : (i + 1) * size] for i in range(count)]


def _depthwise(
    channels: ChannelGraph, node: fx.Node, module: Any, axis: ChannelAxis, dim: int
) -> ChannelAxis | None:
    """Depthwise convolution: every channel is independent."""
    if not channels.take(node, str(node.target), axis, dim):
        return None
    each = module.out_channels // module.in_channels
    atoms = [atom for atom in axis.atoms for _ in range(each)]
    return ChannelAxis(dim, channels.give(node, atoms))


@_of_first_input
def _features(channels: ChannelGraph, node: fx.Node, axis: ChannelAxis) -> ChannelAxis | None:
    """Norms with one number per channel, and PReLU."""
    module: Any = mase(node).module
    if isinstance(module, nn.PReLU) and module.num_parameters == 1:
        return axis
    if module is None or axis.dim != 1:
        return channels.block(node, "counts channels along another dimension")
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and len(_shape(node)) == 2:
        return channels.block(node, "normalises over them")
    channels.give(node, axis.atoms)
    return axis


@_of_first_input
def _norm_of_groups(channels: ChannelGraph, node: fx.Node, axis: ChannelAxis) -> ChannelAxis | None:
    """Group norm: the channels of a group share statistics and are removed together."""
    module: Any = mase(node).module
    if module is None or axis.dim != 1:
        return channels.block(node, "normalises over them")
    if module.num_groups == 1:
        return channels.block(node, "normalises over all of them")
    for group in _chunks(axis.atoms, module.num_groups):
        channels.atoms.tie(group[:1] * len(group), group)
    channels.give(node, axis.atoms)
    return axis


@_of_first_input
def _norm_of_last(channels: ChannelGraph, node: fx.Node, axis: ChannelAxis) -> ChannelAxis | None:
    """Layer norms leave channels alone that lie before the normalised dimensions."""
    module: Any = mase(node).module
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("normalized_shape")
    sizes = module.normalized_shape if module is not None else given
    if not isinstance(sizes, list | tuple) or axis.dim >= len(_shape(node)) - len(sizes):
        return channels.block(node, "normalises over them")
    return axis


def _functional_norm(channels: ChannelGraph, node: fx.Node) -> ChannelAxis | None:
    """F.batch_norm with one number per channel in tensors of the model that only it reads."""
    source, *tensors = node.all_input_nodes
    axis = channels.axis(source)
    if axis is None:
        return None
    if axis.dim != 1 or source is not _input(node):
        return channels.block(node, "counts channels along another dimension")
    for tensor in tensors:
        alone = sum(other.target == tensor.target for other in channels.graph.nodes) == 1
        if tensor.op != "get_attr" or len(tensor.users) > 1 or not alone:
            why = f"normalises them by {tensor.name!r}, which others read or make"
            return channels.block(node, why, [source])
    channels.attributes |= {str(tensor.target): axis.atoms for tensor in tensors}
    return axis


@_of_first_input
def _split(channels: ChannelGraph, node: fx.Node, axis: ChannelAxis) -> ChannelAxis | None:
    """Parts of the channels or of another dimension, each taken by an index."""
    dim = node.kwargs.get("dim", node.args[2] if len(node.args) > 2 else 0)
    if not isinstance(dim, int) or any(_part(user) is None for user in node.users):
        return channels.block(node, "cuts them into parts that are not taken one by one")
    dim %= len(_shape(node.all_input_nodes[0]))
    shapes = [tensor.shape for _, tensor in mase(node).common.results.tensors()]
    atoms, parts = iter(axis.atoms), []
    for shape in shapes:
        mine = [next(atoms) for _ in range(shape[dim])] if axis.dim == dim else axis.atoms
        parts.append(ChannelAxis(axis.dim, mine))
    channels.splits[node] = Split(dim, parts)
    return None


def _part(node: fx.Node) -> int | None:
    """The index of the part of a split that a node takes."""
    index = node.args[1] if node.target is operator.getitem else None
    return index if isinstance(index, int) else None


def _item(channels: ChannelGraph, node: fx.Node) -> ChannelAxis | None:
    split, part = channels.splits.get(node.all_input_nodes[0]), _part(node)
    if split is not None and part is not None:
        return split.parts[part]
    return channels.block(node, _why(node))


def _elementwise(channels: ChannelGraph, node: fx.Node) -> ChannelAxis | None:
    tensors = [source for source in node.all_input_nodes if _is_tensor(source)]
    axes = {n: axis for n in tensors if (axis := channels.axes[n]) is not None}
    if not axes:
        return None
    # dimensions count from the right, as in broadcasting
    places = {axis.dim - len(_shape(source)) for source, axis in axes.items()}
    if len(places) > 1:
        return channels.block(node, "combines channels along different dimensions", tensors)
    (place,) = places
    width = _shape(node)[place]
    wide = [axis for axis in axes.values() if len(axis.atoms) == width]
    for source in tensors:
        narrow = len(_shape(source)) < -place or _shape(source)[place] == 1
        if not narrow and source not in axes:
            why = f"combines them with {source.name!r}, which keeps its channels"
            return channels.block(node, why, tensors)
        if width > 1 and narrow and source in axes:
            channels.block(node, "spreads them over other channels", [source])
    for other in wide[1:]:
        channels.atoms.tie(wide[0].atoms, other.atoms)
    return ChannelAxis(len(_shape(node)) + place, wide[0].atoms) if wide else None


def _concatenation(channels: ChannelGraph, node: fx.Node) -> ChannelAxis | None:
    sources = node.args[0] if node.args else node.kwargs.get("tensors")
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    if not isinstance(sources, list | tuple) or not isinstance(dim, int):
        return channels.block(node, _why(node))
    dim %= len(_shape(node))
    axes = [channels.axis(source) for source in sources]
    tracked = [axis for axis in axes if axis is not None]
    if not tracked:
        return None
    if all(axis.dim == dim for axis in tracked):
        atoms: list[int] = []
        for source, axis in zip(sources, axes, strict=True):
            mine = axis.atoms if axis else channels.atoms.fresh(_shape(source)[dim])
            if axis is None:
                why = "takes channels that come from no layer"
                channels.atoms.freeze(mine, Obstacle(node, why))
            atoms += mine
        return ChannelAxis(dim, atoms)
    if len(tracked) < len(axes) or len({axis.dim for axis in tracked}) > 1:
        return channels.block(node, "joins channels of different dimensions")
    for other in tracked[1:]:
        channels.atoms.tie(tracked[0].atoms, other.atoms)
    return tracked[0]


@_of_first_input
def _spatial(channels: ChannelGraph, node: fx.Node, axis: ChannelAxis) -> ChannelAxis | None:
    """Pooling, padding and resizing of the dimensions after the channels."""
    op = mase(node).common.mase_op
    count = int(op[-2]) if op.endswith("d") and op[-2].isdigit() else _touched(node)
    several = "data_out_1" in mase(node).common.results
    if several or count is None or axis.dim >= len(_shape(node.all_input_nodes[0])) - count:
        return channels.block(node, "works across them")
    return axis


def _touched(node: fx.Node) -> int | None:
    """The number of last dimensions on which a padding or a resizing works."""
    if mase(node).common.mase_op != "pad":
        return len(_shape(node)) - 2
    module: Any = mase(node).module
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("pad")
    padding = module.padding if module is not None else given
    return len(padding) // 2 if isinstance(padding, list | tuple) else None


@_of_first_input
def _reshape(channels: ChannelGraph, node: fx.Node, axis: ChannelAxis) -> ChannelAxis | None:
    """Flattening and the like: each channel becomes as many positions as it had elements."""
    old, new = _shape(node.all_input_nodes[0]), _shape(node)
    before, count, behind = math.prod(old[: axis.dim]), len(axis.atoms), old[axis.dim + 1 :]
    for dim, size in reversed(list(enumerate(new))):
        each, rest = divmod(size, count)
        whole = rest == 0 and each > 0 and math.prod(behind) % each == 0
        if whole and math.prod(new[:dim]) == before and _can_resize(channels, node, dim):
            return ChannelAxis(dim, [atom for atom in axis.atoms for _ in range(each)])
    return channels.block(node, "cuts across them")


def _can_resize(channels: ChannelGraph, node: fx.Node, dim: int) -> bool:
    """Whether the size of a dimension can change; a size in the code is rewritten later."""
    op = mase(node).common.mase_op
    if op == "squeeze":
        return len(node.args) > 1 or "dim" in node.kwargs  # otherwise a single channel would vanish
    if op not in ("view", "reshape"):
        return True
    sizes = node.args[1] if len(node.args) == 2 else node.args[1:]
    if isinstance(sizes, int):
        sizes = (sizes,)
    if node.kwargs or not isinstance(sizes, list | tuple) or dim >= len(sizes):
        return False
    size = sizes[dim]
    if isinstance(size, int) and size != -1:
        channels.resized[node] = (dim, size)
    return isinstance(size, int)


@_of_first_input
def _reduction(channels: ChannelGraph, node: fx.Node, axis: ChannelAxis) -> ChannelAxis | None:
    named = node.kwargs.get("dim", node.kwargs.get("axis"))
    dims: Any = node.args[1] if len(node.args) > 1 else named
    keep = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    size = len(_shape(node.all_input_nodes[0]))
    listed = [dims] if isinstance(dims, int) else dims
    if not isinstance(listed, list | tuple) or not all(isinstance(d, int) for d in listed):
        return channels.block(node, "reduces over them")
    gone = {d % size for d in listed}
    if axis.dim in gone or not gone:
        return channels.block(node, "reduces over them")
    return axis if keep else ChannelAxis(axis.dim - sum(d < axis.dim for d in gone), axis.atoms)


@_of_first_input
def _permutation(channels: ChannelGraph, node: fx.Node, axis: ChannelAxis) -> ChannelAxis | None:
    size, given = len(_shape(node.all_input_nodes[0])), node.args[1:]
    order: Any = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    if node.kwargs or not all(isinstance(d, int) for d in order):
        return channels.block(node, _why(node))
    places: list[int] = [d % size for d in order]
    if mase(node).common.mase_op != "permute":
        a, b = places
        places = list(range(size))
        places[a], places[b] = b, a
    return ChannelAxis(places.index(axis.dim), axis.atoms)


@_of_first_input
def _sizes(channels: ChannelGraph, node: fx.Node, axis: ChannelAxis) -> None:
    """Reading a shape is harmless unless the number of channels is read from it."""
    asked = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if mase(node).common.mase_op == "dim" or asked in ("dtype", "device", "ndim"):
        return
    if isinstance(asked, int):
        wanted: list[Any] = [asked]
    elif asked in (None, "shape"):
        users = [user for user in node.users if user.users or user.op == "output"]
        wanted = [u.args[1] if u.target is operator.getitem else None for u in users]
    else:
        wanted = []
        channels.block(node, _why(node))
    size = len(_shape(node.all_input_nodes[0]))
    if not all(isinstance(d, int) and d % size != axis.dim for d in wanted):
        channels.block(node, "reads how many there are")


RULES: dict[str, Rule] = {
    **dict.fromkeys(ops_with("weighted_sum"), _layer),
    **{f"{kind}_norm{d}d": _features for kind in ("batch", "instance") for d in (1, 2, 3)},
    **dict.fromkeys(("sync_batch_norm", "prelu"), _features),
    **dict.fromkeys(("layer_norm", "rms_norm"), _norm_of_last),
    **dict.fromkeys(("split", "chunk"), _split),
    "group_norm": _norm_of_groups,
    "batch_norm": _functional_norm,
    "getitem": _item,
    **dict.fromkeys(("cat", "concat"), _concatenation),
    **dict.fromkeys(("pad", "interpolate", "upsample"), _spatial),
    **dict.fromkeys(("permute", "transpose", "swapaxes", "swapdims"), _permutation),
    **dict.fromkeys(("size", "shape", "getattr", "dim"), _sizes),
}


def _input(node: fx.Node) -> Any:
    return node.args[0] if node.args else node.kwargs.get("input")


def _is_tensor(node: fx.Node) -> bool:
    return "torch_dtype" in mase(node).common.results.get("data_out_0", {})


def _shape(node: fx.Node) -> list[int]:
    shape: list[int] = mase(node).common.results.tensor("data_out_0").shape
    return shape
