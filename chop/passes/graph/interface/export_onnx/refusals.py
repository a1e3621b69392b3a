"""What quantised files cannot hold though they hold its number format: the one home of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chop.onnx.targets import ExportFormat

__all__ = ["IN_FLOAT", "REFUSALS", "Refusal", "refusal_rows"]

QDQ: tuple[ExportFormat, ...] = ("qdq", "qcdq")
SIMULATED: tuple[ExportFormat, ...] = (*QDQ, "qonnx")
IN_FLOAT = "in float"  # the only one that is for float networks
QUANTISED: tuple[ExportFormat, ...] = (*SIMULATED, "integer")


@dataclass(frozen=True)
class Refusal:
    """A part of a network that some kinds of files refuse; `reason` ends with what to do."""

    what: str
    kinds: tuple[ExportFormat, ...]
    reason: str

    def say(self, **facts: Any) -> str:
        """Return the reason with numbers and names in it."""
        return self.reason.format(**facts)

    @property
    def instead(self) -> str:
        """What to do, for a table."""
        return self.reason.rpartition("; ")[2]


REFUSALS: Mapping[str, Refusal] = {
    "width": Refusal(
        "activations of other widths than 8 and 16",
        ("qdq",),
        "rounds to {width} bits, which QuantizeLinear cannot express; use `format='qcdq'`",
    ),
    "symmetric": Refusal(
        "activations with a symmetric range",
        ("qdq",),
        "rounds to a symmetric range, which QuantizeLinear cannot express; use `format='qcdq'`",
    ),
    "wide": Refusal(
        "activations of more than 16 bits",
        QDQ,
        "rounds to {width} bits, and Q/DQ has at most 16; use `format='integer'`",
    ),
    "wide channels": Refusal(
        "activations of 9 to 15 bits with a scale per channel",
        QDQ,
        "rounds channels to 9 to 15 bits; use 8 or 16 bits",
    ),
    "wrap": Refusal(
        "activations that wrap (overflow = 'wrap')",
        SIMULATED,
        "wraps codes of {operand} around, which no file of this kind can; use `format='integer'`",
    ),
    "coarse": Refusal(
        "roundings 'up' and 'floor' to steps above 1",
        QDQ,
        "rounds {rounding} to steps above 1; use rounding = 'even'",
    ),
    "up": Refusal(
        "rounding = 'up' of negative numbers",
        ("qonnx",),
        "rounds negative ties up, and QONNX away from zero; use `format='qcdq'`, or "
        "rounding = 'even' or 'floor'",
    ),
    "zero point": Refusal(
        "activations with a zero point",
        ("qonnx",),
        "has a zero point, which QONNX rounds in another way; use zero_point = 0",
    ),
    "weight zero point": Refusal(
        "weights with zero points",
        ("qonnx",),
        "has weights with zero points; use weight_zero_point = 0",
    ),
    "one bit": Refusal(
        "integer of one bit with a sign",
        ("qonnx",),
        "has one bit with a sign, which QONNX takes for a sign; use binary",
    ),
    "not signs": Refusal(
        "binary activations that are not signs",
        ("qonnx",),
        "binarises other than to the sign; use bipolar = true alone",
    ),
    "fp8": Refusal(
        "fp8 activations that do not saturate",
        QDQ,
        "rounds large values to infinity or NaN, which onnxruntime does in its own way; "
        "use data_in_saturate = true",
    ),
    "inside": Refusal(
        "quantised attention and recurrent layers",
        QUANTISED,
        "rounds values inside, which no file holds; leave this layer in float",
    ),
    IN_FLOAT: Refusal(
        "linear layers and convolutions in float",
        QUANTISED,
        "`format='{kind}'` is for quantised networks, and these layers are in float: {names}; "
        "quantise them first, or use `format='onnx'`",
    ),
    "odd": Refusal(
        "layers of LogicNets and LUTNet",
        SIMULATED,
        "these layers have no such nodes: {names}; use `format='integer'`",
    ),
}


def refusal_rows() -> list[dict[str, str]]:
    """Return a row per refusal: what is refused, by which kinds of files, and what to do."""
    return [
        {"refused": each.what, "by the kinds": ", ".join(each.kinds), "what to do": each.instead}
        for each in REFUSALS.values()
    ]
