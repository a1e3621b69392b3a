"""LUTs that an estimate expects, compared with those that yosys packs.

    python benchmarks/lut_estimate.py compare            # 50 networks that no fit has seen
    python benchmarks/lut_estimate.py compare --first 5  # the first of them
    python benchmarks/lut_estimate.py fit                # other networks: prints coefficients

A network follows from its seed: linear layers, convolutions, functions as tables, or neurons as
truth tables, with 2 to 8 bits, for a clock period of 5 ns. Circuits below 50 LUTs are left out.
`compare` uses the seeds from 0, `fit` those from 1000. Tables on edges have seeds from 2000: `fit`
uses the first four, and with `--front` every second design of a trained front, as
`mase_output/jsc_learned`; `benchmarks/front_circuits.py` compares all designs of a front.

Synthesis for LUTs with six inputs takes ten seconds for each network. Its results are in
lut_estimate.json beside this file, by the content of the circuit; a circuit that is not in it, as
after a change to the emitted logic, is synthesised. `--save` adds it to the file.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from torch import Tensor, nn

from chop.checkpoints import load_graph
from chop.files import cache_folder
from chop.hardware.estimate import estimate, formula, ops, weights
from chop.hardware.estimate.adders import layer_features
from chop.hardware.estimate.walk import by_formula
from chop.hardware.synthesis import synthesize_circuit
from chop.hardware.unrolled import layer_logic, layers_of, unrolled_circuit
from chop.integers import IntegerGraph, LinearCodes, NeuronTables, QuantizeInput, Scale, Word
from chop.ir import MaseGraph
from chop.methods.edge_tables import EdgeTable
from chop.methods.edge_tables.edge_functions import edge_function
from chop.numerics.integer import Integer
from chop.passes import Pipeline

KINDS = ("linear", "conv", "tables")
# the linear layers and convolutions of the first 50, and other tables than those that showed that
# large ones were underestimated
COMPARED = [seed for seed in range(108) if (seed % 3 == 2) == (seed >= 50)]
LEAST = 50  # LUTs: in a smaller circuit, one more or less is several percent
FITTED = [*range(1000, 1018), *(seed for seed in range(1018, 1042) if seed % 3 == 2)]
EDGES = 2000  # the first seed of tables on edges
STEEP = 3.0  # times the parameters of functions before training
FITTED += range(EDGES, EDGES + 4)
COMPARED += range(EDGES + 4, EDGES + 8)
DATA = Path(__file__).with_suffix(".json")
TABLES = (nn.Tanh, nn.Sigmoid, nn.SiLU, nn.GELU)
SAMPLES = 256
LUTS = ("adder", "rounding", "saturation", "relu", "choice", "table", "neuron")


class Network:
    """A quantised network, made from a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.kind = "edges" if seed >= EDGES else KINDS[seed % len(KINDS)]
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.model = nn.Sequential(*getattr(self, f"_{self.kind}")()).eval()
        self.x = torch.randn(SAMPLES, *self.shape)
        self.state = torch.get_rng_state()

    @property
    def described(self) -> str:
        """The kind; neurons as tables have a name of their own."""
        return "neurons" if self.is_neurons else self.kind

    @property
    def is_neurons(self) -> bool:
        return self.kind == "tables" and self.seed % 2 == 1

    @property
    def shape(self) -> tuple[int, ...]:
        if self.kind == "edges":
            return (self.model[0].n_in,)  # type: ignore[return-value]
        first = next(m for m in self.model if hasattr(m, "weight"))
        if isinstance(first, nn.Linear):
            return (first.in_features,)
        return (first.in_channels, *(self.side,) * (first.weight.ndim - 2))  # type: ignore[operator]

    def _linear(self) -> Iterator[nn.Module]:
        count = self.random.randint(2, 4)
        sizes = [self.random.choice((4, 6, 8, 10, 12, 16)) for _ in range(count)]
        for i, (inputs, outputs) in enumerate(pairwise(sizes)):
            if i:
                yield nn.ReLU()
            yield nn.Linear(inputs, outputs, bias=self.random.random() < 0.8)

    def _conv(self) -> Iterator[nn.Module]:
        rank = self.random.choice((1, 2))
        channels = self.random.choice((1, 2)) if rank == 1 else 1
        self.side = self.random.choice((6, 8, 10) if rank == 1 else (4, 5))
        conv, pool = ((nn.Conv1d, nn.MaxPool1d), (nn.Conv2d, nn.MaxPool2d))[rank - 1]
        kernel, stride = self.random.choice((2, 3)), self.random.choice((1, 2))
        padding, hidden = self.random.choice((0, 1)), self.random.choice((2, 3))
        side = (self.side + 2 * padding - kernel) // stride + 1
        yield conv(channels, hidden, kernel, stride, padding)
        yield nn.ReLU()
        if side >= 4:
            yield pool(2)
            side //= 2
        yield nn.Flatten()
        yield nn.Linear(hidden * side**rank, self.random.choice((2, 3, 5)))

    def _tables(self) -> Iterator[nn.Module]:
        sizes = [self.random.choice((3, 4, 6, 8, 10)) for _ in range(self.random.randint(2, 3))]
        for i, (inputs, outputs) in enumerate(pairwise(sizes)):
            if i:
                yield self.random.choice(TABLES)()
            yield nn.Linear(inputs, outputs)
        yield self.random.choice(TABLES)()

    def _edges(self) -> Iterator[nn.Module]:
        """Yield two layers of tables on edges, with steep functions; a part is pruned."""
        sizes = [16, self.random.choice((8, 12, 16, 20)), 5]
        for inputs, outputs in pairwise(sizes):
            layer = EdgeTable(inputs, outputs)
            pruned = torch.rand(inputs, outputs) > self.random.uniform(0.2, 0.8)
            lowest = self.random.choice((0, 1, 1))
            with torch.no_grad():
                for name in edge_function("mlp").names:
                    getattr(layer, name).mul_(STEEP)
                for _ in range(40):  # until it knows its statistics
                    layer(torch.randn(SAMPLES, inputs))
                for name, bits in layer.width_parameters().items():
                    least, most = (lowest, 3) if name.endswith("frac_bits") else (0, 2)
                    bits.copy_(torch.randint(least, most + 1, bits.shape).float())
                    bits[pruned] = -8.0
            yield layer

    def integers(self) -> IntegerGraph:
        """Return the network in integers."""
        if self.is_neurons:
            torch.set_rng_state(self.state)
            return neurons(self.random)
        steps: list[Any] = [
            "init_metadata",
            ("add_common_metadata", {"dummy_in": {"input": self.x[:2]}}),
        ]
        if self.kind != "edges":
            steps.append(("quantize", {"by": "name", **self._formats()}))
        prepare = Pipeline(steps)
        graph, _ = prepare(MaseGraph(self.model))
        return graph.to_integers()  # type: ignore[no-any-return]

    def _formats(self) -> dict[str, Any]:
        """Return a format for each layer, with fractions that suit its values."""
        rounding = self.random.choice(("even", "even", "up", "floor"))
        overflow = self.random.choice(("saturate", "saturate", "saturate", "wrap"))
        rule = {"name": "integer", "rounding": rounding, "overflow": overflow}
        x, tables = self.x, {}
        for name, layer in self.model.named_children():
            if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, *TABLES)):
                config: dict[str, Any] = {**rule, **self._width("data_in", x)}
                for key in ("weight", "bias"):
                    if getattr(layer, key, None) is not None:
                        config |= self._width(key, getattr(layer, key))
                tables[f"_{name}"] = {"config": config}
            x = layer(x)
        if isinstance(layer, TABLES):
            tables[f"_{name}"]["config"] |= self._width("data_out", x)
        return tables

    def _width(self, operand: str, values: Tensor) -> dict[str, int]:
        width = self.random.randint(2, 8)
        whole = int(torch.frexp(values.detach().abs().flatten().quantile(0.98))[1])
        fraction = width - 1 - whole + self.random.choice((0, 0, 1))
        return {f"{operand}_width": width, f"{operand}_frac_width": fraction}


class Design:
    """A design of a trained front."""

    kind = "edges"

    def __init__(self, folder: Path) -> None:
        self.seed, self.folder = EDGES + 1000 + int(folder.name.rpartition("_")[2]), folder

    def integers(self) -> IntegerGraph:
        """Return the network in integers."""
        return load_graph(self.folder).to_integers()  # type: ignore[no-any-return]


def designs_of(project: Path) -> list[Design]:
    """Return every second design of the front of a search."""
    folders = (project / "software" / "search_ckpts" / "search.designs").glob("design_*/")
    found = sorted(map(Design, folders), key=lambda design: design.seed)
    return found[::2]


def neurons(source: random.Random) -> IntegerGraph:
    """Return layers of truth tables, each of a neuron with few inputs, as LogicNets has them."""
    width, fan_in = source.choice(((1, 6), (2, 3), (2, 4), (3, 2), (4, 2)))
    sizes = [source.choice((24, 32, 48)) for _ in range(source.randint(2, 3))]
    graph = IntegerGraph(inputs=["x"])
    word = Word.of(Integer(width, 0, signed=False).grid())
    value = graph.add("codes", QuantizeInput(word, (sizes[0],)), ["x"], "x")
    codes = torch.cartesian_prod(*[torch.arange(2**width)] * fan_in).flip(1).double()
    for number, (inputs, outputs) in enumerate(pairwise(sizes)):
        reads = torch.stack([torch.randperm(inputs)[:fan_in] for _ in range(outputs)])
        sums = codes @ torch.randn(fan_in, outputs, dtype=torch.float64)
        levels = (sums - sums.mean(0)) / sums.std(0) * 2 ** (width - 1) + 2 ** (width - 1)
        tables = levels.round().clamp(0, 2**width - 1).int().T.contiguous()
        op = NeuronTables(reads, torch.arange(outputs), tables, width, Scale.power(0), (outputs,))
        value = graph.add(f"layer_{number}", op, [value], f"layer_{number}")
    graph.outputs.append(value)
    return graph


class Measured:
    """What yosys made of circuits, by their content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[str, Any] = json.loads(DATA.read_text()) if DATA.exists() else {}

    def __call__(self, network: Network | Design, graph: IntegerGraph) -> dict[str, Any]:
        """Return the packed LUTs, the flip-flops, and the packed LUTs of each layer."""
        circuit = unrolled_circuit(graph)
        if circuit.digest not in self.known:
            made = synthesize_circuit(circuit, folder=self.folder)
            self.known[circuit.digest] = {
                "seed": network.seed,
                "kind": network.kind,
                "tool": made.tool,
                "luts": made.packed_luts,
                "ffs": made.ffs,
                "latency": circuit.latency,
                "layers": {name: part.packed_luts for name, part in made.layers.items()},
            }
        found: dict[str, Any] = self.known[circuit.digest]
        return found

    def save(self) -> None:
        """Write the file, one circuit per line."""
        rows = sorted(self.known.items(), key=lambda item: item[1]["seed"])
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(row)}" for key, row in rows)
        DATA.write_text(f"{{\n{lines}\n}}\n")


def compare(measured: Measured, seeds: list[int]) -> None:
    """Print both estimates of each network beside the LUTs that yosys packs."""
    rows = []
    for seed in seeds:
        network = Network(seed)
        graph = network.integers()
        real = measured(network, graph)
        if real["luts"] < LEAST:
            continue
        row: dict[str, Any] = {"network": seed, "kind": network.described, "yosys": real["luts"]}
        for fidelity in ("adders", "formula"):
            expected = estimate(graph, fidelity=fidelity)  # type: ignore[arg-type]
            row[fidelity] = round(expected.lut)
            row[f"{fidelity} %"] = 100 * (expected.lut / max(1, real["luts"]) - 1)
            row[f"{fidelity} FF %"] = 100 * (expected.ff / max(1, real["ffs"]) - 1)
            row[f"{fidelity} cycles"] = expected.latency_cycles - real["latency"]
        rows.append(row)
    shown = ("network", "kind", "yosys", "adders", "adders %", "formula", "formula %")
    table = [{key: row[key] for key in shown} for row in rows]
    print(tabulate(table, headers="keys", tablefmt="github", floatfmt="+.1f"))
    for fidelity in ("adders", "formula"):
        for what in ("%", "FF %"):
            errors = [abs(row[f"{fidelity} {what}"]) for row in rows]
            told = f"median error {median(errors):.1f} %, worst {max(errors):.1f} %"
            print(f"{fidelity}, {'LUT' if what == '%' else 'FF'}: {told}")
        late = [row[f"{fidelity} cycles"] for row in rows]
        print(f"{fidelity}, latency: {min(late):+d} to {max(late):+d} cycles")


def fit(measured: Measured, networks: Sequence[Network | Design]) -> None:
    """Print coefficients that suit the layers of other networks best."""
    graphs = [network.integers() for network in networks]
    reals = [measured(*pair)["layers"] for pair in zip(networks, graphs, strict=True)]
    structure = fit_matrices()
    at = [network.kind == "edges" for network in networks]
    logic = [layer_features(graph, 5.0) for graph in graphs]
    pairs = zip(graphs, at, strict=True)
    terms = [{} if edges else formula_features(graph, structure) for graph, edges in pairs]
    for name, features, chosen in (
        ("ADDERS", logic, False),
        ("EdgeTables.luts", logic, True),
        ("FORMULA", terms, False),
    ):
        rows = [
            (by_layer[layer], luts)
            for by_layer, real, edges in zip(features, reals, at, strict=True)
            for layer, luts in real.items()
            if edges == chosen and layer in by_layer and luts
        ]
        found = _least_errors(rows)
        print(name, {key: round(value, 3) for key, value in found.items()})
    print("FORMULA", {key: round(value, 3) for key, value in structure.items()})


def _least_errors(rows: list[tuple[Mapping[str, float], int]]) -> dict[str, float]:
    """Return coefficients, none negative, with the least squares of relative errors."""
    from scipy.optimize import nnls

    names = sorted({name for features, _ in rows for name in features})
    x = np.array([[features.get(name, 0.0) for name in names] for features, _ in rows])
    y = np.array([luts for _, luts in rows], float)
    weight = 1 / np.sqrt(y * np.maximum(y, 100))  # a layer of few LUTs need not be exact
    found, _ = nnls(x * weight[:, None], y * weight)
    return dict(zip(names, found.tolist(), strict=True))


def formula_features(
    graph: IntegerGraph, structure: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Return the LUTs of each layer by formula for each coefficient alone."""
    usual, result = formula.K, dict[str, dict[str, float]]()
    bare = usual._replace(**structure, **dict.fromkeys(LUTS, 0.0))  # type: ignore[arg-type]
    try:
        for name in LUTS:
            formula.K = ops.K = weights.K = bare._replace(**{name: 1.0})  # type: ignore[arg-type]
            for layer, cost in by_formula(graph, 5.0).layers.items():
                result.setdefault(layer, {})[name] = cost.lut
    finally:
        formula.K = ops.K = weights.K = usual
    return result


def fit_matrices(count: int = 200) -> dict[str, float]:
    """Return how the adders of a matrix and their bits follow from its digits, by regression."""
    source, rows = np.random.default_rng(7), []
    while len(rows) < count:
        inputs, outputs = int(source.integers(2, 25)), int(source.integers(1, 17))
        bits, width = (int(source.integers(2, 9)) for _ in range(2))
        values = (
            source.standard_normal((outputs, inputs)) * 2.0 ** (bits - 1) / source.uniform(1, 4)
        )
        limit = 2 ** (bits - 1)
        weight = torch.tensor(values.round().clip(-limit, limit - 1).astype(np.int64))
        graph = IntegerGraph(inputs=["x"])
        word = Word.of(Integer(width, 0, signed=bool(source.integers(0, 2))).grid())
        graph.add("codes", QuantizeInput(word, (inputs,)), ["x"], "x")
        op = LinearCodes(weight, None, Scale.power(0), bits)
        graph.outputs.append(graph.add("fc", op, ["codes"], "fc"))
        facts = ops.facts_of(op, graph.codes("codes"), graph.codes("fc"))
        [layer] = layers_of(graph)
        adders = sum(o.opcode in (0, 1) for o in layer_logic(graph, layer).logic.ops)
        adder_bits = layer_features(graph, 5.0)["fc"]["adder"]
        if adders > 2 and adder_bits:
            rows.append((facts, inputs, width, adders, adder_bits / adders))
    known = np.array([[1, np.log(f.unshared_adders), np.log(n)] for f, n, *_ in rows])
    logs = np.log([adders for *_, adders, _ in rows])
    base, power, wide = np.linalg.lstsq(known, logs, rcond=None)[0].tolist()
    widths = np.array([width for *_, width in rows])
    known = np.array([[1, bits, f.mean_bits, f.depth] for f, _, bits, *_ in rows])
    relative = np.linalg.lstsq(known / widths[:, None], np.ones(len(rows)), rcond=None)[0].tolist()
    names = ("width", "width_data", "width_weight", "width_depth")
    adders_of = {"adders": float(np.exp(base)), "adders_power": power, "adders_wide": wide}
    return {**adders_of, **dict(zip(names, relative, strict=True))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("compare", "fit"))
    parser.add_argument("--first", type=int, help="use only so many networks")
    parser.add_argument("--front", type=Path, help="project of a trained front, for fit")
    parser.add_argument("--save", action="store_true", help=f"add results to {DATA.name}")
    parser.add_argument("--folder", type=Path, default=cache_folder() / "lut_estimate")
    given = parser.parse_args()
    measured = Measured(given.folder)
    try:
        if given.what == "compare":
            compare(measured, COMPARED[: given.first])
        else:
            front = designs_of(given.front) if given.front else []
            fit(measured, [*map(Network, FITTED[: given.first]), *front])
    finally:
        if given.save:
            measured.save()


if __name__ == "__main__":
    main()
