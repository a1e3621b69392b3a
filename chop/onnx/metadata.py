"""What our ONNX files say of themselves: keys of their metadata, and names in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = [
    "ACCURACY_KEY",
    "CODES_SUFFIX",
    "FORMATS_KEY",
    "FORMAT_KEY",
    "MADE_FROM_KEY",
    "NETWORK_KEY",
    "NOTES_KEY",
    "QONNX_DOMAIN",
    "TRAINED_ON_KEY",
    "VERSION_KEY",
    "metadata_of",
    "noted",
]

FORMAT_KEY = "mase.format"  # an `ExportFormat`
VERSION_KEY = "mase.version"  # of MASE
NETWORK_KEY = "mase.network"  # the checksum of the integer graph
NOTES_KEY = "mase.notes"  # of the integer graph
ACCURACY_KEY = "mase.accuracy"
FORMATS_KEY = "mase.formats"  # the number formats of all nodes, as JSON
TRAINED_ON_KEY = "mase.trained_on"  # the facts of a `DataFacts`, as JSON
MADE_FROM_KEY = "mase.made_from"  # the names of model and data set, as JSON
CODES_SUFFIX = "_codes"  # ends the names of outputs that are the codes of another output
QONNX_DOMAIN = "qonnx.custom_op.general"


def metadata_of(model: Any) -> dict[str, str]:
    """Return what an `onnx.ModelProto` says of itself."""
    return {prop.key: prop.value for prop in model.metadata_props}


def noted(metadata: Mapping[str, str], key: str) -> Any:
    """Return an entry of the metadata that is JSON, or None without it."""
    if key not in metadata:
        return None
    try:
        return json.loads(metadata[key])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{key} in its metadata is not JSON") from error
