"""Data sets and trainers of Hugging Face, from local objects: nothing is downloaded."""

import numpy as np
import pytest
import torch
from torch import nn

from chop.tools import get_tokenized_dataset, get_trainer
from chop.tools.huggingface import accuracy

TEXTS = ["good film", "bad film", "good", "bad bad film"]


class Rows:
    """A table with a `map` like that of a data set."""

    def __init__(self, columns):
        self.columns = columns
        self.column_names = list(columns)

    def map(self, function, batched):
        assert batched
        return Rows({**self.columns, **function(self.columns)})


def words(texts, truncation):
    assert truncation
    return {"input_ids": [[len(word) for word in text.split()] for text in texts]}


def test_the_column_text_is_tokenized():
    tokenized, tokenizer = get_tokenized_dataset(Rows({"text": TEXTS}), words, True)
    assert tokenizer is words
    assert tokenized.columns == {"text": TEXTS, "input_ids": [[4, 4], [3, 4], [4], [3, 3, 4]]}
    assert isinstance(get_tokenized_dataset(Rows({"text": TEXTS}), words), Rows)


def test_what_is_not_a_data_set_is_refused():
    with pytest.raises(ValueError, match="no column 'text', only sentence; rename"):
        get_tokenized_dataset(Rows({"sentence": TEXTS}), words)
    with pytest.raises(TypeError, match="a list is not a data set; use a name"):
        get_tokenized_dataset(TEXTS, words)


def test_a_trainer_needs_both_splits():
    with pytest.raises(ValueError, match="no split 'test'; a trainer needs train and test"):
        get_trainer(nn.Linear(2, 2), {"train": []}, words)


def test_accuracy_reads_the_logits_of_models_that_return_more():
    logits, labels = np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1])
    assert accuracy((logits, labels)) == accuracy(((logits, "states"), labels)) == {"accuracy": 0.5}


@pytest.fixture
def tokenizer(package):
    transformers, tokenizers = package("transformers"), package("tokenizers")
    names = ["[PAD]", "[UNK]", "good", "bad", "film"]
    level = tokenizers.models.WordLevel({name: i for i, name in enumerate(names)}, "[UNK]")
    raw = tokenizers.Tokenizer(level)
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]")


@pytest.fixture
def bert(package):
    transformers = package("transformers")
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=5, intermediate_size=16, num_labels=2, **small)
    return transformers.BertForSequenceClassification(config)


@pytest.mark.slow
def test_a_local_data_set_is_tokenized(package, tokenizer):
    datasets = package("datasets")
    rows = datasets.table.InMemoryTable.from_pydict({"text": TEXTS, "label": [1, 0, 1, 0]})
    table = datasets.Dataset(rows, fingerprint="texts")  # which would be hashed by pickling
    both = datasets.DatasetDict(train=table, test=table)
    tokenized = get_tokenized_dataset(both, tokenizer)
    assert tokenized["test"]["input_ids"][3] == [3, 3, 4]
    with pytest.raises(ValueError, match="no column 'text', only sentence"):
        get_tokenized_dataset(both.rename_column("text", "sentence"), tokenizer)


@pytest.mark.slow
def test_a_trainer_learns_and_scores(package, tokenizer, bert, tmp_path):
    package("accelerate")
    samples = [{"label": i % 2, **tokenizer(text)} for i, text in enumerate(TEXTS)]
    splits = {"train": samples * 4, "test": samples}
    folder = str(tmp_path / "trainer")
    trainer = get_trainer(bert, splits, tokenizer, output_dir=folder, num_train_epochs=2)
    before = {key: value.clone() for key, value in bert.state_dict().items()}
    trainer.train()
    assert any(not torch.equal(before[key], value) for key, value in bert.state_dict().items())
    assert 0 <= trainer.evaluate()["eval_accuracy"] <= 1
