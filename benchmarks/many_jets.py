"""Write a file of as many jets as one likes, to measure how fast they are learnt from.

    python benchmarks/many_jets.py jets.npz --rows 800000

The training rows are those of jsc-sim, drawn with replacement, each moved by a little noise; the
validation and test jets are those of jsc-sim themselves. More rows do not mean more knowledge: a
score on this file is a score on jsc-sim.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from chop.dataset import MaseDataModule

NOISE = 0.05  # deviations of a feature


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, default=800_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.rows < 1 or args.file.suffix != ".npz" or not args.file.absolute().parent.is_dir():
        parser.error("name a file .npz in a folder that is there, and at least one row")
    data = MaseDataModule("jsc-sim")
    data.prepare_data()
    data.setup()
    splits = {"train": data.train_dataset, "val": data.val_dataset, "test": data.test_dataset}
    arrays = {f"x_{name}": split.x.numpy() for name, split in splits.items()}
    arrays |= {f"y_{name}": split.y.numpy() for name, split in splits.items()}
    random = np.random.default_rng(args.seed)
    drawn = random.integers(len(arrays["x_train"]), size=args.rows)
    noise = random.standard_normal((args.rows, arrays["x_train"].shape[1]), np.float32)
    arrays["x_train"] = arrays["x_train"][drawn] + NOISE * noise
    arrays["y_train"] = arrays["y_train"][drawn]
    np.savez(args.file, **arrays)
    print(f"{args.file}: {args.rows:,} training jets")


if __name__ == "__main__":
    main()
