"""Count the trainable parameters of a model."""

from __future__ import annotations

import logging
from typing import Annotated, Any

from annotated_types import Ge
from tabulate import tabulate
from torch import nn

from chop.passes.module.base import module_pass
from chop.system.log import show_logs_unless_configured

logger = logging.getLogger(__name__)


@module_pass("report_trainable_parameters", "analysis")
def report_trainable_parameters_analysis_pass(
    module: nn.Module, *, depth: Annotated[int, Ge(1)] = 2
) -> tuple[nn.Module, dict[str, Any]]:
    """Log the number of trainable parameters of each submodule, `depth` names deep, and in total.

    A submodule counts with all its submodules; the total counts each shared parameter once.
    """
    counts = {
        name: _trained(part)
        for name, part in module.named_modules()
        if name and name.count(".") < depth and next(part.parameters(), None) is not None
    }
    total = _trained(module)
    show_logs_unless_configured()
    table = tabulate(counts.items(), ("Submodule", "Trainable Parameters"), "grid")
    logger.info("\n%s\n\nTotal Trainable Parameters: %d", table, total)
    every = sum(p.numel() for p in module.parameters())
    return module, {"trainable": total, "parameters": every, "submodules": counts}


def _trained(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
