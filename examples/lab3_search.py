"""Lab 3: search bit widths with TPE and brute force, and compare the trials that each needs."""

from itertools import accumulate
from pathlib import Path

import torch
import typer
from tabulate import tabulate

from chop.actions import search
from chop.actions.search import get_sw_runner
from chop.charts import Chart, page
from chop.dataset import MaseDataModule
from chop.models import get_model, get_model_info

WIDTHS = {"data_in_width": [4, 8], "weight_width": [2, 3, 4, 6, 8], "bias_width": [8]}
FRACTIONS = {f"{what}_frac_width": ["NA"] for what in ("data_in", "weight", "bias")}
SPACE = {
    "name": "graph/quantize/mixed_precision_ptq",
    "setup": {"by": "type"},
    "seed": {
        "default": {"config": {"name": ["NA"]}},
        "linear": {"config": {"name": ["integer"], **WIDTHS, **FRACTIONS}},
    },
}
STRATEGY = {
    "sw_runner": {"basic_evaluation": {"data_loader": "val_dataloader", "num_samples": 4096}},
    "hw_runner": {"average_bitwidth": {"count": "weights"}},
    "metrics": {"accuracy": {"scale": 1.0}, "average_bitwidth": {"scale": 0.01}},
}


OUT = Path("mase_output/lab3")


def main(seeds: int = 3, trials: int = 150, epochs: int = 5, out: Path = OUT) -> None:
    """Search for the highest accuracy minus 0.01 per bit of the average weight."""
    torch.manual_seed(2)
    data = MaseDataModule("jsc-sim", batch_size=512)
    data.setup()
    about = (get_model_info("jsc-three-linear"), "cls", data.dataset_info)
    model = get_model("jsc-three-linear", dataset_info=data.dataset_info)
    training = {"max_epochs": epochs, "learning_rate": 1e-2}
    get_sw_runner("basic_train", *about, "cpu", training)(data, model, {})
    rows, curves = [], {}
    for sampler, number in (("brute", 10 * trials), ("tpe", trials)):  # of 1,000 designs
        for seed in range(seeds):
            # the samplers are compared, so neither starts with the uniform designs
            setup = {"sampler": sampler, "n_trials": number, "uniform_first": False}
            setup |= {"sum_scaled_metrics": True}
            tables = {"search_space": SPACE, "strategy": {**STRATEGY, "setup": setup}}
            found = search(model, *about, data, tables, out / f"{sampler}-{seed}", "cpu", seed=seed)
            values = [found.outcomes[n].values[0] for n in sorted(found.outcomes)]
            reached = list(accumulate(values, max))
            rows.append((sampler, seed, len(values), reached[-1], reached.index(reached[-1])))
            curves[f"{sampler}, seed {seed}"] = list(enumerate(reached))
    print(tabulate(rows, ("sampler", "seed", "trials", "best", "found in trial"), "github"))
    chart = Chart("Best so far", "trial", "accuracy minus 0.01 per bit", curves)
    (out / "best_so_far.svg").write_text(page([chart]), encoding="utf-8")
    print(f"curves: {out / 'best_so_far.svg'}")


if __name__ == "__main__":
    typer.run(main)
