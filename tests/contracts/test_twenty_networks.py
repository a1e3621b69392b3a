"""Twenty networks of transformers, small and with random weights, are used as our own are."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

pytestmark = pytest.mark.slow

LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SMALL = {"hidden_size": 32, **LAYERS}
TEXT = {"vocab_size": 64, "max_position_embeddings": 32, **SMALL}
GROUPED = {**TEXT, "num_key_value_heads": 2, "use_cache": False}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

IDS = torch.arange(16).view(2, 8) % 50 + 3
MASK = torch.ones_like(IDS)
MASK[1, 6:] = 0  # the second sentence is shorter
SENTENCES = {"input_ids": IDS, "attention_mask": MASK}
PAIRS = {**SENTENCES, "decoder_input_ids": IDS[:, :5]}


class Network(NamedTuple):
    """A class of transformers, the arguments of its config, and its inputs."""

    model: str
    config: dict[str, Any]
    inputs: dict[str, Any]


def pictures() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def sound() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 400)}


NETWORKS = {
    "BERT": Network("BertForSequenceClassification", TEXT, SENTENCES),
    "DistilBERT": Network(
        "DistilBertForSequenceClassification",
        {"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
        SENTENCES,
    ),
    "RoBERTa": Network("RobertaForSequenceClassification", TEXT, SENTENCES),
    "ALBERT": Network("AlbertForSequenceClassification", {**TEXT, "embedding_size": 16}, SENTENCES),
    "DeBERTa-v2": Network(
        "DebertaV2ForSequenceClassification",
        {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        SENTENCES,
    ),
    "GPT-2": Network(
        "GPT2LMHeadModel",
        {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
        | {"use_cache": False, **SPECIAL},
        SENTENCES,
    ),
    "GPT-NeoX": Network("GPTNeoXForCausalLM", {**TEXT, "use_cache": False}, SENTENCES),
    "Llama": Network("LlamaForCausalLM", GROUPED, SENTENCES),
    "Mistral": Network("MistralForCausalLM", {**GROUPED, "sliding_window": 4}, SENTENCES),
    "Qwen2": Network("Qwen2ForCausalLM", GROUPED, SENTENCES),
    "Gemma": Network("GemmaForCausalLM", {**GROUPED, "head_dim": 8}, SENTENCES),
    "OPT": Network(
        "OPTForCausalLM",
        {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32, "use_cache": False},
        SENTENCES,
    ),
    "T5": Network(
        "T5ForConditionalGeneration",
        {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2}
        | {"num_heads": 4, "use_cache": False},
        PAIRS,
    ),
    "BART": Network(
        "BartForConditionalGeneration",
        {"vocab_size": 64, "d_model": 32, "max_position_embeddings": 32, "use_cache": False}
        | {f"{side}_layers": 2 for side in ("encoder", "decoder")}
        | {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
        | {f"{side}_ffn_dim": 48 for side in ("encoder", "decoder")},
        PAIRS,
    ),
    "ViT": Network(
        "ViTForImageClassification", {**SMALL, "image_size": 32, "patch_size": 8}, pictures()
    ),
    "Swin": Network(
        "SwinForImageClassification",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "window_size": 4}
        | {"depths": [2, 2], "num_heads": [2, 4]},
        pictures(),
    ),
    "ConvNeXt": Network(
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
        pictures(),
    ),
    "SegFormer": Network(
        "SegformerForSemanticSegmentation",
        {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [16, 32]}
        | {"patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [2, 4]}
        | {"mlp_ratios": [2, 2], "decoder_hidden_size": 32},
        pictures(),
    ),
    "Wav2Vec2": Network(
        "Wav2Vec2ForCTC",
        {"vocab_size": 32, **SMALL, "conv_dim": [16, 16], "conv_stride": [5, 2]}
        | {"conv_kernel": [10, 3], "num_feat_extract_layers": 2}
        | {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4},
        sound(),
    ),
    "CLIP": Network(
        "CLIPModel",
        {
            "text_config": {"vocab_size": 64, "max_position_embeddings": 16, **SMALL, **SPECIAL},
            "vision_config": {**SMALL, "image_size": 32, "patch_size": 8},
            "projection_dim": 16,
        },
        {**SENTENCES, **pictures()},
    ),
}
FAILING: dict[str, str] = {}  # with the reason; at most one
CASES = [
    pytest.param(
        name,
        marks=pytest.mark.xfail(strict=True, reason=FAILING[name]) if name in FAILING else (),
    )
    for name in NETWORKS
]


def test_there_are_twenty_and_the_documentation_lists_them():
    assert len(NETWORKS) == 20
    assert len(FAILING) <= 1
    page = Path(__file__).parents[2] / "docs" / "networks.md"
    rows = re.findall(
        r"^\| ([^|]+) \| `(\w+)` \|.*\| (\w+)", page.read_text(encoding="utf-8"), re.M
    )
    results = {name: "fails" if name in FAILING else "passes" for name in NETWORKS}
    assert rows == [(name, network.model, results[name]) for name, network in NETWORKS.items()]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_network_of_transformers_keeps_the_contract(name, package, contract, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = package("transformers")
    network = NETWORKS[name]
    cls = getattr(transformers, network.model)
    model = cls(cls.config_class(**network.config))
    contract(model, network.inputs).keeps_all()
