"""Networks to start from, one file per family."""

from chop import extensions
from chop.models.base import (
    MODELS,
    get_model,
    get_model_info,
    get_tokenizer,
    model,
    register_mase_checkpoint,
    register_mase_model,
)
from chop.models.info import MaseModelInfo, ModelSource, ModelTaskType

extensions.register(__name__)

__all__ = [
    "MODELS",
    "MaseModelInfo",
    "ModelSource",
    "ModelTaskType",
    "get_model",
    "get_model_info",
    "get_tokenizer",
    "model",
    "register_mase_checkpoint",
    "register_mase_model",
]
