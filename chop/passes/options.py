"""Problems with the options of a pass, found before it runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.ops import OPS
from chop.options import Problem as Problem
from chop.passes.select import By, compiled, node_name, spellings
from chop.registry import unknown


class PathUse(Enum):
    """What a pass does with the file or directory that an option names."""

    READ = "read"
    WRITTEN = "written"


InputPath = Annotated[str | Path, PathUse.READ]
# `ch transform` puts it into the run's directory, and refuses paths that lead outside
OutputPath = Annotated[str | Path, PathUse.WRITTEN]

STACK = "nn_module_stack"  # where fx's tracer records the modules that a node was created in


def path_use(hint: Any) -> PathUse | None:
    """Return how an option of this type uses a path: `OutputPath | None` writes."""
    marks = [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, PathUse)]
    inner = (path_use(part) for part in get_args(hint))
    return next((use for use in (*marks, *inner) if use is not None), None)


@dataclass(frozen=True)
class NodeChoice:
    """A name in the options that selects nodes: an op, a node, a module, or an expression.

    `ops` are those to which it can be `done`; `or_module` also allows the other spelling of a name,
    such as `block.0.fc` for `block_0_fc`, and `must_match` makes an expression that matches no name
    a mistake.
    """

    key: str
    by: By | Literal["module"]
    wanted: str
    ops: Collection[str] = ()
    done: str = "chosen"
    or_module: bool = False
    must_match: bool = False

    def problem(self) -> Problem | None:
        """Return the problem that it has with any graph, or None."""
        if self.by == "type" and self.wanted not in OPS:
            return Problem(self.key, unknown("op", self.wanted, self.ops or sorted(OPS)))
        if self.by == "type" and self.ops and self.wanted not in self.ops:
            which = f"op {self.wanted!r} cannot be {self.done}"
            return Problem(self.key, f"{which}; these can: {', '.join(self.ops)}")
        if self.by == "regex_name":
            try:
                compiled(self.wanted)
            except ValueError as error:
                return Problem(self.key, str(error))
        return None

    def problem_in(self, subject: MaseGraph | nn.Module) -> Problem | None:
        """Return the problem that it has with this graph, or with this untraced model, or None."""
        names, modules = names_in(subject)
        if self.by == "module":
            return self._among("module", modules, self.wanted in modules)
        if self.by == "name":
            exists = self.wanted in (_spelt(subject) if self.or_module else names)
            return self._among(_kind(subject), names, exists)
        if self.by == "regex_name" and self.must_match:
            exists = any(re.fullmatch(self.wanted, name) for name in names)
            return self._among(f"{_kind(subject)} matching", names, exists)
        return None

    def _among(self, what: str, known: list[str], exists: bool) -> Problem | None:
        return None if exists else Problem(self.key, unknown(what, self.wanted, known))


def _spelt(subject: MaseGraph | nn.Module) -> set[str]:
    """Return all spellings of the names of the nodes, or of the layers of an untraced model."""
    if isinstance(subject, MaseGraph):
        return {name for names in spellings(subject.nodes).values() for name in names}
    layers = names_in(subject)[0]
    return {*layers, *map(node_name, layers)}


def _kind(subject: MaseGraph | nn.Module) -> str:
    return "node" if isinstance(subject, MaseGraph) else "layer"


def names_in(subject: MaseGraph | nn.Module) -> tuple[list[str], list[str]]:
    """The names of nodes and of modules; an untraced model has only modules."""
    if not isinstance(subject, MaseGraph):
        modules = [name for name, _ in subject.named_modules(remove_duplicate=False)]
        return modules, modules
    nodes = list(subject.nodes)
    inside = {name for node in nodes for name, _ in node.meta.get(STACK, {}).values()}
    return [node.name for node in nodes], list(dict.fromkeys([*subject.modules, *sorted(inside)]))


def choices(key: str, by: Any, names: Iterable[str] | None, **more: Any) -> Iterator[NodeChoice]:
    """Yield a choice for each of `names`, the entries of the option `key`."""
    for name in names or ():
        yield NodeChoice(key, by, name, **more)


def check_picture(options: Any) -> Iterator[Problem]:
    """Check the option `picture`: it must be a file type that can be drawn."""
    file = options.get("picture")
    if file is not None and not str(file).endswith(".svg"):
        yield Problem("picture", f"{Path(file).name!r} cannot be drawn; use the suffix .svg")
