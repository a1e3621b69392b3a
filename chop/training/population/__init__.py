"""Many networks of one family, trained as one batched computation."""

from chop.training.population.family import Unfit, reason_against
from chop.training.population.population import Outcome, Report
from chop.training.population.training import reason_against_options, train_population

__all__ = [
    "Outcome",
    "Report",
    "Unfit",
    "reason_against",
    "reason_against_options",
    "train_population",
]
