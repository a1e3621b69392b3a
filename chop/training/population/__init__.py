"""Networks of one family, trained together as one batched computation."""

from chop.training.population.architecture import Unfit
from chop.training.population.population import PopulationOutcome, Report
from chop.training.population.training import reason_against, train_population

__all__ = ["PopulationOutcome", "Report", "Unfit", "reason_against", "train_population"]
