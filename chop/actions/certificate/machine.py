"""The versions and the processor that a certificate was made with."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from chop.version import __version__

__all__ = ["machine", "versions"]

PACKAGES = ("torch", "numpy", "onnx", "onnxruntime", "qonnx")
CPU_INFO = Path("/proc/cpuinfo")
# on which the kernels for integers depend
FLAGS = (
    *("sse4_1", "avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx_vnni"),
    *("amx_int8", "asimddp", "i8mm", "sve"),
)
VNNI = ("avx512_vnni", "avx_vnni", "amx_int8")


def versions(verilator: str | None) -> dict[str, str | None]:
    """Return the versions of what computed the results; None for what is not installed."""
    found: dict[str, str | None] = {"mase": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return {**found, "verilator": verilator}


def machine(info: Path = CPU_INFO) -> dict[str, Any]:
    """Return the processor, with the flags that matter for integers."""
    text = info.read_text(encoding="utf-8") if info.is_file() else ""
    facts = {
        key.strip(): value.strip()
        for key, _, value in (line.partition(":") for line in reversed(text.splitlines()))
    }
    have = set(facts.get("flags", facts.get("Features", "")).split())
    return {
        "cpu": facts.get("model name") or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "flags": [flag for flag in FLAGS if flag in have],
        "vnni": any(flag in have for flag in VNNI),
    }
