"""What a model says about itself, and what it may not say."""

import pytest

from chop.models import MaseModelInfo, ModelSource, ModelTaskType


def test_names_become_members():
    info = MaseModelInfo(
        "jsc-x", model_source="physical", task_type="physical",
        physical_data_point_classification=True,
    )  # fmt: skip
    assert info.model_source is ModelSource.PHYSICAL
    assert info.task_type is ModelTaskType.PHYSICAL
    assert info.task_type == "physical"
    assert info.is_physical_model
    assert not any([info.is_vision_model, info.is_nlp_model, info.is_nerf_model])
    assert not info.is_fx_traceable


@pytest.mark.parametrize(
    ("task_type", "flags", "tasks"),
    [
        ("nlp", {"sequence_classification": True, "causal_LM": True}, ["cls", "lm"]),
        ("nlp", {"seq2seqLM": True}, ["tran"]),
        ("vision", {"image_classification": True}, ["cls"]),
        ("vision", {"image_detection": True}, []),
        ("nerf", {}, []),
    ],
)
def test_the_tasks_follow_from_the_flags(task_type, flags, tasks):
    assert MaseModelInfo("m", "manual", task_type, **flags).tasks == tasks


@pytest.mark.parametrize(
    ("source", "task_type", "flags", "message"),
    [
        ("manual", "nlp", {}, "needs sequence_classification=True or seq2seqLM=True or causal_LM"),
        ("manual", "vision", {"causal_LM": True}, "so it needs image_classification=True"),
        ("physical", "physical", {}, "so it needs physical_data_point_classification=True"),
        ("manual", "nerf", {"is_lora": True, "is_sparse": True}, "one of is_lora, is_sparse"),
        ("nerf", "nerf", {"is_quantized": True}, "which needs model_source='manual', not 'nerf'"),
        ("manul", "nerf", {}, "unknown model_source 'manul'; did you mean 'manual'"),
        ("manual", "visoin", {}, "model 'm': unknown task_type 'visoin'; did you mean 'vision'"),
        (None, "vision", {}, "unknown model_source None"),
    ],
)
def test_contradictions_are_refused(source, task_type, flags, message):
    with pytest.raises(ValueError, match=message):
        MaseModelInfo("m", source, task_type, **flags)
