"""`name = "gradient"`: a front that is trained as a whole, with the files of every search."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from types import SimpleNamespace

import pytest
import torch

from chop.actions.config import ConfigError
from chop.actions.search.results.overflows import count_overflows
from chop.actions.search.spec.settings import settings_of
from chop.checkpoints import load_graph
from chop.dataset import MaseDataModule, TensorSplit
from chop.passes.graph.transforms.quantize.quantize import quantized_layer

CONFIG = """
model = "jsc-toy"
dataset = "jsc-sim"
task = "cls"
batch_size = 1024
project = "learned"
accelerator = "cpu"
seed = 3
max_epochs = 2
learning_rate = 1e-2

[search]
train_parent = true

[search.search_space]
name = "graph/learned"
[search.search_space.passes.learn_bits]
width = 5
granularity = "channel"

[search.strategy]
name = "gradient"

[search.strategy.gradient]
members = 3
cost = "ebops"
price = [1e-6, 3e-3]
steps = 24
batch_size = 256
checkpoints = 3
learning_rate = 5e-2

[search.strategy.sw_runner.basic_evaluation]
num_samples = 100_000
[search.strategy.hw_runner.learned_cost]
[search.strategy.hw_runner.bitops]

[search.strategy.metrics]
accuracy = {}
learned_cost = {}
"""


def tables(**changes):
    """The `[search]` tables of the file, with changes by dotted path."""
    search = tomllib.loads(CONFIG)["search"]
    for path, value in changes.items():
        *folders, last = path.split("__")
        table = search
        for folder in folders:
            table = table.setdefault(folder, {})
        if value is None:
            table.pop(last, None)
        else:
            table[last] = value
    return search


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "learned.toml"
    file.write_text(CONFIG)
    return file


def test_a_front_is_trained_measured_applied_and_reported(ch, config, tmp_path):
    ch("search", "--config", config)
    folder = tmp_path / "out" / "learned" / "software" / "search_ckpts"
    record = json.loads((folder / "search.json").read_text())
    front = json.loads((folder / "search.designs" / "front.json").read_text())
    assert [trial["state"] for trial in record["trials"]] == ["COMPLETE"] * len(front["designs"])
    for trial, design in zip(record["trials"], front["designs"], strict=True):
        assert trial["hardware_metrics"]["learned_cost"] == design["cost"]
        assert trial["params"]["price"] == design["price"]
        # what training scored on the whole validation split is what the frozen design scores
        assert trial["software_metrics"]["accuracy"] == pytest.approx(design["score"], abs=2e-3)
    assert record["test"].keys() == {str(number) for number in record["front"]}
    assert {*record["test"][str(record["front"][0])]} == {"validation", "test"}
    assert "gradient" in (folder / "report.html").read_text()
    ch("search", "--config", config, "--apply", str(record["front"][-1]))
    applied = folder / f"trial_{record['front'][-1]}"
    data = MaseDataModule("jsc-sim", batch_size=8192)
    data.prepare_data()
    data.setup("fit")
    graph = load_graph(applied)
    with torch.no_grad():
        right = graph.model.eval()(data.val_dataset.x).argmax(1) == data.val_dataset.y
    wanted = record["trials"][record["front"][-1]]["software_metrics"]["accuracy"]
    assert right.float().mean().item() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.slow
def test_a_damaged_front_is_refused_in_one_sentence(here, config, tmp_path):
    words = ("search", "--config", config, "--project-dir", tmp_path / "out", "--cpu", 0)
    assert here(*words)[0] == 0
    folder = next((tmp_path / "out").rglob("search.designs"))
    front = folder / "front.json"
    good = json.loads(front.read_text())
    best = json.loads((folder.parent / "search.json").read_text())["front"][-1]
    odd = ("", "[]", "{}", {"designs": 3}, {"designs": [1]}, {"designs": [{}]}, {"designs": []})
    for content in odd:
        front.write_text(content if isinstance(content, str) else json.dumps({**good, **content}))
        for more in (("--resume",), ("--apply", best)):
            code, _, err = here(*words, *more)
            assert code in (0, 1), (content, err)
            assert "Traceback" not in err
            if code:
                assert "to train the front again" in err.splitlines()[-1], (content, err)
    front.write_text(json.dumps(good))
    shutil.rmtree(folder / f"design_{best}")
    code, _, err = here(*words, "--apply", best)
    assert code == 1
    assert "there is no directory" in err.splitlines()[-1]


def test_a_front_learns_from_the_parent_that_the_search_has_trained(ch, tmp_path):
    file = tmp_path / "distilled.toml"
    file.write_text(CONFIG.replace("steps = 24", "steps = 6\ndistill = 0.5"))
    ch("search", "--config", file)
    folder = tmp_path / "out" / "learned" / "software" / "search_ckpts"
    assert json.loads((folder / "search.designs" / "front.json").read_text())["designs"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ramp", "target"])
def test_other_ways_end_in_the_same_files_and_resume_to_the_same_table(ch, tmp_path, way):
    file, target = tmp_path / f"{way}.toml", 'target = "ebops <= 4500"' if way == "target" else ""
    file.write_text(CONFIG.replace("members = 3", f'way = "{way}"\n{target}'))

    def table():
        folder = tmp_path / "out" / "learned" / "software" / "search_ckpts"
        record = json.loads((folder / "search.json").read_text())
        return [(t["number"], t["software_metrics"], t["config"]) for t in record["trials"]], folder

    ch("search", "--config", file)
    before, folder = table()
    ch("search", "--config", file, "--resume")
    assert table() == (before, folder)
    ch("search", "--config", file, "--apply", "best")
    (applied,) = folder.glob("trial_*")
    ch("test", "jsc-toy", "jsc-sim", "--load", applied)
    if way == "target":
        assert all(config["cost"] <= 4500 for *_, config in before)


def test_inputs_that_wrap_around_are_counted():
    config = {"name": "integer", "overflow": "wrap"}
    config |= {f"{operand}_width": 4 for operand in ("data_in", "weight", "bias")}
    config |= {f"{operand}_frac_width": 1 for operand in ("data_in", "weight", "bias")}
    x = torch.tensor([[1.0, 3.5, 4.0], [-4.0, -4.5, 100.0]])  # -4 to 3.5 have codes
    layer = quantized_layer(torch.nn.Linear(3, 2), config)
    data = SimpleNamespace(test_dataset=TensorSplit(x, torch.tensor([0, 1])), batch_size=1)
    parent = SimpleNamespace(data_module=data)
    assert count_overflows(torch.nn.Sequential(layer), parent) == {"overflows": 3}
    assert count_overflows(torch.nn.Sequential(torch.nn.Linear(3, 2)), parent) == {}


@pytest.mark.slow
def test_a_killed_search_continues_to_the_same_front(config, tmp_path):
    kill = tmp_path / "kill.py"
    kill.write_text(
        "import os, signal\n"
        "from chop.actions.search.run import learning\n"
        "def log(checkpoint):\n"
        "    if checkpoint.step == 16 and not os.path.exists('killed'):\n"
        "        open('killed', 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "learning._log = log\n"
    )

    def run(project, *more):
        command = [sys.executable, "-m", "chop", "search", "--config", str(config)]
        command += ["--project-dir", str(tmp_path / project), *map(str, more)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ)
        print(done.stdout, done.stderr)
        return done.returncode

    def designs(project):
        folder = tmp_path / project / "learned" / "software" / "search_ckpts" / "search.designs"
        states = [load_graph(f).model.state_dict() for f in sorted(folder.glob("design_?"))]
        return json.loads((folder / "front.json").read_text())["designs"], states

    assert run("whole") == 0
    assert run("cut", "--import", kill) == -signal.SIGKILL
    assert run("cut", "--import", kill, "--resume") == 0
    (ours, states), (theirs, others) = designs("cut"), designs("whole")
    assert ours == theirs
    for one, other in zip(states, others, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy__gradient__member": 3}, "has no key 'member'; did you mean 'members'"),
        ({"strategy__gradient__cost": "luts"}, "did you mean 'lut'"),
        ({"strategy__gradient__way": "target"}, "target is missing"),
        ({"strategy__gradient__price": [1.0]}, "lowest and the highest"),
        ({"strategy__gradient__seed": 3}, "has no key 'seed'"),
        ({"search_space__name": "graph/quantize"}, 'name = "graph/learned"'),
        ({"strategy__name": "tpe"}, 'set name = "gradient"'),
        ({"strategy__name": "gradiant"}, "did you mean 'gradient'"),
        ({"retrain": {"max_epochs": 3}}, "retrain = 1000"),
        ({"strategy__sw_runner": {"basic_train": {"max_epochs": 1}}}, "gradient has trained"),
    ],
)
def test_wrong_settings_are_refused_in_one_sentence(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        settings_of(tables(**changes))
    assert "\n" not in str(caught.value)


TRAINED = CONFIG.partition("[search]\n")[2].partition("steps")[0]
UNTRAINED = TRAINED.replace("train_parent = true", "") + "distill = 0.5\n"
LEARN_BITS = '[search.search_space.passes.learn_bits]\nwidth = 5\ngranularity = "channel"\n'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("passes.learn_bits]", "passes.learn_bit]", "did you mean 'learn_bits'"),
        ('"channel"', '"chanel"', "did you mean 'channel'"),
        (LEARN_BITS, "", "no layer of the network learns its bits"),
        (TRAINED, UNTRAINED, "the parent is not trained"),
        ("members = 3", 'teacher = "nowhere"\ndistill = 1.0', "not a saved graph; give the folder"),
    ],
)
def test_what_does_not_suit_the_network_is_refused_before_training(
    here, tmp_path, old, new, message
):
    (tmp_path / "odd.toml").write_text(CONFIG.replace(old, new))
    code, out, err = here("search", "--config", tmp_path / "odd.toml")
    assert code != 0
    assert message in out + err
    assert "Training the parent" not in out + err
