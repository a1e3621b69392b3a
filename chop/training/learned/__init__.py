"""Fronts of networks whose bit widths are learned, from one run of training."""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.training.learned.archive import LearnedDesign
    from chop.training.learned.front import Checkpoint, FrontReport, LearnedFront, train_front
    from chop.training.learned.options import FrontOptions

__all__ = [
    "Checkpoint",
    "FrontOptions",
    "FrontReport",
    "LearnedDesign",
    "LearnedFront",
    "train_front",
]

__getattr__ = lazy.importer(__name__, __file__)
