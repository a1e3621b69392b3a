"""`hw_dummy` and `resource_usage`: names in older files that stand for no measurement."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from chop.actions.search.metrics.base import (
    Direction,
    Metrics,
    Runner,
    RunnerContext,
    Trial,
    register_runner,
)

logger = logging.getLogger(__name__)


class _Nothing(Runner):
    metrics: Mapping[str, Direction] = {}

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        logger.warning(
            "hw_runner.%s measures nothing; for costs take average_bitwidth, bitops, model_size or "
            "latency",
            self.name,
        )

    def __call__(self, trial: Trial) -> Metrics:
        return {}


@register_runner("hw_dummy", "hardware")
class HwDummy(_Nothing):
    """Nothing: older files may name it."""


@register_runner("resource_usage", "hardware")
class ResourceUsage(_Nothing):
    """Nothing: older files may name it."""
