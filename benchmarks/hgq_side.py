"""Learned bit widths by HGQ2, as the rival of benchmarks/learned_widths.py.

Runs in an environment of its own, never among our dependencies:

    python -m venv hgq && hgq/bin/pip install "HGQ2==0.2.0" jax
    hgq/bin/python benchmarks/hgq_side.py data.npz --epochs 600

`data.npz` has x_train, y_train, x_val, y_val, x_test and y_test (benchmarks/rivals.py writes it).
The last line is a JSON object: the steps per second of wall and of processor time, and a row
(EBOPs, accuracy on val, accuracy on test) for each epoch. `--tables` has truth tables on edges
(HGQ-LUT) in place of linear layers. `--circuits 12` needs alkaid as well: as many designs of the
front are traced, with integer bits that suit all training data, and have alkaid's count of LUTs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from hgq.config import LayerConfigScope, QuantizerConfigScope
from hgq.layers import QDense, QDenseT
from hgq.utils.sugar import BetaScheduler, FreeEBOPs


def network(features: int, classes: int, hidden: list[int], beta: float, tables: bool) -> Any:
    """Return layers with a width per weight and per input, as HGQ2's README sets them up."""
    inlet = keras.layers.Input((features,))
    with (
        QuantizerConfigScope(place="all", default_q_type="kbi", overflow_mode="SAT_SYM"),
        QuantizerConfigScope(place="datalane", default_q_type="kif", overflow_mode="WRAP"),
        LayerConfigScope(enable_ebops=True, beta0=beta),
    ):
        if tables:
            return keras.Sequential(
                [inlet, *(QDenseT(n, batch_norm=True) for n in [*hidden, classes])]
            )
        layers = [QDense(width, activation="relu") for width in hidden]
        return keras.Sequential([inlet, *layers, QDense(classes)])


class Front(keras.callbacks.Callback):
    """Notes cost and accuracies after each epoch, keeps the front, and sets the learning rate."""

    def __init__(self, data: Any, epochs: int, rate: float, schedule: str) -> None:
        super().__init__()
        self.data, self.epochs, self.rate, self.schedule = data, epochs, rate, schedule
        self.rows: list[tuple[float, float, float]] = []
        self.kept: dict[int, Any] = {}
        self.seconds = self.cpu_seconds = 0.0
        self.began, self.cpu_began = 0.0, 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        last = 0.1 if self.schedule == "late" else 1.0  # the part in which the rate falls
        share = max(0.0, (epoch / self.epochs - (1 - last)) / last)
        self.model.optimizer.learning_rate = self.rate * 0.5 * (1 + math.cos(math.pi * share))
        self.began, self.cpu_began = time.perf_counter(), time.process_time()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch:  # the first compiles
            self.seconds += time.perf_counter() - self.began
            self.cpu_seconds += time.process_time() - self.cpu_began
        if logs is None:
            return
        accuracies = (self.accuracy(split) for split in ("val", "test"))
        self.rows.append((float(logs["ebops"]), *accuracies))
        cost, score, _ = self.rows[-1]
        others = [self.rows[k] for k in self.kept]
        if any(c <= cost and s >= score for c, s, _ in others):
            return
        beaten = [k for k in self.kept if self.rows[k][0] >= cost and self.rows[k][1] <= score]
        self.kept = {k: w for k, w in self.kept.items() if k not in beaten}
        self.kept[epoch] = self.model.get_weights()

    def accuracy(self, split: str) -> float:
        """Return the share of right classes."""
        scores = self.model.predict(self.data[f"x_{split}"], batch_size=8192, verbose=0)
        return float((scores.argmax(1) == self.data[f"y_{split}"]).mean())


def circuits(model: Any, watch: Front, count: int) -> list[dict[str, float]]:
    """Return LUTs and accuracies of some designs of the front, evenly spread by cost."""
    from alkaid.converter import trace_model
    from alkaid.trace import trace
    from hgq.utils import trace_minmax

    epochs = sorted(watch.kept, key=lambda k: watch.rows[k][0])
    step = max(1.0, (len(epochs) - 1) / max(1, count - 1))
    chosen = [epochs[min(len(epochs) - 1, round(k * step))] for k in range(min(count, len(epochs)))]
    found = []
    for epoch in chosen:
        model.set_weights(watch.kept[epoch])
        ebops = trace_minmax(model, watch.data["x_train"], batch_size=8192)
        logic = trace(*trace_model(model))
        scores = {split: watch.accuracy(split) for split in ("val", "test")}
        found.append({"ebops": float(ebops), "lut": float(logic.cost), **scores})
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
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--circuits", type=int, default=0)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    data = dict(np.load(args.data))
    classes = int(data["y_train"].max()) + 1
    features = data["x_train"].shape[1]
    model = network(features, classes, args.hidden, args.prices[0], args.tables)
    model.compile(
        optimizer=keras.optimizers.Adam(args.rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=32,
    )
    low, high = map(math.log, args.prices)
    price = BetaScheduler(lambda epoch: math.exp(low + (high - low) * epoch / args.epochs))
    watch = Front(data, args.epochs, args.rate, args.schedule)
    model.fit(
        data["x_train"],
        data["y_train"],
        batch_size=args.batch_size,
        epochs=args.epochs,
        verbose=0,
        callbacks=[price, FreeEBOPs(), watch],
    )
    steps = math.ceil(len(data["y_train"]) / args.batch_size) * (args.epochs - 1)
    found = {
        "steps_per_second": steps / max(watch.seconds, 1e-9),
        "steps_per_cpu_second": steps / max(watch.cpu_seconds, 1e-9),
        "rows": watch.rows,
        "circuits": circuits(model, watch, args.circuits) if args.circuits else [],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
