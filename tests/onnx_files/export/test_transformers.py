"""Networks of the library transformers are exported as well."""

import pytest
import torch

onnx = pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from chop.passes.graph.interface.export_onnx import onnx_model  # noqa: E402

pytestmark = pytest.mark.slow

LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = {"vocab_size": 64, "max_position_embeddings": 32, "hidden_size": 32, **LAYERS}
NETWORKS = {
    "BertForSequenceClassification": TEXT,
    "LlamaForCausalLM": {**TEXT, "num_key_value_heads": 2, "use_cache": False},
    "GPT2LMHeadModel": {
        "vocab_size": 64,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 32,
        "use_cache": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}


def sentences(size):
    """Sentences of different lengths."""
    drawn = torch.Generator().manual_seed(size)
    ids = torch.randint(3, 64, (size, 8), generator=drawn)
    lengths = torch.randint(3, 9, (size, 1), generator=drawn)
    return {"input_ids": ids, "attention_mask": (torch.arange(8) < lengths).long()}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_transformers_is_exported(name, traced, assert_same_as_eager, package):
    cls = getattr(package("transformers"), name)
    model = cls(cls.config_class(**NETWORKS[name])).eval()
    inputs = sentences(2)
    graph = traced(model, inputs, hf_input_names=list(inputs), dummy_in=inputs)
    file = onnx_model(graph)
    assert [value.name for value in file.graph.input] == ["input_ids", "attention_mask"]
    assert next(value.name for value in file.graph.output) == "logits"
    assert_same_as_eager(file, model, sentences)
