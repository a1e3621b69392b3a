"""A run is resumed only from files whose fields are all what a run needs; others are named."""

import copy

import pytest
import torch

from chop.training.scalars import COLUMNS, CsvCurves, ResumedAt, read_curves

GONE = object()
ODD = [None, "x", -1, 1.5, [1], {}, {1: 2}, torch.zeros(3), GONE]
STATE, GROUPS = ("optimizer_states", 0, "state"), ("optimizer_states", 0, "param_groups")
PATHS = [
    *(("global_step",), ("state_dict",), ("hyper_parameters",), ("mase",)),
    *(("optimizer_states",), ("optimizer_states", 0), STATE, (*STATE, 0), (*STATE, 0, "exp_avg")),
    *(GROUPS, (*GROUPS, 0), (*GROUPS, 0, "params")),
    *(("mase", name) for name in ("optimizer", "progress", "random")),
    *(("mase", "progress", name) for name in ("epoch", "step", "step_in_epoch", "best_epoch")),
    *(("mase", "progress", "best_loss"), ("mase", "random", "cpu")),
]
# odd here, and what a run may hold there
MEANT = {
    ("hyper_parameters",): [{}],
    ("mase", "progress", "best_loss"): [-1, 1.5],
    ("mase", "progress", "best_epoch"): [-1],
    ("optimizer_states", 0, "state"): [{}],
    ("optimizer_states", 0, "state", 0): [GONE],  # a parameter that nothing was learnt for
}


@pytest.fixture(scope="module")
def saved(small, tmp_path_factory):
    """What a run of one epoch has left."""
    folder = tmp_path_factory.mktemp("run")
    small.training(folder, max_epochs=1).fit()
    return torch.load(folder / "last.ckpt", weights_only=True)


def changed(content, path, value):
    content = copy.deepcopy(content)
    place = content
    for key in path[:-1]:
        place = place[key]
    if value is GONE:
        place.pop(path[-1])
    else:
        place[path[-1]] = value
    return content


def is_meant(path, value):
    return any(value is m or (type(value) is type(m) and value == m) for m in MEANT.get(path, []))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_a_field_of_another_kind_is_refused_and_named(small, saved, tmp_path, path):
    file = tmp_path / "last.ckpt"
    for value in ODD:
        if is_meant(path, value):
            continue
        torch.save(changed(saved, path, value), file)
        with pytest.raises(ValueError, match=f"{file}|the resumed") as error:
            small.training(tmp_path, max_epochs=2).resume(file)
        assert "\n" not in str(error.value)
        assert ";" in str(error.value), "there is advice"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("mase", "progress", "speed"), 3, "mase.progress has the unknown field 'speed'"),
        (("mase", "random", "cpu"), torch.zeros(7, dtype=torch.uint8), "mase.random.cpu"),
        (("mase", "scaler"), 1, "mase.scaler"),
        (("state_dict", "model.2.weight"), torch.zeros(8, 16).to_sparse(), "2.weight is sparse"),
        (("state_dict", "model.2.weight"), torch.zeros(1, 1), "wrong shapes 2.weight"),
        (("state_dict", 7), torch.zeros(1), "state_dict"),
        (("hyper_parameters", "batch_size"), torch.zeros(2), "hyper_parameters.batch_size"),
        (("optimizer_states", 0, "state", 0, "exp_avg"), torch.zeros(1, 2), "optimizer_states"),
        (("optimizer_states", 0, "state", 0, "exp_avg"), GONE, "optimizer_states"),
        (("optimizer_states", 0, "state", 0, "more"), torch.zeros(16), "optimizer_states"),
        # the kernel of the optimiser reads as many numbers of each as the parameter has
        ((*STATE, 0, "exp_avg_sq"), torch.tensor(2.0), r"0\.exp_avg_sq has the shape \[\]"),
        ((*STATE, 0, "step"), torch.zeros(16), r"0\.step has the shape \[16\]"),
        ((*STATE, 0, "exp_avg"), torch.zeros(16).to_sparse(), r"0\.exp_avg is sparse"),
        ((*STATE, 0, "exp_avg"), torch.zeros(16, device="meta"), r"0\.exp_avg has no values"),
        ((*STATE, 0, "exp_avg"), torch.zeros(16, dtype=torch.cfloat), "is of complex64"),
        ((*STATE, 0, "step"), torch.tensor(True), r"0\.step is of bool"),
    ],
)
def test_content_that_does_not_fit_is_refused_and_named(small, saved, tmp_path, path, value, said):
    file = tmp_path / "last.ckpt"
    torch.save(changed(saved, path, value), file)
    with pytest.raises(ValueError, match=said):
        small.training(tmp_path, max_epochs=2).resume(file)


def test_moments_that_share_their_memory_get_memory_of_their_own(small, saved, tmp_path):
    """The kernel of the optimiser would write behind the one number that is stored."""
    file = tmp_path / "last.ckpt"
    one = torch.full((1,), 0.5).expand(16)
    torch.save(changed(saved, (*STATE, 0, "exp_avg"), one), file)
    run = small.training(tmp_path, max_epochs=2)
    run.resume(file)
    moment = run.optimizer.state[run.optimizer.param_groups[0]["params"][0]]["exp_avg"]
    assert moment.is_contiguous()
    assert moment.untyped_storage().nbytes() == 4 * 16
    assert torch.equal(moment, one)


@pytest.mark.parametrize(("name", "value"), [("fused", torch.zeros(3)), ("capturable", "x")])
def test_the_options_of_the_optimiser_are_those_of_this_run(small, saved, tmp_path, name, value):
    file = tmp_path / "last.ckpt"
    torch.save(changed(saved, (*GROUPS, 0, name), value), file)
    run = small.training(tmp_path, max_epochs=2)
    wanted = {k: v for k, v in run.optimizer.param_groups[0].items() if k != "params"}
    run.resume(file)
    found = run.optimizer.param_groups[0]
    assert {name: found[name] for name in wanted} == wanted


def test_nothing_is_changed_by_a_checkpoint_that_is_refused(small, saved, tmp_path):
    file = tmp_path / "last.ckpt"
    torch.save(changed(saved, ("mase", "random", "cpu"), torch.zeros(3)), file)
    run = small.training(tmp_path, max_epochs=2)
    before = {key: value.clone() for key, value in run.model.state_dict().items()}
    with pytest.raises(ValueError, match="random"):
        run.resume(file)
    assert all(torch.equal(value, before[key]) for key, value in run.model.state_dict().items())
    assert not run.optimizer.state
    assert run.progress.step == 0


def test_steps_beyond_the_epoch_end_it(small, saved, tmp_path):
    """Not in an endless wait for batches that never come."""
    file = tmp_path / "last.ckpt"
    torch.save(changed(saved, ("mase", "progress", "step_in_epoch"), 10**6), file)
    run = small.training(tmp_path, max_epochs=2)
    run.resume(file)
    assert run.fit().progress.epoch == 2


# --- curves

HEADER = ",".join(COLUMNS)


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,2\n",
        "epoch,lr\n0,0.1\n",
        f"{HEADER}\n0,x,0.1,,,,,,\n",
        f"{HEADER}\n0,1.5,0.1,,,,,,\n",
        f"{HEADER}\n0,5,fast,,,,,,\n",
        f"{HEADER}\n0,5,0.1,,,,,,,7\n",
        f"{HEADER},more\n0,5,0.1,,,,,,,7\n",
        f"{HEADER}\n0,5,\x00,,,,,,\n",
        f'{HEADER}\n0,5,"{"1" * 200_000}",,,,,,\n',
        b"\xff\xfe\x00a",
        "notes of mine\n",
    ],
)
def test_curves_that_are_not_ours_are_refused_and_left_alone(tmp_path, text):
    file = tmp_path / "metrics.csv"
    content = text if isinstance(text, bytes) else text.encode()
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"metrics\.csv.*; move it away, then `resume`") as error:
        CsvCurves(file, resumed_at=ResumedAt(10, validated=True))
    assert "\n" not in str(error.value)
    assert file.read_bytes() == content


@pytest.mark.parametrize("text", ["", f"{HEADER}\n", f"{HEADER}\n0,5,0.1,0.5,0.5,,,,\n0,7,0."])
def test_curves_that_were_cut_off_are_gone_on_with(tmp_path, text):
    file = tmp_path / "metrics.csv"
    file.write_text(text)
    CsvCurves(file, resumed_at=ResumedAt(10, validated=True)).finalize("success")
    assert [row["step"] for row in read_curves(file)] == ["5"] * ("0,5" in text)


def test_a_nan_is_a_number_of_a_curve(tmp_path):
    (tmp_path / "metrics.csv").write_text(f"{HEADER}\n0,5,0.1,nan,0.5,inf,,,\n")
    assert len(read_curves(tmp_path / "metrics.csv")) == 1
