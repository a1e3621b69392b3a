"""Learned bit widths of vgg7 or resnet18 beside networks of uniform widths, on images.

    python benchmarks/learned_images.py files images.npz folder   # for --data-path of cifar10
    ./ch train vgg7 cifar10 --data-path folder --project float …  # the float parent
    ./ch search --config configs/examples/cifar10_learned.toml --data-path folder --load …
    python benchmarks/learned_images.py uniform --data-path folder --parent best.ckpt --save uniform
    python benchmarks/learned_images.py table --data-path folder --parent best.ckpt \\
        --designs uniform/* …/search_ckpts/search.designs/design_?

`files` writes images (arrays x_train, y_train, x_test, y_test; bytes, channels last) as the binary
files of CIFAR-10, so that few of them can be used in its place. `uniform` trains the parent with
folded batch norms and the same width for all inputs, weights and biases: on the samples that the
ramp draws, with its loss, and with a cosine for the rate. As the ramp, it keeps the best of the
checkpoints on the validation split. `table` tests saved graphs on the test split. Intervals are
those of Wilson, 95 %; the difference from the first design is one between pairs.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from torch import Tensor, nn

from chop.checkpoints import load_graph, load_model
from chop.dataset import MaseDataModule
from chop.ir import MaseGraph
from chop.models import get_model
from chop.passes import Pipeline
from chop.passes.graph.analysis.cost import cost_of
from chop.tools.get_input import InputGenerator
from chop.training.devices import Place
from chop.training.feed import Feed
from chop.training.learned.batches import MemberBatches
from chop.training.tasks import CLASSIFICATION

PLACE = Place(torch.device("cpu"))
Z = 1.96  # of a normal distribution: 95 % lie within


def write_files(args: argparse.Namespace) -> None:
    """Write images as the binary files of CIFAR-10."""
    args.folder.mkdir(parents=True, exist_ok=True)
    with np.load(args.images) as arrays:
        train, test = (
            np.hstack([y[:, None], x.transpose(0, 3, 1, 2).reshape(len(x), -1)]).astype(np.uint8)
            for x, y in ((arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test"))
        )
    for number, records in enumerate(np.array_split(train, 5), 1):
        (args.folder / f"data_batch_{number}.bin").write_bytes(records.tobytes())
    (args.folder / "test_batch.bin").write_bytes(test.tobytes())


def images(args: argparse.Namespace) -> MaseDataModule:
    data = MaseDataModule("cifar10", args.batch, custom_path=args.data_path, seed=args.seed)
    data.prepare_data()
    data.setup()
    return data


def parent_of(args: argparse.Namespace, data: MaseDataModule) -> MaseGraph:
    """Return the trained float network with the metadata that passes need."""
    model = get_model(args.model, task="cls", dataset_info=data.dataset_info)
    graph = MaseGraph(load_model(args.parent, "pl", model).eval())
    (inlet,) = [node for node in graph.nodes if node.op == "placeholder"]
    dummy_in = {str(inlet.target): torch.randn(1, *data.dataset_info.image_size)}
    common = ("add_common_metadata", {"dummy_in": dummy_in})
    made, _ = Pipeline(["init_metadata", common, "add_software_metadata"])(graph)
    return made


def uniform_of(parent: MaseGraph, data: MaseDataModule, width: int) -> MaseGraph:
    """Return the network with the same width for everything, ranges from calibration."""
    config: dict[str, Any] = {"name": "integer"}
    for operand in ("data_in", "weight", "bias"):
        config |= {f"{operand}_width": width, f"{operand}_frac_width": "calibrated"}
    chosen = {"by": "type", "conv2d": {"config": config}, "linear": {"config": config}}
    samples = InputGenerator(None, data, "cls", "train", model=parent.model)
    passes = [
        "fold_batch_norm",
        ("calibrate", {"input_generator": samples, "method": "minmax", "num_samples": 512}),
        ("quantize", chosen),
    ]
    made, _ = Pipeline(passes)(parent.clone())
    return made


def train_uniform(args: argparse.Namespace) -> None:
    """Train and save a network of each width."""
    data = images(args)
    parent = parent_of(args, data)
    for width in args.widths:
        graph = uniform_of(parent, data, width)
        start = time.process_time()
        score, step = trained(graph.model, parent.model, data, args)
        graph.export(args.save / f"uniform_{width}")
        seconds = time.process_time() - start
        print(f"{width} bits: validation {score:.4f} at step {step}; {seconds:.0f} s of CPU")


def trained(
    model: nn.Module, teacher: nn.Module, data: MaseDataModule, args: argparse.Namespace
) -> tuple[float, int]:
    """Train a network as a step of the ramp does; return its best score, and leave it there."""
    feed = Feed(data.train_dataset, args.batch, PLACE, seed=args.seed)
    batches = MemberBatches(feed, 1, args.seed, teacher)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps, 1e-5)
    due = {math.ceil(args.steps * k / args.checkpoints) for k in range(1, args.checkpoints + 1)}
    best, kept = (validation(model, data), 0), _copied(model)  # calibrated, without training
    for step in range(1, args.steps + 1):
        model.train()
        x, y, target = batches.gathered(batches.indices(step - 1))
        assert isinstance(x, Tensor)
        assert target is not None
        outputs = model(x[0])
        distance = CLASSIFICATION.distance(outputs, target[0], args.temperature)
        loss = (1 - args.distill) * CLASSIFICATION.loss(outputs, y[0]) + args.distill * distance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step in due and (found := validation(model, data)) > best[0]:
            best, kept = (found, step), _copied(model)
    model.load_state_dict(kept)
    model.eval()
    return best


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def validation(model: nn.Module, data: MaseDataModule) -> float:
    return float(correct(model, data.val_dataset).mean())


@torch.no_grad()
def correct(model: nn.Module, split: Any) -> np.ndarray:
    """Return for each sample of a split whether the network is right."""
    model.eval()
    found = [model(x).argmax(1) == y for x, y in Feed(split, 100, PLACE).every()]
    return torch.cat(found).numpy()


def interval(right: np.ndarray) -> tuple[float, float]:
    """Return the interval of Wilson for the share of samples that are right."""
    n, p = len(right), right.mean()
    middle, half = p + Z**2 / (2 * n), Z * math.sqrt(p * (1 - p) / n + (Z / (2 * n)) ** 2)
    return tuple((middle + sign * half) / (1 + Z**2 / n) for sign in (-1, 1))  # type: ignore[return-value]


def difference(ours: np.ndarray, theirs: np.ndarray) -> str:
    """Return the difference of two networks on the same samples, with its interval."""
    change = ours.astype(float) - theirs.astype(float)
    half = Z * change.std() / math.sqrt(len(change))
    return f"{change.mean():+.1%} ± {half:.1%}"


def show_table(args: argparse.Namespace) -> None:
    """Test the parent and the designs, and print what they cost."""
    data = images(args)
    graphs = {"parent": parent_of(args, data)}
    graphs |= {str(path): load_graph(path) for path in args.designs}
    rows: list[list[Any]] = []
    reference: tuple[np.ndarray, float] | None = None
    for name, graph in graphs.items():
        right = correct(graph.model, data.test_dataset)
        bitops = cost_of(graph, per_sample=True)["total"]["bit_ops"]
        if reference is None and name != "parent":
            reference = right, bitops
        row = [name, f"{bitops / 1e9:.2f}", f"{validation(graph.model, data):.1%}"]
        row += [f"{right.mean():.1%}", "{:.1%} to {:.1%}".format(*interval(right))]
        if reference is not None:
            row += [f"{bitops / reference[1]:.3f}", difference(right, reference[0])]
        rows.append(row)
        print(*row, sep="  ", flush=True)
    heads = ["network", "bitops [1e9]", "validation", "test", "95 % interval"]
    print(tabulate(rows, [*heads, "bitops / first", "test - first"], disable_numparse=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    files = commands.add_parser("files")
    files.add_argument("images", type=Path)
    files.add_argument("folder", type=Path)
    files.set_defaults(work=write_files)
    for name, work in (("uniform", train_uniform), ("table", show_table)):
        command = commands.add_parser(name)
        command.add_argument("--data-path", type=Path, required=True)
        command.add_argument("--parent", type=Path, required=True)
        command.add_argument("--model", default="vgg7")
        command.add_argument("--batch", type=int, default=64)
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--threads", type=int, default=torch.get_num_threads())
        command.set_defaults(work=work)
    table, uniform = commands.choices["table"], commands.choices["uniform"]
    table.add_argument("--designs", type=Path, nargs="+", required=True)
    uniform.add_argument("--save", type=Path, required=True)
    uniform.add_argument("--widths", type=int, nargs="+", default=[8])
    uniform.add_argument("--steps", type=int, default=400)
    uniform.add_argument("--rate", type=float, default=1e-4)
    uniform.add_argument("--distill", type=float, default=0.5)
    uniform.add_argument("--temperature", type=float, default=2.0)
    uniform.add_argument("--checkpoints", type=int, default=20)
    args = parser.parse_args()
    if "threads" in args:
        torch.set_num_threads(args.threads)
    args.work(args)


if __name__ == "__main__":
    main()
