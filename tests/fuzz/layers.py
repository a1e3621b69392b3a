"""Saved layers of every kind with odd tensors: each is loaded, run and trained, or refused.

As a program, it does so for some inputs by the C++ kernels, and writes a line of JSON for each:
what the input was, and how it ended. Inputs run in a process that is forked again if it crashes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import os
import resource
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 20  # of the CPU, for one input
SAMPLES = 300  # from 257 on, edges are computed by their codes
MEMORY = 8 << 30
SPECIAL = (float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 200.0, -190.0, 2.0**31, 0.5, 0.0)
DTYPES = ("half", "double", "int8", "int32", "int64", "bool", "complex64", "bfloat16", "uint8")
WHOLE = (-1, 0, 1, 127, 2**31 - 1, -(2**31))
NUMBERS = (0, 1, -1, 2, 3, 31, 300, None, "x", 1.5, [4], True)


def main() -> None:
    """Try the inputs of a seed from the first to the last one."""
    parser = argparse.ArgumentParser()
    for name in ("seed", "first", "count"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--sanitize", action="store_true", help="build kernels for ASan")
    parser.add_argument("--unchecked", action="store_true", help="check no tensors")
    asked = parser.parse_args()
    prepare(asked.sanitize, asked.unchecked)
    left = [*range(asked.first, asked.first + asked.count)]
    while left:
        left = left[in_a_child(left, asked.seed) :]


def prepare(sanitize: bool, unchecked: bool) -> None:
    """Load what all inputs need, with kernels that are built and loaded."""
    import logging

    import torch

    from chop.numerics import compiled

    if sanitize:
        compiled.FLAGS = (*compiled.FLAGS, "-fsanitize=address", "-fno-omit-frame-pointer", "-g")
    else:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))  # ASan needs more
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable()
    from chop.methods.edge_tables import edge_rows, edge_training
    from chop.numerics.fast import chain, cpu, learned, mode

    mode.set_fused("on")
    found = [edge_rows._library(), edge_training._library(), chain._library()]
    assert cpu.KERNELS.ready(1, wait=True), "the kernels could not be built"
    assert None not in found, "the kernels could not be built"
    if unchecked:
        from chop.ir.graph import saved_layers

        saved_layers.check_tensors = lambda name, layer: None
        for home in (edge_rows, edge_training, chain, cpu, learned):
            home.address = lambda kernel, name, tensor, *more, **how: tensor.data_ptr()


def in_a_child(numbers: list[int], seed: int) -> int:
    """Run inputs in a process of their own, and return how many of them are done."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as lines, tempfile.TemporaryDirectory() as folder:
            for number in numbers:
                print(json.dumps({"number": number}), file=lines, flush=True)
                signal.setitimer(signal.ITIMER_PROF, SECONDS)
                ending = one(seed, number, Path(folder))
                signal.setitimer(signal.ITIMER_PROF, 0)
                print(json.dumps({"number": number, **ending}), file=lines, flush=True)
        os._exit(0)
    os.close(writing)
    said: list[dict[str, Any]] = [{}]
    with os.fdopen(reading) as lines:
        for line in lines:
            said.append(json.loads(line))
            if "ending" in said[-1]:
                print(line, end="", flush=True)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status or "ending" not in said[-1]:
        number = said[-1]["number"]
        about = sample(seed, number)[1]
        print(json.dumps({"number": number, **about, "ending": f"crash {status}"}), flush=True)
        return numbers.index(number) + 1
    return len(numbers)


# --- samples --------------------------------------------------------------------------------------


def sample(seed: int, number: int) -> tuple[Random, dict[str, str]]:
    """Return the random numbers of an input, and what it is."""
    random = Random(f"layers {seed} {number}")
    kind = [*KINDS][number % len(KINDS)]
    return random, {"kind": kind}


def formats() -> Any:
    """Return the tests with examples of every layer in every format."""
    if __package__:
        return importlib.import_module("tests.contracts.test_layers_by_format")
    sys.path[:0] = [str(ROOT)]
    return importlib.import_module("tests.contracts.test_layers_by_format")


def traced(*layers: Any) -> Any:
    """Return the graph of layers that follow each other."""
    from torch import nn

    from chop.ir import MaseGraph

    return MaseGraph(nn.Sequential(*layers))


def quantized(random: Random) -> tuple[Any, list[Any]]:
    """A layer of torch in a number format."""
    examples = formats()
    cls, name = random.choice([*examples.LAYERS]), random.choice([*examples.EXAMPLES])
    config = examples.config_of(name, random.choice(examples.EXAMPLES[name]))
    return traced(examples.quantized(cls, config)), [examples.input_of(cls)]


def learned(random: Random) -> tuple[Any, list[Any]]:
    """Linear layers whose bits are learned, which a chain of C++ trains."""
    import torch
    from torch import nn

    from chop.passes import Pipeline, learn_bits_transform_pass

    linear = (nn.Linear(8, 20), nn.Linear(20, 12), nn.Linear(12, 4))
    graph = traced(linear[0], nn.ReLU(), linear[1], nn.ReLU(), linear[2])
    about = ("add_common_metadata", {"dummy_in": {"input": torch.randn(2, 8)}})
    graph, _ = Pipeline(["init_metadata", about])(graph)
    granularity = random.choice(("element", "channel", "tensor"))
    how = {"width": 5, "granularity": "element", "data_in_granularity": granularity}
    learn_bits_transform_pass(graph, {**how, "rounding": random.choice(("even", "up", "floor"))})
    return graph, [torch.randn(SAMPLES, 8)]


def edges(random: Random) -> tuple[Any, list[Any]]:
    """Layers of learned functions on edges, or of their tables."""
    import torch
    from torch import nn

    from chop.methods.edge_tables import EdgeTable

    function = random.choice(("mlp", "mlp", "spline"))
    layers = [EdgeTable(6, 9, function=function, hidden=4), EdgeTable(9, 4, function=function)]
    if random.random() < 0.3:
        layers = [layer.frozen() for layer in layers]
    return traced(*layers, *[nn.Identity()] * random.randrange(2)), [torch.randn(SAMPLES, 6)]


def neurons(random: Random) -> tuple[Any, list[Any]]:
    """Layers of neurons that are tables: LUTNet, LogicNets, scaled signs."""
    import torch
    from torch import nn

    from chop.passes.graph.transforms.quantize.variants import LAYER_VARIANTS

    widths = {"data_in_width": 2, "data_in_frac_width": 1}
    widths |= {"data_out_width": 3, "data_out_frac_width": 2, "fan_in": 2}
    signs = {"data_in_width": 1, "data_in_stochastic": False, "data_in_bipolar": True}
    signs |= {key.replace("data_in", "weight"): value for key, value in signs.items()}
    configs = {"logicnets": widths, "lutnet": {"data_in_k": 2}, "binary_scaling": signs}
    key = random.choice([*LAYER_VARIANTS])
    config = next(config for name, config in configs.items() if key.endswith(name))
    is_image = key.startswith("conv2d")
    layer = nn.Conv2d(2, 3, 2) if is_image else nn.Linear(6, 3)
    x = torch.randn(2, 2, 4, 4) if is_image else torch.randn(5, 6)
    return traced(LAYER_VARIANTS[key].from_float(layer, config)), [x]


def deployed(random: Random) -> tuple[Any, list[Any]]:
    """Layers that multiply numbers of 8 bits."""
    import torch
    from torch import nn

    from chop.passes import run_pass

    fp8 = {"name": "fp8", "exponent_width": 4, "frac_width": 3}
    affine = {"name": "affine", "width": 8, "scale": 0.03}
    chosen = random.choice((fp8, affine))
    config = {
        key if key == "name" else f"{operand}_{key}": value
        for operand in ("data_in", "weight")
        for key, value in chosen.items()
    }
    graph, x = traced(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)), torch.randn(5, 8)
    graph.model.eval()
    described = {"dummy_in": {"input": x}}
    for name, args in (("init_metadata", {}), ("add_common_metadata", described)):
        run_pass(name, graph, args)
    run_pass("quantize", graph, {"by": "type", "linear": {"config": config}})
    target = "cuda-fp8" if chosen is fp8 else "cuda-int8"
    run_pass("deploy", graph, {"target": target})
    return graph, [x]


KINDS: dict[str, Callable[[Random], tuple[Any, list[Any]]]] = {
    "quantized": quantized,
    "edges": edges,
    "learned": learned,
    "quantized again": quantized,
    "neurons": neurons,
    "edges again": edges,
    "deployed": deployed,
}


# --- damage ---------------------------------------------------------------------------------------


def one(seed: int, number: int, folder: Path) -> dict[str, str]:
    """Damage one saved layer, use it, and return what it was and how it ended."""
    import torch

    random, about = sample(seed, number)
    torch.manual_seed(random.randrange(1 << 30))
    graph, inputs = KINDS[about["kind"]](random)
    graph.export(folder / "g")
    damage = damaged(random, folder / "g")
    try:
        ending = used(folder / "g", inputs, about["kind"])
    except Exception as error:  # what a user would see as a traceback
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame else ""
        ending = f"traceback {type(error).__name__}: {error} at {where}"
    layers = ", ".join(type(m).__name__ for m in graph.model.children())
    return {**about, "layers": layers, "damage": damage, "ending": ending[:500]}


def damaged(random: Random, folder: Path) -> str:
    """Change tensors in a saved graph, or one of the numbers of a layer, and say what."""
    from safetensors.torch import load_file

    from tests.saved_tensors import replace_tensors

    file = folder / "state_dict.safetensors"
    state = load_file(file)
    if not state or random.random() < 0.15:
        return damaged_number(random, folder / "graph.json")
    said = []
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        key = random.choice(sorted(state))
        ways = (odd_shape, odd_shape, odd_type, odd_values, odd_values)
        how, state[key] = random.choice(ways)(random, state[key])
        said.append(f"{key} {how}")
    replace_tensors(folder, state)
    return ", ".join(said)


def damaged_number(random: Random, file: Path) -> str:
    """Put something else in the place of a number in the description of a layer."""
    content = json.loads(file.read_text())
    rows = [row for row in content["modules"] if row.get("attributes")]
    row = random.choice(rows or content["modules"])
    keys = [k for k, value in row["attributes"].items() if isinstance(value, int)]
    if not keys:
        return "nothing"
    key, value = random.choice(keys), random.choice(NUMBERS)
    row["attributes"][key] = value
    file.write_text(json.dumps(content))
    return f"{row['name']}.{key} = {value!r}"


def odd_shape(random: Random, t: Any) -> tuple[str, Any]:
    import torch

    ways = {
        "one number": lambda: t.flatten()[:1] if t.numel() else t[None],
        "a scalar": lambda: t.flatten()[0] if t.numel() else t,
        "empty": lambda: t[:0] if t.ndim else t[None][:0],
        "flat": lambda: t.flatten(),
        "twice": lambda: torch.cat([t, t]) if t.ndim else torch.stack([t, t]),
        "turned": lambda: t.movedim(0, -1) if t.ndim else t[None, None],
        "in a list": lambda: t[None],
        "without its last": lambda: t[..., :-1] if t.ndim else t,
        "longer": lambda: torch.cat([t, t[..., :1]], -1) if t.ndim else t[None],
    }
    how = random.choice([*ways])
    return how, ways[how]()


def odd_type(random: Random, t: Any) -> tuple[str, Any]:
    import torch

    name = random.choice(DTYPES)
    return name, t.to(getattr(torch, name))


def odd_values(random: Random, t: Any) -> tuple[str, Any]:
    t = t.clone()
    value: Any = random.choice(SPECIAL if t.is_floating_point() else WHOLE)
    if not t.numel():
        return "as it was", t
    if t.dtype.itemsize == 1 and not t.is_floating_point():
        value = value % 2
    place = ... if random.random() < 0.5 else random.randrange(t.numel())
    with contextlib.suppress(RuntimeError):  # a number that the type cannot hold
        t.view(-1)[place] = value
    return f"with {value}", t


# --- use ------------------------------------------------------------------------------------------


def used(folder: Path, inputs: list[Any], kind: str) -> str:
    """Load a graph, run it, and train it a little."""
    import torch

    from chop.ir import MaseGraph
    from chop.ir.graph.meta_file import GraphFileError
    from chop.training.check import _prediction

    try:
        graph = MaseGraph.from_checkpoint(folder)
    except GraphFileError as error:
        (_,) = str(error).splitlines()
        return f"refused: {error}"
    x = inputs[0]
    try:
        _prediction(graph.model, x)
    except ValueError as error:
        return f"refused: {error}"
    for steps in (trained, population, front)[: 3 if kind == "learned" else 1]:
        try:
            steps(graph.model, x)
        except ValueError as error:
            return f"refused: {error}"
    with torch.no_grad():
        graph.model.eval()(x)
    return "loaded"


def trained(model: Any, x: Any) -> None:
    """Take two steps of training."""
    import torch

    parameters = [p for p in model.parameters() if p.requires_grad]
    model.train()
    optimizer = torch.optim.SGD(parameters, 0.1) if parameters else None
    for _ in range(2):
        y = model(x.clone().requires_grad_() * 1 if x.is_floating_point() else x)
        if y.requires_grad and y.numel():  # of nothing, torch takes no gradient
            y.sum().backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()


def front(model: Any, x: Any) -> None:
    """Take two steps of training learned bits, by the chain where it can."""
    import torch

    from chop.dataset import TensorSplit
    from chop.training.devices import Place
    from chop.training.feed import Feed
    from chop.training.learned import FrontOptions
    from chop.training.learned.batches import MemberBatches
    from chop.training.learned.members import Members
    from chop.training.learned.phase import TrainingPhase
    from chop.training.learned.prices import prices_of
    from chop.training.tasks import CLASSIFICATION

    options = FrontOptions(cost="ebops", price=[1e-5, 1e-2], steps=4, batch_size=50, way="ramp")
    place = Place(torch.device("cpu"))
    members = Members([model] * options.num_members, options.weights, place.device)
    split = TensorSplit(x, torch.arange(len(x)) % 4)
    batches = MemberBatches(Feed(split, options.batch_size, place), members.count, 0, None)
    prices = prices_of(options, place.device)
    task: Any = CLASSIFICATION
    phase = TrainingPhase(members, batches, options, task, steps=4, prices=prices, rate=1e-2)
    for _ in range(2):
        phase.take()


def population(model: Any, x: Any) -> None:
    """Compute several networks at once."""
    import torch

    from chop.training.learned.members import Members

    members = Members([model, model], {"ebops": 1.0}, torch.device("cpu"))
    members.values.sum().backward()


def lines(output: str) -> Iterator[dict[str, Any]]:
    """Return what the program has written."""
    for line in itertools.filterfalse(lambda each: not each.startswith("{"), output.splitlines()):
        yield json.loads(line)


if __name__ == "__main__":
    main()
