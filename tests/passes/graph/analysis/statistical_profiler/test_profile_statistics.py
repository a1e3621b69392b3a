"""What profiling promises: the right numbers, exact counts, and a model left as it was."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.passes.base import PassArgsError
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
    profile_statistics_analysis_pass,
)
from chop.registry import UnknownName

MIN_MAX = {"range_min_max": {"dims": "all"}}
RECORD = {"record": {}}


class Batches:
    """Endless, or `ends_after` a number of batches; remembers what it gave."""

    def __init__(self, make: Callable[[], Any], batch_size: int = 8, ends_after: int = 99) -> None:
        self.make, self.batch_size, self.ends_after = make, batch_size, ends_after
        self.given: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if len(self.given) == self.ends_after:
            raise StopIteration
        self.given.append(self.make())
        return self.given[-1]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)
        self.fc1 = nn.Linear(6, 4)
        self.act1 = nn.ReLU(inplace=True)
        self.fc2 = nn.Linear(4, 3)
        self.act2 = nn.ReLU()

    def forward(self, x):
        return self.act2(self.fc2(self.act1(self.fc1(self.drop(self.norm(x))))))


def noise(*shape: int, name: str = "x") -> Callable[[], dict[str, Tensor]]:
    return lambda: {name: torch.randn(*shape)}


def ready(model: nn.Module, **inputs: Any) -> MaseGraph:
    graph, _ = init_metadata_analysis_pass(MaseGraph(model), None)
    dummy_in = inputs or {"x": torch.randn(8, 6)}
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": dummy_in, "add_value": False})
    graph, _ = add_software_metadata_analysis_pass(graph, None)
    return graph


def profile(graph: MaseGraph, **options: Any) -> None:
    options = {"by": "name", "num_samples": 16, **options}
    assert profile_statistics_analysis_pass(graph, options) == (graph, {})


def watch(graph: MaseGraph, nodes: list[str], source: Any = None, **options: Any) -> Any:
    """Profile activations, by default their ranges on noise; returns all statistics."""
    source = Batches(noise(8, 6)) if source is None else source
    given = {"activation_statistics": MIN_MAX, "input_generator": source, **options}
    profile(graph, target_activation_nodes=nodes, **given)
    return stats(graph)


def record(graph: MaseGraph, nodes: list[str], source: Any, **options: Any) -> dict[str, Tensor]:
    """Record activations, those that go out too; returns them by operand."""
    options = {"activation_statistics": RECORD, "profile_output_activation": True, **options}
    seen = watch(graph, nodes, source, **options)
    return {name: torch.tensor(stat["record"]["data"]) for name, stat in seen.items()}


def stats(graph: MaseGraph) -> dict[str, dict[str, Any]]:
    """`node.operand` -> statistics, of all operands that have any."""
    return {
        f"{node.name}.{name}": entry["stat"]
        for node in graph.nodes
        for part in mase(node).software.values()
        for name, entry in part.items()
        if entry["stat"]
    }


def counts(graph: MaseGraph, name: str) -> dict[str, int]:
    return {operand: stat[name]["count"] for operand, stat in stats(graph).items()}


@pytest.mark.parametrize(
    ("by", "weights", "activations"),
    [
        ("type", ["linear"], ["relu"]),
        ("name", ["fc2", "fc1"], ["act1", "act2"]),
        ("regex_name", [r"fc\d"], ["act1", "act.*"]),
    ],
)
def test_nodes_are_chosen_by_type_by_name_or_by_expression(
    by: str, weights: list[str], activations: list[str]
) -> None:
    graph = ready(Net())
    watch(graph, activations, by=by, target_weight_nodes=weights, weight_statistics=MIN_MAX)
    assert counts(graph, "range_min_max") == {
        "fc1.weight": 24,
        "fc1.bias": 4,
        "act1.data_in_0": 16 * 4,
        "fc2.weight": 12,
        "fc2.bias": 3,
        "act2.data_in_0": 16 * 3,
    }


@pytest.mark.parametrize("batch_size", [1, 8, 37, 64])
def test_exactly_as_many_samples_are_seen_as_asked_for(batch_size: int) -> None:
    graph, source = ready(Net()), Batches(noise(batch_size, 6), batch_size)
    statistics = {"abs_mean": {}, "variance_online": {"dims": None}}
    seen = watch(graph, ["act2"], source, activation_statistics=statistics, num_samples=37)
    stat = seen["act2.data_in_0"]
    assert stat["abs_mean"]["count"] == 37 * 3
    assert stat["variance_online"]["count"] == 37
    assert len(source.given) == -(-37 // batch_size), "no batch is drawn that is not needed"


def test_a_generator_that_ends_early_is_worth_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    graph = ready(Net())
    watch(graph, ["act1"], Batches(noise(8, 6), ends_after=3), num_samples=37)
    assert caplog.messages == ["The data ended after 24 of the 37 requested samples"]
    assert counts(graph, "range_min_max") == {"act1.data_in_0": 24 * 4}


def test_a_list_of_batches_will_do() -> None:
    graph = ready(Net())
    watch(graph, ["act1"], [{"x": torch.randn(5, 6)}, {"x": torch.randn(11, 6)}])
    assert counts(graph, "range_min_max") == {"act1.data_in_0": 16 * 4}


def test_values_are_those_that_hooks_see() -> None:
    model = Net().eval()
    graph, source = ready(model), Batches(noise(8, 6))
    found = watch(
        graph,
        ["act1", "fc2"],
        source,
        activation_statistics={"range_quantile": {"quantile": 0.97}, "variance_online": {}},
        target_weight_nodes=["fc1", "norm"],
        weight_statistics={"variance_precise": {}},
        num_samples=32,
    )
    seen: dict[str, list[Tensor]] = {"act1": [], "fc2": []}
    for name, inputs in seen.items():
        getattr(model, name).register_forward_pre_hook(
            lambda _, args, inputs=inputs: inputs.append(args[0].detach().double())
        )
    for batch in source.given:
        model(**batch)
    for name, inputs in seen.items():
        x, stat = torch.cat(inputs), found[f"{name}.data_in_0"]
        # the sums are taken in another order
        low, high = torch.quantile(x, torch.tensor([0.03, 0.97], dtype=x.dtype)).tolist()
        limits = {"min": low, "max": high, "range": high - low, "count": x.numel()}
        assert stat["range_quantile"] == pytest.approx(limits, rel=1e-9)
        variance = x.var(correction=0).item()
        assert stat["variance_online"]["mean"] == pytest.approx(x.mean().item(), rel=1e-9)
        assert stat["variance_online"]["variance"] == pytest.approx(variance, rel=1e-9)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name in ("fc1.weight", "fc1.bias", "norm.weight", "norm.running_mean", "norm.running_var"):
        x, stat = tensors[name].detach().double(), found[name]["variance_precise"]
        assert stat["mean"] == pytest.approx(x.mean().item(), rel=1e-9)
        assert stat["variance"] == pytest.approx(x.var().item(), rel=1e-9, abs=1e-18)


def test_each_sample_of_a_batch_is_one_observation() -> None:
    graph, source = ready(Net()), Batches(noise(8, 6))
    statistics = {"range_min_max": {"dims": None}, **RECORD}
    stat = watch(graph, ["norm"], source, activation_statistics=statistics)["norm.data_in_0"]
    x = torch.cat([batch["x"] for batch in source.given])
    assert stat["record"]["count"] == stat["range_min_max"]["count"] == 16
    assert torch.equal(torch.tensor(stat["record"]["data"]), x)
    assert stat["range_min_max"]["max"] == [x.amax(dim=0).tolist()]


def test_profiling_leaves_the_model_and_its_inputs_as_they_were() -> None:
    class InPlaceAndRandom(Net):
        def forward(self, x):
            return super().forward(F.relu(x, inplace=True) + torch.rand_like(x))

    model = InPlaceAndRandom()
    model.fc1.eval()
    graph = ready(model)
    modes = {name: module.training for name, module in graph.model.named_modules()}
    state = copy.deepcopy(graph.model.state_dict())
    batches = [{"x": torch.randn(8, 6)} for _ in range(2)]
    before = copy.deepcopy(batches)
    random_state = torch.get_rng_state()
    weights = {"target_weight_nodes": ["norm", "fc.*"], "weight_statistics": MIN_MAX}
    watch(graph, ["drop", "act.*", "relu"], batches, by="regex_name", **weights)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(b["x"], a["x"]) for b, a in zip(batches, before, strict=True))
    after = graph.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in state.items())
    assert {name: module.training for name, module in graph.model.named_modules()} == modes
    assert all(p.grad is None and p.requires_grad for p in graph.model.parameters())
    assert torch.is_grad_enabled()


def test_a_run_that_fails_restores_the_model_and_writes_no_statistic() -> None:
    graph = ready(Net())
    weights = {"target_weight_nodes": ["linear"], "weight_statistics": MIN_MAX}
    batches = [{"x": torch.randn(8, 6)}, {"x": torch.randn(8, 7)}]
    with pytest.raises(PassArgsError, match=r"node 'norm' .* failed on x = .*\[8, 7\]"):
        watch(graph, ["relu"], batches, by="type", **weights)
    assert graph.model.norm.training
    assert stats(graph) == {}


def test_dropout_is_off_while_profiling() -> None:
    found = record(ready(Net().train()), ["drop"], Batches(noise(8, 6)))
    assert torch.equal(found["drop.data_in_0"], found["drop.data_out_0"])


def test_outputs_are_profiled_when_asked_for() -> None:
    graph, source = ready(Net()), Batches(noise(8, 6))
    found = record(graph, ["x", "act1", "output"], source)
    assert set(found) == {"x.data_out_0", "act1.data_in_0", "act1.data_out_0", "output.data_in_0"}
    x = torch.cat([batch["x"] for batch in source.given])
    assert torch.equal(found["x.data_out_0"], x)
    assert torch.equal(found["act1.data_out_0"], found["act1.data_in_0"].relu())
    # sixteen samples at once may round differently from two batches of eight
    torch.testing.assert_close(found["output.data_in_0"], graph.model.eval()(x).detach())


def test_functions_are_profiled_as_modules_are_and_before_they_work_in_place() -> None:
    class Functional(nn.Module):
        def forward(self, x, y):
            return F.relu(x + y, inplace=True)

    # the generator's order is not the model's
    source = Batches(lambda: {"y": torch.randn(8, 3), "x": torch.randn(8, 3)})
    graph = ready(Functional(), x=torch.randn(8, 3), y=torch.randn(8, 3))
    found = record(graph, ["add", "relu"], source, by="type")
    x, y = (torch.cat([batch[name] for batch in source.given]) for name in "xy")
    assert len(found) == 5
    assert torch.equal(found["add.data_in_0"], x)
    assert torch.equal(found["add.data_in_1"], y)
    assert torch.equal(found["add.data_out_0"], x + y)
    assert torch.equal(found["relu.data_in_0"], x + y)
    assert torch.equal(found["relu.data_out_0"], (x + y).relu())


def test_weights_that_a_function_takes_are_profiled_with_its_data() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.b = nn.Parameter(torch.randn(3, 6)), nn.Parameter(torch.randn(3))

        def forward(self, x):
            return F.linear(x, self.w, self.b)

    graph = ready(Functional())
    seen = watch(graph, ["linear"], by="type")
    found = {name: stat["range_min_max"] for name, stat in seen.items()}
    assert set(found) == {"linear.data_in_0", "linear.weight", "linear.bias"}
    assert found["linear.weight"]["max"] == graph.model.w.max().item()
    assert found["linear.data_in_0"]["count"] == 16 * 6


def test_a_module_used_twice_has_statistics_at_both_places() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.act = nn.Linear(6, 6), nn.ReLU()

        def forward(self, x):
            return self.act(self.fc(self.act(self.fc(x))))

    graph, source = ready(Twice()), Batches(noise(8, 6))
    weights = {"target_weight_nodes": ["linear"], "weight_statistics": RECORD}
    found = record(graph, ["linear"], source, by="type", **weights)
    assert torch.equal(found["fc.weight"], found["fc_1.weight"])
    x = torch.cat([batch["x"] for batch in source.given])
    assert torch.equal(found["fc.data_in_0"], x)
    # the batches were of another size
    torch.testing.assert_close(found["fc_1.data_in_0"], graph.model.fc(x).relu().detach())


def test_results_that_are_no_tensors_are_passed_over() -> None:
    class SizeFirst(nn.Module):
        def forward(self, x):
            return x.size(0), x.relu(), x.chunk(2)

    graph, source = ready(SizeFirst(), x=torch.randn(8, 4)), Batches(noise(8, 4))
    found = record(graph, ["size", "chunk", "output"], source)
    x = [batch["x"] for batch in source.given]
    halves = torch.cat([batch[:4] for batch in x]), torch.cat([batch[4:] for batch in x])
    assert torch.equal(found["output.data_in_1"], torch.cat(x).relu())
    for i, half in enumerate(halves):
        assert torch.equal(found[f"chunk.data_out_{i}"], half)
        assert torch.equal(found[f"output.data_in_{i + 2}"], half)
    assert "size.data_out_0" not in found
    assert "output.data_in_0" not in found


def test_inputs_that_the_generator_leaves_out_take_their_defaults() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patched_nodes = {"additional_inputs": {"offset": torch.ones(3)}}

        def forward(self, x, offset, factor=2):
            return (x + offset) * factor

    graph, source = ready(Scaled(), x=torch.randn(8, 3)), Batches(noise(8, 3))
    found = record(graph, ["mul"], source)
    x = torch.cat([batch["x"] for batch in source.given])
    assert torch.equal(found["mul.data_in_0"], x + 1)


def test_any_number_of_inputs_is_cut_to_the_samples_asked_for() -> None:
    class Total(nn.Module):
        def forward(self, *xs):
            return torch.cat(xs, dim=1)

    graph = ready(Total(), xs=(torch.randn(8, 2), torch.randn(8, 3)))
    source = Batches(lambda: {"xs": (torch.randn(8, 2), torch.randn(8, 3))})
    watch(graph, ["cat"], source, num_samples=11)
    assert counts(graph, "range_min_max") == {"cat.data_in_0": 11 * 2, "cat.data_in_1": 11 * 3}


def test_a_weight_target_that_is_no_module_is_skipped_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Functional(nn.Module):
        def forward(self, x):
            return F.relu(x)

    graph = ready(Functional())
    profile(graph, target_weight_nodes=["relu"], weight_statistics=MIN_MAX)
    assert caplog.messages == [
        "Node relu is not a call_module node, but is in target_weight_nodes. Skip."
    ]
    assert stats(graph) == {}


def test_an_activation_target_gets_no_statistic_on_its_weights() -> None:
    seen = watch(ready(Net()), ["linear"], by="type")
    assert list(seen) == ["fc1.data_in_0", "fc2.data_in_0"]


def test_weights_are_profiled_without_a_generator() -> None:
    graph = ready(Net())
    profile(graph, target_weight_nodes=["fc2"], weight_statistics=MIN_MAX)
    assert counts(graph, "range_min_max") == {"fc2.weight": 12, "fc2.bias": 3}


def test_without_statistics_nothing_is_run_and_nothing_is_lost() -> None:
    graph, source = ready(Net()), Batches(noise(8, 6))
    nodes = {"target_weight_nodes": ["fc2"], "target_activation_nodes": ["act1"]}
    profile(graph, **nodes, weight_statistics=MIN_MAX, input_generator=source)
    profile(graph, **nodes, activation_statistics=MIN_MAX, input_generator=Batches(noise(8, 6)))
    assert source.given == []
    assert set(stats(graph)) == {"fc2.weight", "fc2.bias", "act1.data_in_0"}


def test_the_callers_arguments_are_read_and_never_changed() -> None:
    source = Batches(noise(8, 6))
    pass_args = {
        "by": "type",
        "target_weight_nodes": ["linear"],
        "target_activation_nodes": ["relu"],
        "weight_statistics": {"variance_precise": {"device": "cpu", "dims": "all"}},
        "activation_statistics": {"range_quantile": {"device": "cpu", "quantile": 0.97}},
        "input_generator": source,
        "num_samples": 8,
        "profile_output_activation": False,
    }
    before = copy.deepcopy({k: v for k, v in pass_args.items() if v is not source})
    profile_statistics_analysis_pass(ready(Net()), pass_args)
    assert pass_args == {**before, "input_generator": source}


def test_statistics_can_be_given_without_options() -> None:
    graph = ready(Net())
    profile(graph, target_weight_nodes=["fc2"], weight_statistics={"abs_mean": None})
    assert counts(graph, "abs_mean") == {"fc2.weight": 12, "fc2.bias": 3}


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (
            {"weight_statistics": {"variance_precis": {}}, "target_weight_nodes": []},
            PassArgsError,
            "Unknown stat name: variance_precis, did you mean variance_precise\\?",
        ),
        (
            {"activation_statistics": {"range_quantile": {"quantil": 0.9}}},
            TypeError,
            "unknown range_quantile option 'quantil'; did you mean 'quantile'\\?",
        ),
        (
            {"activation_statistics": {"range_quantile": {"quantile": 2}}},
            ValueError,
            "RangeQuantile needs quantile to be between 0.5 and 1; got 2",
        ),
        ({"target_activation_nodes": ["act3"]}, UnknownName, "unknown node 'act3'; did you mean"),
        ({"target_weight_nodes": ["fc3"]}, UnknownName, "unknown node 'fc3'; did you mean 'fc2'"),
        (
            {"by": "type", "target_activation_nodes": ["rellu"]},
            PassArgsError,
            "unknown op 'rellu'; did you mean 'relu'\\?",
        ),
        (
            {"by": "regex_name", "target_activation_nodes": ["act("]},
            ValueError,
            "'act\\(' is not a regular expression",
        ),
        ({"by": "names"}, PassArgsError, "option 'by' is 'names', but it should be 'type'"),
        ({"target_activation_nodes": 3}, PassArgsError, "option 'target_activation_nodes'"),
        ({"num_sample": 8}, PassArgsError, "no option 'num_sample'; did you mean 'num_samples'\\?"),
        ({"num_samples": 0}, PassArgsError, "option 'num_samples' is 0"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_any_data_is_drawn(
    wrong: dict[str, Any], error: type[Exception], message: str
) -> None:
    graph, source = ready(Net()), Batches(noise(8, 6))
    right = {
        "by": "name",
        "target_weight_nodes": ["fc1"],
        "target_activation_nodes": ["act1"],
        "weight_statistics": MIN_MAX,
        "activation_statistics": MIN_MAX,
        "input_generator": source,
        "num_samples": 16,
    }
    if "by" in wrong:
        right |= {"target_weight_nodes": [], "target_activation_nodes": []}
    with pytest.raises(error, match=message):
        profile_statistics_analysis_pass(graph, right | wrong)
    assert source.given == []
    assert stats(graph) == {}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "needs an input_generator to profile activations: an iterator of dicts"),
        (7, "needs an input_generator to profile activations: an iterator of dicts .* not int"),
        (Batches(noise(8, 6, name="xs")), "unknown input 'xs'; did you mean 'x'\\?"),
        (Batches(lambda: torch.randn(8, 6)), "yields dicts such as {'x': batch}, not Tensor"),
        (Batches(lambda: None), "yields dicts such as {'x': batch}, not NoneType"),
        (Batches(lambda: [torch.randn(8, 6), torch.ones(8)]), "not list"),
        (Batches(dict), "a dict without a tensor in it"),
        (Batches(lambda: {"x": "jet"}), "a dict without a tensor in it"),
        (Batches(noise(8, 6, name="y")), "unknown input 'y' \\(known: x\\)"),
    ],
    ids=["none", "7", "xs", "tensor", "nothing", "pair", "empty", "no tensor", "y"],
)
def test_a_generator_of_something_else_is_refused(source: Any, message: str) -> None:
    graph = ready(Net())
    weights = {"target_weight_nodes": ["fc1"], "weight_statistics": MIN_MAX}
    with pytest.raises(PassArgsError, match=message):
        watch(graph, ["act1"], input_generator=source, **weights)
    assert stats(graph) == {}


def test_an_input_that_no_batch_gives_is_named() -> None:
    class Sum(nn.Module):
        def forward(self, x, y):
            return x + y

    graph = ready(Sum(), x=torch.randn(8, 3), y=torch.randn(8, 3))
    with pytest.raises(PassArgsError, match=r"input_generator has no value for .* input 'y'"):
        watch(graph, ["add"], Batches(noise(8, 3)))


@pytest.mark.parametrize(
    ("targets", "where"),
    [
        ({"target_weight_nodes": ["fc1"]}, "weight of node 'fc1'"),
        ({"target_activation_nodes": ["act1"]}, "data_in_0 of node 'act1'"),
    ],
)
def test_a_statistic_that_does_not_fit_names_the_node(targets: Any, where: str) -> None:
    statistics = {"range_min_max": {"dims": [2]}}
    options = {"weight_statistics": statistics, "activation_statistics": statistics, **targets}
    with pytest.raises(PassArgsError, match=f"{where}: RangeMinMax needs dims to be dims of"):
        profile(ready(Net()), input_generator=Batches(noise(8, 6)), **options)


def test_a_graph_without_software_metadata_says_what_to_run() -> None:
    graph, _ = init_metadata_analysis_pass(MaseGraph(Net()), None)
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": torch.randn(8, 6)}})
    with pytest.raises(PassArgsError, match="run add_software_metadata_analysis_pass first"):
        profile(graph)


def test_a_type_that_the_graph_does_not_have_is_worth_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "chop"):
        profile(ready(Net()), by="type", target_weight_nodes=["conv2d"], weight_statistics=MIN_MAX)
    assert caplog.messages == ["no node of the graph matches type 'conv2d'"]


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 16))

    def forward(self, x):
        return F.linear(x + torch.randn_like(x), self.weight)


def test_a_weight_with_as_many_rows_as_a_batch_has_samples_is_seen_once():
    graph, batches = ready(Functional(), x=torch.ones(8, 16)), [{"x": torch.zeros(8, 16)}] * 2
    watch(graph, ["linear", "add"], batches, by="type", num_samples=12)
    seen = counts(graph, "range_min_max")
    assert (seen["linear.weight"], seen["linear.data_in_0"]) == (8 * 16, 12 * 16)


@pytest.mark.parametrize(
    ("batches", "message"),
    [([], "yields no batches; it must"), ([{"x": torch.ones(0, 16)}], "yields an empty batch")],
)
def test_a_generator_without_samples_is_refused(batches, message):
    with pytest.raises(PassArgsError, match=f"pass 'profile_statistics': .*{message}"):
        watch(ready(Functional(), x=torch.ones(8, 16)), ["linear"], batches, by="type")
