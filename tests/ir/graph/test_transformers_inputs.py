"""Networks of transformers are captured on inputs that are made from their config."""

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.ir.graph.tracer import TraceError
from chop.ir.graph.transformers_inputs import made_inputs
from chop.registry import UnknownName

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 16}
TEXT = {"vocab_size": 40, "max_position_embeddings": 32, **SIZES}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
BART = {"vocab_size": 40, "d_model": 16, "max_position_embeddings": 32}
for side in ("encoder", "decoder"):
    BART |= {f"{side}_layers": 1, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 16}
WHISPER = {**BART, **SPECIAL, "num_mel_bins": 8, "max_source_positions": 20}
WHISPER.pop("max_position_embeddings")
WAV2VEC = {"vocab_size": 32, **SIZES, "conv_dim": [8, 8], "conv_stride": [5, 2]}
WAV2VEC |= {"conv_kernel": [10, 3], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4}
VISION = {**SIZES, "image_size": 16, "patch_size": 8}
IDS, IMAGE = (2, 8), (2, 3, 16, 16)
SENTENCE = {"input_ids": IDS, "attention_mask": IDS}
# class: the arguments of its config, and the shapes of its inputs and of its labels
MADE = {
    "BertModel": (TEXT, SENTENCE, {}),
    "BertForSequenceClassification": (TEXT, SENTENCE, {"labels": (2,)}),
    "BertForTokenClassification": (TEXT, SENTENCE, {"labels": IDS}),
    "BertForMaskedLM": (TEXT, SENTENCE, {"labels": IDS}),
    "BertForMultipleChoice": (TEXT, dict.fromkeys(SENTENCE, (2, 3, 8)), {"labels": (2,)}),
    "BertForQuestionAnswering": (
        TEXT,
        SENTENCE,
        {"start_positions": (2,), "end_positions": (2,)},
    ),
    "LlamaForCausalLM": ({**TEXT, **SPECIAL}, SENTENCE, {"labels": IDS}),
    "T5ForConditionalGeneration": (
        {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2},
        {**SENTENCE, "decoder_input_ids": IDS},
        {"labels": IDS},
    ),
    "BartForSequenceClassification": (BART, SENTENCE, {"labels": (2,)}),
    "WhisperForConditionalGeneration": (
        WHISPER,
        {"input_features": (2, 8, 40), "decoder_input_ids": IDS},
        {"labels": IDS},
    ),
    "Wav2Vec2ForCTC": (WAV2VEC, {"input_values": (2, 16000)}, {}),
    "ASTForAudioClassification": (
        {**SIZES, "max_length": 32, "num_mel_bins": 16, "patch_size": 8},
        {"input_values": (2, 32, 16)},
        {"labels": (2,)},
    ),
    "ViTForImageClassification": (VISION, {"pixel_values": IMAGE}, {"labels": (2,)}),
    "SegformerForSemanticSegmentation": (
        {"image_size": 32, "num_encoder_blocks": 1, "depths": [1], "sr_ratios": [2]}
        | {"hidden_sizes": [16], "patch_sizes": [7], "strides": [4], "num_attention_heads": [2]}
        | {"mlp_ratios": [2], "decoder_hidden_size": 16},
        {"pixel_values": (2, 3, 32, 32)},
        {"labels": (2, 32, 32)},
    ),
    "VideoMAEForVideoClassification": (
        {**VISION, "num_frames": 4, "tubelet_size": 2},
        {"pixel_values": (2, 4, 3, 16, 16)},
        {"labels": (2,)},
    ),
    "CLIPModel": (
        {"text_config": {**TEXT, **SPECIAL}, "vision_config": VISION, "projection_dim": 8},
        {**SENTENCE, "pixel_values": IMAGE},
        {},
    ),
}
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers


@pytest.fixture
def network(package, monkeypatch):
    """`network("BertModel", {…})` has random weights."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = package("transformers")

    def make(name, config):
        torch.manual_seed(0)
        cls = getattr(transformers, name)
        return cls(cls.config_class(**config)).eval()

    return make


def shapes(inputs):
    return {name: tuple(value.shape) for name, value in inputs.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_a_network_is_captured_without_example_inputs(network, name):
    config, inputs, labels = MADE[name]
    model = network(name, config)
    for wanted, names in ((inputs, None), (inputs | labels, [*inputs, *labels])):
        graph = MaseGraph(model, hf_input_names=names)
        assert shapes(graph.example_inputs) == wanted
        assert {node.name for node in graph.inputs} == set(wanted)
        with torch.no_grad():
            expected, results = (run(**graph.example_inputs) for run in (model, graph.model))
        assert torch.allclose(results[0], expected[0], atol=1e-5)
        assert ("loss" in results) == bool(labels and names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "dtype", "shape"),
    [
        ({}, torch.int64, (2,)),
        ({"num_labels": 1}, torch.float32, (2,)),
        ({"num_labels": 3, "problem_type": "regression"}, torch.float32, (2, 3)),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, torch.float32, (2, 3)),
        ({"num_labels": 3, "problem_type": "single_label_classification"}, torch.int64, (2,)),
    ],
)
def test_labels_are_those_of_the_problem(network, options, dtype, shape):
    model = network("BertForSequenceClassification", {**TEXT, **options})
    made = made_inputs(model, ["input_ids", "labels"])
    assert (made["labels"].dtype, tuple(made["labels"].shape)) == (dtype, shape)
    assert model(**made).loss.isfinite()


@pytest.mark.slow
def test_what_cannot_be_made_is_refused_with_the_fix(network):
    bert = network("BertModel", TEXT)
    with pytest.raises(ValueError, match="no example of the input 'past_key_values' of BertModel"):
        MaseGraph(bert, hf_input_names=["input_ids", "past_key_values"])
    with pytest.raises(UnknownName, match="unknown forward argument 'inputs_ids'; did you mean"):
        MaseGraph(bert, hf_input_names=["inputs_ids"])
    sound = network("Wav2Vec2ForCTC", WAV2VEC)  # it looks at the largest label
    with pytest.raises(TraceError, match=r"at fault, give dummy_in=\{name: tensor\}"):
        MaseGraph(sound, hf_input_names=["input_values", "labels"])


def test_other_networks_need_inputs_of_their_own():
    class Mine(nn.Module):
        config = None

        def forward(self, input_ids):
            return input_ids

    with pytest.raises(ValueError, match=r"torch\.export needs example inputs"):
        MaseGraph(Mine(), front_end="export")
