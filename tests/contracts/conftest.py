"""What every network keeps, from its capture to a search of its designs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.utils._pytree import tree_map_only

from chop.actions import search
from chop.actions.search import metric
from chop.actions.search.metrics.base import RUNNERS
from chop.dataset import MaseDataModule
from chop.ir import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.operands import flatten
from chop.ir.ops import Trait, ops_with
from chop.passes import Pipeline, run_pass
from chop.passes.graph.analysis.cost import call_of, cost_of
from chop.passes.graph.transforms.quantize.quantize import QUANTIZEABLE_OP
from chop.testing.audit import MacCounter

OPERANDS = ("data_in", "weight", "bias")
INPUTS: dict[str, Any] = {}  # of the network that is searched, and the results of its parent


def integer(width: int, frac_width: int, **more: Any) -> dict[str, Any]:
    """Return a config of fixed-point numbers for all operands."""
    widths = {"width": width, "frac_width": frac_width}
    keys = {f"{operand}_{key}": n for operand in OPERANDS for key, n in widths.items()}
    return {"config": {"name": "integer", **keys, **more}}


def tensors(values: Any) -> list[Tensor]:
    """Return the tensors in what a network gives, in order."""
    return [leaf for leaf in flatten(values) if isinstance(leaf, Tensor)]


def largest_difference(results: Any, expected: Any) -> float:
    """Return the largest difference of two results of the same structure."""
    pairs = list(zip(tensors(results), tensors(expected), strict=True))
    assert pairs
    assert all(a.dtype == b.dtype and a.shape == b.shape for a, b in pairs)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs if a.numel())


def output_error(trial: Any) -> float:
    """Mean absolute error of the first result."""
    with torch.no_grad():
        result = tensors(trial.model(**INPUTS["inputs"]))[0]
    return float((result - INPUTS["expected"]).abs().mean())


class Contract:
    """A network that was captured, and the promises about it."""

    def __init__(
        self, model: nn.Module, inputs: Mapping[str, Any], folder: Path, **options: Any
    ) -> None:
        self.model, self.inputs, self.folder = model.eval(), dict(inputs), folder
        with torch.no_grad():
            self.expected = model(**self.inputs)
        self.graph = self.described(MaseGraph(model, dummy_in=self.inputs, **options))

    def described(self, graph: MaseGraph) -> MaseGraph:
        about = ("add_common_metadata", {"dummy_in": self.inputs, "add_value": False})
        return Pipeline(["init_metadata", about, "add_software_metadata"])(graph)[0]

    def run(self, graph: MaseGraph) -> Any:
        with torch.no_grad():
            return graph.model(**self.inputs)

    def keeps_all(self, tolerance: float = 1e-5) -> None:
        self.computes_what_the_model_does(tolerance)
        self.takes_other_batches(tolerance)
        self.is_verified()
        self.costs_what_runs()
        self.is_quantized_by_type_and_by_expression(tolerance)
        small = self.is_pruned_and_quantized()
        self.is_saved_and_loaded(small)
        self.is_searched()

    def computes_what_the_model_does(self, tolerance: float) -> None:
        results = self.run(self.graph)
        assert largest_difference(results, self.expected) <= tolerance
        if hasattr(self.expected, "_asdict") or isinstance(self.expected, Mapping):
            assert isinstance(results, Mapping) or hasattr(results, "_asdict")

    def takes_other_batches(self, tolerance: float) -> None:
        larger = tree_map_only(Tensor, lambda x: torch.cat((x, x[:1])), self.inputs)
        with torch.no_grad():
            expected, results = self.model(**larger), self.graph.model(**larger)
        assert largest_difference(results, expected) <= tolerance

    def is_verified(self) -> None:
        assert run_pass("verify_metadata", self.graph, {"strict": True})[1] == {}
        ops = {mase(node).common.mase_op for node in self.graph.nodes}
        assert not {op for op in ops if op.startswith("user_defined")}

    def costs_what_runs(self) -> None:
        info = cost_of(self.graph)
        with torch.no_grad(), MacCounter() as eager:
            self.model(**self.inputs)
        with MacCounter() as counter:
            self.run(self.graph)
        assert not counter.uncounted
        assert info["unknown"] == {}
        assert info["total"]["macs"] == counter.macs == eager.macs > 0
        assert info["total"]["flops"] - counter.flops == sum(map(difference, self.graph.nodes))
        used = {id(p): p for p in self.model.parameters()}
        assert info["total"]["parameters"] <= sum(p.numel() for p in used.values())

    def is_quantized_by_type_and_by_expression(self, tolerance: float) -> None:
        ops = {mase(node).common.mase_op for node in self.graph.nodes}
        chosen = {op: integer(62, 40) for op in ops & set(QUANTIZEABLE_OP)}
        fine = self.graph.clone()
        _, info = run_pass("quantize", fine, {"by": "type", **chosen})
        assert set(self.layers()) <= set(info["quantized"])
        # fixed point clips what masks hide, and otherwise rounds less than floats do
        assert largest_difference(self.run(fine), self.expected) <= 100 * tolerance
        assert run_pass("verify_metadata", fine, {"strict": True})[1] == {}
        some = self.every_second_layer()
        coarse = self.graph.clone()
        names = {"|".join(some): integer(4, 2)}
        _, info = run_pass("quantize", coarse, {"by": "regex_name", **names})
        assert info["quantized"] == some
        assert largest_difference(self.run(coarse), self.expected) > 0
        macs, bits = (
            [cost_of(g)["total"][k] for g in (self.graph, coarse)] for k in ("macs", "bit_ops")
        )
        assert macs[0] == macs[1]
        assert bits[0] > bits[1]

    def layers(self, *traits: Trait) -> list[str]:
        """Return the nodes that call layers with weights, of ops with one of the traits if any."""
        called = [node for node in self.graph.nodes if node.op == "call_module"]
        ops = {op for trait in traits for op in ops_with(trait)} or set(QUANTIZEABLE_OP)
        return [
            node.name
            for node in called
            if mase(node).common.mase_op in ops
            and any(True for _ in mase(node).module.parameters())
        ]

    def every_second_layer(self) -> list[str]:
        """Return the nodes that call every second of the layers that multiply."""
        target = {node.name: str(node.target) for node in self.graph.nodes}
        multiply = self.layers("weighted_sum", "inner_products")
        chosen = list(dict.fromkeys(target[name] for name in multiply))[::2]
        return [name for name in multiply if target[name] in chosen]

    def pruned_weights(self) -> int:
        """Return how many weights the layers have that pruning is for."""
        target = {node.name: str(node.target) for node in self.graph.nodes}
        names = {target[name] for name in self.layers("weighted_sum", "inner_products")}
        layers = [m for m in map(self.graph.modules.get, names) if not is_parametrized(m)]
        weights = {id(p): p for m in layers for p in m.parameters() if p.dim() > 1}
        return sum(p.numel() for p in weights.values())

    def is_pruned_and_quantized(self) -> MaseGraph:
        small = self.graph.clone()
        _, info = run_pass("prune", small, {"weight": {"sparsity": 0.5, "method": "l1-norm"}})
        assert abs(info["weight"]["total"]["reached"] - 0.5) < 0.02
        assert info["weight"]["total"]["total"] == self.pruned_weights()
        sparse = cost_of(small, sparse=True)["total"]["macs"]
        assert sparse < cost_of(self.graph)["total"]["macs"]
        run_pass("quantize", small, {"by": "type", "default": integer(8, 4)})
        assert all(torch.isfinite(t).all() for t in tensors(self.run(small)))
        return small

    def is_saved_and_loaded(self, graph: MaseGraph) -> None:
        graph.export(self.folder / "graph")
        loaded = MaseGraph.from_checkpoint(self.folder / "graph")
        results, expected = self.run(loaded), self.run(graph)
        assert largest_difference(results, expected) == 0
        assert [node.name for node in loaded.nodes] == [node.name for node in graph.nodes]

    def is_searched(self) -> None:
        self.graph.export(self.folder / "parent")
        data = MaseDataModule("toy_tiny", batch_size=4, num_workers=0)
        widths: dict[str, Any] = {"name": ["integer"]}
        for operand in OPERANDS:
            widths |= {f"{operand}_width": [4, 8, 16], f"{operand}_frac_width": [None]}
        INPUTS.update(inputs=self.inputs, expected=tensors(self.expected)[0])
        tables = {
            "search_space": {
                "name": "graph/quantize/mixed_precision_ptq",
                "setup": {"by": "name"},
                "seed": {name: {"config": widths} for name in self.every_second_layer()[:3]},
            },
            "strategy": {
                "sw_runner": {"output_error": {}},
                "hw_runner": {"bitops": {}},
                "setup": {"sampler": "random", "n_trials": 5},
                "metrics": {"output_error": {}, "bitops": {}},
            },
        }
        parent = str(self.folder / "parent")
        about = (self.model, None, "cls", data.dataset_info, data, tables, self.folder / "search")
        results = search(*about, accelerator="cpu", load_name=parent, load_type="mz")
        values = [outcome.values for outcome in results.outcomes.values()]
        assert len(values) == 5
        assert all(v is not None and all(math.isfinite(x) for x in v) for v in values)
        assert results.best


def difference(node: fx.Node) -> int:
    """Return how many operations our rules count more than torch runs, as docs/cost.md lists them.

    They scale the scores of attention, where torch scales queries and keys; torch computes the root
    of an RMS norm for each row, and a parametrized weight at each call.
    """
    call, module = call_of(node), mase(node).module
    if call.op == "scaled_dot_product_attention":
        query, key = call.data[:2]
        return math.prod(query) // query[-1] * key[-2] - math.prod(query) - math.prod(key)
    if call.op == "rms_norm":
        return -3 * math.prod(call.out[:-1])
    inside = list(module.modules()) if module is not None else []
    heads = [m.num_heads for m in inside if isinstance(m, nn.MultiheadAttention)]
    scores = sum(math.prod(call.out[:-1]) * call.out[-2] * count for count in heads)
    scaled = len(heads) * 2 * math.prod(call.out)
    normed = [m for m in inside if isinstance(m, nn.utils.parametrizations._WeightNorm)]
    return scores - scaled - 3 * sum(module.weight.numel() for _ in normed)


@pytest.fixture
def contract(tmp_path: Path) -> Iterator[Any]:
    """`contract(model, inputs)` captures a network."""

    def make(model: nn.Module, inputs: Mapping[str, Any], **options: Any) -> Contract:
        return Contract(model, inputs, tmp_path, **options)

    if "output_error" not in RUNNERS:
        metric("output_error", side="software", better="minimize")(output_error)
    yield make
    INPUTS.clear()
