"""What can be known to be wrong is refused before any pass runs: exit code 2, all at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from chop.actions.base import ACTIONS
from chop.actions.config import ConfigError
from chop.actions.run import prepare
from chop.actions.transform import plan_of
from chop.ir import MaseGraph
from chop.ir.graph.saving import made_from
from chop.passes import PASSES, Pipeline, graph_pass
from chop.passes.module.base import PASSES as MODULE_PASSES

INT = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
INT |= {"weight_width": 8, "weight_frac_width": 4, "bias_width": 8, "bias_frac_width": 4}
WRONG = {"config": INT | {"weight_width": -1}}
NAN, INF = float("nan"), float("inf")

BASELINE = "baseline_weight_path"
HERE = {BASELINE: str(Path(__file__))}

# pass -> options of which each is wrong, and where
REDEFINE = [
    ({"by": "kind"}, "by"),
    ({"weights": "old"}, "weights"),
    ({"a": {"config": {"name": "both"}}}, "a"),
    ({"a": {"config": {"name": "wide", "width": 3}}}, "a"),
    ({"a": {"config": {"channel_multiplier": 0}}}, "a"),
    ({"a": {"config": {"width": 3, "channel_multiplier": 2}}}, "a"),
    ({"config": {"a": {"config": {"widht": 3}}}}, "a"),
    ({"by": "type", "linaer": {"config": {"width": 3}}}, "linaer"),
    ({"by": "regex_name", "a(": {"config": {"width": 3}}}, "a("),
]
REPAIR = [
    ({"by": "kind"}, "by"),
    ({"num_samples": 0}, "num_samples"),
    ({"by": "type", "nodes": ["linaer"]}, "nodes"),
    ({"by": "regex_name", "nodes": ["("]}, "nodes"),
]
BAD = {
    "to_integer_graph": [({"silent": "perhaps"}, "silent")],
    "deploy": [
        ({}, "target"),
        ({"target": "cuda-int4"}, "target"),
        ({"target": "cuda-int8", "output": "float64"}, "output"),
        ({"target": "cuda-int8", "nodes": ["("]}, "nodes"),
        ({"target": "cuda-int8", "outputs": "float32"}, "outputs"),
    ],
    "quantize": [
        ({"by": "kind"}, "by"),
        ({"by": "type", "linear": {"config": INT}, "baseline_weight_path": "x"}, BASELINE),
        ({"by": "type", "linear": WRONG}, "linear"),
        ({"by": "type", "default": {"config": {"name": "integr"}}}, "default"),
        ({"by": "type", "linaer": {"config": INT}}, "linaer"),
        ({"by": "type", "flatten": {"config": INT}}, "flatten"),
        ({"by": "regex_name", "a(": {"config": INT}}, "a("),
        ({"by": "type", "linear": {"config": INT}, "load_type": "pt"} | HERE, "load_type"),
    ],
    "prune": [
        ({}, ""),
        ({"weight": {}}, ""),
        ({"weight": {"sparsity": 2}}, "weight.sparsity"),
        ({"weight": {"sparsity": NAN}}, "weight.sparsity"),
        ({"weight": {"sparsity": None}}, "weight.sparsity"),
        ({"weight": {"sparsity": True}}, "weight.sparsity"),
        ({"weight": {"granularity": "rows"}}, "weight.granularity"),
        ({"weight": {"granularity": "2:4", "sparsity": 0.3}}, "weight.sparsity"),
        ({"weight": {"method": "l3-norm"}}, "weight.method"),
        ({"weight": {"scope": "all"}}, "weight.scope"),
        ({"weight": {"scope": "global", "sparsity": {"a": 0.5}}}, "weight.scope"),
        ({"weight": {"sparcity": 0.5}}, "weight.sparcity"),
        ({"weight": {"by": "type", "sparsity": {"relu": 0.5}}}, "weight.sparsity.relu"),
        ({"weight": {"by": "regex_name", "sparsity": {"(": 0.5}}}, "weight.sparsity.("),
        ({"activation": {"method": "movement"}}, "activation.method"),
        ({"activation": {"granularity": "channel"}}, "activation.granularity"),
        ({"weight": 3}, "weight"),
        ({"weight": {}, "seed": "x"}, "seed"),
    ],
    "prune_channels": [
        ({}, "sparsity"),
        ({"sparsity": 2.0}, "sparsity"),
        ({"sparsity": {"fc": -1.0}}, "sparsity.fc"),
        ({"sparsity": 0.5, "method": "l3-norm"}, "method"),
        ({"sparsity": {"a": 0.5}, "scope": "global"}, "scope"),
        ({"sparsity": {"relu": 0.5}, "by": "type"}, "sparsity.relu"),
        ({"sparsity": {"(": 0.5}, "by": "regex_name"}, "sparsity.("),
    ],
    **dict.fromkeys(("redefine", "redefine_linear", "redefine_conv"), REDEFINE),
    "insert_lora_adapter": [
        ({}, "rank"),
        ({"rank": 0}, "rank"),
        ({"rank": 1, "dropout": 1.0}, "dropout"),
        ({"rank": 1, "lora_dropout": -0.1}, "lora_dropout"),
        ({"rank": 1, "alpha": INF}, "alpha"),
        ({"rank": 1, "alpha": 1.0, "lora_alpha": 2.0}, "alpha"),
        ({"rank": 1, "nodes": ["a("]}, "nodes"),
    ],
    "replace": [
        ({"by": "type", "modules": {}}, "modules"),
        ({"by": "type", "modules": {"relu": "GELUU"}}, "modules.relu"),
        ({"by": "type", "modules": {"relu": 3}}, "modules.relu"),
        ({"by": "type", "modules": {"rellu": "GELU"}}, "modules.rellu"),
        ({"by": "regex_name", "modules": {"(": "GELU"}}, "modules.("),
    ],
    "raise_granularity": [({"inherit": True}, "inherit"), ({"modules": ["a", "a.b"]}, "modules")],
    "patch_metadata": [
        ({}, "q_config"),
        ({"q_config": {"data_in_width": 8, "data_in_frac_width": 4}}, "q_config"),
        ({"q_config": {}, "precision": "fixd"}, "precision"),
    ],
    "logicnets_fusion": [
        ({"fc": 3}, "fc"),
        ({"fc": {"config": {"additional": ["a"]}}}, "fc.config.additional"),
    ],
    "fold_batch_norm": [({"side": "left"}, "side")],
    "equalize": [({"iterations": 0}, "iterations"), ({"tolerance": 0.0}, "tolerance")],
    "quantize_static": [
        ({"weight_width": 1}, "weight_width"),
        ({"data_in_width": 17}, "data_in_width"),
    ],
    "smooth": [*REPAIR, ({"alpha": 1.1}, "alpha"), ({"alpha": -0.1}, "alpha")],
    "correct_bias": REPAIR,
    "gptq": [
        *REPAIR,
        ({"block_size": 0}, "block_size"),
        ({"damping": 0.0}, "damping"),
        ({"damping": INF}, "damping"),
        ({"seed": -1}, "seed"),
    ],
    "adaround": [
        *REPAIR,
        ({"iterations": 0}, "iterations"),
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"regularization": -1.0}, "regularization"),
        ({"warm_start": 1.0}, "warm_start"),
        ({"beta_end": 0.0}, "beta_end"),
        ({"beta_start": NAN}, "beta_start"),
    ],
    "learn_bits": [
        ({"by": "kind"}, "by"),
        ({"nodes": ["linaer"]}, "nodes"),
        ({"nodes": ["flatten"]}, "nodes"),
        ({"width": 1}, "width"),
        ({"data_in_width": 25}, "data_in_width"),
        ({"granularity": "row"}, "granularity"),
        ({"overflow": "clip"}, "overflow"),
    ],
    "tables": [
        ({"nodes": ["a("]}, "nodes"),
        ({"function": "cubic"}, "function"),
        ({"hidden": 0}, "hidden"),
        ({"bits_in": ["two", 3]}, "bits_in.0"),
        ({"max_bits_in": 13}, "max_bits_in"),
    ],
    "sensitivity": [
        ({}, "formats"),
        ({"formats": {}}, "formats"),
        ({"formats": {"int8": WRONG}}, "formats.int8"),
        ({"formats": {"int8": INT}, "num_batches": 0}, "num_batches"),
        ({"formats": {"int8": INT}, "nodes": ["linaer"]}, "nodes"),
        ({"formats": {"int8": INT}, "picture": "a.png"}, "picture"),
    ],
    "calibrate": [
        ({"method": "median"}, "method"),
        ({"percentile": 0.0}, "percentile"),
        ({"percentile": 101.0}, "percentile"),
        ({"percentile": 0.99}, "percentile"),
        ({"num_samples": 0}, "num_samples"),
        ({"num_batches": 0}, "num_batches"),
        ({"bins": 18}, "bins"),
        ({"widths": [8, 1]}, "widths"),
        ({"picture": "histograms.png"}, "picture"),
    ],
    "profile_statistics": [
        ({"by": "type", "num_samples": 0}, "num_samples"),
        ({"by": "type", "target_weight_nodes": ["linaer"]}, "target_weight_nodes"),
        ({"by": "type", "weight_statistics": {"range": {}}}, "weight_statistics.range"),
    ],
    "add_hardware_metadata": [
        ({"parallelism": [0]}, "parallelism.0"),
        ({"parallelism": []}, "parallelism"),
    ],
    "emit_verilog_top": [({"clock_period": 0}, "clock_period"), ({"top": "main"}, "top")],
    "emit_internal_rtl": [({"project_dir": 3}, "project_dir")],
    "emit_bram": [({"project_dri": "x"}, "project_dri")],
    "emit_cocotb": [({"wait_unit": "hours"}, "wait_unit"), ({"batch_size": 0}, "batch_size")],
    "emit_vivado_project": [({"timeout": -1}, "timeout")],
    "emit_logicnets": [({"clock_period": -5}, "clock_period")],
    "load_mase_graph": [({"load_dir": "nowhere"}, "load_dir")],
    "load_node_meta_param": [({"load_path": "nowhere.toml"}, "load_path")],
    "cost": [({"picture": "cost.png"}, "picture"), ({"picture": "cost"}, "picture")],
}
CASES = [(name, options, key) for name, cases in BAD.items() for options, key in cases]


@pytest.mark.parametrize(("name", "options", "key"), CASES, ids=str)
def test_the_check_of_the_file_names_the_option(name, options, key, tmp_path):
    place = f"passes.{name}.{key}" if key else f"passes.{name}"
    with pytest.raises(ConfigError) as caught:
        plan_of({"passes": {name: options}}, tmp_path, "file.toml: ")
    (first, *_) = str(caught.value).splitlines()
    assert first.startswith(f"file.toml: {place}: ")
    assert str(caught.value).count("file.toml") == 1


def test_every_transform_with_options_has_bad_examples():
    ours = {n: p for n, p in PASSES.items() if p.__module__.startswith("chop.")}
    takes_some = {n for n, p in ours.items() if p.options or p.open_ended}
    transforms = {n for n in takes_some if ours[n].kind == "transform"}
    assert transforms - BAD.keys() == {"metadata_value_type_cast"}  # which no file can run


@pytest.mark.parametrize("name", sorted(PASSES))
def test_what_no_file_can_hold_is_for_python_only(name, tmp_path):
    if name not in ("summarize_quantization", "metadata_value_type_cast"):
        assert not PASSES[name].python_only
        return
    with pytest.raises(ConfigError, match=f"passes.{name}: .*needs a Python object"):
        plan_of({"passes": {name: {}}}, tmp_path)


def test_several_wrong_options_of_several_passes_are_said_at_once(tmp_path):
    passes = {
        "quantize": {"by": "type", "linear": WRONG, "conv2d": WRONG, "rellu": {"config": INT}},
        "prune": {"weight": {"sparsity": 2, "granularity": "rows"}, "sed": 0},
        "insert_lora_adapter": {"rank": 0, "alpha": "x"},
    }
    with pytest.raises(ConfigError) as caught:
        plan_of({"passes": passes}, tmp_path)
    text = str(caught.value)
    assert "8 problems" in text
    keys = ["quantize.linear", "quantize.conv2d", "quantize.rellu", "prune.weight.sparsity"]
    for key in [*keys, "prune.weight.granularity", "insert_lora_adapter.rank", "prune.sed"]:
        assert f"passes.{key}: " in text


def test_an_entry_of_an_array_is_named_by_its_number(tmp_path):
    entries = [{"name": "report_graph"}, {"name": "prune", "weight": {"sparsity": 2}}]
    with pytest.raises(ConfigError, match=r"entry 2: passes\.prune\.weight\.sparsity: "):
        plan_of({"passes": entries}, tmp_path)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.block(x))


def graph_of_net():
    about = {"dummy_in": {"x": torch.zeros(1, 4)}, "add_value": False}
    ready = ["init_metadata", ("add_common_metadata", about), "add_software_metadata"]
    return Pipeline(ready)(MaseGraph(Net()))[0]


# names that the graph has not
NOT_THERE = [
    ("quantize", {"by": "name", "hed": {"config": INT}}, "quantize.hed: unknown node 'hed'; did"),
    ("quantize", {"by": "regex_name", "conv.*": {"config": INT}}, "unknown node matching"),
    ("prune", {"weight": {"sparsity": {"hed": 0.5}}}, "prune.weight.sparsity.hed: unknown node"),
    ("prune_channels", {"sparsity": {"hed": 0.5}}, "prune_channels.sparsity.hed: unknown node"),
    ("replace", {"by": "name", "modules": {"act": "GELU"}}, "replace.modules.act: unknown node"),
    ("raise_granularity", {"modules": ["blck"]}, "raise_granularity.modules: unknown module"),
    ("logicnets_fusion", {"hed": {}}, "logicnets_fusion.hed: unknown node"),
    ("logicnets_fusion", {"head": {"config": {"additional_layers_outputs": ["act"]}}},
     "logicnets_fusion.head.config.additional_layers_outputs: unknown node 'act'"),
    ("sensitivity", {"formats": {"a": INT}, "by": "name", "nodes": ["hed"]}, "sensitivity.nodes: unknown node"),  # noqa: E501
    ("profile_statistics", {"by": "name", "target_weight_nodes": ["hed"]}, "profile_statistics.target_weight_nodes: unknown node"),  # noqa: E501
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "sentence"), NOT_THERE)
def test_names_are_looked_for_before_the_first_pass_runs(name, options, sentence, tmp_path):
    plan = plan_of({"passes": {"report_graph": {}, name: options}}, tmp_path, "file.toml: ")
    with pytest.raises(ConfigError, match=f"file.toml: .*{sentence}"):
        plan.check_subject(graph_of_net())


def test_names_that_are_there_are_accepted(tmp_path):
    passes = {
        "prune": {"weight": {"sparsity": {"block.0": 0.5, "head": 0.1, "default": 0.2}}},
        "quantize": {"by": "regex_name", "block.*": {"config": INT}},
        "raise_granularity": {"modules": ["block"]},
        "replace": {"by": "name", "modules": {"made_by_raising": "GELU"}},
    }
    plan_of({"passes": passes}, tmp_path).check_subject(graph_of_net())


def test_metadata_that_nobody_fills_in_is_asked_for_before_the_first_pass_runs(tmp_path):
    hardware, report = {"add_hardware_metadata": {}}, {"report_node_hardware_type": {}}
    with pytest.raises(ConfigError, match=r"passes\.report_node_hardware_type: it needs hardware"):
        plan_of({"passes": report | hardware}, tmp_path).check_subject(graph_of_net())
    plan_of({"passes": hardware | report}, tmp_path).check_subject(graph_of_net())


def test_layers_of_a_model_that_was_never_traced_are_looked_for(tmp_path):
    assert "quantize" in MODULE_PASSES
    table = {"transform": {"style": "module"}}
    bad = {"quantize": {"by": "name", "block.7": {"config": INT}}}
    with pytest.raises(ConfigError, match=r"passes\.quantize\.block\.7: unknown layer"):
        plan_of(table | {"passes": bad}, tmp_path).check_subject(Net())
    bad = {"report_trainable_parameters": {"depth": 0}}
    with pytest.raises(ConfigError, match=r"passes\.report_trainable_parameters\.depth: "):
        plan_of(table | {"passes": bad}, tmp_path)


FILES = 'model = "jsc-tiny"\ndataset = "jsc-sim"\n'


def test_a_name_that_is_not_there_is_wrong_usage_and_runs_nothing(ch, tmp_path):
    (tmp_path / "names.toml").write_text(
        FILES + "[passes.report_graph]\n[passes.prune.weight.sparsity]\nfc9 = 0.5\n"
    )
    done = ch("transform", "--config", tmp_path / "names.toml", check=2)
    assert "names.toml: passes.prune.weight.sparsity.fc9: unknown node 'fc9'" in done.stderr
    assert not list(tmp_path.glob("out/*/software/transform/report_graph.txt"))


@pytest.fixture
def breaks():
    """A pass that fails as passes may, gone after the test."""

    @graph_pass("breaks", "transform")
    def breaks_transform_pass(graph: MaseGraph) -> None:
        raise OSError("the disk is full")

    yield
    del PASSES._items["breaks"]


def test_a_late_failure_says_which_pass_and_leaves_what_was_done(breaks, tmp_path, transformed):
    passes = [{"name": "report_graph"}, {"name": "report_graph"}, {"name": "breaks"}]
    with pytest.raises(ValueError, match=r"^pass 'breaks' \(3 of 3\) failed: the disk is full$"):
        transformed({"passes": passes})
    left = json.loads((tmp_path / "transform" / "transform.json").read_text())
    assert [row["Pass"] for row in left["passes"]] == ["report_graph", "report_graph_1"]
    assert left["failed"] == {"Pass": "breaks", "Position": "3 of 3", "Error": "the disk is full"}
    assert left["files"] == ["report_graph.txt", "report_graph_1.txt"]


def test_options_that_do_not_suit_what_an_earlier_pass_left_are_wrong_usage(transformed):
    name = {"by": "name", "x": {"config": INT}}
    with pytest.raises(ConfigError, match=r"pass 'quantize' \(1 of 1\) failed: node 'x' is"):
        transformed({"passes": {"quantize": name}})


QUANTIZE = {"by": "type", "linear": {"config": INT}}


def test_the_key_of_a_wrong_config_is_named_once(transformed):
    with pytest.raises(ConfigError, match=r"passes\.quantize\.linear: integer: weight_width must"):
        transformed({"passes": {"quantize": {"by": "type", "linear": WRONG}}})


def test_files_of_an_earlier_run_do_not_stay_behind(tmp_path, transformed):
    folder = tmp_path / "transform"
    twice = [{"name": "quantize"} | QUANTIZE, {"name": "quantize"} | QUANTIZE]
    transformed({"passes": [*twice, {"name": "cost", "file_name": "cost.json"}]})
    mine = folder / "notes.txt"
    mine.write_text("mine")
    assert (folder / "quantize_1" / "quantize_table.csv").is_file()
    transformed({"passes": {"quantize": QUANTIZE}})
    assert (folder / "quantize" / "quantize_table.csv").is_file()
    assert not (folder / "quantize_1").exists()
    assert not (folder / "cost.json").exists()
    assert mine.read_text() == "mine"


def test_only_files_in_the_folder_are_removed(tmp_path, transformed):
    folder, mine = tmp_path / "transform", tmp_path / "mine.txt"
    folder.mkdir()
    mine.write_text("mine")
    earlier = [json.dumps(left) for left in ({"files": ["../mine.txt", str(mine), 3]}, [])]
    for left in (*earlier, '{"files": 3}', "no JSON", "[" * 100_000):
        (folder / "transform.json").write_text(left)
        transformed({"passes": {"report_graph": {}}})
    assert mine.read_text() == "mine"


def test_relative_paths_land_in_the_folder_of_the_transform(tmp_path, transformed, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    away = tmp_path / "away.txt"
    passes = [
        {"name": "cost", "file_name": "deep/cost.json", "picture": "cost.svg", "silent": True},
        {"name": "report_graph", "file_name": str(away)},
        {"name": "save_mase_graph", "save_dir": "saved"},
        {"name": "load_mase_graph", "load_dir": "saved"},
        {"name": "save_node_meta_param", "save_path": "meta.toml"},
    ]
    transformed({"passes": passes})
    folder = tmp_path / "transform"
    assert (folder / "deep" / "cost.json").is_file()
    assert (folder / "cost.svg").read_text().startswith("<svg")
    assert (folder / "saved" / "graph.json").is_file()
    assert (folder / "meta.toml").is_file()
    assert away.is_file()
    assert not list((tmp_path / "here").iterdir())
    rows = json.loads((folder / "transform.json").read_text())["passes"]
    assert rows[0]["Effect"].startswith("wrote cost.json, wrote cost.svg")


def test_the_histogram_and_the_effect_count_the_same(tmp_path, transformed):
    narrow = {"by": "type", "linear": {"config": INT | {"weight_width": 4}}}
    steps = [QUANTIZE, QUANTIZE, narrow]
    transformed({"passes": [{"name": "quantize"} | step for step in steps]})
    folder = tmp_path / "transform"
    effects = [r["Effect"] for r in json.loads((folder / "transform.json").read_text())["passes"]]
    assert [effect.split(",")[0] for effect in effects] == [f"{n} quantized" for n in (1, 0, 1)]
    for label, changed in (("quantize", 1), ("quantize_1", 0), ("quantize_2", 1)):
        text = (folder / label / "quantize_histogram.csv").read_text()
        (row,) = (line for line in text.splitlines() if ",linear," in line)
        assert row.endswith(f",1,{changed},{1 - changed}")


def test_layers_that_keep_their_channels_are_told_with_the_reason(transformed, tmp_path, caplog):
    with caplog.at_level("INFO", "chop"):
        transformed({"passes": {"prune_channels": {"sparsity": 0.5}}})
    assert any(m.startswith("Kept all channels of seq_blocks.2, as node ") for m in caplog.messages)
    (row,) = json.loads((tmp_path / "transform" / "transform.json").read_text())["passes"]
    assert "kept seq_blocks.2" in row["Effect"]


def act(action, tmp_path, project, **flags):
    given = {"project": project, "project_dir": str(tmp_path / "out"), "num_workers": "0"}
    prepare(ACTIONS[action], given | {key: str(value) for key, value in flags.items()})()


@pytest.fixture
def report(tmp_path):
    """A file that only reports the graph."""
    (tmp_path / "report.toml").write_text(FILES + "[passes.report_graph]\n")
    return tmp_path / "report.toml"


@pytest.fixture
def saved(report, tmp_path):
    """The graph that a transform with that file has saved."""
    act("transform", tmp_path, "a", config=report)
    return tmp_path / "out" / "a" / "software" / "transform" / "transformed_ckpt"


def test_a_saved_graph_notes_what_it_was_made_from_and_others_are_warned_of(
    report, saved, tmp_path, capsys
):
    assert made_from(saved) == {"model": "jsc-tiny", "dataset": "jsc-sim"}
    load = {"load_name": saved, "load_type": "mz"}
    act("transform", tmp_path, "b", config=report, **load)
    assert "was made from" not in capsys.readouterr().err
    act("transform", tmp_path, "c", config=report, model="jsc-toy", **load)
    warned = "was made from model 'jsc-tiny', but this run uses model 'jsc-toy'"
    assert capsys.readouterr().err.count(warned) == 1
    again = tmp_path / "out" / "c" / "software" / "transform" / "transformed_ckpt"
    assert made_from(again) == made_from(saved)
    act("test", tmp_path, "d", model="jsc-toy", dataset="jsc-sim", **load)
    assert capsys.readouterr().err.count(warned) == 1


# replaces a folder, and is killed while it is moved aside
KILLED = """
import os, signal, sys
from chop.system.files import replaced_folder

def deadly(source, target):
    if ".part" in str(source):
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target)

rename, os.rename = os.rename, deadly
with replaced_folder(sys.argv[1], os.listdir(sys.argv[1])) as part:
    (part / "graph.json").touch()
"""


def test_a_folder_that_a_killed_save_hid_can_be_named(report, saved, tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, str(saved)], check=False)
    assert not saved.exists()
    act("transform", tmp_path, "b", config=report, load_name=saved, load_type="mz")
    assert (saved / "graph.json").is_file()
