"""Descriptions of models: source, type of data, tasks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from chop.registry import unknown

E = TypeVar("E", bound=StrEnum)


class ModelSource(StrEnum):
    """Where the definition of a model comes from."""

    HF_TRANSFORMERS = "hf_transformers"
    MANUAL = "manual"
    PATCHED = "patched"
    TOY = "toy"
    TORCHVISION = "torchvision"
    VISION_OTHERS = "vision_others"
    PHYSICAL = "physical"
    NERF = "nerf"


class ModelTaskType(StrEnum):
    """The type of data that a model works on."""

    NLP = "nlp"
    VISION = "vision"
    PHYSICAL = "physical"
    NERF = "nerf"
    SPEECH = "speech"


# a model of each type must have at least one of these flags
ABILITIES: dict[str, tuple[str, ...]] = {
    ModelTaskType.NLP: ("sequence_classification", "seq2seqLM", "causal_LM"),
    ModelTaskType.VISION: (
        "image_classification",
        "image_detection",
        "image_segmentation",
        "image_instance_segmentation",
        "regression",
    ),
    ModelTaskType.PHYSICAL: ("physical_data_point_classification", "regression"),
}
# short names of the tasks, and the flags of the models that support each
TASKS: dict[str, tuple[str, ...]] = {
    "cls": (
        "image_classification",
        "physical_data_point_classification",
        "sequence_classification",
    ),
    "reg": ("regression",),
    "dense": ("image_segmentation",),
    "lm": ("causal_LM",),
    "tran": ("seq2seqLM",),
}


def _is_of(task_type: ModelTaskType) -> property:
    return property(lambda info: info.task_type is task_type)


@dataclass(frozen=True)
class MaseModelInfo:
    """Description of a model; source and task type may be given by name."""

    name: str
    model_source: ModelSource | str
    task_type: ModelTaskType | str
    image_classification: bool = False
    image_detection: bool = False
    image_segmentation: bool = False
    image_instance_segmentation: bool = False
    physical_data_point_classification: bool = False
    sequence_classification: bool = False
    seq2seqLM: bool = False
    causal_LM: bool = False
    is_quantized: bool = False
    is_lora: bool = False
    is_sparse: bool = False
    is_fx_traceable: bool = False
    regression: bool = False

    def __post_init__(self) -> None:
        source = self._member("model_source", ModelSource)
        task_type = self._member("task_type", ModelTaskType)
        needed = ABILITIES.get(task_type, ())
        if needed and not any(getattr(self, flag) for flag in needed):
            raise ValueError(
                f"model {self.name!r} is of type {task_type.value!r}, "
                f"so it needs {' or '.join(f'{flag}=True' for flag in needed)}"
            )
        variants = [f for f in ("is_quantized", "is_lora", "is_sparse") if getattr(self, f)]
        if len(variants) > 1:
            raise ValueError(f"model {self.name!r} can be only one of {', '.join(variants)}")
        if variants and source is not ModelSource.MANUAL:
            raise ValueError(
                f"model {self.name!r} has {variants[0]}=True, which needs "
                f"model_source='manual', not {source.value!r}"
            )

    def _member(self, field: str, members: type[E]) -> E:
        name = getattr(self, field)
        if name not in list(members):
            problem = unknown(field, name, [member.value for member in members])
            raise ValueError(f"model {self.name!r}: {problem}")
        member = members(name)
        object.__setattr__(self, field, member)
        return member

    @property
    def tasks(self) -> list[str]:
        """Short names of the tasks that the model can be trained for."""
        return [task for task, flags in TASKS.items() if any(getattr(self, f) for f in flags)]

    is_nlp_model = _is_of(ModelTaskType.NLP)
    is_vision_model = _is_of(ModelTaskType.VISION)
    is_physical_model = _is_of(ModelTaskType.PHYSICAL)
    is_nerf_model = _is_of(ModelTaskType.NERF)
