"""Steps of linear layers with ReLUs between, by one call of the C++ library."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from chop.dataset import TensorSplit
from chop.ir import MaseGraph
from chop.numerics.compiled import KERNELS, find_compiler
from chop.numerics.fast import chain as library
from chop.numerics.fused import fused_mode, set_fused
from chop.passes import Pipeline, learn_bits_transform_pass
from chop.passes.graph.transforms.pruning.activation import attach_activation_pruning
from chop.training.devices import Place
from chop.training.feed import Feed
from chop.training.learned import train_front
from chop.training.learned.batches import MemberBatches
from chop.training.learned.chain import chain_gradients
from chop.training.learned.members import Members
from chop.training.learned.phase import TrainingPhase
from chop.training.learned.prices import prices_of
from chop.training.tasks import CLASSIFICATION, REGRESSION

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")


def learning(*layers: nn.Module, **how) -> nn.Module:
    graph = MaseGraph(nn.Sequential(*layers))
    dummy_in = {"input": torch.randn(2, 8)}
    graph, _ = Pipeline(["init_metadata", ("add_common_metadata", {"dummy_in": dummy_in})])(graph)
    graph, _ = learn_bits_transform_pass(graph, {"width": 5, "granularity": "element", **how})
    return graph.model


def mlp(bias: bool = True, **how) -> nn.Module:
    torch.manual_seed(3)
    linear = [nn.Linear(8, 20, bias), nn.Linear(20, 12, bias), nn.Linear(12, 4, bias)]
    return learning(linear[0], nn.ReLU(), linear[1], nn.ReLU(), linear[2], **how)


@pytest.fixture
def phase_of(splits, options):
    def make(model: nn.Module, task=CLASSIFICATION, split=splits[0], **changes) -> TrainingPhase:
        chosen = options(**({"way": "ramp", "learning_rate": 1e-2, "batch_size": 77} | changes))
        place = Place(torch.device("cpu"))
        members = Members([model] * chosen.num_members, chosen.weights, place.device)
        batches = MemberBatches(Feed(split, chosen.batch_size, place), members.count, 0, None)
        prices = prices_of(chosen, place.device)
        return TrainingPhase(members, batches, chosen, task, steps=50, prices=prices, rate=1e-2)

    return make


def both(phase: TrainingPhase) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of a step by the library and by autograd."""
    phase.price.fill_(1e-3)
    phase.index.copy_(phase.batches.indices(3))
    assert phase._chain is not None
    ours, phase._chain = phase._gradients(), None
    return ours, phase._gradients()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("inputs", ["channel", "tensor"])
@pytest.mark.parametrize("rounding", ["even", "up", "floor"])
def test_gradients_are_those_of_the_layers(phase_of, rounding, inputs, bias):
    phase = phase_of(mlp(bias, rounding=rounding, data_in_granularity=inputs))
    for _ in range(5):
        phase.take()
    ours, theirs = both(phase)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)  # sums in another order


def test_inputs_that_lost_their_bits_have_no_gradients_but_their_weights_have_a_price(phase_of):
    model = mlp()
    with torch.no_grad():
        model.get_submodule("2").data_in_frac_bits[::2] = -9
        model.get_submodule("4").weight_frac_bits[:, 3] = -9  # weights that are rounded to zero
        model.get_submodule("0").data_in_integer_bits.fill_(-1)  # values are beyond the range
    ours, theirs = both(phase_of(model))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert theirs.count_nonzero() < theirs.numel()


def test_a_network_that_lost_all_inputs_has_gradients_of_its_last_bias_only(phase_of):
    model = mlp()
    with torch.no_grad():
        for name in ("0", "2", "4"):
            model.get_submodule(name).data_in_frac_bits.fill_(-12)
    phase = phase_of(model)
    ours, theirs = both(phase)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    place = sum(phase.members.sizes[: phase.members.names.index("4.bias")])
    assert ours[0, place : place + 4].abs().min() > 0


def test_each_network_of_a_population_has_its_own_samples_and_price(phase_of):
    phase = phase_of(mlp(), way="population", members=3)
    phase.take()
    phase.price.copy_(torch.tensor([0.0, 1e-3, 1e-1]))
    ours, phase._chain = phase._gradients(), None
    torch.testing.assert_close(ours, phase._gradients(), rtol=1e-4, atol=1e-6)
    assert not torch.equal(ours[0], ours[1])


def test_threads_share_the_samples(phase_of, monkeypatch):
    phase = phase_of(mlp())
    phase.index.copy_(phase.batches.indices(3))
    alone = phase._gradients()
    monkeypatch.setattr(library, "THREAD", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        shared, again = phase._gradients(), phase._gradients()
    finally:
        torch.set_num_threads(before)
    assert torch.equal(shared, again)
    torch.testing.assert_close(shared, alone, rtol=1e-4, atol=1e-6)


def test_a_sample_that_is_not_finite_gives_gradients_that_are_not(phase_of, splits):
    x = splits[0].x.clone()
    x[:, 2] = float("nan")
    phase = phase_of(mlp(), split=TensorSplit(x, splits[0].y))
    phase.take()
    assert int(phase.adam.skipped) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cost": "lut"}, "another cost"),
        ({"cost": {"ebops": 1.0, "model_size": 1.0}}, "a sum of costs"),
        ({"compile": True}, "torch compiles"),
    ],
)
def test_other_runs_are_left_to_autograd(phase_of, options, changes, reason):
    phase, chosen = phase_of(mlp()), options(way="ramp", **changes)
    assert chain_gradients(phase.members, phase.batches, chosen, CLASSIFICATION) is None, reason


def test_other_networks_are_left_to_autograd(phase_of):
    linear, last, relu = nn.Linear(8, 6), nn.Linear(6, 4), nn.ReLU()
    others = {
        "batch norm": learning(linear, nn.BatchNorm1d(6), relu, last),
        "another activation": learning(linear, nn.Tanh(), last),
        "two in a row": learning(linear, last),
        "numbers that wrap": mlp(overflow="wrap"),
        "bits per tensor": mlp(granularity="tensor"),
        "a layer that does not learn": learning(linear, relu, last, by="name", nodes=["_0"]),
    }
    for name, model in others.items():
        assert phase_of(model)._chain is None, name


def test_a_network_with_hooks_is_left_to_autograd(phase_of):
    pruning = mlp()
    attach_activation_pruning(pruning.get_submodule("2"), 0.5)
    assert phase_of(pruning)._chain is None
    hooked = mlp()
    hooked.get_submodule("1").register_forward_hook(lambda layer, args, y: 2 * y)
    assert phase_of(hooked)._chain is None


def test_a_sequence_that_computes_otherwise_is_left_to_autograd(phase_of):
    class Doubled(nn.Sequential):
        def forward(self, x):
            return 2 * super().forward(x)

    assert phase_of(nn.Sequential(*mlp().children()))._chain is not None
    assert phase_of(Doubled(*mlp().children()))._chain is None


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_parameters_without_a_sign_are_left_to_autograd(phase_of, name):
    model = mlp()
    layer = model.get_submodule("2")
    layer.formats = {**layer.formats, name: replace(layer.formats[name], signed=False)}
    assert phase_of(model)._chain is None


def test_other_data_are_left_to_autograd(phase_of, splits, options):
    x, y = splits[0].x, splits[0].y
    phase = phase_of(mlp())
    assert chain_gradients(phase.members, phase.batches, phase.options, REGRESSION) is None
    prepared = TensorSplit(x, y, prepare=lambda t: t)
    assert phase_of(mlp(), split=prepared)._chain is None
    assert phase_of(mlp(), split=TensorSplit(x, y + 1))._chain is None  # a label without a score


def test_kernels_can_be_switched_off(phase_of):
    before = fused_mode()
    set_fused("off")
    try:
        assert phase_of(mlp())._chain is None
    finally:
        set_fused(before)


def test_without_a_library_autograd_does_it(phase_of, monkeypatch):
    monkeypatch.setattr(library, "_library", lambda: None)
    assert phase_of(mlp())._chain is None


def test_a_front_is_as_good_as_by_autograd(splits, options, monkeypatch):
    chosen = options(way="ramp", learning_rate=2e-2, price=[1e-5, 1e-3], steps=120)
    ours = train_front(mlp(), splits, chosen)
    monkeypatch.setattr(library, "_library", lambda: None)
    theirs = train_front(mlp(), splits, chosen)
    best = [front.designs[-1].metrics["accuracy"] for front in (ours, theirs)]
    assert best[0] > max(0.8, best[1] - 0.03)


def test_the_bits_of_other_runs_do_not_depend_on_when_kernels_were_loaded(
    splits, options, monkeypatch
):
    chosen = options(way="ramp", cost="lut", price=[1e-5, 1e-3], learning_rate=1e-2, steps=30)
    KERNELS.settle()
    loaded = train_front(mlp(), splits, chosen)
    for name, value in {"library": None, "_builder": None, "_seen": 0}.items():
        monkeypatch.setattr(KERNELS, name, value)  # as in a new process
    fresh = train_front(mlp(), splits, chosen)
    assert len(loaded.designs) == len(fresh.designs) > 0
    for one, other in zip(loaded.designs, fresh.designs, strict=True):
        assert all(torch.equal(one.state[name], other.state[name]) for name in one.state)
