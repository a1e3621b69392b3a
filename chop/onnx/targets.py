"""The kinds of ONNX files that a network is exported to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from chop.options import Share

__all__ = ["EXPORT_FORMATS", "ExportFormat", "ExportOptions"]

ExportFormat = Literal["onnx", "qdq", "qcdq", "qonnx", "integer"]
EXPORT_FORMATS: dict[ExportFormat, str] = {
    "onnx": "the float network",
    "qdq": "QuantizeLinear and DequantizeLinear of opset 21, for onnxruntime",
    "qcdq": "the same with Clip on the codes, for widths other than 8 and 16",
    "qonnx": "Quant and BipolarQuant nodes, for FINN and hls4ml",
    "integer": "integers only, as the integer graph computes",
}
assert tuple(EXPORT_FORMATS) == get_args(ExportFormat)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What `ch export` and the table `[export]` set."""

    format: ExportFormat = "onnx"
    accuracy: Share | None = None
