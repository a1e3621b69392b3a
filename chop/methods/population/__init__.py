"""Networks of one family, trained together as one batched computation."""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.methods.population.architecture import Unfit
    from chop.methods.population.population import PopulationOutcome, Report
    from chop.methods.population.train import reason_against, train_population

__all__ = ["PopulationOutcome", "Report", "Unfit", "reason_against", "train_population"]

__getattr__ = lazy.importer(__name__, __file__)
