"""An ONNX file as a model: `get_model("network.onnx", dataset_info=…)`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from chop.dataset.base import MaseDatasetInfo
from chop.dataset.facts import Adaptation, DataFacts
from chop.models.info import MaseModelInfo, ModelSource, ModelTaskType
from chop.system.files import is_onnx_file, why_missing

if TYPE_CHECKING:
    from chop.onnx.reading import OnnxNetwork

__all__ = [
    "FORMATS",
    "INPUTS",
    "TO_CHANNELS_LAST",
    "build_onnx",
    "is_onnx_file",
    "onnx_info",
    "recorded_facts",
    "takes_channels_last",
]

logger = logging.getLogger(__name__)

# keys of the meta of a network that was read
FORMATS, INPUTS = "onnx_formats", "onnx_inputs"
TO_CHANNELS_LAST, TO_CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def onnx_info(file: str) -> MaseModelInfo:
    """Return the description of a file: it may classify, segment or predict numbers."""
    path = Path(file).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{why_missing(path, 'file')}; check the path of the model")
    return MaseModelInfo(
        file,
        ModelSource.MANUAL,
        ModelTaskType.PHYSICAL,
        physical_data_point_classification=True,
        image_classification=True,
        image_segmentation=True,
        regression=True,
        is_fx_traceable=True,
    )


def build_onnx(
    file: str, info: MaseDatasetInfo, *, sizes: Mapping[str, int] | None = None
) -> nn.Module:
    """Read a file for a data set, in float; its formats are in the model's `meta`.

    `sizes` fixes free sizes other than the batch, by their name in the file.

    Images with their channels first are turned for a network that takes them last, as Keras's do.
    """
    from chop.onnx.reading import read_network

    network = read_network(file, sizes=sizes)
    model, inputs = network.model, network.inputs
    if any(each.shape and isinstance(each.shape[0], int) for each in inputs):
        raise ValueError(
            f"{file} accepts batches of {inputs[0].shape[0]} only; export it with a free batch "
            f"(dynamic_shapes or dynamic_axes in PyTorch)"
        )
    _warn_of_other_classes(file, network, info)
    sample = _sample_shape(info)
    if sample is not None and len(inputs) == 1:
        if takes_channels_last(file, inputs[0].shape[1:], info):
            _turn_input(model)
        _check_outputs(file, network, info, sample)
    examples = {each.name: each.example() for each in inputs}
    if sample is not None and len(inputs) == 1:
        examples = {inputs[0].name: torch.zeros(2, *sample, dtype=inputs[0].dtype)}
    model.meta |= {FORMATS: dict(network.formats), INPUTS: examples}
    return model


def recorded_facts(metadata: Mapping[str, str], file: str) -> DataFacts | None:
    """Return what the metadata of a file say about the data of its network; None if nothing."""
    from chop.onnx.metadata import TRAINED_ON_KEY, noted

    try:
        table = noted(metadata, TRAINED_ON_KEY)
        return None if not table else DataFacts.read(table)
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}; export it again") from error


def _warn_of_other_classes(file: str, network: OnnxNetwork, info: MaseDatasetInfo) -> None:
    """Warn if the outputs of a file are not the classes of a data set in its order.

    `MaseDataModule.adapt_to` gives the data the classes of the file, where that is possible.
    """
    facts, mine = recorded_facts(network.metadata, file), tuple(info.class_names)
    if facts is None or not facts.classes or not mine:
        return
    labels = Adaptation(info, facts, strict=False).labels
    if labels != list(range(len(facts.classes))):
        logger.warning(
            "the outputs of %s are the classes %s, and those of data set %r are %s, in this order; "
            "adapt the data with data_module.adapt_to, or train the network on them",
            *(file, ", ".join(facts.classes), info.name, ", ".join(mine)),
        )


def _sample_shape(info: MaseDatasetInfo) -> tuple[int, ...] | None:
    """Return the shape of a sample; None if it has several inputs, or is not known."""
    if info.image_size:
        return tuple(info.image_size)
    return (info.num_features,) if info.num_features else None


def _fits(shape: Any, sample: tuple[int, ...]) -> bool:
    sizes = zip(shape, sample, strict=False)
    same = len(shape) == len(sample) and all(a == b or not isinstance(a, int) for a, b in sizes)
    flat = len(shape) == 1 and isinstance(shape[0], str)
    return same or flat


def takes_channels_last(
    file: str, shape: Sequence[int | str | None], info: MaseDatasetInfo
) -> bool:
    """Whether images of a data set must be turned for a file; other shapes are refused.

    `shape` is that of a sample in the file.
    """
    sample = _sample_shape(info)
    if sample is None or _fits(shape, sample):
        return False
    if len(shape) == len(sample) == 3 and _fits(shape, (sample[1], sample[2], sample[0])):
        logger.info(
            "%s takes images with their channels last; those of %s are turned", file, info.name
        )
        return True
    raise ValueError(
        f"{file} takes samples of shape {_shown(shape)}, but those of data set {info.name!r} have "
        f"{_shown(sample)}; choose the data set that it was made for"
    )


def _turn_input(model: fx.GraphModule) -> None:
    """Turn images with their channels first, unless the network turns them back itself."""
    (x,) = (node for node in model.graph.nodes if node.op == "placeholder")
    readers = list(x.users)
    back = [n for n in readers if n.target is torch.permute and n.args[1] == TO_CHANNELS_FIRST]
    for node in back:
        node.replace_all_uses_with(x)
        model.graph.erase_node(node)
    if len(back) < len(readers):
        with model.graph.inserting_after(x):
            turned = model.graph.call_function(torch.permute, (x, TO_CHANNELS_LAST))
        for node in readers:
            if node not in back:
                node.replace_input_with(x, turned)
    model.recompile()


def _check_outputs(
    file: str, network: OnnxNetwork, info: MaseDatasetInfo, sample: tuple[int, ...]
) -> None:
    """Refuse a network with another number of outputs than the data set has classes."""
    wanted = info.num_outputs
    x = torch.zeros(2, *sample, dtype=network.inputs[0].dtype)
    try:
        with torch.no_grad():
            result = network.model(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{file} cannot compute samples of shape {_shown(sample)} ({reason}); choose the data "
            f"set that it was made for"
        ) from error
    first = result[0] if isinstance(result, tuple) else result
    if wanted is None or not isinstance(first, Tensor) or first.dim() != 2:
        return
    is_one = first.shape[1] == 1 and wanted == 2  # one number for two classes
    if first.shape[1] != wanted and not is_one:
        what = "targets" if info.num_targets is not None else "classes"
        raise ValueError(
            f"{file} has {first.shape[1]} outputs, but data set {info.name!r} has {wanted} {what}; "
            f"choose the data set that it was made for"
        )


def _shown(shape: Any) -> str:
    return " x ".join(map(str, shape)) or "one number"
