"""Data sets and trainers of Hugging Face, as the tutorials use them: thin, and imported lazily."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from chop.extras import install_command

INSTALL = install_command("hf")
TEXT = "text"  # the column that is tokenized
SPLITS = ("train", "test")


def get_tokenized_dataset(dataset: Any, checkpoint: Any, return_tokenizer: bool = False) -> Any:
    """Return a data set with the column `text` tokenized and truncated, and the tokenizer if asked.

    `dataset` is a name on the Hugging Face hub or a directory, or an object with `map` such as a
    `DatasetDict`; `checkpoint` is the name or directory of a tokenizer, or the tokenizer itself.
    """
    tokenizer = _tokenizer(checkpoint)
    source = _package("datasets").load_dataset(dataset) if isinstance(dataset, str) else dataset
    if not callable(getattr(source, "map", None)):
        raise TypeError(
            f"a {type(dataset).__name__} is not a data set; use a name of the Hugging Face hub, or "
            f"a datasets.DatasetDict"
        )
    _check_column(source)
    # a function of this module, as data sets cache their results by a hash of its code
    tokenized = source.map(functools.partial(_tokens, tokenizer), batched=True)
    return (tokenized, tokenizer) if return_tokenizer else tokenized


def get_trainer(
    model: nn.Module,
    tokenized_dataset: Mapping[str, Any],
    tokenizer: Any,
    evaluate_metric: str = "accuracy",
    output_dir: str = "mase-trainer",
    use_mps_device: bool = False,
    report_to: str = "none",
    num_train_epochs: float = 1,
) -> Any:
    """Return a `transformers.Trainer` of the splits `train` and `test`, padded batch by batch.

    Any metric but accuracy is one of the package `evaluate`. `use_mps_device` has no effect:
    transformers uses the GPU of a Mac if there is one.
    """
    missing = [split for split in SPLITS if split not in tokenized_dataset]
    if missing:
        raise ValueError(
            f"the data set has no split {missing[0]!r}; a trainer needs {' and '.join(SPLITS)}"
        )
    transformers = _package("transformers")
    _package("accelerate")
    arguments = transformers.TrainingArguments(
        output_dir=output_dir,
        report_to=report_to,
        num_train_epochs=num_train_epochs,
        dataloader_pin_memory=torch.accelerator.is_available(),
    )
    return transformers.Trainer(
        model,
        arguments,
        train_dataset=tokenized_dataset["train"],
        eval_dataset=tokenized_dataset["test"],
        processing_class=tokenizer,
        data_collator=transformers.DataCollatorWithPadding(tokenizer=tokenizer),
        compute_metrics=_metrics(evaluate_metric),
    )


def _tokens(tokenizer: Any, rows: Mapping[str, Any]) -> Any:
    return tokenizer(rows[TEXT], truncation=True)


def _tokenizer(checkpoint: Any) -> Any:
    if callable(checkpoint):
        return checkpoint
    return _package("transformers").AutoTokenizer.from_pretrained(checkpoint)


def _check_column(source: Any) -> None:
    columns = getattr(source, "column_names", None)
    tables = columns.values() if isinstance(columns, Mapping) else [columns]
    for names in tables:
        if names is not None and TEXT not in names:
            raise ValueError(
                f"the data set has no column {TEXT!r}, only {', '.join(names)}; rename the column "
                f"of the text with rename_column"
            )


def _metrics(name: str) -> Any:
    """Return the function that scores the logits and labels of an evaluation."""
    if name == "accuracy":
        return accuracy
    metric = _package("evaluate", "evaluate: .venv/bin/pip install evaluate").load(name)
    return lambda results: metric.compute(predictions=_classes(results[0]), references=results[1])


def accuracy(results: tuple[Any, Any]) -> dict[str, float]:
    """Return the share of samples with the largest logit at the label.

    >>> accuracy((np.array([[1, 3], [2, 0], [0, 1]]), np.array([1, 0, 0])))
    {'accuracy': 0.6666666666666666}
    """
    logits, labels = results
    return {"accuracy": float((_classes(logits) == np.asarray(labels)).mean())}


def _classes(logits: Any) -> np.ndarray:
    first = logits[0] if isinstance(logits, tuple) else logits  # a model may return states too
    classes: np.ndarray = np.argmax(first, axis=-1)
    return classes


def _package(name: str, needed: str = "") -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        wanted = needed or f"{name}: {INSTALL}"
        raise ImportError(f"this needs the package {wanted}") from error
