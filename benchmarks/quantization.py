"""Accuracy after post-training quantisation: plain, with each repair, and beside Brevitas.

python benchmarks/quantization.py --data DIR --checkpoints DIR                # all networks, ours
python benchmarks/quantization.py --data DIR --checkpoints DIR --tools MASE Brevitas
python benchmarks/quantization.py --data DIR --checkpoints DIR --networks jsc-s --schemes W4A8

DIR of the data has cifar10-small.npz and text.npz (`--make-text FILE` writes it from a text). A
network without a checkpoint is trained first, by `ch train`. Weights have one scale per channel,
activations one per tensor; batch norms are folded first; every method sees the same 1,024 samples.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from chop.dataset import MaseDataModule
from chop.ir import MaseGraph
from chop.models import get_model
from chop.passes import PASSES, run_pass

SAMPLES, BATCH = 1024, 64
REPAIRS = ("none", "equalize", "smooth", "correct_bias", "gptq", "adaround")
BEFORE = ("equalize", "smooth")  # the repairs of the float graph
QUICK = ("--training-optimizer", "adamw", "--weight-decay", "0.05", "--learning-rate", "1e-3")
TEXT_MODEL = Path(__file__).parent / "next_character.py"
WINDOW = 64
RESULTS = ("accuracy", "seconds", "error")


@dataclass(frozen=True)
class Network:
    """A network, its data, and how it is trained."""

    name: str
    dataset: str
    file: str | None = None
    task: str = "classification"
    training: tuple[str, ...] = ()
    ops: tuple[str, ...] = ("conv2d", "linear")
    data: Mapping[str, Any] = field(default_factory=dict)  # options of the data set

    def checkpoint(self, data: Path, checkpoints: Path) -> Path:
        """Return the file of the trained weights, after training them if they are missing."""
        found = checkpoints / self.name / "software" / "training_ckpts" / "last.ckpt"
        if not found.exists():
            command = [sys.executable, "-m", "chop", "train", self.name, self.dataset]
            command += ["--project-dir", str(checkpoints), "--project", self.name, *self.training]
            command += ["--data-path", str(data / self.file)] if self.file else []
            command += ["--task", self.task]
            command += ["--import", str(TEXT_MODEL)] if self.name == "next-character" else []
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return found


NETWORKS = {
    network.name: network
    for network in (
        Network("vgg7", "npz", "cifar10-small.npz", training=(*QUICK, "--max-epochs", "60")),
        Network("resnet18", "npz", "cifar10-small.npz", training=(*QUICK, "--max-epochs", "60")),
        Network(
            "jsc-s",
            "jsc-sim",
            training=("--learning-rate", "1e-2", "--batch-size", "1024", "--max-epochs", "100"),
        ),
        Network(
            "next-character",
            "npz",
            "text.npz",
            "dense",
            training=(*QUICK, "--max-epochs", "40"),
            data={"task": "dense"},
        ),
    )
}


@dataclass
class Subject:
    """A trained network with its samples on a device."""

    network: Network
    model: nn.Module
    calibration: list[Tensor]
    test: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @torch.no_grad()
    def score(self, model: nn.Module) -> float:
        """Return the share of right answers on the test data in per cent."""
        model.eval()
        right = total = 0
        for x, y in self.test:
            right += int((model(x).argmax(1) == y).sum())
            total += y.numel()
        return 100 * right / total


def subject(network: Network, data: Path, checkpoints: Path, device: str) -> Subject:
    """Return the trained network and its data on the device."""
    if network.name == "next-character":
        import next_character  # noqa: F401  (registers the model)
    path = data / network.file if network.file else None
    module = MaseDataModule(network.dataset, batch_size=BATCH, custom_path=path, **network.data)
    module.prepare_data()
    module.setup()
    state = torch.load(
        network.checkpoint(data, checkpoints), map_location="cpu", weights_only=True
    )["state_dict"]
    model = get_model(network.name, task=network.task, dataset_info=module.dataset_info)
    model.load_state_dict({key.removeprefix("model."): value for key, value in state.items()})
    torch.manual_seed(0)
    batches = itertools.islice(module.train_dataloader(), SAMPLES // BATCH)
    calibration = [_samples(batch[0]).to(device) for batch in batches]
    test = [(_samples(x).to(device), y.to(device)) for x, y in module.test_dataloader()]
    return Subject(network, model.eval().to(device), calibration, test)


def _samples(inputs: Any) -> Tensor:
    """Return the only input of a batch."""
    if isinstance(inputs, Mapping):
        (inputs,) = inputs.values()
    assert isinstance(inputs, Tensor)
    return inputs


def config(weight_bits: int, activation_bits: int) -> dict[str, Any]:
    """Return the format of every layer: weights per channel, activations per tensor."""
    return {
        "name": "affine",
        "data_in_width": activation_bits,
        "data_in_signed": False,
        "data_in_scale": "calibrated",
        "data_in_zero_point": "calibrated",
        "weight_width": weight_bits,
        "weight_axis": 0,
        "weight_scale": "calibrated",
    }


def ours(
    given: Subject, weight_bits: int, activation_bits: int, repair: str, options: dict[str, Any]
) -> tuple[nn.Module, float]:
    """Return the quantised model, and the seconds that the repair took."""
    model = copy.deepcopy(given.model)
    sample = given.calibration[0][:2]
    graph = MaseGraph(model, dummy_in=sample)
    (name,) = [node.name for node in graph.nodes if node.op == "placeholder"]
    graph, _ = run_pass("init_metadata", graph)
    described = {"dummy_in": {name: sample}, "add_value": False}
    graph, _ = run_pass("add_common_metadata", graph, described)
    graph, _ = run_pass("add_software_metadata", graph)

    def batches() -> Iterable[dict[str, Tensor]]:
        return [{name: batch} for batch in given.calibration]

    graph, _ = run_pass("fold_batch_norm", graph)
    seconds = 0.0
    if repair in BEFORE:
        seconds = _repaired(graph, repair, batches, options)
    data = {"input_generator": batches(), "num_samples": SAMPLES}
    graph, _ = run_pass("calibrate", graph, {**data, "method": "mse", "silent": True})
    table = {"config": config(weight_bits, activation_bits)}
    present = {node.meta["mase"]["common"]["mase_op"] for node in graph.nodes}
    chosen = {op: table for op in given.network.ops if op in present}
    graph, _ = run_pass("quantize", graph, {"by": "type", **chosen})
    if repair not in (*BEFORE, "none"):
        seconds = _repaired(graph, repair, batches, options)
    return graph.model, seconds


def _repaired(
    graph: MaseGraph,
    repair: str,
    batches: Callable[[], Iterable[dict[str, Tensor]]],
    options: dict[str, Any],
) -> float:
    needs_data = "input_generator" in PASSES[repair].options
    given = {"input_generator": batches(), "num_samples": SAMPLES} if needs_data else {}
    start = time.perf_counter()
    run_pass(repair, graph, given | options)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def rival(
    given: Subject, weight_bits: int, activation_bits: int, repair: str, steps: int
) -> tuple[nn.Module, float]:
    """Return the model as Brevitas quantises it, and the seconds that its repair took."""
    import brevitas_side

    return brevitas_side.quantized(
        copy.deepcopy(given.model),
        given.calibration,
        weight_bits=weight_bits,
        activation_bits=activation_bits,
        repair=repair,
        steps=steps,
    )


def make_text(source: Path, target: Path) -> None:
    """Write the data set of the text model: windows of characters, each with the next ones."""
    text = source.read_text()
    numbers = {character: i for i, character in enumerate(sorted(set(text)))}
    codes = np.array([numbers[character] for character in text])
    count = (len(codes) - 1) // WINDOW
    inside = count * WINDOW
    windows = (codes[:inside], codes[1 : inside + 1])
    x, y = (part.reshape(count, WINDOW) for part in windows)
    np.savez_compressed(target, text=x, y=y)


def measured(
    make: Callable[[], tuple[nn.Module, float]], score: Callable[[nn.Module], float]
) -> tuple[float | None, float, str]:
    """Return accuracy, seconds and, if it failed, the reason."""
    try:
        model, seconds = make()
        return score(model), seconds, ""
    except Exception as error:  # a rival that cannot is a result as well
        return None, 0.0, f"{type(error).__name__}: {error}"[:200]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--schemes", nargs="+", default=["W8A8", "W6A6", "W4A8", "W4A4"])
    parser.add_argument("--repairs", nargs="+", default=list(REPAIRS), choices=REPAIRS)
    parser.add_argument("--tools", nargs="+", default=["MASE"], choices=["MASE", "Brevitas"])
    parser.add_argument("--rival-steps", type=int, default=1000)
    parser.add_argument("--option", action="append", default=[], help="NAME=JSON of the repair")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--make-text", type=Path, help="a text file; writes DATA/text.npz")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if given.make_text:
        make_text(given.make_text, given.data / "text.npz")
    options = {key: json.loads(value) for key, _, value in (o.partition("=") for o in given.option)}
    rows: list[dict[str, Any]] = []
    for name in given.networks:
        trained = subject(NETWORKS[name], given.data, given.checkpoints, given.device)
        reference = trained.score(trained.model)
        print(f"\n## {name}: float {reference:.2f} %\n", flush=True)
        print("| scheme | repair | tool | accuracy [%] | repair [s] |")
        print("|---|---|---|---|---|", flush=True)
        sides: list[tuple[str, Callable[..., tuple[nn.Module, float]], Any]]
        sides = [("MASE", ours, options), ("Brevitas", rival, given.rival_steps)]
        for tool, make, extra in (side for side in sides if side[0] in given.tools):
            for repair, scheme in itertools.product(given.repairs, given.schemes):
                widths = [int(bits) for bits in scheme.removeprefix("W").split("A")]
                more = {} if tool == "MASE" and repair == "none" else extra
                result = measured(partial(make, trained, *widths, repair, more), trained.score)
                names = {"network": name, "scheme": scheme, "repair": repair, "tool": tool}
                rows.append(
                    names | dict(zip(("accuracy", "seconds", "error"), result, strict=True))
                )
                print(_line(scheme, repair, tool, *result), flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


def _line(*cells: Any) -> str:
    *names, accuracy, seconds, error = cells
    shown = error if accuracy is None else f"{accuracy:.2f}"
    return f"| {' | '.join(names)} | {shown} | {seconds:.1f} |"


if __name__ == "__main__":
    main()
