"""A model that cannot be traced: its quantised layers are saved, tested, trained and searched."""

import json
import re
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from chop.checkpoints import load_model
from chop.ir.graph.saved_modules import notes_of, save_modules
from chop.models.base import MODELS
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.module import quantize_module_transform_pass

OWN = '''
import torch
from torch import nn
from chop.models import model

class Decides(nn.Module):
    """Which layer runs depends on the data."""

    def __init__(self, info):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(info.num_features, 8), nn.ReLU())
        self.positive = self.negative = nn.Linear(8, info.num_classes)

    def forward(self, x):
        h = self.first(x)
        return self.positive(h) if h.sum() > 0 else self.negative(-h)

model("decides")(Decides)
'''
FORMAT = """
name = "integer"
data_in_width = 4
data_in_frac_width = 2
weight_width = 3
weight_frac_width = 2
bias_width = 4
bias_frac_width = 2
"""
QUANTIZE = f"""
[transform]
style = "module"
[passes.quantize]
by = "type"
[passes.quantize.linear.config]
{FORMAT}
"""
INTEGER = {
    f"{operand}_{key}": value
    for operand in ("data_in", "weight", "bias")
    for key, value in {"width": 4, "frac_width": 2}.items()
}
TABLE = {"by": "type", "linear": {"config": {"name": "integer", **INTEGER}}}
ROWS = "a,b,kind\n" + "".join(
    f"{(i * 7) % 11 - 5},{(i * 5) % 13 - 6},{'yes' if (i * 7) % 11 > (i * 5) % 13 else 'no'}\n"
    for i in range(120)
)


@pytest.fixture
def words(here, tmp_path, environment):
    """The model and the data of the user, as arguments."""
    (tmp_path / "decides.py").write_text(OWN)
    (tmp_path / "rows.csv").write_text(ROWS)
    files = ("--import", tmp_path / "decides.py", "--data-path", tmp_path / "rows.csv")
    yield ("decides", "csv", *files, "--batch-size", 16, "--cpu", 0, "--project-dir", "out")
    MODELS._items.pop("decides", None)
    for name in [name for name in sys.modules if name.startswith("mase_user_decides_")]:
        del sys.modules[name]


def score(text, metric="test_loss_epoch"):
    return re.findall(rf"{metric}\D+([\d.]+)", text)[-1]


def test_the_saved_model_scores_as_it_did_after_the_passes(here, words, tmp_path):
    """Before, the float model was scored."""
    (tmp_path / "q.toml").write_text(QUANTIZE)
    flags = ("--config", "q.toml", "--project", "p", "--test")
    code, _, err = here("transform", *words, *flags)
    assert code == 0, err
    report = json.loads((tmp_path / "out/p/software/transform/transform.json").read_text())
    (loss,) = [row for row in report["scores"] if row["Metric"] == "loss"]
    assert loss["Before"] != loss["After"]
    folder = tmp_path / "out/p/software/transform/transformed_ckpt"
    code, _, err = here("test", *words, "--load", folder, "--load-type", "mz")
    assert code == 0, err
    assert float(score(err)) == pytest.approx(loss["After"], rel=1e-4)
    assert notes_of(folder)["made_from"] == {"model": "decides", "dataset": "csv"}
    assert notes_of(folder)["trained_on"]["classes"] == ["no", "yes"]


@pytest.mark.slow
def test_the_saved_model_is_trained_with_its_formats(here, words, tmp_path):
    (tmp_path / "q.toml").write_text(QUANTIZE)
    code, _, err = here("transform", *words, "--config", "q.toml", "--project", "p")
    assert code == 0, err
    folder = tmp_path / "out/p/software/transform/transformed_ckpt"
    load = ("--load", folder, "--load-type", "mz", "--learning-rate", 0.01)
    code, _, err = here("train", *words, *load, "--max-epochs", 2, "--project", "t")
    assert code == 0, err
    (line,) = re.findall(r"Test it with: ch (.*)", err)
    assert "training_ckpts/transformed_ckpt --load-type mz" in line
    model = MODELS["decides"].build
    assert model is not None
    code, _, err = here(*line.split())
    assert code == 0, err
    code, _, err = here("train", *words, *load, "--max-epochs", 3, "--project", "t", "--resume")
    assert code == 0, err
    assert "Saved transformed layers to" in err


# ------------------------------------------------------------------ the files


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = self.again = nn.Linear(4, 2)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.body[0].weight

    def forward(self, x):
        h = self.body(x)
        return self.head(h) + self.again(self.tied(h))


@pytest.fixture
def quantized(tmp_path):
    model = Net().eval()
    model, _ = quantize_module_transform_pass(model, TABLE)
    return model, save_modules(model, tmp_path / "saved", notes={"made_from": {"model": "net"}})


def test_formats_weights_and_shared_layers_are_restored(quantized):
    model, folder = quantized
    again = load_model(folder, "mz", Net().eval())
    x = torch.randn(5, 4)
    assert torch.equal(again(x), model(x))
    assert str(again) == str(model)
    assert again.head is again.again
    assert load_model(folder, "auto", Net()).head.config == model.head.config


def test_a_model_that_is_one_layer_is_replaced(tmp_path):
    model, _ = quantize_module_transform_pass(nn.Linear(3, 2), TABLE)
    again = load_model(save_modules(model, tmp_path / "saved"), "mz", nn.Linear(3, 2))
    assert isinstance(again, Quantized)
    assert torch.equal(again.weight, model.weight)


def test_a_loaded_model_can_be_saved_again(quantized, tmp_path):
    model, folder = quantized
    again = load_model(folder, "mz", Net().eval())
    third = load_model(save_modules(again, tmp_path / "second"), "mz", Net().eval())
    assert str(third) == str(model)


def test_the_fused_encoder_does_not_bypass_restored_layers(tmp_path):
    def encoder():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        return nn.TransformerEncoder(layer, 1, enable_nested_tensor=True).eval()

    model, _ = quantize_module_transform_pass(encoder(), TABLE)
    again = load_model(save_modules(model, tmp_path / "saved"), "mz", encoder())
    x = torch.randn(2, 3, 8)
    with torch.inference_mode():
        assert torch.equal(again(x), model(x))
        assert not torch.equal(again(x), encoder()(x))


def edited(folder, **parts):
    content = json.loads((folder / "layers.json").read_text())
    (folder / "layers.json").write_text(json.dumps(content | parts))


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"format": "else"}, "was not saved by MASE"),
        ({"version": 1}, "load it with the MASE that saved it"),
        ({"modules": {}}, "its 'modules' is missing or of another kind"),
        ({"layers": [3]}, "its 'layers' is missing or of another kind"),
        ({"layers": ["nowhere"]}, "is damaged"),
        ({"modules": [{"name": "", "class": "os:system"}]}, "is damaged|was not loaded"),
        ({"trained_on": 3}, "its 'trained_on' is missing or of another kind"),
    ],
)
def test_a_damaged_file_is_refused_and_the_model_unchanged(quantized, parts, sentence):
    _, folder = quantized
    edited(folder, **parts)
    model = Net()
    with pytest.raises(ValueError, match=sentence):
        load_model(folder, "mz", model)
    assert not any(isinstance(layer, Quantized) for layer in model.modules())


def test_a_file_cannot_name_foreign_classes(quantized):
    _, folder = quantized
    text = (folder / "layers.json").read_text()
    for name in ("os:system", "subprocess:Popen", "torch.jit:ScriptModule"):
        changed = re.sub(r'"class": "chop[^"]*"', f'"class": "{name}"', text)
        (folder / "layers.json").write_text(changed)
        with pytest.raises(ValueError, match=r"was not loaded|is damaged"):
            load_model(folder, "mz", Net())


def test_missing_weights_are_refused_and_the_model_is_unchanged(quantized):
    _, folder = quantized
    weights = load_file(folder / "state_dict.safetensors")
    for name in ("body.1.running_mean", "body.1.weight"):
        save_file(
            {k: v for k, v in weights.items() if k != name}, folder / "state_dict.safetensors"
        )
        model = Net()
        with pytest.raises(ValueError, match=rf"safetensors has no tensor '{name}'; copy the"):
            load_model(folder, "mz", model)
        assert not any(isinstance(layer, Quantized) for layer in model.modules())


def test_another_model_is_refused(quantized):
    _, folder = quantized
    with pytest.raises(ValueError, match=r"the model has no layer 'body\.0'"):
        load_model(folder, "mz", nn.Linear(4, 2))
    other = Net()
    other.head = other.again = nn.Linear(4, 3)
    with pytest.raises(ValueError, match=r"head.weight has the shape \[2, 4\], not \[3, 4\]"):
        load_model(folder, "mz", other)


# ------------------------------------------------------------------ search

SEARCH = """
[search.search_space]
name = "quantize"
style = "module"
setup.by = "type"
[search.search_space.seed.linear.config]
name = ["integer", "NA"]
data_in_width = [8]
data_in_frac_width = [4]
weight_width = [2, 4, 8]
weight_frac_width = [2]
bias_width = [8]
bias_frac_width = [4]
[search.strategy]
name = "random"
setup.n_trials = 6
[search.strategy.sw_runner.basic_evaluation]
num_samples = 32
data_loader = "val_dataloader"
allow_untrained = true
[search.strategy.hw_runner.average_bitwidth]
count = "weights"
[search.strategy.hw_runner.model_size]
[search.strategy.metrics]
accuracy.scale = 1.0
average_bitwidth.scale = 1.0
"""


def test_a_model_that_cannot_be_traced_is_searched(here, words, tmp_path):
    (tmp_path / "s.toml").write_text(SEARCH)
    flags = (*words, "--config", "s.toml", "--project", "s", "--no-progress")
    code, _, err = here("search", *flags)
    assert code == 0, err
    record = json.loads((tmp_path / "out/s/software/search_ckpts/search.json").read_text())
    widths = {}
    for trial in record["trials"]:
        assert trial["state"] == "COMPLETE"
        config = {name: table["config"] for name, table in trial["config"].items()}
        assert set(config) == {"first.0", "first.1", "positive", "negative"}
        assert config["positive"] == config["negative"]  # two names of one layer
        bits = [
            32 if c["name"] is None else c["weight_width"]
            for c in (config["first.0"], config["positive"])
        ]
        widths[trial["number"]] = (bits[0] * 16 + bits[1] * 16) / 32
        assert trial["hardware_metrics"]["average_bitwidth"] == widths[trial["number"]]
    assert len(set(widths.values())) > 1
    code, _, err = here("search", *flags, "--apply", "best")
    assert code == 0, err
    (line,) = re.findall(r"Test it with: ch (.*)", err)
    code, _, err = here(*line.split(), "--project-dir", "out")
    assert code == 0, err
    assert "Loaded transformed layers from" in err


@pytest.mark.slow
def test_several_workers_find_what_one_does(here, words, tmp_path):
    (tmp_path / "s.toml").write_text(SEARCH)
    records = []
    for workers in (1, 2):
        flags = ("--config", "s.toml", "--project", f"w{workers}", "--workers", workers)
        code, _, err = here("search", *words, *flags, "--no-progress")
        assert code == 0, err
        file = tmp_path / f"out/w{workers}/software/search_ckpts/search.json"
        trials = json.loads(file.read_text())["trials"]
        records.append(
            [(t["number"], t["software_metrics"], t["hardware_metrics"]) for t in trials]
        )
    assert records[0] == records[1]


@pytest.mark.slow
def test_candidates_without_a_graph_are_trained(here, words, tmp_path):
    text = SEARCH.replace(
        "[search.strategy.sw_runner.basic_evaluation]\nnum_samples = 32\n",
        "[search.strategy.sw_runner.basic_train]\nmax_epochs = 1\n",
    )
    text = text.replace('data_loader = "val_dataloader"\nallow_untrained = true\n', "")
    (tmp_path / "s.toml").write_text(text + "[search.retrain]\nmax_epochs = 1\n")
    code, _, err = here("search", *words, "--config", "s.toml", "--project", "s", "--no-progress")
    assert code == 0, err
    saved = [*(tmp_path / "out/s").rglob("layers.json")]
    assert len(saved) == 1


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('style = "module"', 'style = "wild"', "style must be graph or module, not 'wild'"),
        ('name = "quantize"', 'name = "graph/prune"', "searches number formats only; set name ="),
        ("hw_runner.model_size", "hw_runner.bitops", "bitops needs a graph, which a search in the"),
        ('"integer", "NA"', '"linear_wide"', "unknown number format"),
        ('"integer", "NA"', '"both"', "changes widths, which needs a graph"),
        ("seed.linear", "seed.linaer", "did you mean 'linear'"),
    ],
)
def test_what_has_no_place_in_the_module_style_is_refused(
    old, new, sentence, here, words, tmp_path
):
    (tmp_path / "s.toml").write_text(SEARCH.replace(old, new))
    code, _, err = here("search", *words, "--config", "s.toml", "--no-progress")
    assert code == 2
    assert sentence in err


def test_a_search_that_cannot_trace_its_model_names_the_style(here, words, tmp_path):
    (tmp_path / "s.toml").write_text(SEARCH.replace('style = "module"\n', ""))
    code, _, err = here("search", *words, "--config", "s.toml", "--no-progress")
    assert code == 1
    assert 'or set style = "module" in [transform] or [search.search_space]' in err
