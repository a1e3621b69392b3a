"""How to synthesise a circuit: the options of `ch synth`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chop.options import PositiveFloat

__all__ = ["SynthOptions", "Target"]

Target = Literal["xilinx", "ecp5"]


@dataclass(frozen=True, kw_only=True)
class SynthOptions:
    """What `ch synth` and the table `[synth]` set; `timeout` is in seconds, for each tool."""

    target: Target = "xilinx"
    place: bool = False
    timeout: PositiveFloat = 1800.0

    def __post_init__(self) -> None:
        if self.place and self.target != "ecp5":
            raise ValueError(
                f"only circuits for ECP5 can be placed, with nextpnr, not for {self.target}; use "
                f"`target='ecp5'`, or the vendor's tool"
            )
