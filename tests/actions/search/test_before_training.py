"""What is wrong with a search is said before a parent is trained for it."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from chop.actions.search.spec import parent as parents

EXAMPLES = Path(__file__).parents[3] / "configs/examples"
QUICKSTART = (EXAMPLES / "quickstart.toml").read_text()

# what a user gets wrong -> (what is written for what, what is said)
WRONG = {
    "a key of a format": (
        ("weight_width", "weight_widht"),
        "batch_norm1d.config.weight_widht is not a key of integer; did you mean 'weight_width'",
    ),
    "a format": (('"integer"', '"intger"'), "did you mean 'integer'"),
    "a fraction width": (
        ('data_in_frac_width = ["calibrated"]', 'data_in_frac_width = ["calibratde"]'),
        "must be a number or 'calibrated', not 'calibratde'; did you mean 'calibrated'?",
    ),
    "an option of calibrate": (
        (
            "[search.search_space.setup]",
            "[search.search_space.calibrate]\nnum_sample = 9\n[search.search_space.setup]",
        ),
        "search.search_space.calibrate: pass 'calibrate' has no option 'num_sample'; did you",
    ),
    "an op": (("seed.linear", "seed.linaer"), "'linaer'; did you mean 'linear'"),
    "the default": (("seed.default", "seed.defualt"), "'defualt'; did you mean 'default'"),
    "a value": (("weight_width = [2, 3", "weight_width = [2, 300"), "weight_width = 300: pass"),
    "a node": (('by = "type"', 'by = "name"'), "the search space is empty"),
    "constraints": (
        (
            "[search.strategy.metrics]",
            "[search.strategy]\nconstraints = ['average_bitwidth <= 4', 'average_bitwidth > 5']",
        ),
        "average_bitwidth <= 4 and average_bitwidth > 5 contradict each other",
    ),
    "a sampler's option": (("population_size = 40", "population_size = 1"), "sampler_options: "),
    "a sampler for one goal": (('"nsgaii"', '"cmaes"'), "supports one objective, not 2"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_is_wrong_costs_no_training(here, tmp_path, case):
    (right, wrong), sentence = WRONG[case]
    text = QUICKSTART.replace(right, wrong)
    if case == "constraints":
        text += "[search.strategy.metrics]\naccuracy.scale = 1\n"
        text = text.replace('accuracy.direction = "maximize"\nbitops.direction = "minimize"\n', "")
    if case == "a sampler for one goal":
        text = text.replace("sampler_options.population_size = 40", "")
    assert tomllib.loads(text) != tomllib.loads(QUICKSTART)
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    code, _, said = here("search", "--config", file, "--project-dir", tmp_path / "out")
    assert code == 2
    assert sentence in said.splitlines()[-1]
    assert said.splitlines()[-1].startswith(f"ch: {file}: "), "the file that has to be changed"
    assert "Training the parent" not in said
    assert not (tmp_path / "out" / "quickstart").exists()


# values that are not what a table of a search holds, at paths below [search]
PATHS = [
    ["search_space"],
    ["search_space", "name"],
    *(["search_space", key] for key in ("setup", "seed", "passes", "options")),
    ["search_space", "seed", "linear"],
    ["search_space", "seed", "linear", "config"],
    ["search_space", "seed", "linear", "config", "name"],
    ["search_space", "seed", "linear", "config", "weight_width"],
    ["search_space", "passes", "redefine"],
    *(["strategy"], ["strategy", "name"], ["strategy", "setup"], ["strategy", "setup", "sampler"]),
    ["strategy", "sw_runner"],
    ["strategy", "sw_runner", "basic_evaluation"],
    *(["strategy", "metrics"], ["strategy", "metrics", "accuracy"], ["strategy", "constraints"]),
]
ODD = [1, "x", [["NA"]], {"a": 1}, "NA"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_a_value_of_another_kind_is_one_sentence(here, tmp_path, path):
    import tomlkit

    file = tmp_path / "odd.toml"
    for value in ODD:
        table = tomllib.loads(QUICKSTART) | {"model": "jsc-tiny"}
        # what may be so is refused for the last thing that is looked at, or for the one before
        table["search"]["strategy"]["constraints"] = ["average_bitwidth <= 1"]
        table["search"]["strategy"]["setup"]["sampler_options"]["population_size"] = 1
        place = table["search"]
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = value
        file.write_text(tomlkit.dumps(table))
        code, _, said = here("search", "--config", file, "--project-dir", tmp_path / "out")
        assert code == 2, said
        assert said.splitlines()[-1].startswith("ch: ")
        assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_looking_ahead_leaves_no_trace_in_the_parent(ch, tmp_path):
    """The parent of a search has the weights that `ch train` gives it."""
    import torch

    file = tmp_path / "small.toml"
    small = QUICKSTART.replace("max_epochs = 10", "max_epochs = 1")
    file.write_text(small.replace("n_trials = 400", "n_trials = 2"))
    said = ch("search", "--config", file, "--log-level", "debug").stderr
    assert said.count("Building search space...") == 1
    assert "A new study created in memory" not in said  # Optuna's own log
    train = [*("--max-epochs", 1), *("--batch-size", 512), *("--learning-rate", 1e-2), "--seed", 0]
    ch("train", "jsc-s", "jsc-sim", *train, "--project", "trained")
    found, wanted = (
        torch.load(tmp_path / "out" / name / "software/training_ckpts/best.ckpt")["state_dict"]
        for name in ("quickstart", "trained")
    )
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


SEARCHES = ("quickstart", "jsc_sim_joint_search", "jsc_sim_rungs_search", "jsc_to_fpga")


@pytest.mark.parametrize("name", SEARCHES)
def test_the_designs_of_every_example_are_networks_of_integers(
    here, tmp_path, monkeypatch, package, name
):
    if name == "jsc_to_fpga":
        package("alkaid")

    def stop(*args, **options):
        raise ValueError("so far without a warning")

    monkeypatch.setattr(parents, "_trained", stop)
    _, out, said = here("search", "--config", EXAMPLES / f"{name}.toml", "--project-dir", tmp_path)
    assert "so far without a warning" in said
    assert "no meaning in integers" not in out + said


FLOAT_INPUT = re.sub(
    r"(?s)\[search.search_space.seed.batch_norm1d.config\].*?(?=\[search)", "", QUICKSTART
)


def test_designs_that_stay_in_float_at_the_input_are_warned_of(here, tmp_path, monkeypatch):
    def stop(*args, **options):
        raise ValueError("so far")

    monkeypatch.setattr(parents, "_trained", stop)
    file = tmp_path / "float.toml"
    file.write_text(FLOAT_INPUT)
    _, out, said = here("search", "--config", file, "--project-dir", tmp_path)
    assert "node 'module_list_0_0' takes the input of the network in float" in said + out


@pytest.mark.parametrize("table", ["lut", "emit"])
def test_a_circuit_that_no_design_has_costs_no_training(here, tmp_path, package, table):
    if table == "emit":
        package("alkaid")
    text = FLOAT_INPUT + ("[search.emit]\nsimulate = false\n" if table == "emit" else "")
    if table == "lut":
        text = text.replace("hw_runner.bitops", "hw_runner.lut")
        text = text.replace("bitops.direction", "lut.direction")
    file = tmp_path / "float.toml"
    file.write_text(text)
    code, _, said = here("search", "--config", file, "--project-dir", tmp_path / "out")
    assert code == 2
    assert {"lut": "hw_runner.lut: no design", "emit": "search.emit: no design"}[table] in said
    assert "takes the input of the network in float" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_quickstart_finds_fewer_bits_at_the_same_accuracy(ch, tmp_path):
    """What the README promises, and a front with both ends."""
    said = ch("search", "--config", EXAMPLES / "quickstart.toml").stderr
    shown = said.partition("Best trial(s):")[2].partition("Of each layer:")[0]
    lines = shown.splitlines()[2:]  # how many designs are on the front differs by processor
    assert all(len(line) <= 100 for line in lines)
    layers = [f"list_{number}" for number in ("0_2", "1_0", "2_0", "3_0", "4_0")]
    assert lines[0].split() == ["trial", "accuracy", "bitops", "loss", "memory_density", *layers]
    rows = [line.replace(",", "").split() for line in lines[2:]]
    name, accuracy, bitops, *_ = rows[0]
    assert name == "parent"
    scores = [(float(row[1]), float(row[2])) for row in rows[1:]]
    assert scores == sorted(scores, reverse=True), "by accuracy"
    assert [s for s in scores if s[0] > float(accuracy) - 0.003 and s[1] < float(bitops) / 20]
    assert rows[-1][-5:] == ["2/2"] * 5, "the narrowest"
    assert "calibrating the parent once" in said


@pytest.mark.slow
@pytest.mark.rtl
@pytest.mark.parametrize("name", SEARCHES)
def test_the_best_design_of_every_example_is_emitted_exported_and_verified(
    ch, tmp_path, package, name
):
    for needed in ("alkaid", "onnxruntime"):
        package(needed)
    few = tmp_path / "few.toml"
    text = (EXAMPLES / f"{name}.toml").read_text()
    for pattern, number in (
        ("n_trials = .*", "n_trials = 4"),
        ("population = .*", "population = 4"),
    ):
        text = re.sub(pattern, number, text)
    for pattern in (r"(?s)\[search.retrain\].*", "(?m)^rungs.*$", "(?m)^keep.*$"):
        text = re.sub(pattern, "", text)
    few.write_text(
        re.sub("max_epochs = .*", "max_epochs = 1", text).replace("_size = 40", "_size = 2")
    )
    ch("search", "--config", few, "--project", "p")
    ch("search", "--config", few, "--project", "p", "--apply", "best")
    project = tmp_path / "out" / "p"
    ch("export", "--load", project, "--format", "integer")
    ch("emit", "--load", project)
    said = ch("verify", project, "--samples", 100, "--random-vectors", 100)
    assert "Verification is completed" in said.stdout + said.stderr


@pytest.mark.slow
def test_calibrated_fractions_halve_the_bit_operations(ch, tmp_path):
    """At one point below the parent, against fractions of half of the width."""
    half = tmp_path / "half.toml"
    text = QUICKSTART.replace('"calibrated"', '"NA"')
    half.write_text(text.replace('project = "quickstart"', 'project = "half"'))
    ch("search", "--config", EXAMPLES / "quickstart.toml")
    ch("search", "--config", half)
    before, after = (least_bitops(tmp_path / "out" / name) for name in ("half", "quickstart"))
    assert after <= before / 2


def least_bitops(project):
    """Return the fewest BitOPs of a design that loses at most one point of accuracy."""
    folder = project / "software" / "search_ckpts"
    parent = json.loads((folder / "search.json").read_text())["baseline"]["software_metrics"]
    front = [trial["value"] for trial in json.loads((folder / "best.json").read_text()).values()]
    return min(cost for score, cost in front if score >= parent["accuracy"] - 0.01)


@pytest.mark.slow
def test_a_study_of_an_earlier_quickstart_is_not_continued(ch, tmp_path):
    short = QUICKSTART.replace("max_epochs = 10", "max_epochs = 1")
    short = short.replace("n_trials = 400", "n_trials = 2")
    file = tmp_path / "short.toml"
    other = "\n".join(line for line in short.splitlines() if "calibrated" not in line)
    other = other.replace("data_in_width = [2, 3", "data_in_width = [3")
    file.write_text(other.replace('"integer"', '"scale_integer"'))
    ch("search", "--config", file)
    file.write_text(short)
    refused = ch("search", "--config", file, "--resume", check=2).stderr.splitlines()[-1]
    assert "belongs to a different search" in refused
    assert refused.endswith("name a new study with --study")


AFFINE = {
    "scales that are not given": "data_in_width = [4, 8]\nweight_width = [4, 8]",
    "widths in a table of their own": (
        "[search.search_space.seed.linear.config.affine]\n"
        "data_in_width = [4, 8]\nweight_width = [4, 8]"
    ),
    "an empty table of calibrate": (
        "data_in_width = [4, 8]\nweight_width = [4, 8]\n[search.search_space.calibrate]"
    ),
}


@pytest.mark.parametrize("case", AFFINE)
def test_scales_of_affine_that_are_not_given_are_calibrated(here, tmp_path, monkeypatch, case):
    def stop(*args, **options):
        raise ValueError("nothing was refused")

    monkeypatch.setattr(parents, "_trained", stop)
    table = f'[search.search_space.seed.linear.config]\nname = ["affine"]\n{AFFINE[case]}\n\n'
    pattern = r"(?s)\[search.search_space.seed.linear.config\].*?(?=\[search.strategy)"
    file = tmp_path / "affine.toml"
    file.write_text(re.sub(pattern, table, QUICKSTART))
    _, _, said = here("search", "--config", file, "--project-dir", tmp_path)
    assert "nothing was refused" in said


ATTENTION = '''
import torch
from torch import nn
from chop.models import model

class Rows(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, classes)

    def forward(self, images):
        rows = images.flatten(1, 2)
        return self.head(self.mix(rows, rows, rows, need_weights=False)[0].mean(1))

@model("rows", task_type="vision")
def rows(info):
    """Attention over the rows of an image."""
    return Rows(info.num_classes)
'''
LEARNED = """
model = "rows"
dataset = "digits"
task = "cls"
max_epochs = 1
[search]
train_parent = true
[search.search_space]
name = "graph/learned"
[search.search_space.passes.learn_bits]
width = 5
[search.strategy]
name = "gradient"
[search.strategy.gradient]
steps = 24
[search.strategy.sw_runner.basic_evaluation]
num_samples = 64
[search.strategy.hw_runner.lut]
[search.strategy.metrics]
accuracy = {}
lut = {}
"""


def test_a_front_that_no_runner_can_measure_is_not_trained(here, tmp_path):
    (tmp_path / "rows.py").write_text(ATTENTION)
    (tmp_path / "a.toml").write_text(LEARNED)
    words = ("--config", "a.toml", "--import", "rows.py", "--project-dir", tmp_path / "out")
    code, _, said = here("search", *words)
    assert code == 2, said
    assert (
        "hw_runner.lut: no design of this search can be measured: node 'mix' is attention" in said
    )
    assert not (tmp_path / "out").exists()
