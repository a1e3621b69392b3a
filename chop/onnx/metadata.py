"""What our ONNX files say of themselves: keys of their metadata, and names in them."""

from __future__ import annotations

__all__ = [
    "ACCURACY_KEY",
    "CODES_SUFFIX",
    "FORMATS_KEY",
    "FORMAT_KEY",
    "NETWORK_KEY",
    "NOTES_KEY",
    "QONNX_DOMAIN",
    "VERSION_KEY",
]

FORMAT_KEY = "mase.format"  # an `ExportFormat`
VERSION_KEY = "mase.version"  # of MASE
NETWORK_KEY = "mase.network"  # the checksum of the integer graph
NOTES_KEY = "mase.notes"  # of the integer graph
ACCURACY_KEY = "mase.accuracy"
FORMATS_KEY = "mase.formats"  # the number formats of all nodes, as JSON
CODES_SUFFIX = "_codes"  # ends the names of outputs that are the codes of another output
QONNX_DOMAIN = "qonnx.custom_op.general"
