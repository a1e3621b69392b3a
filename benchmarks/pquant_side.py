"""Learned bit widths by PQuantML, as the rival of benchmarks/rivals.py.

Runs in an environment of its own, never among our dependencies:

    python -m venv pquant
    pquant/bin/pip install -c constraints.txt torch==2.13.0 "pquant-ml==0.1.0" alkaid
    pquant/bin/python benchmarks/pquant_side.py data.npz --epochs 1000

Linear layers with HGQ's quantiser, a width per weight and per input, and a price for EBOPs that
rises in equal steps of its logarithm. PQuantML has no schedule for the price of its own, so this
file sets `hgq_beta` of the layers before each epoch; `hgq_gamma` is 0, as with HGQ2's side. Batches
are sliced from shuffled tensors, which is faster than a DataLoader. The last line is a JSON object
as that of benchmarks/hgq_side.py.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import os
import sys
import time
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import numpy as np
import torch
import torch.nn.functional as F
from pquant import apply_final_compression, get_model_losses, pdp_config
from pquant.core.torch.train import post_epoch_functions, post_pretrain_functions
from pquant.layers import PQDense
from torch import Tensor, nn


def network(features: int, classes: int, hidden: list[int], overflow: str) -> tuple[Any, Any]:
    """Return linear layers with ReLUs, and their config."""
    config = pdp_config()
    config.pruning_parameters.enable_pruning = False
    config.quantization_parameters.use_high_granularity_quantization = True
    config.quantization_parameters.granularity = "per_weight"
    config.quantization_parameters.hgq_gamma = 0.0
    config.quantization_parameters.overflow_mode_data = overflow
    config.quantization_parameters.round_mode = "RND_CONV"
    sizes = [features, *hidden, classes]
    layers: list[nn.Module] = []
    for k, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        bits = (0.0, 4.0, 4.0) if k else (1.0, 3.0, 4.0)  # only inputs of the network have signs
        layers += [PQDense(config, inputs, outputs, in_quant_bits=bits), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), config


class Training:
    """A network, its data, and what each epoch reached."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        data = np.load(args.data)
        self.data: dict[str, Tensor] = {name: torch.from_numpy(data[name]) for name in data.files}
        classes = int(self.data["y_train"].max()) + 1
        features = self.data["x_train"].shape[1]
        self.model, config = network(features, classes, args.hidden, args.overflow)
        self.model(self.data["x_train"][: args.batch_size])  # quantisers have their shapes then
        post_pretrain_functions(self.model, config)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.rate, fused=args.fused)
        self.seconds = self.cpu_seconds = 0.0
        self.rows: list[tuple[float, float, float]] = []
        self.kept: dict[int, dict[str, Tensor]] = {}

    def epoch(self, number: int) -> None:
        args, share = self.args, number / self.args.epochs
        low, high = map(math.log, args.prices)
        last = 0.1 if args.schedule == "late" else 1.0  # the part in which the rate falls
        part = max(0.0, (share - (1 - last)) / last)
        for group in self.optimizer.param_groups:
            group["lr"] = args.rate * 0.5 * (1 + math.cos(math.pi * part))
        for layer in self.model:
            if isinstance(layer, PQDense):
                layer.hgq_beta = math.exp(low + (high - low) * share)
        wall, cpu = time.perf_counter(), time.process_time()
        self.model.train()
        order = torch.randperm(len(self.data["y_train"]))
        for rows in order.split(args.batch_size):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(
                self.model(self.data["x_train"][rows]), self.data["y_train"][rows]
            )
            get_model_losses(self.model, loss).backward()
            self.optimizer.step()
        if number:
            self.seconds += time.perf_counter() - wall
            self.cpu_seconds += time.process_time() - cpu
        self.note(number)
        post_epoch_functions(self.model, number, args.epochs)

    @torch.no_grad()
    def note(self, number: int) -> None:
        self.model.eval()
        cost = float(sum(map(ebops, self.dense())))
        self.rows.append((cost, self.accuracy("val"), self.accuracy("test")))
        score = self.rows[-1][1]
        others = [self.rows[k] for k in self.kept]
        if any(c <= cost and s >= score for c, s, _ in others):
            return
        beaten = [k for k in self.kept if self.rows[k][0] >= cost and self.rows[k][1] <= score]
        self.kept = {k: state for k, state in self.kept.items() if k not in beaten}
        self.kept[number] = {k: t.clone() for k, t in self.model.state_dict().items()}

    def dense(self) -> list[Any]:
        return [layer for layer in self.model if isinstance(layer, PQDense)]

    @torch.no_grad()
    def accuracy(self, split: str) -> float:
        """Return the share of right classes."""
        scores = self.model(self.data[f"x_{split}"])
        return float((scores.argmax(1) == self.data[f"y_{split}"]).float().mean())


def ebops(layer: Any) -> Tensor:
    """Return the EBOPs as HGQ2 counts them: bits without signs, none for weights that are zero.

    PQuantML adds the sign to all bits, also where none is left.
    """
    x, weight, bias = (
        getattr(layer, f"{name}_quantizer").quantizer.b for name in ("input", "weight", "bias")
    )
    return F.linear(x, weight * (layer.weight != 0)).sum() + (bias * (layer.bias != 0)).sum()


def circuits(training: Training, count: int) -> list[dict[str, float]]:
    """Return alkaid's LUTs and accuracies of some designs of the front, evenly spread by cost."""
    from alkaid.converter import trace_model
    from alkaid.trace import FVArrayInput, trace

    epochs = sorted(training.kept, key=lambda k: training.rows[k][0])
    step = max(1.0, (len(epochs) - 1) / max(1, count - 1))
    chosen = [epochs[min(len(epochs) - 1, round(k * step))] for k in range(min(count, len(epochs)))]
    found, model = [], training.model
    for epoch in chosen:
        training.model = copy.deepcopy(model)
        training.model.load_state_dict(training.kept[epoch])
        apply_final_compression(training.model.eval())
        scores = {split: training.accuracy(split) for split in ("val", "test")}
        features = training.data["x_train"].shape[1]
        first = training.dense()[0].input_quantizer.get_quantization_bits()
        bits = [each.detach().numpy().astype(int) for each in first]
        inlet = FVArrayInput((1, features)).quantize(*bits)  # rounded outside the circuit
        try:
            logic = trace(*trace_model(training.model, framework="torch", inputs=(inlet,)))
        except AssertionError as error:  # alkaid refuses some designs
            print(f"epoch {epoch} has no circuit: {error}", file=sys.stderr)
            continue
        found.append({"ebops": training.rows[epoch][0], "lut": float(logic.cost), **scores})
    training.model = model
    return found


def main() -> None:
    """Train once with a rising price, and print what each epoch reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--hidden", type=int, nargs="*", default=[64, 32, 32])
    parser.add_argument("--epochs", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--rate", type=float, default=5e-3)
    parser.add_argument("--prices", type=float, nargs=2, default=[1e-6, 1e-4])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--schedule", choices=["cosine", "late"], default="cosine")
    parser.add_argument("--overflow", default="SAT")
    parser.add_argument("--circuits", type=int, default=0)
    parser.add_argument("--fused", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    training = Training(args)
    for number in range(args.epochs):
        training.epoch(number)
    steps = math.ceil(len(training.data["y_train"]) / args.batch_size) * (args.epochs - 1)
    found = {
        "steps_per_second": steps / max(training.seconds, 1e-9),
        "steps_per_cpu_second": steps / max(training.cpu_seconds, 1e-9),
        "rows": training.rows,
        "circuits": circuits(training, args.circuits) if args.circuits else [],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
