"""One run of training gives a front, in three ways, and says what went wrong."""

import contextlib
import itertools

import pytest
import torch
from torch import nn

from chop.dataset import TensorSplit
from chop.methods.edge_tables import EdgeTable
from chop.numerics.learned import LearnsBits
from chop.training.devices import Place
from chop.training.feed import Feed
from chop.training.learned import FrontOptions, train_front
from chop.training.learned import front as fronts
from chop.training.learned.archive import Archive, LearnedDesign, spread
from chop.training.learned.batches import MemberBatches
from chop.training.learned.health import Health
from chop.training.learned.members import Members
from chop.training.learned.phase import TrainingPhase
from chop.training.learned.prices import prices_of
from chop.training.learned.updates import RowAdam
from chop.training.scores import Score
from chop.training.tasks import CLASSIFICATION


def test_a_population_gives_a_front_in_which_a_higher_cost_is_a_better_score(front):
    assert len(front.designs) >= 3
    for cheap, dear in itertools.pairwise(front.designs):
        assert cheap.cost < dear.cost
        assert cheap.metrics["accuracy"] < dear.metrics["accuracy"]


@pytest.mark.slow
def test_a_ramp_keeps_checkpoints_of_falling_cost(network, splits, options):
    front = train_front(network, splits, options(way="ramp", steps=150, checkpoints=10))
    assert len(front.designs) >= 4
    prices = [design.price for design in front.designs]
    assert prices == sorted(prices, reverse=True)
    assert {design.member for design in front.designs} == {0}


def test_several_ramps_share_a_front(splits, options):
    features, classes = splits[0].x.shape[1], int(splits[0].y.max()) + 1
    network = nn.Sequential(EdgeTable(features, classes, hidden=2))
    seen = []
    chosen = options(way="ramp", ramps=3, fresh=True, steps=30, checkpoints=3, retrain=2)
    front = train_front(network, splits, chosen, on_checkpoint=seen.append)
    assert [len(checkpoint.scores) for checkpoint in seen] == [3, 3, 3]
    assert len(set(seen[0].scores)) > 1, "each has weights of its own"
    assert {design.phase for design in front.designs} <= {0, 1}


@pytest.mark.slow
def test_a_free_price_keeps_the_accuracy(network, splits, options):
    front = train_front(network, splits, options(price=[1e-12, 1e-12], members=1))
    assert front.designs[-1].metrics["accuracy"] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("limit", [600, 1500])
def test_the_controller_meets_a_target_within_a_tenth(network, splits, options, limit):
    chosen = options(way="target", target=f"ebops <= {limit}", steps=300)
    front = train_front(network, splits, chosen)
    best = front.within(limit)
    assert best is not None
    assert 0.9 * limit <= best.cost <= limit
    assert all(design.cost <= limit for design in front.designs)


@pytest.mark.slow
def test_a_target_that_nothing_meets_is_reported(network, splits, options):
    front = train_front(network, splits, options(way="target", target=1.0, steps=20))
    assert front.report.missed_targets == [1.0]
    assert front.report.warnings


def test_a_network_in_a_population_becomes_what_it_would_become_alone(
    network, splits, options, tmp_path
):
    def trained(name, **changes):
        chosen = options(steps=12, checkpoints=1, **changes)
        train_front(network, splits, chosen, folder=tmp_path / name)
        return torch.load(tmp_path / name / "state.pt")["phase"]["values"]

    several = trained("several", price=[1e-4, 1e-2], members=3)
    alone = trained("alone", price=[1e-4, 1e-4], members=1)
    assert torch.allclose(several[:1], alone, rtol=1e-3, atol=1e-4)  # another order of sums
    assert not torch.allclose(several[1:2], alone, rtol=1e-3, atol=1e-4)


def test_a_network_of_the_front_scores_and_costs_what_the_front_says(front, splits):
    _, validation = splits
    for design in front.designs:
        model = front.network(design).eval()
        with torch.no_grad():
            correct = (model(validation.x).argmax(1) == validation.y).float().mean().item()
        assert correct == pytest.approx(design.metrics["accuracy"], abs=1e-6)
        layers = [layer for layer in model if isinstance(layer, LearnsBits)]
        assert sum(layer.bit_cost("ebops", exact=True).item() for layer in layers) == design.cost


def test_statistics_are_updated_for_each_network(front):
    means = {tuple(design.state["0.mean"].tolist()) for design in front.designs}
    assert len(means) == len(front.designs)
    assert (0.0,) * 12 not in means


def test_what_is_not_a_number_in_one_network_does_not_touch_the_others(
    network, splits, options, monkeypatch
):
    clean = train_front(network, splits, options(steps=12, checkpoints=1))
    gathered = MemberBatches.gathered

    def broken(self, index):
        x, y, target = gathered(self, index)
        x = x.clone()
        x[2] = float("nan")
        return x, y, target

    monkeypatch.setattr(MemberBatches, "gathered", broken)
    front = train_front(network, splits, options(steps=12, checkpoints=1))
    assert front.report.skipped_steps == [0, 0, 12, 0]
    assert any("not finite" in warning for warning in front.report.warnings)
    others = {d.member: d for d in clean.designs if d.member != 2}
    for design in front.designs:
        if design.member in others:
            state = others[design.member].state
            assert all(torch.equal(state[name], t) for name, t in design.state.items())


def test_a_row_with_gradients_that_are_not_finite_keeps_its_values_and_moments():
    values, grad = torch.ones(2, 3), torch.ones(2, 3)
    grad[1, 0] = float("inf")
    adam = RowAdam(values)
    adam(values, grad, torch.tensor(0.1), torch.ones(2, 3, dtype=torch.bool))
    assert torch.equal(values[1], torch.ones(3))
    assert not adam.first[1].any()
    assert torch.allclose(values[0], torch.full((3,), 0.9))


def test_last_columns_that_do_not_move_keep_their_values_and_moments():
    values, grad = torch.ones(2, 3), torch.ones(2, 3)
    adam = RowAdam(values)
    adam(values, grad, torch.tensor(0.1), torch.tensor([[False, True], [True, False]]))
    moved = torch.tensor([[True, False, True], [True, True, False]])
    for tensor, start in ((values, 1.0), (adam.first, 0.0), (adam.second, 0.0)):
        assert torch.equal(tensor != start, moved)


def test_rows_are_updated_as_adam_does():
    torch.manual_seed(0)
    start = torch.randn(2, 5)
    values, theirs = start.clone(), nn.Parameter(start.clone())
    adam, reference = RowAdam(values), torch.optim.Adam([theirs], lr=0.01)
    for _ in range(20):
        grad = torch.randn(2, 5)
        adam(values, grad, torch.tensor(0.01), torch.ones(2, 2, dtype=torch.bool))
        theirs.grad = grad
        reference.step()
    assert torch.allclose(values, theirs, atol=1e-6)


def test_last_columns_learn_as_fast_as_asked():
    values, grad = torch.zeros(1, 3), torch.ones(1, 3)
    RowAdam(values, 8.0)(values, grad, torch.tensor(0.01), torch.ones(1, 2, dtype=torch.bool))
    assert torch.allclose(values, -torch.tensor([[0.01, 0.08, 0.08]]))


def test_widths_have_a_learning_rate_of_their_own(network, splits, options):
    start = {name: p.detach().clone() for name, p in network.named_parameters()}
    short = options(way="ramp", steps=60, checkpoints=1, freeze_last=0.0, width_rate=1e-6)
    (design,) = train_front(network, splits, short).designs
    for name, before in start.items():
        moved = float((design.state[name] - before).abs().max())
        assert moved < 1e-4 if name.endswith("_f") else moved > 0.1


def test_prices_far_too_high_for_the_network_are_warned_of(network, splits, options, caplog):
    short = {"steps": 2, "checkpoints": 1, "members": 1}
    with pytest.raises(ValueError, match="lower `price`"):
        train_front(network, splits, options(**short, price=[1.0, 2.0]))
    assert "times the ebops of the network is 5" in caplog.text
    assert "suits this network" in caplog.text
    caplog.clear()
    with contextlib.suppress(ValueError):
        train_front(network, splits, options(**short, price=[1e-5, 1e-2]))
    assert "suits" not in caplog.text


def test_a_network_that_dies_is_restarted_from_its_neighbour(network, splits, options, monkeypatch):
    taken = fronts.TrainingPhase.take

    def kill(self):
        taken(self)
        if self.step == 18:
            self.members.values.detach()[3, self.members.num_weights :] = -8  # no bits at all

    monkeypatch.setattr(fronts.TrainingPhase, "take", kill)
    front = train_front(network, splits, options(price=[1e-6, 1e-4], steps=40))
    assert front.report.restarts == [0, 0, 0, 1]
    assert front.report.dead == []


@pytest.mark.slow
def test_a_network_that_is_dead_at_the_end_is_reported_and_not_kept(
    network, splits, options, monkeypatch
):
    taken = fronts.TrainingPhase.take

    def kill(self):
        taken(self)
        if self.step == self.steps - 1:
            self.members.values.detach()[3, self.members.num_weights :] = -8

    monkeypatch.setattr(fronts.TrainingPhase, "take", kill)
    front = train_front(network, splits, options(price=[1e-6, 1e-4]))
    assert front.report.dead == [3]
    assert all(d.cost > 0 for d in front.designs)


def test_a_network_that_never_learned_is_not_dead():
    health = Health(2)
    guess = Score(1.0, 10, {"accuracy": 0.25}, guess=0.25)
    good = Score(0.1, 10, {"accuracy": 0.9}, guess=0.25)
    assert health.look([guess, good], "accuracy", [True, True]) == []
    assert health.look([guess, guess], "accuracy", [True, True]) == [1]
    assert health.donor(1) is None


def test_widths_at_a_bound_are_counted(network, splits, options):
    front = train_front(network, splits, options(bounds=(3.9, 4.1), members=2, steps=30))
    assert all(count > 0 for count in front.report.widths_at_bounds)


@pytest.mark.slow
def test_widths_stay_in_the_last_part(network, splits, options):
    chosen = options(freeze_last=0.5, steps=60, checkpoints=60, members=2)
    seen = []
    front = train_front(network, splits, chosen, on_checkpoint=seen.append)
    late = {checkpoint.costs for checkpoint in seen if checkpoint.step > 32}
    assert len(late) == 1
    assert front.designs


@pytest.mark.slow
def test_retraining_keeps_the_costs_and_does_not_lose_the_front(front, network, splits, options):
    again = train_front(network, splits, options(retrain=60))
    costs = {design.cost for design in front.designs}
    assert {design.cost for design in again.designs} <= costs
    for design in again.designs:
        before = front.within(design.cost)
        assert design.metrics["accuracy"] >= before.metrics["accuracy"]
    assert any(design.phase for design in again.designs)


@pytest.mark.slow
def test_distillation_needs_a_teacher_and_learns_from_it(network, splits, options):
    with pytest.raises(ValueError, match="teacher"):
        train_front(network, splits, options(distill=1.0))
    torch.manual_seed(0)
    wrong = nn.Linear(8, 4)  # labels have no part in the loss
    front = train_front(network, splits, options(distill=1.0, members=1), teacher=wrong)
    x = splits[1].x
    model = front.network(front.designs[-1]).eval()
    with torch.no_grad():
        same = (model(x).argmax(1) == wrong(x).argmax(1)).float().mean()
    assert same > 0.8


def test_networks_may_start_from_new_weights(network, splits, options, tmp_path):
    chosen = {"steps": 1, "checkpoints": 1, "members": 2, "learning_rate": 1e-9}

    def spread_of_rows(**changes):
        folder = tmp_path / str(len(changes))
        with contextlib.suppress(ValueError):  # one step need not beat a constant guess
            train_front(network, splits, options(**chosen, **changes), folder=folder)
        one, other = torch.load(folder / "state.pt")["phase"]["values"]
        return (one - other).abs().max()

    assert spread_of_rows() < 1e-6
    assert spread_of_rows(fresh=True) > 0.1
    odd = nn.Sequential(network, nn.PReLU())
    nn.PReLU.reset_parameters, kept = None, nn.PReLU.reset_parameters
    try:
        with pytest.raises(ValueError, match="PReLU has no `reset_parameters`"):
            train_front(odd, splits, options(**chosen, fresh=True))
    finally:
        nn.PReLU.reset_parameters = kept


def test_costs_can_be_summed_with_weights(network, splits, options):
    chosen = options(cost={"ebops": 1.0, "model_size": 8.0}, steps=10, checkpoints=1, members=1)
    front = train_front(network, splits, chosen)
    layers = [m for m in front.network(front.designs[0]) if isinstance(m, LearnsBits)]
    parts = [
        (layer.bit_cost("ebops", exact=True) + 8 * layer.bit_cost("model_size", exact=True)).item()
        for layer in layers
    ]
    assert sum(parts) == pytest.approx(front.designs[0].cost)


def test_a_network_without_learned_widths_is_refused(splits, options):
    with pytest.raises(ValueError, match="no layer that learns"):
        train_front(nn.Linear(8, 4), splits, options())


def test_a_run_in_which_nothing_learns_is_an_error(network, splits, options):
    with pytest.raises(ValueError, match="better than a constant guess"):
        train_front(network, splits, options(bounds=(-16.0, -8.0), steps=5))


@pytest.mark.slow
def test_regression_is_trained_as_well(network, splits, options):
    train, validation = (TensorSplit(s.x, (s.x[:, :4] > 0).float() - 0.5) for s in splits)
    front = train_front(network, (train, validation), options(price=[1e-7, 1e-5]), task="reg")
    assert front.metric == "r2"
    assert front.designs[-1].metrics["r2"] > 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"way": "population", "ramps": 2}, "ramps is for way = 'ramp'; use members"),
        ({"way": "target", "target": 9, "ramps": 2}, "ramps is for way = 'ramp'; omit it"),
        ({"cost": {}}, "empty sum"),
        ({"cost": "luts"}, "did you mean 'lut'"),
        ({"cost": {"lut": 1.0, "ebop": 1.0}}, "did you mean 'ebops'"),
        ({"way": "target"}, "target is missing"),
        ({"way": "target", "target": "ebops <= 5"}, "cost is lut"),
        ({"way": "target", "target": "lut = 5"}, "a limit such as"),
        ({"target": 5.0}, "way = 'target'"),
        ({"price": [1e-3, 1e-6]}, "lowest and the highest"),
        ({"steps": 5, "epochs": 5}, "omit one"),
        ({"price_starts": 0.7}, "price_starts"),
        ({"way": "ramp", "price_starts": 0.5, "freeze_last": 0.5}, "less than 1, not 1"),
        ({"way": "rampe"}, "did you mean 'ramp'"),
        ({"freeze_last": 1.0}, "less than 1"),
        ({"bounds": (3.0, 2.0)}, "bounds"),
    ],
)
def test_wrong_options_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        FrontOptions(**changes)


def test_options_of_a_table_name_the_nearest_key():
    with pytest.raises(ValueError, match=r"gradient has no key 'member'.*'members'"):
        FrontOptions.of("search.strategy.gradient", {"member": 3})


def test_an_archive_keeps_what_nothing_dominates():
    archive = Archive("r2", "maximize")
    for cost, r2 in [(10, 0.5), (5, 0.5), (20, 0.9), (7, 0.4), (20, 0.9), (4, 0.1)]:
        archive.add(LearnedDesign(0, 0, 0, 0.0, float(cost), {"r2": r2}, {}))
    assert [(d.cost, d.metrics["r2"]) for d in archive.designs] == [(4, 0.1), (5, 0.5), (20, 0.9)]


def test_before_retraining_the_best_of_each_interval_of_costs_is_kept():
    archive = Archive("loss", "minimize", per_doubling=2)
    made = [(16, 0.5), (17, 0.4), (18, 0.4), (24, 0.6), (40, 0.3), (33, 0.2), (64, 0.9)]
    for cost, loss in made:
        archive.add(LearnedDesign(0, 0, 0, 0.0, float(cost), {"loss": loss}, {}))
    best = [(17, 0.4), (24, 0.6), (33, 0.2), (64, 0.9)]
    assert [(d.cost, d.metrics["loss"]) for d in archive.designs] == best
    archive.replace(archive.designs)
    assert [d.cost for d in archive.designs] == [17, 33]


def test_spread_designs_have_both_ends():
    designs = [LearnedDesign(0, 0, 0, 0.0, float(2**k), {}, {}) for k in range(10)]
    chosen = spread(designs, 4)
    assert [d.cost for d in chosen] == [1, 8, 64, 512]
    assert spread(designs, 20) == designs
    assert spread(designs, 1) == [designs[-1]]


def phase_of(network, splits, options):
    """Return a phase of training on a CPU."""
    place, chosen = Place(torch.device("cpu")), options(way="ramp", steps=20)
    members = Members([network], chosen.weights, place.device)
    batches = MemberBatches(Feed(splits[0], 64, place), 1, 0, None)
    prices = prices_of(chosen, place.device)
    how = {"steps": 20, "prices": prices, "rate": 1e-2}
    return TrainingPhase(members, batches, chosen, CLASSIFICATION, **how)


def test_steps_that_cannot_be_captured_are_taken_one_by_one(network, splits, options):
    captured, eager = (phase_of(network, splits, options) for _ in range(2))
    calls = []

    def capture():
        calls.append(captured.step)
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    captured._work = captured._captured(capture)
    for phase in (captured, eager):
        for _ in range(3):
            phase.take()
    assert calls == [0]
    assert torch.equal(captured.members.values, eager.members.values)


def test_other_errors_of_a_captured_step_are_raised(network, splits, options):
    phase = phase_of(network, splits, options)

    def capture():
        raise RuntimeError("shapes do not match")

    phase._work = phase._captured(capture)
    with pytest.raises(RuntimeError, match="shapes"):
        phase.take()


def test_one_network_is_trained_without_vmap_as_in_a_population(network, splits):
    x = splits[0].x[:50]
    one, two = (Members([network] * n, {"ebops": 1.0}, torch.device("cpu")) for n in (1, 2))
    for shared in (True, False):
        given = [x if shared else torch.stack([x] * n) for n in (1, 2)]
        (y, cost), (both, costs) = (
            m.forward(g, shared=shared) for m, g in zip((one, two), given, strict=True)
        )
        assert torch.allclose(both, y.expand(2, -1, -1), atol=1e-5)
        assert torch.equal(costs, cost.expand(2))
    assert torch.allclose(one.buffers["0.mean"], two.buffers["0.mean"][:1], atol=1e-6)
    assert one.buffers["0.mean"].any()


@pytest.mark.parametrize(
    ("teacher", "message"),
    [(nn.Linear(8, 7), r"\[7\] and the network \[4\]"), (nn.Linear(5, 4), "cannot process")],
)
def test_a_teacher_for_another_task_is_refused(network, splits, options, teacher, message):
    with pytest.raises(ValueError, match=message):
        train_front(network, splits, options(distill=0.5), teacher=teacher)


def test_data_that_are_not_a_pair_of_splits_are_refused(network, splits, options):
    with pytest.raises(TypeError, match="pair of a training and a validation split"):
        train_front(network, splits[0], options())


def test_data_of_nan_are_named_as_the_reason(network, splits, options):
    train = TensorSplit(splits[0].x * float("nan"), splits[0].y)
    with pytest.raises(ValueError, match="NaN or infinite numbers in the data"):
        train_front(network, (train, splits[1]), options(steps=3, checkpoints=1))


def test_a_run_too_short_for_its_widths_is_warned_of(network, splits, options, caplog):
    short = {"steps": 60, "checkpoints": 1, "members": 1, "price": [1e-12, 1e-12]}
    train_front(network, splits, options(**short, width_rate=1e-3))
    assert "Widths start at 4.0 bits on average, and in 60 steps they can become" in caplog.text
    assert "set width_rate to 0.0" in caplog.text
    caplog.clear()
    train_front(network, splits, options(**short, width_rate=0.2))
    assert "bits smaller" not in caplog.text


def test_a_network_in_eval_mode_is_trained_as_one_in_train_mode(network, splits, options):
    chosen, states = options(members=2, steps=20, checkpoints=2), []
    for training in (True, False):
        front = train_front(network.train(training), splits, chosen)
        assert network.training == training
        states.append([design.state for design in front.designs])
    assert len(states[0]) == len(states[1]) > 0
    for ours, theirs in zip(*states, strict=True):
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


class EndsWhenTested(nn.Sequential):
    """A network that returns scores in train mode, and probabilities in eval mode."""

    def forward(self, x):
        x = super().forward(x)
        return x if self.training else x.softmax(1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")  # of torch, by its own compiler
@pytest.mark.parametrize("training", [True, False])
def test_compiled_members_return_the_scores_of_the_mode_that_they_run_in(network, splits, training):
    x = splits[0].x[:50]
    members = Members([EndsWhenTested(*network).eval()], {"ebops": 1.0}, torch.device("cpu"))
    members.skeleton.train(training)
    members.skeleton.learn_the_end(x)
    compiled = torch.compile(members.forward, backend="eager")
    found = compiled(x, shared=True)[0].squeeze(0)
    plain = Members([network], {"ebops": 1.0}, torch.device("cpu"))
    plain.skeleton.train(training)
    wanted = plain.forward(x, shared=True)[0].squeeze(0)
    # scores of probabilities are known up to what softmax does not see
    assert torch.allclose(found.log_softmax(1), wanted.log_softmax(1), rtol=1e-4, atol=1e-4)
    assert torch.equal(found, wanted) == training
