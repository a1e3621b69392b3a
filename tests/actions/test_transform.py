"""`ch transform` and the labs' function: what is run, what is written, what is refused."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from chop.actions import transform
from chop.actions.base import ACTIONS
from chop.actions.config import ConfigError
from chop.actions.run import prepare
from chop.actions.transform import plan_of
from chop.checkpoints import load_graph
from chop.dataset import MaseDataModule
from chop.ir import MaseGraph
from chop.models import get_model, get_model_info
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.tools.config_load import load_config

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "configs" / "examples"
INTEGER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
INTEGER |= {"weight_width": 8, "weight_frac_width": 4, "bias_width": 8, "bias_frac_width": 4}
QUANTIZE = {"by": "type", "default": {"config": {"name": "NA"}}, "linear": {"config": INTEGER}}


@pytest.fixture
def data():
    module = MaseDataModule(name="jsc-sim", batch_size=64, num_workers=0, model_name="jsc-tiny")
    module.prepare_data()
    module.setup()
    return module


def test_passes_run_in_the_order_of_the_file_and_leave_their_files(transformed, tmp_path):
    passes = {
        "report_graph": {},
        "quantize": QUANTIZE,
        "report_node_meta_param": {"which": ["common"]},
        "save_node_meta_param": {},
        "save_mase_graph": {},
    }
    graph = transformed({"passes": passes})
    folder = tmp_path / "transform"
    assert isinstance(graph, MaseGraph)
    rows = json.loads((folder / "transform.json").read_text())["passes"]
    assert [row["Pass"] for row in rows] == list(passes)
    assert "LinearInteger" not in (folder / "report_graph.txt").read_text()
    assert "integer" in (folder / "report").read_text()
    assert (folder / "saved_node_meta_param").is_file()
    assert (folder / "quantize" / "quantize_table.csv").is_file()
    histogram = (folder / "quantize" / "quantize_histogram.csv").read_text()
    assert "1,Linear,linear,1,1,0" in histogram
    for saved in ("saved_mase_graph", "transformed_ckpt"):
        again = load_graph(folder / saved)
        x = torch.randn(3, 16)
        assert torch.equal(again.model.eval()(x), graph.model.eval()(x))


def test_one_pass_can_come_several_times(transformed, tmp_path):
    wider = {"by": "type", "linear": {"config": INTEGER | {"weight_width": 4}}}
    graph = transformed({"passes": [{"name": "quantize"} | QUANTIZE, {"name": "quantize"} | wider]})
    (layer,) = (m for m in graph.model.modules() if isinstance(m, Quantized))
    assert layer.formats["weight"].bits == 4
    assert (tmp_path / "transform" / "quantize_1" / "quantize_table.csv").is_file()


def test_a_transformed_graph_can_be_transformed_again(transformed, tmp_path):
    transformed({"passes": {"quantize": QUANTIZE}})
    first = load_graph(tmp_path / "transform" / "transformed_ckpt")
    first.export(tmp_path / "first")
    load = {"load_name": tmp_path / "first", "load_type": "mz"}
    again = transformed({"passes": {"calculate_avg_bits": {}}}, **load)
    assert str(again.model) == str(first.model)


def test_statistics_come_from_the_training_data(transformed):
    profile = {"by": "type", "target_activation_nodes": ["linear"], "num_samples": 16}
    profile["activation_statistics"] = {"range_min_max": {"dims": "all", "abs": False}}
    graph = transformed({"passes": {"profile_statistics": profile}})
    node = next(n for n in graph.nodes if n.name == "seq_blocks_2")
    stat = node.meta["mase"].software.args["data_in_0"]["stat"]["range_min_max"]
    assert stat["count"] == 16 * 16


def test_the_callers_dict_stays_as_it_was(transformed):
    config = {"passes": {"quantize": QUANTIZE, "report_graph": {}}}
    before = json.dumps(config)
    transformed(config)
    assert json.dumps(config) == before


def test_a_model_that_cannot_be_traced_is_transformed_as_a_module(transformed, tmp_path):
    table = {"by": "type", "linear": {"config": INTEGER}}
    model = transformed({"transform": {"style": "module"}, "passes": {"quantize": table}})
    assert any(isinstance(m, Quantized) for m in model.modules())
    assert not isinstance(model, MaseGraph)
    assert (tmp_path / "transform" / "transformed_ckpt" / "state_dict.safetensors").is_file()


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 5)

    def forward(self, x):
        return self.fc(x) if x.sum() > 0 else -self.fc(x)


def test_a_model_that_cannot_be_traced_is_told_of_the_module_style(data):
    table = {"by": "type", "linear": {"config": INTEGER}}
    info = get_model_info("jsc-tiny")
    passes = {"passes": {"quantize": table}}
    for front_end, count in (("auto", 0), ("fx", 1)):
        with pytest.raises(ValueError, match='style = "module"') as refused:
            transform(Branching(), info, "mine", data, "cls", passes, front_end=front_end)
        assert str(refused.value).count("module passes") == 0  # the style is advice enough
        assert str(refused.value).count('style = "module"') == 1
        assert str(refused.value).count("front_end") == count
    config = {"transform": {"style": "module"}, "passes": {"quantize": table}}
    model = transform(Branching(), info, "mine", data, "cls", config)
    assert isinstance(model.fc, Quantized)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_one_sentence(transformed):
    with pytest.raises(ValueError, match="no CUDA device"):
        transformed({"passes": {"report_graph": {}}}, accelerator="gpu")


BAD = [
    ({}, "no passes to run"),
    ({"passes": {"quantise": QUANTIZE}}, "did you mean 'quantize'"),
    ({"passes": {"quantize": {"bye": "type"}}}, "has no option|needs the option 'by'|'bye'"),
    ({"passes": {"quantize": {"by": "kind"}}}, "option 'by' is 'kind'"),
    ({"passes": {"quantize": {"by": "type", "linaer": {"config": INTEGER}}}}, "mean 'linear'"),
    (
        {"passes": {"quantize": {"by": "type", "linear": {"config": {"name": "intger"}}}}},
        "mean 'integer'",
    ),
    ({"passes": {"report_graph": {"style": "pretty"}}}, "option 'style' is 'pretty'"),
    ({"passes": {"load_mase_graph": {}}}, "needs the option 'load_dir'"),
    ({"passes": {"quantize": 3}}, r"passes\.quantize must be a table"),
    ({"passes": [{"by": "type"}]}, "entry 1 needs the name"),
    ({"passes": 3}, "passes must be a table of tables"),
    ({"transform": {"style": "wild"}, "passes": {}}, "style must be graph or module"),
    ({"transform": {"stile": "graph"}, "passes": {"report_graph": {}}}, "no key 'stile'"),
]


@pytest.mark.parametrize(("config", "sentence"), BAD)
def test_what_is_wrong_in_a_file_is_said_before_any_work(config, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        plan_of(config, tmp_path, "file.toml: ")


def test_all_mistakes_are_said_at_once(tmp_path):
    config = {"passes": {"quantise": {}, "report_graph": {"fil_name": "x"}}}
    with pytest.raises(ConfigError, match=r"(?s)2 problems.*quantise.*file_name"):
        plan_of(config, tmp_path)


TRANSFORMS = [f for f in sorted(EXAMPLES.glob("*.toml")) if "passes" in load_config(f)]
DEAR = [f"jsc_sim_{name}" for name in ("adaround", "calibrate", "gptq", "integers")]


def marks(file):
    return [pytest.mark.slow] if file.stem in DEAR else []


@pytest.mark.parametrize("file", [pytest.param(f, id=f.stem, marks=marks(f)) for f in TRANSFORMS])
def test_every_example_runs(file, data, tmp_path):
    config = load_config(file)
    model = get_model(config["model"], task="cls", dataset_info=data.dataset_info)
    info = get_model_info(config["model"])
    transform(model, info, config["model"], data, "cls", file, save_dir=tmp_path / "t")
    assert (tmp_path / "t" / "transformed_ckpt" / "state_dict.safetensors").is_file()


def saved_graph(tmp_path):
    return next(tmp_path.glob("out/*/software/transform/transformed_ckpt"))


def test_train_transform_test_and_train_on(tmp_path, capsys):
    def act(action, project, **flags):
        given = {"project": project, "project_dir": str(tmp_path / "out"), "num_workers": "0"}
        given |= {key: value if value is True else str(value) for key, value in flags.items()}
        prepare(ACTIONS[action], given)()

    small = {"model": "jsc-tiny", "dataset": "jsc-sim", "batch_size": 4096}
    small |= {"trainer_precision": 32, "learning_rate": 1e-2, "no_progress": True}
    act("train", "a", **small, max_epochs=2)
    best = tmp_path / "out" / "a" / "software" / "training_ckpts" / "best.ckpt"
    by_name = EXAMPLES / "jsc_toy_by_name.toml"
    act("transform", "b", config=by_name, load_name=best, load_type="pl", to_test=True)
    said = capsys.readouterr().err
    assert "Before and after:" in said
    assert f"--load {saved_graph(tmp_path)} --load-type mz" in said.partition("Test it with: ")[2]
    scores = json.loads((saved_graph(tmp_path).parent / "transform.json").read_text())["scores"]
    accuracy = scores[0]
    assert accuracy["Before"] > 0.3
    assert accuracy["After"] - accuracy["Before"] == pytest.approx(accuracy["Difference"])
    loaded = {"load_name": saved_graph(tmp_path), "load_type": "mz"}
    act("test", "c", **small, **loaded)
    file = tmp_path / "out" / "c" / "software" / "checkpoints" / "test_metrics.json"
    assert json.loads(file.read_text())["metrics"]["test_acc_epoch"] == accuracy["After"]
    act("train", "d", **small, **loaded, max_epochs=1)
    trained = tmp_path / "out" / "d" / "software" / "training_ckpts" / "transformed_ckpt"
    before, after = load_graph(saved_graph(tmp_path)), load_graph(trained)
    assert str(after.model) == str(before.model)
    weights = [g.model.seq_blocks.get_submodule("2").weight for g in (before, after)]
    assert not torch.equal(*weights)
    best = torch.load(trained.parent / "best.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(weights[1], best["model.seq_blocks.2.weight"])
    act("transform", "e", config=by_name, load_name=trained, load_type="mz")
    act("train", "d", **small, **loaded, max_epochs=2, resume=True)
    again = load_graph(trained).model.seq_blocks.get_submodule("2").weight
    assert not torch.equal(again, weights[1])


def test_passes_that_need_data_have_the_training_data(ch, tmp_path):
    (tmp_path / "data.toml").write_text(
        'model = "jsc-tiny"\ndataset = "jsc-sim"\n'
        "[passes.prune.weight]\nsparsity = 0.5\n"
        "[passes.add_pruning_metadata]\n"
        "[passes.sensitivity]\nnum_batches = 1\n"
        "[passes.sensitivity.formats.int8.config]\n"
        'name = "integer"\nweight_width = 8\nweight_frac_width = 4\n'
        "data_in_width = 8\ndata_in_frac_width = 4\nbias_width = 8\nbias_frac_width = 4\n"
    )
    done = ch("transform", "--config", tmp_path / "data.toml")
    assert "40 of 80 weights pruned" in done.stderr
    assert "Sensitivity, highest first" in done.stderr


def test_a_bad_file_is_wrong_usage(ch, tmp_path):
    text = 'model = "jsc-tiny"\ndataset = "jsc-sim"\n[passes.quantise]\n'
    (tmp_path / "bad.toml").write_text(text)
    done = ch("transform", "--config", tmp_path / "bad.toml", check=2)
    assert "bad.toml: passes: unknown pass 'quantise'; did you mean 'quantize'?" in done.stderr
    assert not (tmp_path / "out").exists()
