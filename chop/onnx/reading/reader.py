"""The network that is being read: an fx graph, its layers, and the values of the file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.onnx.reading.errors import GIVE_SIZE, UnreadableModel
from chop.onnx.reading.grids import FileGrid, configured
from chop.onnx.reading.names import (
    free_path,
    identifier,
    layer_path,
    parameter_name,
    path_of_weight,
    shortened,
)
from chop.onnx.reading.registry import OnnxNode
from chop.onnx.reading.values import (
    FreeSize,
    OnnxValue,
    Size,
    is_constant,
    mapped,
    values_in,
)

__all__ = ["LARGEST_RESULT", "Reader"]

LARGEST_CONSTANT = 2**28  # numbers of a constant that a file may compute
# numbers of all constants that it may compute: in all, and for each number that it stores
MAX_COMPUTED, MAX_COMPUTED_EACH = 2**29, 16
LARGEST_RESULT = 2**34  # numbers of a result, for the batches and free sizes of trials
BUFFER = "constant"
# operators that become a layer, with calls of functions around it
LAYERS = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LSTM", "GRU", "RNN", "HardSigmoid")

# operators that may give one number for both trials, and another one for other sizes
UNCLEAR = ("Div", "Mod", "Min", "Max")


class Reader:
    """Adds layers and calls to a graph; knows their shapes for two sizes of each free dimension."""

    def __init__(self, opset: int, batch: int | None, num_stored: int = 0) -> None:
        self.opset = opset
        self._left = MAX_COMPUTED + MAX_COMPUTED_EACH * num_stored  # numbers to be computed
        self.fixed_batch = batch  # of the file, if the network is read for any
        self.graph, self.root = fx.Graph(), nn.Module()
        self.formats: dict[fx.Node, dict[str, FileGrid]] = {}
        self.inputs: list[OnnxValue] = []
        self.uses: Mapping[str, int] = {}  # how many nodes read a value of the file
        self.current: OnnxNode | None = None
        self.long_names: dict[str, str] = {}  # of layers and nodes, in the file
        self._paths: set[str] = set()
        self._buffers: dict[int, tuple[Tensor, fx.Node]] = {}

    # --- nodes

    def input(self, name: str, samples: tuple[Tensor, Tensor]) -> OnnxValue:
        """Add an input of the network."""
        word = parameter_name(name, [str(value.node.target) for value in self.inputs if value.node])
        value = OnnxValue(samples, self.graph.placeholder(word), name)
        self.inputs.append(value)
        return value

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of torch: at once on known numbers, else by a node of the graph."""
        return self._apply("call_function", function, function, args, kwargs)

    def method(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a tensor, the first of `args`."""
        return self._apply("call_method", name, getattr(Tensor, name), args, kwargs)

    def _apply(self, op: str, target: Any, function: Any, args: Any, kwargs: Any) -> Any:
        values = values_in([args, kwargs])
        if all(value.is_known for value in values):
            return self._computed(function, args, kwargs, values)
        samples = self._checked([self._tried(function, args, kwargs, place) for place in (0, 1)])
        whole = identifier(self.node.path or self.node.op.lower(), "node")
        hint = shortened(whole)
        if self.node.op in LAYERS:  # whose path is the name of the layer
            hint = f"{hint}_{getattr(function, '__name__', 'part')}"
        args, kwargs = mapped((args, kwargs), self._argument)
        new = self.graph.create_node(op, target, args, kwargs, name=hint.replace(".", "_"))
        if shortened(whole) != whole:
            self.long_names[new.name] = self.node.name
        return _results(samples, new)

    def count(self, numbers: int) -> None:
        """Count numbers of a constant, before they are computed; refuse too many.

        A few bytes can ask for any number of them.
        """
        if numbers > LARGEST_CONSTANT:
            raise self.node.wrong(
                f"makes a constant of {numbers:,} numbers; only {LARGEST_CONSTANT:,} are allowed"
            )
        self._left -= numbers
        if self._left < 0:
            raise self.node.wrong(
                "is one of many nodes that compute large constants; let the exporter fold them"
            )

    def _checked(self, samples: list[Any]) -> list[Any]:
        """Return the shapes of a result of the network; refuse one that could not be computed."""
        numbers = max(tensor.numel() for each in samples for tensor in _tensors(each))
        if numbers > LARGEST_RESULT:
            raise self.node.wrong(f"makes {numbers:,} numbers; only {LARGEST_RESULT:,} are allowed")
        return samples

    def _computed(self, function: Any, args: Any, kwargs: Any, values: Sequence[OnnxValue]) -> Any:
        """Compute with known numbers, after a look at the size of the result."""
        same = all(value.samples[0] is value.samples[1] for value in values)
        results = []
        for place in (0,) if same else (0, 1):
            self.count(sum(t.numel() for t in _tensors(self._tried(function, args, kwargs, place))))
            results.append(self._attempt(function, args, kwargs, lambda v, p=place: v.sample(p)))
        sized = not all(is_constant(value) for value in values)
        if sized and self.node.op in UNCLEAR and _are_equal(results):
            raise self.node.wrong(
                f"computes a number from a size that is free, which may differ for other sizes; "
                f"{GIVE_SIZE}"
            )
        return _results(results * 2 if same else results, None)

    def _tried(self, function: Any, args: Any, kwargs: Any, place: int) -> Any:
        """Return the shapes of a result."""
        return self._attempt(function, args, kwargs, lambda v: v.shape_of(place))

    def _attempt(self, function: Any, args: Any, kwargs: Any, change: Any) -> Any:
        args, kwargs = mapped((args, kwargs), change)
        try:
            with torch.no_grad():
                return function(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            reason = str(error).partition("\n")[0][:200] or type(error).__name__
            raise self.node.wrong(
                f"does not fit its inputs ({reason}); export the network again"
            ) from error

    def _argument(self, value: OnnxValue | FreeSize) -> fx.Node:
        """Return the node of a value; known numbers become a constant of the network."""
        if value.node is not None:
            return value.node
        base, repeated = _repeated(value)
        if base is None:
            raise self.node.wrong(
                f"takes numbers that are computed from a size of its inputs that is free; "
                f"{GIVE_SIZE}"
            )
        if id(base) not in self._buffers:
            path = self.free_path(identifier(value.name or BUFFER, BUFFER))
            self.root.register_buffer(path, base.contiguous().clone())
            # the tensor is kept so that no other one gets its id
            self._buffers[id(base)] = base, self.graph.get_attr(path)
        node = self._buffers[id(base)][1]
        if not repeated:
            return node
        sizes = [self._size(value.sizes[d], None).node if d in repeated else -1
                 for d in range(value.rank)]  # fmt: skip
        return self.graph.call_method("expand", (node, *sizes))

    def layer(
        self,
        layer: nn.Module,
        *inputs: OnnxValue | tuple[OnnxValue, ...],
        weights: Mapping[str, Tensor] | None = None,
        path: str = "",
    ) -> Any:
        """Call a layer, whose tensors are on the meta device until `weights` are put in.

        Without a `path`, its name comes from its weight or from the node.
        """
        layer.eval()
        weighted = next((v.name for v in self.node.inputs[1:2] if v is not None), "")
        path = path or (path_of_weight(weighted) if weights else "") or self.node.path
        op = self.node.op.lower()
        path = self.free_path(f"{path}_{op}" if path in self._paths else path or op)
        self._check_types(layer, values_in(inputs), weights or {})
        samples = self._checked([self._tried(layer, inputs, {}, place) for place in (0, 1)])
        for name, tensor in (weights or {}).items():
            self.count(tensor.numel())
            is_buffer = name in dict(layer.named_buffers())
            tensor = tensor.detach().clone().contiguous()
            setattr(layer, name, tensor if is_buffer else nn.Parameter(tensor))
        self._add_module(path, layer)
        new = self.graph.call_module(path, mapped(inputs, self._argument))
        return _results(samples, new)

    def _check_types(
        self, layer: nn.Module, inputs: Sequence[OnnxValue], weights: Mapping[str, Tensor]
    ) -> None:
        """Give a layer the type of its weights; refuse an input of another one."""
        parameters = {name for name, _ in layer.named_parameters()}
        types = {tensor.dtype for name, tensor in weights.items() if name in parameters}
        whole = next((dtype for dtype in types if not dtype.is_floating_point), None)
        if whole is not None:
            kind = str(whole).removeprefix("torch.")
            raise self.node.wrong(f"has weights of type {kind}; export it with float weights")
        for dtype in types:
            layer.to(dtype)
        types |= {value.dtype for value in inputs if value.dtype.is_floating_point}
        if weights and len(types) > 1:
            names = sorted(str(dtype).removeprefix("torch.") for dtype in types)
            raise self.node.wrong(f"computes with numbers of types {' and '.join(names)}")

    def free_path(self, path: str) -> str:
        """Return a path of a layer that is not used, and reserve it."""
        new = free_path(path, self._paths)
        self._paths.add(new)
        if shortened(path) != path:
            self.long_names[new] = path
        return new

    def _add_module(self, path: str, layer: nn.Module) -> None:
        parent = self.root
        *parents, name = path.split(".")
        for part in parents:
            if not hasattr(parent, part):
                parent.add_module(part, nn.Module())
            parent = getattr(parent, part)
        parent.add_module(name, layer)

    def module_of(self, value: OnnxValue) -> nn.Module | None:
        """Return the layer whose result a value is."""
        if value.node is None or value.node.op != "call_module":
            return None
        return self.root.get_submodule(str(value.node.target))

    @property
    def node(self) -> OnnxNode:
        """The node of the file that is being read."""
        if self.current is None:
            raise UnreadableModel("no node is being read")
        return self.current

    # --- sizes

    def reshaped(self, value: OnnxValue, sizes: Sequence[Size]) -> OnnxValue:
        """Reshape a value; sizes that are free are taken from the data."""
        if value.is_known:
            self.count(max(sample.numel() for sample in value.samples))
            shapes = list(zip(*sizes, strict=True)) or [(), ()]
            pair = [t.reshape(s) for t, s in zip(value.samples, shapes, strict=True)]
            same = value.samples[0] is value.samples[1]
            return OnnxValue((pair[0], pair[0] if same and shapes[0] == shapes[1] else pair[1]))
        if list(sizes) == value.sizes:
            return value
        flat = [value.sizes[0], _product(value.sizes[1:])] if value.rank > 1 else None
        if flat == list(sizes):
            return self.call(torch.flatten, value, 1)  # type: ignore[no-any-return]
        return self.call(torch.reshape, value, self.shape(sizes, value))  # type: ignore[no-any-return]

    def shape(self, sizes: Sequence[Size], like: OnnxValue | None = None) -> tuple[Any, ...]:
        """Return sizes as an argument: numbers, at most one -1, and sizes of other values."""
        free = [place for place, (first, second) in enumerate(sizes) if first != second]
        inferred = free[:1] if len(free) == 1 and like is not None else []
        return tuple(
            -1 if place in inferred else (size[0] if place not in free else self._size(size, like))
            for place, size in enumerate(sizes)
        )

    def _size(self, size: Size, like: OnnxValue | None) -> FreeSize:
        """Return a free size, taken from a value that has it, or is a whole fraction of it."""
        for value in ([like] if like is not None else []) + self.inputs:
            for place, other in enumerate(value.sizes):
                times = size[0] // max(1, other[0])
                if other[0] == other[1] or (other[0] * times, other[1] * times) != size:
                    continue
                node = self.graph.call_method("size", (value.node, place))
                if times > 1:
                    node = self.graph.call_function(torch.mul, (node, times))
                return FreeSize(size, node)
        raise self.node.wrong(f"has a size that is neither fixed nor that of an input; {GIVE_SIZE}")

    # --- rounding

    def settled(self, value: OnnxValue) -> OnnxValue:
        """Return a value that is rounded to its grid, by the layer before it or a clipping layer.

        The clipping layer has the bounds of the grid, so that its input's format does the rest.
        """
        grid = value.grid
        if value.is_codes:
            raise self.node.wrong("computes with integer codes; export the network with QDQ nodes")
        if grid is None or value.is_known:
            return value.with_grid(None)
        reason = grid.why_not()
        if reason is not None:
            raise UnreadableModel(f"{grid.label} {reason}; use another format in the exporter")
        low, high = grid.range
        path = self.free_path(layer_path(grid.name, "") or "round")
        layer = nn.Hardtanh(low, high)
        self._add_module(path, layer)
        new = self.graph.call_module(path, (value.node,))
        self.formats[new] = {"data_in": grid}
        return OnnxValue(value.samples, new)

    def layer_of(self, value: OnnxValue) -> nn.Module | None:
        """Return the layer that computes a value; None for functions, inputs and constants."""
        if value.node is None or value.node.op != "call_module":
            return None
        return self.root.get_submodule(str(value.node.target))

    def configs(self, model: fx.GraphModule) -> dict[str, dict[str, Any]]:
        """Return the config of each node of a network that rounds, by its name."""
        configs, names = {}, {node.name for node in model.graph.nodes}
        for node, grids in self.formats.items():
            if node.name not in names:  # another node has taken its place
                continue
            layer = self.root.get_submodule(node.target) if isinstance(node.target, str) else None
            configs[node.name] = configured(grids, getattr(layer, "bias", None))
        return configs


def _repeated(value: OnnxValue) -> tuple[Tensor | None, list[int]]:
    """Return known numbers, and the dimensions along which they are repeated to a free size.

    None for numbers that depend on sizes otherwise.
    """
    first, second = value.samples
    if first is second:
        return first, []
    free = [place for place, (a, b) in enumerate(value.sizes) if a != b]
    pair = []
    for sample in (first, second):
        base = sample
        for place in free:
            base = base.narrow(place, 0, 1)
        if not torch.equal(base.expand_as(sample), sample):
            return None, []
        pair.append(base)
    return (pair[0], free) if torch.equal(*pair) else (None, [])


def _are_equal(results: Sequence[Any]) -> bool:
    first, second = results
    return isinstance(first, Tensor) and first.shape == second.shape and torch.equal(first, second)


def _product(sizes: Sequence[Size]) -> Size:
    return math.prod(s[0] for s in sizes), math.prod(s[1] for s in sizes)


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return (
        [t for item in result for t in _tensors(item)] if isinstance(result, list | tuple) else []
    )


def _results(samples: Sequence[Any], node: fx.Node | None) -> Any:
    """Return the values of a call; a call with several results gives a list of them."""
    first, second = samples
    if isinstance(first, Tensor):
        return OnnxValue((first, second), node)
    if node is None:
        return [_results(pair, None) for pair in zip(first, second, strict=True)]
    return Several(first, second, node)


class Several:
    """The results of a node with several, each read when it is asked for."""

    def __init__(self, first: Any, second: Any, node: fx.Node) -> None:
        self.first, self.second, self.node = first, second, node

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, place: int) -> Any:
        import operator

        if place >= len(self.first):
            raise IndexError(place)
        new = self.node.graph.call_function(operator.getitem, (self.node, place))
        return _results((self.first[place], self.second[place]), new)
