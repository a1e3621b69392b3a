"""Lab 4: search widths and bits of a network together, and train every candidate."""

from pathlib import Path

import torch
import typer
from tabulate import tabulate

from chop.actions import search
from chop.actions.search import get_hw_runner, get_sw_runner
from chop.dataset import MaseDataModule
from chop.ir import MaseGraph
from chop.models import get_model, get_model_info
from chop.passes import Pipeline, quantize_transform_pass, redefine_transform_pass
from chop.passes.base import graph_pass

SPACE = {"first": [8, 12, 16, 24, 32, 64], "second": [8, 12, 16, 32], "bits": [6, 8, 10, 12]}
INTEGER_BITS = {"data_in": 5, "weight": 4, "bias": 5}  # before the binary point, with the sign


@graph_pass("lab4", "transform", needs=("common",))
def lab4_transform_pass(graph, *, first: int = 16, second: int = 16, bits: int = 8):
    """Change the widths of the hidden layers with inherited weights, and quantise."""
    widths = {"seq_blocks_2": first, "seq_blocks_4": second}.items()
    tables = {node: {"config": {"name": "both", "width": width}} for node, width in widths}
    redefine_transform_pass(graph, {"by": "name", "weights": "inherit", **tables})
    config = {"name": "integer", **{f"{name}_width": bits for name in INTEGER_BITS}}
    config |= {f"{name}_frac_width": bits - integer for name, integer in INTEGER_BITS.items()}
    quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})


OUT = Path("mase_output/lab4_nas")


def main(seeds: int = 3, trials: int = 40, epochs: int = 10, out: Path = OUT) -> None:
    """Search, then train and test the parent and the designs selected on the validation split."""
    data, rows = MaseDataModule("jsc-sim", batch_size=1024), []
    data.setup()
    about = (get_model_info("jsc-three-linear"), "cls", data.dataset_info, "cpu")
    training = {"max_epochs": epochs, "learning_rate": 1e-2}
    runners = {"sw_runner": {"basic_train": training}, "hw_runner": {"bitops": {}, "macs": {}}}
    setup = {"n_trials": trials, "uniform_first": False}  # TPE alone
    goals = {"metrics": {"accuracy": {}, "bitops": {}}, "setup": setup}
    plan = {"search_space": {"name": "graph/lab4", "seed": SPACE}, "strategy": runners | goals}
    train = get_sw_runner("basic_train", *about, training)
    whole = {"data_loader": "test_dataloader", "num_samples": len(data.test_dataset)}
    test = get_sw_runner("basic_evaluation", *about, whole)
    prepare = ["init_metadata", ("add_common_metadata", {"dummy_in": {"x": torch.randn(8, 16)}})]
    for seed in range(seeds):
        torch.manual_seed(seed)
        models = [get_model("jsc-three-linear", dataset_info=data.dataset_info) for _ in range(6)]
        reached = {model: train(data, model, {})["accuracy"] for model in models}
        parent = max(models, key=reached.get)
        graph, _ = Pipeline(prepare)(MaseGraph(parent))
        cost = [get_hw_runner(name, *about)(data, graph, {})[name] for name in ("macs", "bitops")]
        rows.append((seed, "parent", *cost, reached[parent], test(data, graph, {})["accuracy"]))
        trained = graph.clone()  # trained further, for as many epochs as a candidate
        goal, tested = (run(data, trained, {})["accuracy"] for run in (train, test))
        rows.append((seed, "parent, trained further", *cost, goal, tested))
        found = search(parent, *about[:3], data, plan, out / str(seed), "cpu", seed=seed)
        front = sorted(
            found.best, key=lambda trial: trial.hardware["bitops"]
        )  # from cheapest to most accurate
        good = [trial for trial in front if trial.software["accuracy"] >= goal]
        for trial in good[:1] + [front[-1]] * (good[:1] != [front[-1]]):
            candidate, design, cost = graph.clone(), found.designs[trial.number], trial.hardware
            lab4_transform_pass(candidate, design)
            scores = [run(data, candidate, {})["accuracy"] for run in (train, test)]
            rows.append((seed, design, cost["macs"], cost["bitops"], *scores))
    headers = ("seed", "network", "MACs", "BitOPs", "validation", "test")
    print(tabulate(rows, headers, "github", floatfmt=("", "", ".0f", ".0f", ".4f", ".4f")))


if __name__ == "__main__":
    typer.run(main)
