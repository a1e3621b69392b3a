"""`hw_dummy` and `resource_usage`: names in older files that measure nothing."""

from __future__ import annotations

import logging

from chop.actions.search.metrics.base import Metrics, Runner, RunnerContext, Trial, register_runner

logger = logging.getLogger(__name__)


@register_runner("hw_dummy", "hardware")
class HwDummy(Runner):
    """Do nothing; kept so that older files still load."""

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        logger.warning(
            "hw_runner.%s measures nothing; for costs use average_bitwidth, bitops, model_size or "
            "latency",
            self.name,
        )

    def __call__(self, trial: Trial) -> Metrics:
        return {}


@register_runner("resource_usage", "hardware")
class ResourceUsage(HwDummy):
    """Do nothing; kept so that older files still load."""
