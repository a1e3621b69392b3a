"""`learned_cost`: what a design of a trained front costs, as its training counted it."""

from __future__ import annotations

from chop.actions.search.metrics.base import Metrics, Runner, Trial, register_runner


@register_runner("learned_cost", "hardware", learned_cost="minimize")
class LearnedCost(Runner):
    """The cost of a design of a front that was trained, exactly, in the unit of its price."""

    def __call__(self, trial: Trial) -> Metrics:
        cost = trial.config.get("cost")
        if cost is None:
            raise ValueError("learned_cost is for designs of the strategy gradient; omit it")
        return {"learned_cost": float(cost)}

    def parent_metrics(self, trial: Trial) -> Metrics:
        """Return nothing: the parent was not trained with a price."""
        return {}
