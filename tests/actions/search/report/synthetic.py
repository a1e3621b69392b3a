"""Searches that never happened: `search.json` of any size, for tests.

python synthetic.py 10000 > search.json
"""

import json
import random
import sys

LAYERS = {"seq_blocks_2": "linear", "seq_blocks_5": "linear", "seq_blocks_8": "linear"}
KEYS = {"data_in_width": [4, 6, 8], "weight_width": [2, 3, 4, 6, 8]}
TRACEBACK = """Traceback (most recent call last):
  File "evaluate.py", line 12, in score
    raise ValueError("a batch of <0> rows")
ValueError: a batch of <0> rows"""


def search(trials=60, *, objectives=2, summed=None, seed=0, layers=LAYERS, **changes):
    """A search of bit widths with a front, infeasible, pruned and failed trials; `changes` win."""
    draw = random.Random(seed)
    goals = [
        {"name": "accuracy", "direction": "maximize", "scale": 1.0},
        {"name": "average_bitwidth", "direction": "minimize", "scale": 0.2},
        {"name": "loss", "direction": "minimize", "scale": 1.0},
    ][:objectives]
    made = [trial(number, draw, goals, summed, layers) for number in range(trials)]
    front = pareto(made, goals, summed)
    names = sorted({name for each in made for name in each["params"]})
    return {
        "version": 1,
        "command": "ch search --config configs/examples/jsc_toy_by_type.toml --load best.ckpt",
        "started": "2026-01-31T14:05:00+00:00",
        "finished": "2026-01-31T14:07:05+00:00",
        "seconds": 125.4,
        "model": "jsc-tiny",
        "dataset": "jsc-sim",
        "dataset_title": "jsc-sim (simulated)",
        "simulated": True,
        "fingerprints": {"train": "3f2a9c11d0e4", "validation": "b81c77aa02f9"},
        "versions": {"mase": "0.1.0", "python": "3.12.4", "torch": "2.11.0", "optuna": "5.0.0"},
        "machine": {"cpu": "an example", "cores": 2, "gpu": None},
        "seed": 0,
        "sampler": "tpe",
        "study": "jsc-tiny",
        "storage": "journal file study.log",
        "workers": 1,
        "space": {
            "name": "graph/quantize/mixed_precision_ptq",
            "size": 15 ** len(layers),
            "choices": {f"{layer}/config/{k}": v for layer in layers for k, v in KEYS.items()},
        },
        "objectives": goals,
        "summed": summed,
        "constraints": ["average_bitwidth <= 7"],
        "baseline": {
            "software_metrics": {"accuracy": 0.755, "loss": 0.71},
            "hardware_metrics": {"average_bitwidth": 32.0, "memory_density": 1.0},
        },
        "trials": made,
        "front": front,
        "importance": {
            goal["name"]: dict(zip(names, shares(draw, len(names)), strict=True)) for goal in goals
        },
        "chosen": front[len(front) // 2] if front else None,
        "test": None,
    } | changes


def trial(number, draw, goals, summed, layers):
    """One design: more bits, more accuracy, and some luck."""
    widths = {layer: {key: draw.choice(values) for key, values in KEYS.items()} for layer in layers}
    bits = sum(each["weight_width"] for each in widths.values()) / len(widths)
    activations = sum(each["data_in_width"] for each in widths.values()) / len(widths)
    accuracy = 0.76 - 0.9 * 2**-bits - 0.2 * 2**-activations + draw.gauss(0, 0.004)
    state = "FAIL" if number % 23 == 7 else "PRUNED" if number % 17 == 5 else "COMPLETE"
    metrics = {"accuracy": accuracy, "average_bitwidth": bits, "loss": 1.9 - 1.5 * accuracy}
    scaled = [goal["scale"] * metrics[goal["name"]] for goal in goals]
    failed = state == "FAIL"
    return {
        "number": number,
        "state": state,
        "values": None if state != "COMPLETE" else [sum(scaled)] if summed else scaled,
        "feasible": bits <= 7,
        "params": {f"{n}/config/{k}": v for n, each in widths.items() for k, v in each.items()},
        "config": {n: {"config": {"name": "integer", **each}} for n, each in widths.items()}
        | {"default": {"config": {"name": None}}, "by": "name"},
        "software_metrics": {} if failed else {k: metrics[k] for k in ("accuracy", "loss")},
        "hardware_metrics": {}
        if failed
        else {"average_bitwidth": bits, "memory_density": 32 / bits},
        "scaled_metrics": {},
        "layers": {
            name: {
                "op": layers[name],
                "format": "integer",
                "data_in_bits": float(each["data_in_width"]),
                "weight_bits": float(each["weight_width"]),
            }
            for name, each in widths.items()
        },
        "seconds": draw.uniform(0.005, 0.02),
        "started": "2026-01-31T14:05:00+00:00",
        "worker": "host:1",
        "error": TRACEBACK if failed else None,
    }


def pareto(trials, goals, summed):
    """Numbers of the feasible trials that none is better than in all goals."""
    signs = [1 if goal["direction"] == "maximize" else -1 for goal in goals]
    if summed:
        signs = [1 if summed == "maximize" else -1]
    points = [
        (tuple(s * v for s, v in zip(signs, t["values"], strict=True)), t["number"])
        for t in trials
        if t["state"] == "COMPLETE" and t["feasible"]
    ]
    front = []
    for point, number in sorted(points, reverse=True):
        if not any(all(a >= b for a, b in zip(p, point, strict=True)) for p, _ in front):
            front.append((point, number))
    return sorted(number for _, number in front[: 1 if summed else None])


def shares(draw, count):
    """Numbers that add up to one, the largest first."""
    raw = sorted((draw.expovariate(1) for _ in range(count)), reverse=True)
    return [value / sum(raw) for value in raw]


if __name__ == "__main__":
    json.dump(search(int(sys.argv[1])), sys.stdout)
