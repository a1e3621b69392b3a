"""Learned bit widths by HGQ2, as the rival of benchmarks/learned_widths.py.

Runs in an environment of its own, never among our dependencies:

    python -m venv hgq && hgq/bin/pip install "HGQ2==0.2.0" jax
    hgq/bin/python benchmarks/hgq_side.py data.npz --epochs 600

`data.npz` has x_train, y_train, x_val, y_val, x_test and y_test. The last line is a JSON object:
the steps per second and a row (EBOPs, accuracy on val, accuracy on test) for each epoch.
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
from hgq.layers import QDense
from hgq.utils.sugar import BetaScheduler, FreeEBOPs


def network(features: int, classes: int, hidden: list[int], beta: float) -> Any:
    """Return linear layers with a width per weight and per input, as HGQ2's README sets them up."""
    with (
        QuantizerConfigScope(place="all", default_q_type="kbi", overflow_mode="SAT_SYM"),
        QuantizerConfigScope(place="datalane", default_q_type="kif", overflow_mode="WRAP"),
        LayerConfigScope(enable_ebops=True, beta0=beta),
    ):
        layers = [QDense(width, activation="relu") for width in hidden]
        return keras.Sequential([keras.layers.Input((features,)), *layers, QDense(classes)])


class Front(keras.callbacks.Callback):
    """Notes cost and accuracies after each epoch, and lowers the learning rate by a cosine."""

    def __init__(self, data: Any, epochs: int, rate: float) -> None:
        super().__init__()
        self.data, self.epochs, self.rate = data, epochs, rate
        self.rows: list[tuple[float, float, float]] = []
        self.seconds = 0.0
        self.began = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        share = epoch / self.epochs
        self.model.optimizer.learning_rate = self.rate * 0.5 * (1 + math.cos(math.pi * share))
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds += (time.perf_counter() - self.began) if epoch else 0.0  # the first compiles
        accuracies = (self.accuracy(split) for split in ("val", "test"))
        self.rows.append((float(logs["ebops"]), *accuracies))

    def accuracy(self, split: str) -> float:
        """Return the share of right classes."""
        scores = self.model.predict(self.data[f"x_{split}"], batch_size=8192, verbose=0)
        return float((scores.argmax(1) == self.data[f"y_{split}"]).mean())


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
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    data = dict(np.load(args.data))
    classes = int(data["y_train"].max()) + 1
    model = network(data["x_train"].shape[1], classes, args.hidden, args.prices[0])
    model.compile(
        optimizer=keras.optimizers.Adam(args.rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=32,
    )
    low, high = map(math.log, args.prices)
    price = BetaScheduler(lambda epoch: math.exp(low + (high - low) * epoch / args.epochs))
    watch = Front(data, args.epochs, args.rate)
    model.fit(
        data["x_train"],
        data["y_train"],
        batch_size=args.batch_size,
        epochs=args.epochs,
        verbose=0,
        callbacks=[price, FreeEBOPs(), watch],
    )
    steps = math.ceil(len(data["y_train"]) / args.batch_size) * (args.epochs - 1)
    print(json.dumps({"steps_per_second": steps / max(watch.seconds, 1e-9), "rows": watch.rows}))


if __name__ == "__main__":
    main()
