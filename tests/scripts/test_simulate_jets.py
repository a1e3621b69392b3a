"""The simulation of jets: right observables, and shards that nothing disturbs."""

import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "simulate_jets.py"


@pytest.fixture(scope="module")
def jets():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("simulate_jets", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["simulate_jets"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["simulate_jets"]


@pytest.fixture
def _physics(jets, monkeypatch):
    """As if Pythia and FastJet were installed."""
    monkeypatch.setattr(jets, "physics_version", lambda package: "1.0")


def stub(shard):
    """Rows that say whose they are, and come in the order of their number."""
    pythia_seed, numpy_seed = shard.seeds()
    rows = np.random.default_rng([pythia_seed, numpy_seed]).random((shard.num_jets, 18))
    return rows.astype(np.float32)


# a command line whose simulator is a stub, for tests that need processes
STUBBED = """
    import sys, time
    sys.path.insert(0, {folder!r})
    import numpy as np
    import simulate_jets
    from stub_of_jets import simulate

    if __name__ == "__main__":
        simulate_jets.physics_version = lambda package: "1.0"
        sys.exit(simulate_jets.main(simulate=simulate))
"""
STUB = """
    import time
    import numpy as np

    def simulate(shard):
        time.sleep({seconds})
        random = np.random.default_rng(shard.seeds())
        return random.random((shard.num_jets, 18)).astype(np.float32)
"""


def command(tmp_path, seconds=0.0):
    (tmp_path / "stub_of_jets.py").write_text(textwrap.dedent(STUB.format(seconds=seconds)))
    (tmp_path / "main.py").write_text(textwrap.dedent(STUBBED.format(folder=str(SCRIPT.parent))))
    return [sys.executable, str(tmp_path / "main.py")]


def brute_force(pt, y, phi):
    """Sums over pairs and triples as the formulas read."""

    def distance(i, j):
        around = abs(phi[i] - phi[j])
        return np.hypot(y[i] - y[j], min(around, 2 * np.pi - around))

    z, n = pt / pt.sum(), range(len(pt))
    e2 = np.zeros(3)
    for i, j in itertools.combinations(n, 2):
        e2 += [z[i] * z[j] * distance(i, j) ** beta for beta in (0, 1, 2)]
    e3 = np.zeros((3, 2))
    for i, j, k in itertools.combinations(n, 3):
        sides = sorted([distance(i, j), distance(i, k), distance(j, k)])
        for v, beta in itertools.product((1, 2, 3), (1, 2)):
            e3[v - 1, beta - 1] += z[i] * z[j] * z[k] * np.prod(sides[:v]) ** beta
    return e2, e3


def test_zlogz_by_hand(jets):
    assert jets.zlogz(np.array([50.0, 25.0, 25.0]), 100.0) == pytest.approx(-1.5 * np.log(2))
    assert jets.zlogz(np.array([7.0]), 7.0) == 0
    assert jets.zlogz(np.array([1.0, 0.0]), 1.0) == 0, "a particle without energy adds nothing"


def test_angles_go_the_short_way_around(jets):
    angle = jets.angles(np.array([0.0, 0.3]), np.array([0.1, 2 * np.pi - 0.3]))
    assert angle[0, 1] == angle[1, 0] == pytest.approx(0.5)
    assert angle[0, 0] == 0


def test_ratios_of_three_equal_particles_by_hand(jets):
    """An equilateral triangle of side 0.1: z = 1/3, three pairs, one triple."""
    height = 0.1 * np.sqrt(3) / 2
    ratios = jets.correlation_ratios(
        np.full(3, 5.0), np.array([0, 0.1, 0.05]), np.array([1, 1, 1 + height])
    )
    e2, e3 = [1 / 3, 0.1 / 3, 0.01 / 3], [0.1**3 / 27, 0.1**6 / 27]
    expected = [
        *e2,
        e3[0] / e2[1] ** 2,  # C2
        e3[1] / e2[2] ** 2,
        1.0,  # D2 = (1/27) / (1/3)^3, for β = 1, 2 and for α = 1 with β = 1
        1.0,
        1.0,
        1 / 27 / (1 / 3) ** 1.5,  # α = 1, β = 2
        1 / 9,  # M2 = (0.1/27) / (0.1/3)
        1 / 9,
        1 / 3,  # N2 = (0.01/27) / (0.1/3)^2
        1 / 3,
    ]
    assert ratios == pytest.approx(expected)
    assert len(ratios) == len(jets.FEATURES) - 3


def test_ratios_of_an_uneven_triangle_by_hand(jets):
    """Sides 0.3, 0.4, 0.5; pT 2, 1, 1: M2 takes the shortest side, N2 the two shortest."""
    ratios = jets.correlation_ratios(
        np.array([2.0, 1, 1]), np.array([0, 0.3, 0]), np.array([2, 2, 2.4])
    )
    e2 = 0.125 * 0.3 + 0.125 * 0.4 + 0.0625 * 0.5
    named = dict(zip(jets.FEATURES[1:14], ratios, strict=True))
    zzz = 0.5 * 0.25 * 0.25
    assert named["c1_b0_mmdt"] == pytest.approx(0.3125)
    assert named["c1_b1_mmdt"] == pytest.approx(e2)
    assert named["m2_b1_mmdt"] == pytest.approx(zzz * 0.3 / e2)
    assert named["n2_b1_mmdt"] == pytest.approx(zzz * 0.3 * 0.4 / e2**2)
    assert named["c2_b1_mmdt"] == pytest.approx(zzz * 0.3 * 0.4 * 0.5 / e2**2)
    assert named["d2_b1_mmdt"] == pytest.approx(zzz * 0.3 * 0.4 * 0.5 / e2**3)


@pytest.mark.parametrize("num", [3, 4, 11])
def test_vectorised_sums_equal_the_formulas(jets, num):
    random = np.random.default_rng(num)
    pt, y, phi = random.random(num) + 0.1, random.normal(size=num), random.random(num) * 2 * np.pi
    e2, e3 = brute_force(pt, y, phi)
    z, angle = pt / pt.sum(), jets.angles(y, phi)
    np.testing.assert_allclose(jets.two_point(z, angle), e2)
    np.testing.assert_allclose(jets.three_point(z, angle), e3)


def test_ratios_are_undefined_without_three_particles_or_any_distance(jets):
    assert jets.correlation_ratios(np.ones(2), np.array([0, 1.0]), np.zeros(2)) is None
    assert jets.correlation_ratios(np.ones(3), np.zeros(3), np.zeros(3)) is None


def tree(pt, *parents):
    return SimpleNamespace(pt=lambda: pt, parents=parents or None)


def test_grooming_drops_soft_branches_and_stops_at_the_first_hard_one(jets):
    def parents(jet):
        return jet.parents

    prong = tree(60.0, tree(35.0), tree(25.0))
    decay = tree(100.0, tree(40.0), prong)
    assert jets.mmdt(tree(108.0, tree(8.0), tree(105.0, decay, tree(5.0))), parents) is decay
    assert jets.mmdt(prong, parents) is prong
    alone = tree(10.0)
    assert jets.mmdt(tree(10.5, alone, tree(0.5)), parents) is alone
    on_the_cut = tree(10.0, tree(9.0), tree(1.0))
    assert jets.mmdt(on_the_cut, parents).pt() == 9.0, "a tenth is not enough"


def test_the_decay_angle_is_that_of_the_boson_at_rest(jets):
    """A boson of mass 80 with momentum 60 along z: γ = 1.25, βγ = 0.75."""
    boson = np.array([0, 0, 60.0, 100.0])
    for cosine in (-1.0, 0.0, 0.6, 1.0):
        px, pz = 40 * np.sqrt(1 - cosine**2), 40 * cosine
        quark = np.array([px, 0, 1.25 * pz + 0.75 * 40, 1.25 * 40 + 0.75 * pz])
        assert jets.decay_cosine(boson, quark) == pytest.approx(cosine, abs=1e-9)


def test_bosons_are_taken_so_that_they_decay_evenly(jets):
    jet = SimpleNamespace(eta=lambda: 0.0, phi_std=lambda: 3.1)
    near, far = (0.1, -3.1, 1.0), (2.0, 0.0, 0.0)
    assert jets.isotropy(jet, [far, near], 0.4) == pytest.approx(0.5)
    assert jets.isotropy(jet, [far], 0.4) == pytest.approx(np.pi / 4)


def test_a_plan_has_all_jets_of_all_classes(jets):
    settings = jets.Settings(seed=3, shard_size=40, radius=0.4)
    plan = jets.plan(100, settings)
    assert [shard.name for shard in plan[:6]] == [
        "g-00000", "q-00000", "t-00000", "w-00000", "z-00000", "g-00001",
    ]  # fmt: skip
    assert [shard.num_jets for shard in plan if shard.jet_class == "w"] == [40, 40, 20]
    seeds = {shard.seeds() for shard in plan}
    assert len(seeds) == len(plan)
    assert all(0 < pythia_seed < 900_000_000 for pythia_seed, _ in seeds)


@pytest.mark.usefixtures("_physics")
def test_the_file_has_the_layout_of_jsc_sim(jets, tmp_path, capsys):
    from chop.dataset import jsc_sim

    out = tmp_path / "jets.npz"
    assert jets.main([str(out), "--jets", "7", "--shard-size", "3", "--processes", "1"], stub) == 0
    with np.load(out) as mine, np.load(jsc_sim.FILE) as shipped:
        assert set(mine) == set(shipped)
        for name in mine:
            assert mine[name].dtype == shipped[name].dtype, name
            assert mine[name].shape[1:] == shipped[name].shape[1:], name
        assert np.array_equal(mine["features"], shipped["features"])
        assert np.array_equal(mine["classes"], shipped["classes"])
        assert np.bincount(mine["y"]).tolist() == [7] * 5
        np.testing.assert_allclose(mine["scaler_mean"], mine["X"].mean(0), rtol=1e-5)
        np.testing.assert_allclose(mine["scaler_scale"], mine["X"].std(0), rtol=1e-5)
    said = capsys.readouterr().err
    assert "[15/15]" in said
    assert "35 simulated jets" in said


@pytest.mark.usefixtures("_physics")
def test_finished_shards_are_kept_and_only_the_rest_is_made(jets, tmp_path):
    out, made = tmp_path / "jets.npz", []

    def counting(shard):
        made.append(shard.name)
        return stub(shard)

    def run(count):
        made.clear()
        options = ["--jets", str(count), "--shard-size", "3", "--processes", "1"]
        assert jets.main([str(out), *options], counting) == 0
        with np.load(out) as file:
            return {tuple(row) for row in file["X"]}

    six = run(6)
    assert len(made) == 10
    assert run(6) == six
    assert made == []
    seven = run(7)
    assert made == [f"{name}-00002" for name in "gqtwz"]
    assert six < seven
    assert seven < run(9)
    assert made == [f"{name}-00002" for name in "gqtwz"], "the short shards are made whole"

    shards = tmp_path / "jets.npz.shards"
    (shards / "t-00001.npy").write_bytes((shards / "t-00001.npy").read_bytes()[:100])
    (shards / "w-00000.npy").unlink()
    (shards / "z-00000.npy").write_bytes(b"")
    run(9)
    assert sorted(made) == ["t-00001", "w-00000", "z-00000"]


@pytest.mark.usefixtures("_physics")
def test_shards_of_other_settings_do_not_mix(jets, tmp_path, capsys):
    out = [str(tmp_path / "jets.npz"), "--jets", "2", "--processes", "1"]
    assert jets.main(out, stub) == 0
    assert jets.main([*out, "--seed", "5", "--radius", "0.8"], stub) == 1
    said = capsys.readouterr().err
    assert "were made with seed 0, not 5; radius 0.4, not 0.8" in said
    assert "another folder with --shards" in said
    assert jets.main([*out, "--seed", "5", "--shards", str(tmp_path / "others")], stub) == 0
    assert json.loads((tmp_path / "others" / "settings.json").read_text())["seed"] == 5


@pytest.mark.usefixtures("_physics")
def test_merging_takes_what_is_finished(jets, tmp_path, capsys):
    out = [str(tmp_path / "jets.npz"), "--shard-size", "2", "--processes", "1"]
    assert jets.main([*out, "--jets", "2", "--merge"], stub) == 1
    assert "no finished shard" in capsys.readouterr().err
    assert jets.main([*out, "--jets", "2"], stub) == 0
    assert jets.main([*out, "--jets", "1000", "--merge"], stub) == 0
    assert "10 simulated jets" in capsys.readouterr().err


@pytest.mark.usefixtures("_physics")
def test_a_failure_is_told_and_leaves_no_half_shard(jets, tmp_path, capsys):
    def failing(shard):
        if shard.jet_class == "t":
            raise RuntimeError("Pythia failed 100 times in a row")
        return stub(shard)

    out = tmp_path / "jets.npz"
    assert jets.main([str(out), "--jets", "2", "--processes", "1"], failing) == 1
    assert "simulate_jets: Pythia failed" in capsys.readouterr().err
    assert not out.exists()
    names = {file.name for file in (tmp_path / "jets.npz.shards").iterdir()}
    assert names == {"settings.json", "g-00000.npy", "q-00000.npy"}


def test_a_file_is_replaced_only_when_the_new_one_is_whole(jets, tmp_path):
    def breaks(file):
        file.write(b"half")
        raise OSError("disk full")

    (tmp_path / "old").write_text("whole")
    with pytest.raises(OSError, match="disk full"):
        jets.write(tmp_path / "old", breaks)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["whole"]


@pytest.mark.slow
def test_processes_do_not_change_the_jets(tmp_path):
    run = [*command(tmp_path), "--jets", "5", "--shard-size", "2"]
    files = {}
    for processes in ("1", "3"):
        out = tmp_path / f"{processes}.npz"
        subprocess.run([*run, str(out), "--processes", processes], check=True, capture_output=True)
        with np.load(out) as file:
            files[processes] = dict(file)
    for name, array in files["1"].items():
        assert np.array_equal(array, files["3"][name]), name


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="sends a POSIX signal")
def test_an_interrupted_run_keeps_its_shards_and_goes_on(tmp_path):
    out, shards = tmp_path / "jets.npz", tmp_path / "jets.npz.shards"
    run = [*command(tmp_path, seconds=0.05), str(out), "--jets", "4", "--shard-size", "1"]
    with subprocess.Popen([*run, "--processes", "2"], stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not list(shards.glob("*.npy")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGINT
    assert "the same command goes on with what is missing" in said
    assert "Traceback" not in said
    finished = len(list(shards.glob("*.npy")))
    assert 0 < finished < 20
    again = subprocess.run([*run, "--processes", "1"], check=True, capture_output=True, text=True)
    assert f"{finished} of 20 shards are finished already" in again.stderr
    assert "20 simulated jets" in again.stderr


def test_a_missing_extra_is_named(jets, tmp_path, monkeypatch, capsys):
    def absent(package):
        raise jets.importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(jets.importlib.metadata, "version", absent)
    assert jets.main([str(tmp_path / "jets.npz"), "--jets", "1"]) == 1
    assert "needs pythia8mc: .venv/bin/pip install -c constraints.txt" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["jets.npz"], "--jets"),
        (["jets.npz", "--jets", "0"], "at least 1, not 0"),
        (["jets.csv", "--jets", "1"], "ends in .npz, not '.csv'"),
        (["jets.npz", "--jets", "1", "--seed", "-1"], "--seed is at least 0"),
    ],
)
def test_wrong_usage_is_refused(jets, capsys, arguments, reason):
    with pytest.raises(SystemExit) as left:
        jets.main(arguments)
    assert left.value.code == 2
    assert reason in capsys.readouterr().err


def test_help_teaches(jets, capsys):
    with pytest.raises(SystemExit):
        jets.main(["--help"])
    said = capsys.readouterr().out
    for lesson in ("examples:", "Call the same", "layout of the data set jsc-sim", "default: 200"):
        assert lesson.lower() in said.lower(), lesson


def test_real_jets_look_like_the_shipped_ones(tmp_path):
    pytest.importorskip("pythia8mc", reason="needs the extra physics")
    pytest.importorskip("fastjet", reason="needs the extra physics")
    from chop.dataset import jsc_sim

    out = tmp_path / "jets.npz"
    run = [sys.executable, SCRIPT, out, "--jets", "8", "--processes", "2"]
    subprocess.run(run, check=True, capture_output=True)
    with np.load(out) as mine, np.load(jsc_sim.FILE) as shipped:
        assert np.bincount(mine["y"]).tolist() == [8] * 5
        assert np.isfinite(mine["X"]).all()
        low, high = shipped["X"].min(0), shipped["X"].max(0)
        inside = (mine["X"] >= low) & (mine["X"] <= high)
        assert inside.mean() > 0.99
        # of 40 jets, the mean of a feature is known to its deviation / √40
        off = (mine["X"].mean(0) - shipped["scaler_mean"]) / shipped["scaler_scale"]
        assert np.abs(off).max() < 5 / np.sqrt(40)
