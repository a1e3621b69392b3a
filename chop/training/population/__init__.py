"""Networks of one family, trained together as one batched computation."""

from chop.training.population.family import Unfit
from chop.training.population.population import Outcome, Report
from chop.training.population.training import reason_against, train_population

__all__ = ["Outcome", "Report", "Unfit", "reason_against", "train_population"]
