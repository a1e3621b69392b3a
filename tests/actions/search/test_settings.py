"""The file of a search, the files that it leaves, and where it keeps its study."""

import copy
import importlib.util
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chop.actions.config import ConfigError
from chop.actions.search.metrics.objectives import Front, Objectives, dominates
from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.results.files import Results
from chop.actions.search.results.table import front_table, short_names, spread
from chop.actions.search.samplers.base import STRATEGIES, Strategy
from chop.actions.search.space.choices import Choices, OneOf, Parameter, unflatten_dict
from chop.actions.search.spec.settings import settings_of
from chop.actions.search.store.errors import StorageError
from chop.actions.search.store.study_store import StudyStore

from .conftest import tables

GOOD = tables()
GOOD["search_space"] = {"name": "graph/quantize", "seed": {}}


def changed(path, value):
    """The good file with one thing in it that is wrong."""
    table = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    place = table
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    return table


def test_the_good_file_is_good():
    settings = settings_of(GOOD)
    assert settings.sampler == "tpe"
    assert settings.n_trials == 20
    assert settings.objectives.directions == ("maximize", "minimize")


WRONG = {
    "colour": (1, "search has no key 'colour'"),
    "search_space": (3, r"\[search.search_space\]"),
    "strategy": ("tpe", r"\[search.strategy\]"),
    "search_space.sed": ({}, "did you mean 'seed'"),
    "strategy.metrik": ({}, "did you mean 'metrics'"),
    "strategy.name": ("optina", "search.strategy.name 'optina'; did you mean 'optuna'"),
    "strategy.sw_runner": (3, "holds tables of runners"),
    "strategy.sw_runner.basic_evaluaton": ({}, "did you mean 'basic_evaluation'"),
    "strategy.sw_runner.basic_evaluation": (3, "must be a table of options"),
    "strategy.sw_runner.basic_evaluation.num_samples": (0, "greater than or equal to 1"),
    "strategy.sw_runner.basic_evaluation.num_sample": (8, "did you mean 'num_samples'"),
    "strategy.sw_runner.average_bitwidth": ({}, "move it to search.strategy.hw_runner"),
    "strategy.setup": (3, "setup must be a table"),
    "strategy.setup.n_trails": (3, "did you mean 'n_trials'"),
    "strategy.setup.n_jobs": (0, "n_jobs: should be greater than or equal to 1"),
    "strategy.setup.n_trials": (0, "n_trials: should be greater than or equal to 1"),
    "strategy.setup.timeout": (-1, "timeout: should be greater than or equal to 0"),
    "strategy.setup.trial_timeout": ("long", "trial_timeout: should be a valid number"),
    "strategy.setup.in_flight": (1.5, "in_flight: should be a valid integer"),
    "strategy.setup.fail_fast": (1, "fail_fast: should be a valid boolean"),
    "strategy.setup.retries": (True, "retries: should be a valid integer"),
    "strategy.setup.threads": (0, "threads: should be greater than or equal to 1"),
    "strategy.setup.sampler": ("tpa", "did you mean 'tpe'"),
    "strategy.setup.sampler_options": (3, "sampler_options: should be a table"),
    "strategy.setup.sampler_options.n_startup_trial": (3, "did you mean 'n_startup_trials'"),
    "strategy.setup.sampler_options.n_startup_trials": ("ten", "n_startup_trials: should be a val"),
    "strategy.setup.sampler_options.multivariate": (3, "multivariate: should be a valid boolean"),
    "strategy.setup.sampler_options.seed": (3, "has no key 'seed'; set the seed of the search"),
    "strategy.setup.sum_scaled_metrics": ("yes", "sum_scaled_metrics: should be a valid boolean"),
    "strategy.setup.direction": ("up", "direction must be maximize or minimize"),
    "strategy.setup.honour_directions": (0, "honour_directions: should be a valid boolean"),
    "strategy.setup.pkl_ckpt": ("a.pkl", "names a pickle"),
    "strategy.metrics": ({}, "has no objectives"),
    "strategy.metrics.accuracy": (1.0, "must be a table with scale and direction"),
    "strategy.metrics.accuracy.scale": (0, "scale must be a number other than 0"),
    "strategy.metrics.accuracy.scal": (1, "did you mean 'scale'"),
    "strategy.metrics.accuracy.direction": ("up", "direction must be maximize or minimize"),
    "strategy.metrics.latency": ({}, "no runner measures 'latency'"),
    "strategy.metrics.acuracy": ({}, "measures 'acuracy'; did you mean 'accuracy'"),
    "strategy.constraints": ("average_bitwidth <= 6", "must be a list of texts"),
    "strategy.early_stopping": (3, "must be a table with margin and warmup"),
    "strategy.early_stopping.margin": (0.1, "margin must give the possible improvement"),
    "strategy.early_stopping.margin.acuracy": (0.1, "margin has no key 'acuracy'; did you mean"),
    "strategy.early_stopping.margin.accuracy": (0.1, "but no runner trains; add a table"),
    "strategy.early_stopping.warmup": (0, "warmup must be a positive integer"),
    "retrain": (3, "search.retrain must be a table of options"),
    "retrain.designs": ("all", "search.retrain.designs"),
    "retrain.max_epochs": (0, "search.retrain.max_epochs: should be greater"),
    "retrain.epochs": (3, "search.retrain has no key 'epochs'"),
}


@pytest.mark.parametrize("path", WRONG)
def test_every_key_is_refused_where_it_is_wrong(path):
    value, said = WRONG[path]
    with pytest.raises(ConfigError, match=said) as caught:
        settings_of(changed(path, value))
    assert "\n" not in str(caught.value).strip()


@pytest.mark.parametrize("name", sorted(n for n, cls in STRATEGIES.items() if cls.chooses))
def test_every_sampler_knows_its_options(name):
    setup = {"sampler": name, "sampler_options": {"colour": 3}}
    with pytest.raises(ConfigError, match="sampler_options has no key 'colour'"):
        settings_of(changed("strategy.setup", setup))
    assert "seed" not in STRATEGIES[name].options()


def test_a_sampler_of_ones_own_may_have_options_besides_optunas():
    class Mine(STRATEGIES["tpe"]):
        def __init__(self, context, *, warmth: float = 0.5, **options):
            super().__init__(context, **options)

    assert Mine.options()["warmth"] is float
    assert Mine.options()["n_startup_trials"] is int
    assert Mine.options()["multivariate"] == bool | None


class Warm(Strategy):
    def __init__(self, context, warmth: float = 0.5):
        super().__init__(context)


class HandsOn(Warm):
    def __init__(self, context, **options):
        super().__init__(context, **options)


class TakesAny(Strategy):
    def __init__(self, context, **options):
        super().__init__(context)


class Vague(Strategy):
    def __init__(self, context, *, warmth: "NotImported" = 3):  # noqa: F821
        super().__init__(context)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        (Strategy, {}),
        (Warm, {"warmth": float}),
        (HandsOn, {"warmth": float}),
        (TakesAny, None),
        (Vague, {"warmth": Any}),
    ],
)
def test_the_options_of_a_strategy_are_the_arguments_that_it_takes(strategy, options):
    assert strategy.options() == options
    settings = changed("strategy.setup", {"sampler_options": {"warmth": 1}})
    if strategy is Strategy:
        with pytest.raises(ConfigError, match="has no key 'warmth'"):
            settings_of(settings, own=strategy)
    else:
        assert settings_of(settings, own=strategy).sampler_options == {"warmth": 1}


@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_a_scale_that_is_not_finite_is_refused(scale):
    with pytest.raises(ConfigError, match="scale must be a number other than 0"):
        settings_of(changed("strategy.metrics.accuracy.scale", scale))


@pytest.mark.parametrize(
    "text", ["average_bitwidth", "average_bitwidth = 6", "average_bitwidth <= six", 3, "<= 6"]
)
def test_a_constraint_is_a_sentence(text):
    with pytest.raises(ConfigError, match="is not a valid constraint; use for example"):
        settings_of(changed("strategy.constraints", [text]))


def test_a_constraint_is_on_a_metric_that_somebody_gives():
    with pytest.raises(ConfigError, match="no runner measures 'bitops'; bitops does"):
        settings_of(changed("strategy.constraints", ["bitops <= 6"]))


def test_all_that_is_wrong_is_said_at_once():
    table = changed("strategy.setup.n_trials", 0)
    table["colour"] = 1
    with pytest.raises(ConfigError) as caught:
        settings_of(table)
    assert "n_trials" in str(caught.value)
    assert "colour" in str(caught.value)


def test_keys_of_the_labs_that_mean_nothing_here_are_taken():
    table = changed("strategy.setup.model_parallel", False)
    table["strategy"]["setup"] |= {"runner_style": "lazy", "save_every_n_trials": 10}
    settings_of(table)


# --- the files


CHOICES = Choices(
    [
        Parameter("fc1/config/name", OneOf(("integer", None))),
        Parameter("fc1/config/weight_width", OneOf((2, 4)), "fc1/config/name", ("integer",)),
    ]
)


@pytest.fixture
def results(tmp_path):
    """Three designs, one of which failed and two of which nobody beats."""
    objectives = settings_of(GOOD).objectives
    record = StudyStore(str(tmp_path / "j"), "s", objectives.directions, CHOICES)
    for number, (accuracy, bits) in enumerate([(1 / 3, 2.0), (None, None), (0.7, 32.0)]):
        outcome = Outcome(number, "FAIL", started=1e9, seconds=0.5, error="Traceback\nE: no")
        if accuracy is not None:
            outcome = Outcome(
                number,
                "COMPLETE",
                values=(accuracy, bits),
                software={"accuracy": accuracy, "loss": float("nan"), "a": "x" * 30},
                hardware={"average_bitwidth": bits},
                scaled={"accuracy": accuracy, "average_bitwidth": bits},
                started=1e9,
                seconds=0.25,
            )
        chosen = CHOICES.nth(number)
        record.add(chosen, {}, outcome)
    return Results(record, objectives, unflatten_dict)


def test_the_files_have_the_layout_of_the_labs(results, tmp_path, golden):
    results.write(tmp_path, {"seed": 1}, {"by": "name", "accelerator": "cpu"})
    golden("best.json", (tmp_path / "best.json").read_text())
    golden("log.json", (tmp_path / "log.json").read_text())
    for name in ("best.json", "log.json", "search.json"):
        json.loads((tmp_path / name).read_text(), parse_constant=pytest.fail)


def test_the_study_can_be_read_by_optuna(results, tmp_path):
    import pickle

    results.write(tmp_path, {}, {})
    study = pickle.loads((tmp_path / "study.pkl").read_bytes())
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert [trial.number for trial in study.best_trials] == [0, 2]


def test_the_table_of_the_log(results, golden):
    golden("table.txt", results.table() + "\n")


def outcome(number, accuracy, **hardware):
    software = {"accuracy": accuracy}
    return Outcome(number, "COMPLETE", software=software, hardware=hardware)


def test_a_table_shows_the_metrics_and_what_differs_between_designs(golden):
    trials = [outcome(7, 0.71234, bitops=332064.0), outcome(31, 0.25, bitops=1016.0)]
    keys = [f"fc{i}/config/{key}" for i in (1, 2) for key in ("name", "weight_width", "bias_width")]
    designs = {
        7: dict(zip(keys, ["integer", 8, 4, "integer", 6, 4], strict=True)),
        31: dict(zip(keys, ["integer", 2, 4, None, 6, 4], strict=True)) | {"rate": 0.123456},
    }
    parent = {"accuracy": 0.72, "bitops": 5_772_064.0}
    golden("front.txt", front_table(trials, designs, ["accuracy", "bitops"], parent) + "\n")


def test_a_table_names_the_layers_and_skips_operands_that_they_lack():
    trials = [outcome(n, 0.5 + n / 8) for n in range(3)]
    keys = ("data_in_width", "weight_width", "bias_width")
    names = ("net_blocks_0_fc", "net_blocks_1_fc", "net_relu")
    designs = {
        n: {f"{name}/config/{key}": 2 + n * i for i, key in enumerate(keys, 1) for name in names}
        for n in range(3)
    }
    operands = {"net_relu": ("data_in",), "net_blocks_1_fc": ("data_in", "weight")}
    head, _, *rows, legend = front_table(trials, designs, [], None, operands).splitlines()
    assert head.split() == ["trial", "accuracy", "blocks_0_fc", "blocks_1_fc", "relu"]
    assert rows[1].split()[2:] == ["3/4/5", "3/4/–", "3/–/–"]
    assert legend == "Of each layer: data_in/weight/bias widths"
    only_relu = {n: {k: v for k, v in d.items() if "_1_" in k} for n, d in designs.items()}
    legend = front_table(trials, only_relu, [], None, operands).splitlines()[-1]
    assert legend == "Of each layer: data_in/weight widths"


def test_layers_without_room_are_counted():
    trials = [outcome(n, 0.5) for n in range(2)]
    designs = {n: {f"block_{i}_conv1/config/width": n for i in range(30)} for n in range(2)}
    lines = front_table(trials, designs, []).splitlines()
    shown = lines[0].split()[2:]
    assert shown[:2] == ["block_0_conv1", "block_1_conv1"]
    assert lines[-1] == f"Of each layer: width ({30 - len(shown)} more layers do not fit)"


def test_names_of_layers_are_as_short_as_they_stay_different():
    paths = [
        "net.0",
        "net.1",
        "a_very_long_name_of_block_10_proj",
        "a_very_long_name_of_block_11_proj",
    ]
    assert list(short_names(paths).values()) == ["net.0", "net.1", "block_10_proj", "block_11_proj"]
    (cut,) = short_names(["averyveryverylongword12"]).values()
    assert cut == "averyve…gword12"


@pytest.mark.parametrize("layers", [1, 10, 200])
@pytest.mark.parametrize("metrics", [1, 6, 40])
def test_a_table_of_any_search_is_at_most_100_characters_wide(layers, metrics):
    hardware = {f"a_metric_with_quite_a_long_name_{i}": 10.0**i for i in range(metrics)}
    trials = [outcome(10**n, 0.5, **hardware) for n in range(6)]
    designs = {t.number: {f"fc{i}/config/width": t.number for i in range(layers)} for t in trials}
    for objectives in (["accuracy"], ["accuracy", *list(hardware)[:4]]):
        lines = front_table(trials, designs, objectives).splitlines()
        assert lines[8:] == [line for line in lines if line.startswith("Of each layer: width")]
        assert len(lines) in (8, 9)
        assert max(map(len, lines)) <= 100
        assert lines[0].split()[:2] == ["trial", "accuracy"]


def test_the_front_begins_with_the_best_of_the_first_objective(results):
    rows = [line.split() for line in results.table().splitlines()[2:4]]
    assert [row[0] for row in rows] == ["2", "0"], "0.7 before 0.333"


def test_of_a_long_front_both_ends_are_shown():
    trials = [outcome(n, n / 50) for n in range(50)]
    shown = [trial.number for trial in spread(trials, 20)]
    assert (len(shown), shown[0], shown[-1]) == (20, 0, 49)
    assert [trial.number for trial in spread(trials, 1)] == [0]


def test_one_objective_is_called_value(tmp_path):
    objectives = Objectives(settings_of(GOOD).objectives.members, "maximize")
    record = StudyStore(str(tmp_path / "j"), "s", objectives.directions, CHOICES)
    record.add(CHOICES.nth(0), {}, Outcome(0, "COMPLETE", values=(0.5,)))
    found = Results(record, objectives, unflatten_dict)
    found.write(tmp_path, {}, {})
    assert json.loads((tmp_path / "log.json").read_text())["0"]["value"] == 0.5
    assert json.loads((tmp_path / "best.json").read_text())["0"]["value"] == [0.5]


def test_many_trials_of_one_design_are_one_row(tmp_path):
    objectives = settings_of(GOOD).objectives
    record = StudyStore(str(tmp_path / "j"), "s", objectives.directions, CHOICES)
    for number in range(6):
        out = Outcome(number, "COMPLETE", values=(0.5 + number % 2, 3.0 + number % 2))
        record.add(CHOICES.nth(number % 2), {}, out)
    assert [out.number for out in Results(record, objectives, unflatten_dict).best] == [0, 1]


points = st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2), st.integers(-2, 2)))


@given(points)
def test_the_front_is_what_nobody_beats(costs):
    costs = [tuple(map(float, point)) for point in costs]
    front = Front()
    for number, point in enumerate(costs):
        front.add(number, point)
    best = [n for n, point in enumerate(costs) if not any(dominates(c, point) for c in costs)]
    assert front.numbers == best
    assert set(front.costs) == {costs[n] for n in best}
    assert len(front.costs) == len(set(front.costs))


# --- --apply


@pytest.mark.slow
def test_a_design_that_was_found_can_be_applied(searches):
    config = searches.config("n_trials = 6")
    searches.run(config)
    said = searches.run(config, "--apply", "best")
    chosen = json.loads((searches.results() / "search.json").read_text())["chosen"]
    assert f"Applying trial {chosen}" in said
    assert (searches.results() / f"trial_{chosen}").is_dir()
    searches.run(config, "--apply", 0)
    assert (searches.results() / "trial_0").is_dir()
    for wrong in ("6", "worst", "-1", "1.0"):
        said = searches.run(config, f"--apply={wrong}", check=2)
        assert f"--apply {wrong}: use best, or the number of a complete trial" in said
        assert "complete trials: 0, 1, 2, 3, 4, 5" in said


@pytest.mark.slow
def test_a_design_of_a_population_can_be_applied_and_its_study_goes_on_as_it_was(searches):
    config = searches.config("n_trials = 3")
    trained = "population_train]\npopulation = 3\nmax_steps = 3\n"
    before, _, rest = config.read_text().partition("basic_evaluation]\n")
    config.write_text(before + trained + rest[rest.index("\n[") + 1 :])
    searches.run(config)
    assert "Applying trial" in searches.run(config, "--apply", "best")
    said = searches.run(config, "--resume", "--batch-size", 77, check=2)
    assert "its batch_size is" in said


@pytest.mark.slow
def test_what_is_wrong_whatever_the_network_is_said_before_a_parent_is_trained(searches):
    config = searches.config("n_trials = 3")
    wrong = searches.folder / "w.toml"
    wrong.write_text(config.read_text().replace("graph/quantize", "graph/quantise"))
    cases = [
        (wrong, (), "unknown search space"),
        (config, ("--storage", "sqlite:/study.db"), "is not a supported storage"),
        (config, ("--storage", "sqlite:///no/study.db"), "directory no does not exist; create it"),
        (config, ("--storage", "."), "is a directory; name a file in it"),
        (config, ("--accelerator", "cuda:99"), "accelerator"),
    ]
    for file, flags, expected in cases:
        said = searches.run(file, *flags, check=2)
        assert expected in said
        assert "Traceback" not in said
        assert not searches.results().exists()


@pytest.mark.slow
def test_there_has_to_be_a_search_to_apply(searches):
    said = searches.run(searches.config("n_trials = 6"), "--apply", "best", check=2)
    assert "Traceback" not in said
    assert said.strip().splitlines()[-1].startswith("ch: ")
    assert not list(searches.results().glob("*.journal"))


# --- storages

WITH_PSYCOPG = pytest.mark.skipif(
    importlib.util.find_spec("psycopg") is None, reason="needs psycopg: run `make test-all`"
)


STORAGES = {
    "mysql://me:secret@h:1/db": "not a supported storage; use .*sqlite:///study.db, or postgresql",
    "sqlite:////nowhere/at/all/study.db": "unable to open database file",
    "delphi://me:secret@there/db": "delphi.* is not a supported storage",
    "://": "is not a supported storage",
    "/dev/null/study": "cannot be read or written",
    "postgresql://me:secret/db": "me:[*]{3} is not a valid URL .*int.*'[*]{3}'",
    "postgresql://me:se@secret@127.0.0.1:1/db": "write an @ in the password as %40",
    "postgresql:/me:secret@host": "postgresql:/me:[*]{3}@host is not a supported storage",
    "me:secret@host": "me:[*]{3}@host is not a supported storage",
}
SERVERS = {
    "postgresql://me:secret@127.0.0.1:1/db": "cannot be read or written: connection",
    "postgresql://me:secret@127.0.0.1:port/db": "port",
    "postgresql://me:{secret}@127.0.0.1:1/db": "cannot be read or written: connection",
    "postgresql://a@b:secret@127.0.0.1:1/db": "a@b:[*]{3}@127.0.0.1:1/db cannot be read",
    "postgresql://127.0.0.1:1/db?password=secret": "password=[*]{3} cannot be read",
}


@pytest.mark.parametrize(
    ("url", "said"),
    [*STORAGES.items(), *(pytest.param(*case, marks=WITH_PSYCOPG) for case in SERVERS.items())],
)
def test_a_storage_that_is_not_there_is_one_sentence(url, said):
    with pytest.raises((StorageError, ValueError), match=said) as caught:
        StudyStore(url, "s", ("maximize",), CHOICES)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_driver_that_is_missing_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ValueError, match=r'pip install -c constraints.txt -e "\.\[postgres\]"'):
        StudyStore("postgresql://me@127.0.0.1:1/db", "s", ("maximize",), CHOICES)


def test_a_study_of_other_objectives_is_not_gone_on_with(tmp_path):
    StudyStore(str(tmp_path / "j"), "s", ("maximize",), CHOICES).close()
    with pytest.raises(ValueError, match=r"has 1 objectives \(maximize\), unlike this file"):
        StudyStore(str(tmp_path / "j"), "s", ("maximize", "minimize"), CHOICES)


def test_a_study_that_is_not_there_is_not_made(tmp_path):
    for url in (f"sqlite:///{tmp_path}/typo.db", f"{tmp_path}/typo.journal"):
        with pytest.raises(ConfigError, match=r"there is no study 's' in .*typo\.\w+; correct"):
            StudyStore(url, "s", ("maximize",), CHOICES, write=False)
    assert not list(tmp_path.iterdir())
    there = f"sqlite:///{tmp_path}/there.db"
    StudyStore(there, "s", ("maximize",), CHOICES).close()
    with pytest.raises(ConfigError, match=r"no study 'other' in .*; correct --storage and --study"):
        StudyStore(there, "other", ("maximize",), CHOICES, write=False)
    StudyStore(there, "s", ("maximize",), CHOICES, write=False).close()
