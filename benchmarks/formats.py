"""What a format costs, as ratios to a copy of the same tensor and to four plain operations.

TRITON_CACHE_DIR=$(mktemp -d) python benchmarks/formats.py    # first calls without a cache
python benchmarks/formats.py                     # CUDA, if there, with 1 GiB; CPU with 64 MiB
python benchmarks/formats.py --device cpu --mib 16    # in the C++ library, which is waited for
MASE_FUSED=off python benchmarks/formats.py      # the formats as plain torch operations
python benchmarks/formats.py --only binary ternary    # rows with one of these in their title
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor

from chop.numerics import FORMATS, NumberFormat
from chop.numerics.compiled import KERNELS
from chop.numerics.fused import fused_mode

IN_A_ROW = 5

ELEMENTWISE: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("integer", [8, 4], {}),
    ("integer", [8, 4], {"floor": True}),
    ("affine", [8], {"scale": 0.1}),
    ("affine", [8], {"scale": 0.1, "zero_point": 3}),
    ("minifloat_ieee", [8, 4, 7], {}),
    ("minifloat_ieee", [16, 8, 127], {}),
    ("minifloat_denorm", [8, 4, 7], {}),
    ("log", [8, 63], {}),
    ("log", [8, 63], {"zero": True}),
    ("fp8", [4, 3], {}),
    ("fp8", [5, 2], {}),
    ("binary", [1, False, True], {}),
    ("binary_residual", [1, False, True], {}),
    ("ternary", [2, False, 1.0, None, None], {}),
    ("scale_integer", [8], {}),
    ("scale_integer", [8], {"symmetric": True}),
]
# with means of each row: (B, L, D) has rows too long to be held, which are read again for each
MEANS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("binary", [1, False, True], {"scaled": True}),
    ("binary", [1, False, False], {}),
    ("ternary", [2, False, None, None, None], {}),
    ("ternary", [2, True, None, None, None], {}),
]
BLOCK: list[tuple[str, list[Any], list[int]]] = [
    (name, precision, block)
    for name, precision in (
        ("block_fp", [8, 8, 127]),
        ("block_minifloat", [8, 4, 8]),
        ("block_log", [8, 8]),
    )
    for block in ([1, 16], [16, 16], [16])
]
MX: list[tuple[str, list[Any], list[int]]] = [("mxint", [8], [32]), ("mxfp", [4, 3], [32])]


def cases(x: Tensor) -> Iterator[tuple[NumberFormat, str, Tensor]]:
    """Formats, what the table calls them, and the tensor in the shape that they get."""
    sequence = x.view(-1, 1024, 1024)
    for name, precision, more in ELEMENTWISE + MEANS:
        options = "".join(f" {key}" for key in more)
        yield FORMATS[name](*precision, **more), f"{name} {precision}{options}", x
    for name, precision, more in MEANS:
        options = "".join(f" {key}" for key in more)
        yield FORMATS[name](*precision, **more), f"{name} {precision}{options} (B, L, D)", sequence
    for axis in (0, 1):  # as torch operations
        scale = [0.1] * x.shape[axis]
        yield FORMATS["affine"](8, axis=axis, scale=scale), f"affine [8] axis {axis}", x
    for name, precision, block in BLOCK + MX:
        fmt = FORMATS[name](*precision, block)
        yield fmt, f"{name} {fmt.precision} weight", x
        yield fmt.for_operand("data_in_0"), f"{name} {fmt.precision} (B, L, D)", sequence


def median_ms(work: Callable[[], Any], repeats: int, device: str) -> float:
    """Of one call; on CUDA by the device's own clock, with calls in a row to hide the launching.

    On the CPU it is the time of the process, so that others on the machine matter less.
    """
    times = []
    for _ in range(repeats + 2):
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(IN_A_ROW):
                work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / IN_A_ROW)
        else:
            start = time.process_time()
            work()
            times.append(1e3 * (time.process_time() - start))
    return statistics.median(times[2:])


def seconds(work: Callable[[], Any], device: str) -> float:
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def backward_ms(fmt: NumberFormat, x: Tensor, repeats: int, device: str) -> float:
    """The gradient of `x`, given that of the result; nothing is added up."""
    leaf = x.detach().requires_grad_()
    y, grad = fmt(leaf), torch.ones_like(x)
    return median_ms(lambda: torch.autograd.grad(y, leaf, grad, retain_graph=True), repeats, device)


def measure(device: str, mib: int, repeats: int, only: list[str]) -> None:
    side = 1024 * int((mib / 4) ** 0.5)
    if device == "cpu" and fused_mode() == "auto":
        KERNELS.ready(0, wait=True)
    x = torch.randn(side, side, device=device)
    y = torch.empty_like(x)
    copy = median_ms(lambda: y.copy_(x), repeats, device)
    chain = median_ms(lambda: (x * 16).round().clamp(-128, 127) / 16, repeats, device)
    rows = []
    for fmt, title, given in cases(x):
        if not any(wanted in title for wanted in only):
            continue
        first = seconds(lambda fmt=fmt, given=given: fmt(given), device)
        forward = median_ms(lambda fmt=fmt, given=given: fmt(given), repeats, device)
        clipped = dataclasses.replace(fmt, ste="clip")
        row = [title, forward / copy, 100 * copy / forward, forward / chain]
        row += [backward_ms(f, given, repeats, device) / copy for f in (fmt, clipped)]
        rows.append([*row, first])
    head = ["format", "forward / copy", "% of copy", "forward / chain"]
    head += ["backward / copy", "clip backward / copy", "first call s"]
    rate = 2 * 4 * x.numel() / copy / 1e6
    print(f"\n{device}, {mib} MiB float32, MASE_FUSED={fused_mode()}, torch {torch.__version__}")
    if device == "cpu":
        print(f"{torch.get_num_threads()} threads, CPU time; C++ library: {bool(KERNELS.library)}")
    print(f"copy {copy:.3f} ms, {rate:.0f} GB/s; four-op chain {chain / copy:.2f} copies\n")
    formats = ("", ".2f", ".0f", ".2f", ".3f", ".2f", ".2f")
    print(tabulate(rows, head, tablefmt="github", floatfmt=formats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu", "all"), default="all")
    parser.add_argument("--mib", type=int, help="size of the tensor (1024 on CUDA, 64 on the CPU)")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1, help="on the CPU")
    parser.add_argument("--only", nargs="+", default=[""], help="what titles have, one of these")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sizes = {"cuda": 1024, "cpu": 64}
    for device, size in sizes.items():
        wanted = options.device in (device, "all")
        if wanted and (device == "cpu" or torch.cuda.is_available()):
            measure(device, options.mib or size, options.repeats, options.only)


if __name__ == "__main__":
    main()
