"""Replace modules by your own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import Operands, TensorMeta, mase
from chop.ir.operands import described, flatten
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.describe.interpreter import evaluation_mode, restored_random_state
from chop.passes.graph.transforms.metadata_sync import calls, exchange, finish, known, read_modules
from chop.passes.options import NodeChoice, Problem
from chop.passes.select import By, select
from chop.registry import unknown


@graph_pass("replace", "transform", needs=("common",))
def replace_transform_pass(
    graph: MaseGraph, *, by: By, modules: Mapping[str, Any]
) -> dict[str, Any]:
    """Replace modules, chosen by op, by name or by regular expression on names of nodes.

    `modules` maps each key to a class that is built without arguments, to the name of one in
    torch.nn, or to a function that takes the old module and returns the new one. A new module must
    accept the old arguments and return results of the same shapes and dtypes; this is checked
    before anything is changed. Nodes that call functions stay unchanged.
    """
    builders = {key: _builder(key, replacement) for key, replacement in modules.items()}
    chosen = select(graph, by, builders)
    replacements: dict[nn.Module, nn.Module] = {}
    read = read_modules(graph)
    for old, nodes in calls(graph).items():
        keys = {chosen.get(node) for node in nodes}
        if keys == {None}:
            continue
        if len(keys) > 1:
            raise PassArgsError(
                f"nodes {', '.join(repr(n.name) for n in nodes)} call the same module "
                f"{nodes[0].target!r}; choose all of them, with the same key"
            )
        if old in read:
            raise PassArgsError(
                f"node {nodes[0].name!r}: weights of its module are read elsewhere in the graph; "
                f"leave it out"
            )
        replacements[old] = _built(builders[chosen[nodes[0]]], old, nodes)
    for node in chosen if by == "name" else ():
        if node.op != "call_module":
            raise PassArgsError(
                f"node {node.name!r} does not call a module (it is a {node.op}); leave it out"
            )
    replaced = []
    for old, nodes in calls(graph).items():
        if old in replacements:
            exchange(graph, nodes, replacements[old])
            replaced += [node.name for node in nodes]
    finish(graph)
    return {"replaced": replaced}


@replace_transform_pass.law
def _laws(options: Mapping[str, Any]) -> Iterator[Problem]:
    modules = options.get("modules", {"": "Identity"})
    if not modules:
        yield Problem("modules", "modules is empty; give {'relu': 'GELU'}")
    for key, replacement in modules.items():
        try:
            _builder(key, replacement)
        except PassArgsError as error:
            yield Problem(f"modules.{key}", str(error))


@replace_transform_pass.chooses
def _chosen(options: Mapping[str, Any]) -> Iterator[NodeChoice]:
    for key in options.get("modules", ()) if "by" in options else ():
        yield NodeChoice(f"modules.{key}", options["by"], key, or_module=True)


def _builder(key: str, replacement: Any) -> Callable[[nn.Module], Any]:
    if isinstance(replacement, str):
        cls = getattr(nn, replacement, None)
        if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
            known = [name for name in dir(nn) if isinstance(getattr(nn, name), type)]
            raise PassArgsError(unknown(f"layer of torch.nn for {key!r}", replacement, known))
        replacement = cls
    if isinstance(replacement, nn.Module) or not callable(replacement):
        raise PassArgsError(
            f"{key!r} needs a class or a function old -> new, not {replacement!r:.60}; "
            f"write lambda old: new"
        )
    return (lambda old: replacement()) if isinstance(replacement, type) else replacement


def _built(build: Callable[[nn.Module], Any], old: nn.Module, nodes: list[fx.Node]) -> nn.Module:
    """Build the new module in the old one's mode and on its device, and try it on every call."""
    where = f"node {nodes[0].name!r}"
    try:
        new = build(old)
    except Exception as error:
        raise PassArgsError(f"{where}: the new module could not be built: {error}") from error
    if not isinstance(new, nn.Module):
        raise PassArgsError(f"{where}: the function must return a module, not {type(new).__name__}")
    first = next(old.parameters(), None)
    if first is not None and new is not old:
        new.to(first.device)
    for node in nodes:
        _try_out(node, new)
    return new.train(old.training)


def _try_out(node: fx.Node, new: nn.Module) -> None:
    """Raise an error if a module does not accept `node`'s inputs or returns other shapes."""
    args, kwargs = (fx.node.map_arg(part, _example) for part in (node.args, node.kwargs))
    buffers = {name: buffer.clone() for name, buffer in new.named_buffers()}
    try:
        with torch.no_grad(), evaluation_mode(new), restored_random_state(new):
            result = torch.func.functional_call(new, buffers, args, kwargs)  # type: ignore[arg-type]
    except Exception as error:
        shapes = [list(x.shape) for x in flatten(args) if isinstance(x, Tensor)]
        raise PassArgsError(
            f"node {node.name!r}: {type(new).__name__} fails on inputs of shape {shapes}: "
            f"{str(error).partition(chr(10))[0]}"
        ) from error
    returned = _outline(dict(enumerate(flatten(described(result)))))
    expected = _outline(mase(node).common.results)
    if returned != expected:
        raise PassArgsError(
            f"node {node.name!r}: {type(new).__name__} returns {returned}, but {expected} is "
            f"needed; build it with the sizes of the old module"
        )


def _example(source: fx.Node) -> Any:
    """Zeros like the value that a node returns; these are also valid indices."""

    def zeros(value: Any) -> Any:
        tensor = isinstance(value, TensorMeta)
        return torch.zeros(value.shape, dtype=value.torch_dtype) if tensor else value

    result = known(source)
    return [zeros(value) for value in result] if isinstance(result, list) else zeros(result)


def _outline(results: Operands | Mapping[Any, Any]) -> list[str]:
    tensors = [entry for entry in results.values() if isinstance(entry, TensorMeta)]
    return [f"{str(t.torch_dtype).removeprefix('torch.')}{t.shape}" for t in tensors]
