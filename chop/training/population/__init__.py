"""Many networks of one family, trained as one batched computation."""

from chop.training.population.family import Unfit, reason_against
from chop.training.population.training import Outcome, Report, train_population

__all__ = ["Outcome", "Report", "Unfit", "reason_against", "train_population"]
