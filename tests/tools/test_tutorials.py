"""The calls of the tutorials, in their order, on networks and texts that are made on the spot."""

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.nn.modules import Identity
from chop.nn.quantized.modules import linear as quantized
from chop.passes import (
    add_common_metadata_analysis_pass,
    fuse_lora_weights_transform_pass,
    init_metadata_analysis_pass,
    insert_lora_adapter_transform_pass,
    prune_transform_pass,
    quantize_transform_pass,
)
from chop.passes.graph.utils import get_mase_op
from chop.passes.module import report_trainable_parameters_analysis_pass
from chop.pipelines import CompressionPipeline
from chop.tools import get_tokenized_dataset, get_trainer
from chop.tools.utils import deepsetattr

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
]

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "plot", "not", "very"]
INPUTS = ["input_ids", "attention_mask", "labels"]
FIXED_POINT = {"name": "integer"}
for operand in ("data_in", "weight", "bias"):
    FIXED_POINT |= {f"{operand}_width": 8, f"{operand}_frac_width": 4}
QUANTIZE = {"by": "type", "default": {"config": {"name": None}}, "linear": {"config": FIXED_POINT}}


def pruning(method):
    half = {"sparsity": 0.5, "method": method, "scope": "local"}
    return {"weight": half, "activation": half}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)


@pytest.fixture
def tokenizer(package):
    transformers, tokenizers = package("transformers"), package("tokenizers")
    raw = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]")
    )
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    raw.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw,
        **names,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


@pytest.fixture
def bert(package):
    """`bert(num_attention_heads=4)` is a small BERT of two classes with random weights."""
    transformers = package("transformers")

    def make(**changes):
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        sizes |= {"intermediate_size": 16, "vocab_size": len(WORDS), "num_labels": 2} | changes
        config = transformers.BertConfig(**sizes)
        return transformers.BertForSequenceClassification(config).eval()

    return make


@pytest.fixture
def distilbert(package):
    transformers = package("transformers")
    sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 16, "vocab_size": len(WORDS)}
    sizes["initializer_range"] = 0.3  # weights that 4 fractional bits do not round to zero
    config = transformers.DistilBertConfig(**sizes)
    return transformers.DistilBertForSequenceClassification(config).eval()


@pytest.fixture
def texts(package, tokenizer):
    """Sentences with their class, tokenized: whether they are good."""
    datasets = package("datasets")
    rows = {"text": ["good film", "very good plot", "bad film", "very bad plot"] * 8}
    rows["label"] = [1, 1, 0, 0] * 8
    table = datasets.Dataset(datasets.table.InMemoryTable.from_pydict(rows), fingerprint="texts")
    both = datasets.DatasetDict(train=table, test=table)
    return get_tokenized_dataset(both, tokenizer)


@pytest.fixture
def trainer(package, texts, tokenizer, tmp_path):
    """`trainer(model)` trains and scores a model on the texts."""
    package("accelerate")

    def make(model, epochs=1):
        folder = str(tmp_path / "trainer")
        options = {"evaluate_metric": "accuracy", "output_dir": folder, "num_train_epochs": epochs}
        return get_trainer(model, texts, tokenizer, **options)

    return make


def described(model, names=INPUTS):
    graph = MaseGraph(model, hf_input_names=names)
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph)
    return graph


def types(graph):
    return [type(graph.modules[n.target]).__name__ for n in graph.nodes if n.op == "call_module"]


# --- a graph, its passes, and its file


def test_the_output_of_a_tokenizer_describes_a_graph(bert, tokenizer, caplog):
    sentences = ["very good film", "not bad"]
    encoded = tokenizer(sentences, return_tensors="pt", padding=True, return_token_type_ids=True)
    model = bert()
    graph, _ = init_metadata_analysis_pass(MaseGraph(model))
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": encoded})
    assert "the inputs have no token_type_ids; what the tokenizer gives is dropped" in caplog.text
    (ids,) = (n for n in graph.nodes if n.name == "input_ids")
    assert ids.meta["mase"]["common"]["results"]["data_out_0"]["shape"] == [2, 5]
    del encoded["token_type_ids"]
    assert torch.allclose(graph.model(**encoded).logits, model(**encoded).logits, atol=1e-6)


def test_a_pass_written_by_hand_counts_and_removes_dropout(bert, tmp_path):
    def count(mg, pass_args=None):
        return mg, {"dropouts": sum(get_mase_op(node) == "dropout" for node in mg.nodes)}

    def remove(mg, pass_args=None):
        for node in list(mg.nodes):
            if get_mase_op(node) == "dropout":
                node.replace_all_uses_with(node.args[0])
                mg.fx_graph.erase_node(node)
        return mg, {}

    graph = described(bert())
    assert count(graph)[1]["dropouts"] > 4
    graph, _ = remove(graph)
    assert count(graph)[1]["dropouts"] == 0
    assert graph.draw(tmp_path / "bert.svg").stat().st_size > 1000
    graph.export(tmp_path / "bert")
    loaded = MaseGraph.from_checkpoint(tmp_path / "bert")
    inputs = graph.example_inputs
    assert torch.equal(loaded.model(**inputs).loss, graph.model(**inputs).loss)
    # as in the next session, which starts from the file
    loaded, _ = init_metadata_analysis_pass(loaded)
    loaded, _ = add_common_metadata_analysis_pass(loaded)
    assert count(loaded)[1]["dropouts"] == 0


# --- adapters of low rank


def test_adapters_are_inserted_trained_and_fused(bert, trainer, tmp_path):
    graph = described(bert())
    for parameter in graph.model.bert.embeddings.parameters():
        parameter.requires_grad = False
    before = trainer(graph.model).evaluate()
    assert before.keys() >= {"eval_loss", "eval_accuracy"}
    graph, _ = insert_lora_adapter_transform_pass(graph, {"rank": 2, "alpha": 1.0, "dropout": 0.5})
    _, counts = report_trainable_parameters_analysis_pass(graph.model)
    assert counts["trainable"] < counts["parameters"] / 10
    assert counts["submodules"]["bert.embeddings"] == 0
    adapted = trainer(graph.model, epochs=4)
    adapted.train()
    trained = adapted.evaluate()
    assert trained["eval_loss"] < before["eval_loss"]
    graph, _ = fuse_lora_weights_transform_pass(graph)
    assert "LoRALinear" not in types(graph)
    fused = trainer(graph.model).evaluate()
    assert fused["eval_loss"] == pytest.approx(trained["eval_loss"], abs=1e-4)
    graph.export(tmp_path / "lora")
    loaded = MaseGraph.from_checkpoint(tmp_path / "lora")
    assert trainer(loaded.model).evaluate()["eval_loss"] == pytest.approx(fused["eval_loss"])


# --- quantisation and pruning


def test_linear_layers_are_quantized_by_type_and_trained_afterwards(distilbert, trainer):
    graph = described(distilbert)
    trainer(graph.model, epochs=4).train()
    graph, _ = quantize_transform_pass(graph, QUANTIZE)
    assert types(graph).count("LinearInteger") == 14
    after = trainer(graph.model).evaluate()
    assert 0 <= after["eval_accuracy"] <= 1
    retrained = trainer(graph.model, epochs=4)
    retrained.train()
    assert retrained.evaluate()["eval_loss"] < after["eval_loss"]


@pytest.mark.parametrize("method", ["random", "l1-norm"])
def test_weights_and_activations_are_pruned_to_half(bert, trainer, method):
    graph = described(bert())
    graph, _ = prune_transform_pass(graph, pruning(method))
    layers = [m for m in graph.model.modules() if isinstance(m, nn.Linear)]
    for layer in layers:
        assert (layer.weight == 0).float().mean() == pytest.approx(0.5, abs=0.02)
    trainer(graph.model).train()
    assert all((layer.weight == 0).float().mean() > 0.48 for layer in layers)
    assert "eval_accuracy" in trainer(graph.model).evaluate()


# --- searches with Optuna


def test_a_study_over_layers_heads_widths_and_identities_is_compressed(bert, trainer):
    optuna = pytest.importorskip("optuna")
    choices = {"num_hidden_layers": [1, 2], "num_attention_heads": [2, 4]}
    choices |= {"hidden_size": [16, 32], "intermediate_size": [16, 32]}

    def objective(trial):
        sizes = {key: trial.suggest_categorical(key, values) for key, values in choices.items()}
        model = bert(**sizes)
        for name, layer in list(model.named_modules()):
            if isinstance(layer, nn.Linear) and layer.in_features == layer.out_features:
                kind = trial.suggest_categorical(f"{name}_type", ["linear", "identity"])
                if kind == "identity":
                    deepsetattr(model, name, Identity())
        run = trainer(model)
        run.train()
        trial.set_user_attr("model", model)
        return run.evaluate()["eval_accuracy"]

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=2)
    best = study.best_trial.user_attrs["model"].cpu().eval()
    graph = MaseGraph(best, hf_input_names=INPUTS)
    options = {"quantize_transform_pass": QUANTIZE, "prune_transform_pass": pruning("l1-norm")}
    graph, _ = CompressionPipeline()(graph, pass_args=options)
    assert types(graph).count("LinearInteger") > 1
    assert "eval_accuracy" in trainer(graph.model).evaluate()


BLOCK = {"width": 8, "block_size": [16]}
BINARY = {"width": 1, "stochastic": False, "bipolar": True}
MINIFLOAT = {"width": 8, "exponent_width": 4, "exponent_bias": 7}
KINDS = {
    "LinearInteger": {"width": 8, "frac_width": 4},
    "LinearMinifloatDenorm": MINIFLOAT,
    "LinearMinifloatIEEE": MINIFLOAT,
    "LinearLog": {"width": 8, "exponent_bias": 7},
    "LinearBlockFP": {**BLOCK, "exponent_width": 8, "exponent_bias": 127},
    "LinearBlockMinifloat": {**BLOCK, "exponent_width": 4, "exponent_bias_width": 8},
    "LinearBlockLog": {**BLOCK, "exponent_bias_width": 8},
    "LinearBinary": BINARY,
    "LinearBinaryScaling": BINARY,
    "LinearBinaryResidualSign": BINARY,
}


def for_each_operand(options):
    operands = ("data_in", "weight", "bias")
    return {f"{operand}_{key}": value for operand in operands for key, value in options.items()}


def test_a_study_over_ten_classes_of_quantized_layers(bert, trainer):
    optuna = pytest.importorskip("optuna")
    base = bert()

    def objective(trial):
        model = bert()
        model.load_state_dict(base.state_dict())
        for name, layer in list(model.named_modules()):
            if isinstance(layer, nn.Linear):
                kind = trial.suggest_categorical("type", list(KINDS))
                new = getattr(quantized, kind)(
                    in_features=layer.in_features,
                    out_features=layer.out_features,
                    config=for_each_operand(KINDS[kind]),
                )
                new.weight.data, new.bias.data = layer.weight.data, layer.bias.data
                deepsetattr(model, name, new)
        run = trainer(model)
        run.train()
        return run.evaluate()["eval_accuracy"]

    sampler = optuna.samplers.GridSampler({"type": list(KINDS)})
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(objective)
    assert {trial.params["type"] for trial in study.trials} == set(KINDS)
