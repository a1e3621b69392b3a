"""Names of layers and tensors that a graph cannot call, or that its file cannot hold."""

from __future__ import annotations

import keyword
import logging

from torch import fx, nn

from chop.ir.graph.layer_rules import may_be_set

logger = logging.getLogger(__name__)


def check_called_names(graph: fx.Graph, model: nn.Module) -> None:
    """Refuse names that would break the code that torch.fx generates from `graph`."""
    for node in graph.nodes:
        if node.op not in ("call_module", "get_attr"):
            continue
        for name in str(node.target).split("."):
            broken = '"' in name or "\\" in name or not name.isprintable()
            if keyword.iskeyword(name) or broken:
                kind = "has characters" if broken else "is a keyword of Python"
                example = "for example to 'head_1'" if broken else f"for example to '{name}_layer'"
                raise ValueError(
                    f"the name {name!r} {kind} that torch.fx cannot write in code; rename {name!r} "
                    f"in {str(node.target)!r} of {type(model).__name__}, {example}"
                )


def warn_of_unsaved_names(model: nn.Module) -> None:
    """Warn of names that a file may not set, which would be refused only when it is saved."""
    checked: set[tuple[type, str]] = set()
    for path, module in model.named_modules():
        # the tensors and the class of a parametrized layer are restored before it is saved
        if hasattr(module, "parametrizations"):
            continue
        cls = type(module) if path else fx.GraphModule
        for name in (*module._modules, *module._parameters, *module._buffers):
            if (cls, name) not in checked and not may_be_set(cls, name):
                logger.warning(
                    "the name %r in %r cannot be saved with the graph: rename it before saving, "
                    "with the letters a-z, digits and underscores, for example to %r",
                    name,
                    f"{path}.{name}" if path else name,
                    _plain(name),
                )
            checked.add((cls, name))


def _plain(name: str) -> str:
    """Return a similar name that can be saved."""
    letters = (c if c.isascii() and c.isalnum() else "_" for c in name)
    plain = "".join(letters).lstrip("_")
    return plain if plain and plain != name else f"layer_{plain}"
