"""Example inputs for networks of transformers, made from their config and their forward()."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor, nn

BATCH, LENGTH, CHOICES = 2, 8, 3
SAMPLES = 16_000  # of sound: one second
# parts of a config that describe the encoder or the text decoder of a network of several
PARTS = ("text_config", "encoder", "vision_config", "audio_config", "decoder")
MAIN = ("input_ids", "pixel_values", "input_values", "input_features")


def is_of_transformers(model: nn.Module) -> bool:
    """Whether a model is a `transformers.PreTrainedModel`; the package is not imported."""
    return any(
        cls.__name__ == "PreTrainedModel" and cls.__module__.startswith("transformers.")
        for cls in type(model).__mro__
    )


def made_inputs(
    model: nn.Module, names: Sequence[str] | None = None, fixed: Collection[str] = ()
) -> dict[str, Any]:
    """Return example inputs for a network of transformers, in the order of forward().

    `names` are those to make; without them, those that it needs for a prediction. `fixed` are
    arguments that have a value already.
    """
    sizes = Sizes(model)
    wanted = _needed(model, sizes) if names is None else names
    made = {name: _made(name, sizes) for name in wanted if name not in fixed}
    return {name: made[name] for name in sizes.parameters if name in made}


def without_cache(model: nn.Module, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Fix that a model returns no cache of keys and values, which a graph has no place for."""
    if "use_cache" not in inspect.signature(model.forward).parameters:
        return dict(fixed)
    return {**fixed, "use_cache": fixed.get("use_cache") or False}


class Sizes:
    """What the config, the class and forward() of a model say about its inputs."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.config: Any = model.config
        self.head = type(model).__name__
        self.parameters = inspect.signature(model.forward).parameters
        tensors = (*model.parameters(), *model.buffers())
        self.device = next((tensor.device for tensor in tensors), torch.device("cpu"))

    def get(self, *keys: str, default: Any = None) -> Any:
        """The first of `keys` that the config has, or one of its parts."""
        for config in self._configs(self.config):
            for key in keys:
                if getattr(config, key, None) is not None:
                    return getattr(config, key)
        return default

    def _configs(self, config: Any) -> Iterator[Any]:
        yield config
        for part in PARTS:
            inside = getattr(config, part, None)
            if hasattr(inside, "to_dict"):
                yield from self._configs(inside)

    def image(self) -> tuple[int, int]:
        """Height and width."""
        size = self.get("image_size", default=224)
        return (size[0], size[1]) if isinstance(size, list | tuple) else (size, size)

    def is_for(self, *heads: str) -> bool:
        return any(head in self.head for head in heads)


def _needed(model: nn.Module, sizes: Sizes) -> list[str]:
    """Return the inputs that a network needs for a prediction: no labels."""
    main = str(getattr(model, "main_input_name", "input_ids"))
    names = [name for name, p in sizes.parameters.items() if _is_required(p)]
    names += [main] if main in sizes.parameters else []
    if hasattr(sizes.config, "text_config") and hasattr(sizes.config, "vision_config"):
        names += [name for name in MAIN[:2] if name in sizes.parameters]
    if "input_ids" in names:
        names += [name for name in ("attention_mask",) if name in sizes.parameters]
    if getattr(sizes.config, "is_encoder_decoder", False) and not sizes.is_for("Classification"):
        names += [name for name in ("decoder_input_ids",) if name in sizes.parameters]
    return names


def _is_required(param: Parameter) -> bool:
    return param.default is param.empty and "VAR" not in param.kind.name


def _made(name: str, sizes: Sizes) -> Tensor:
    if name not in MAKERS:
        raise ValueError(
            f"no example of the input {name!r} of {sizes.head} can be made from its config; "
            f"give MaseGraph(model, dummy_in={{name: tensor}})"
        )
    return MAKERS[name](sizes).to(sizes.device)


# --- one function per kind of input


def _ids(sizes: Sizes) -> Tensor:
    """Ids of words, with the end that some heads look for; the same in each run."""
    words = max(int(sizes.get("vocab_size", default=2)), 1)
    special = {sizes.get(f"{kind}_token_id") for kind in ("pad", "bos", "eos", "cls", "sep")}
    plain = [i for i in range(min(words, 4 * LENGTH)) if i not in special] or [0]
    shape = (BATCH, CHOICES, LENGTH) if sizes.is_for("MultipleChoice") else (BATCH, LENGTH)
    count = torch.Size(shape).numel()
    ids = torch.tensor([plain[i % len(plain)] for i in range(count)]).view(shape)
    end = sizes.get("eos_token_id")
    if isinstance(end, int) and 0 <= end < words:
        ids[..., -1] = end
    return ids


def _like_ids(value: int) -> Callable[[Sizes], Tensor]:
    return lambda sizes: torch.full_like(_ids(sizes), value)


def _attention(sizes: Sizes) -> Tensor:
    for name in ("input_values", "input_features"):
        if name in sizes.parameters:
            return torch.ones(MAKERS[name](sizes).shape[:: 1 if name == "input_values" else 2])
    return torch.ones_like(_ids(sizes))


def _images(sizes: Sizes) -> Tensor:
    shape = (int(sizes.get("num_channels", default=3)), *sizes.image())
    frames = sizes.get("num_frames")
    return _noise((BATCH, frames, *shape) if frames else (BATCH, *shape))


def _sound(sizes: Sizes) -> Tensor:
    """Samples, or for networks of spectrograms their frames and bins."""
    bins, frames = sizes.get("num_mel_bins"), sizes.get("max_length")
    return _noise((BATCH, frames, bins) if bins and frames else (BATCH, SAMPLES))


def _features(sizes: Sizes) -> Tensor:
    """Spectrograms: Whisper has its bins first, and twice the frames of its positions."""
    bins, positions = sizes.get("num_mel_bins"), sizes.get("max_source_positions")
    per_channel = sizes.get("input_feat_per_channel", "feature_projection_input_dim")
    if bins and positions and not per_channel:
        return _noise((BATCH, bins, 2 * positions))
    return _noise((BATCH, 8 * LENGTH, per_channel or bins or 80))


def _labels(sizes: Sizes) -> Tensor:
    """Targets of the kind that the head takes its loss of."""
    classes = max(int(getattr(sizes.config, "num_labels", 2) or 1), 1)
    if sizes.is_for("MultipleChoice", "NextSentencePrediction"):
        return torch.zeros(BATCH).long()
    if sizes.is_for("TokenClassification"):
        return torch.arange(BATCH * LENGTH).view(BATCH, LENGTH) % classes
    if sizes.is_for("Segmentation"):
        return torch.zeros(BATCH, *sizes.image()).long()
    if sizes.is_for("Classification"):
        return _labels_of_classes(sizes.config, classes)
    return _ids(sizes)  # of language models


def _labels_of_classes(config: Any, classes: int) -> Tensor:
    problem = getattr(config, "problem_type", None)
    if problem == "multi_label_classification":
        return (torch.arange(BATCH * classes).view(BATCH, classes) % 2).float()
    if problem == "regression" or (problem is None and classes == 1):
        return torch.zeros(BATCH) if classes == 1 else torch.zeros(BATCH, classes)
    return torch.arange(BATCH) % classes


def _noise(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


MAKERS: dict[str, Callable[[Sizes], Tensor]] = {
    "input_ids": _ids,
    "decoder_input_ids": _ids,
    "attention_mask": _attention,
    "decoder_attention_mask": _like_ids(1),
    "token_type_ids": _like_ids(0),
    "langs": _like_ids(0),
    "position_ids": lambda sizes: torch.arange(LENGTH).expand(BATCH, LENGTH).clone(),
    "inputs_embeds": lambda s: _noise((BATCH, LENGTH, s.get("hidden_size", "d_model", "n_embd"))),
    "bbox": lambda sizes: torch.zeros(BATCH, LENGTH, 4).long(),
    "pixel_values": _images,
    "pixel_mask": lambda sizes: torch.ones(BATCH, *sizes.image()).long(),
    "input_values": _sound,
    "input_features": _features,
    "labels": _labels,
    "next_sentence_label": lambda sizes: torch.zeros(BATCH).long(),
    "start_positions": lambda sizes: torch.zeros(BATCH).long(),
    "end_positions": lambda sizes: torch.ones(BATCH).long(),
}
