"""Linear layers on int8 and fp8 kernels, as ratios to bfloat16: one layer, batches of many sizes.

python benchmarks/deploy.py                                  # 4096 × 4096 on a GPU
python benchmarks/deploy.py --size 1024 --batches 1 64       # another layer
python benchmarks/deploy.py --device cpu --size 256 --batches 1 32 --repeats 3   # a trial run

Every number is the median time of one forward pass, divided by that of the compiled layer in
bfloat16: below 1 is faster. Inputs are bfloat16, as results are. "simulated" is the quantised layer
in float32 that the deployed one replaces.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

import torch
from formats import median_ms
from tabulate import tabulate
from torch import Tensor, nn

from chop.methods.deploy.convert import deployed_layer
from chop.methods.deploy.kernels import why_not_on
from chop.passes.graph.transforms.quantize.quantize import quantized_layer

BATCHES = [16, 64, 256, 1024, 2048, 4096, 8192]
INTEGER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
INTEGER |= {"weight_width": 8, "weight_frac_width": 8}
CHANNELS = {"name": "affine", "data_in_width": 8, "data_in_scale": 0.03, "weight_width": 8}
CHANNELS |= {"weight_axis": 0}
ROWS = {"name": "scale_integer", "data_in_width": 8, "weight_width": 8}
FP8 = {"name": "fp8", "data_in_exponent_width": 4, "data_in_frac_width": 3}
FP8 |= {"weight_exponent_width": 4, "weight_frac_width": 3, "saturate": True}
FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "int8 (integer)": ("cuda-int8", INTEGER),
    "int8 (affine)": ("cuda-int8", CHANNELS),
    "int8 (scale_integer)": ("cuda-int8", ROWS),
    "fp8": ("cuda-fp8", FP8),
}


def compiled(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    run: Callable[[Tensor], Tensor] = torch.compile(layer, fullgraph=True, dynamic=False)
    return run


def columns(size: int, device: torch.device) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return what is measured; the first column is what the others are divided by."""
    torch.manual_seed(0)
    plain = nn.Linear(size, size).eval()
    half = nn.Linear(size, size).eval().to(device, torch.bfloat16)
    found = {"bf16, compiled": compiled(half), "bf16": half}
    simulated = quantized_layer(plain, INTEGER)
    for name, (target, config) in FORMS.items():
        if (reason := why_not_on(device, target)) is not None:
            print(reason)
            continue
        layer = deployed_layer(quantized_layer(plain, config), target, "bfloat16").to(device)
        found |= {f"{name}, compiled": compiled(layer), name: layer}
    on_device = simulated.to(device)
    return found | {"simulated": lambda x: on_device(x.float())}


@torch.no_grad()
def measure(size: int, batches: list[int], repeats: int, device: torch.device) -> None:
    runs = columns(size, device)
    rows = []
    for batch in batches:
        torch.compiler.reset()  # torch compiles one function for few shapes only
        x = torch.randn(batch, size, device=device).bfloat16()
        works = [functools.partial(run, x) for run in runs.values()]
        first, *others = (median_ms(work, repeats, device.type) for work in works)
        rows.append([batch, f"{first:.3f}", *(f"{other / first:.2f}" for other in others)])
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{size} × {size} on {name}, torch {torch.__version__}")
    first_name, *names = runs
    print(tabulate(rows, ["batch", f"{first_name} [ms]", *(f"{n} ×" for n in names)], "github"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options = parser.parse_args()
    measure(options.size, options.batches, options.repeats, torch.device(options.device))


if __name__ == "__main__":
    main()
