"""Networks for images, one file per family."""

from chop.models.base import ModelFamily
from chop.models.info import ModelSource

VISION_MODELS = ModelFamily(
    "vision model", lambda info: info.is_vision_model and info.model_source is not ModelSource.TOY
)

__all__ = ["VISION_MODELS"]
