"""What every registered model promises."""

import copy
import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.dataset import MaseDatasetInfo
from chop.ir import MaseGraph
from chop.models import MODELS, get_model, get_model_info
from chop.passes import Pipeline

FEATURES = MaseDatasetInfo(name="rows", num_features=16, num_classes=5)
IMAGES = MaseDatasetInfo(name="pictures", image_size=(3, 32, 32), num_classes=4)
# these take seconds; what they are made of is in the others too
_BIG = """
    deit_base_patch16_224 deit_small_patch16_224 deit_tiny_patch16_224 mobilenetv2
    mobilenetv3_large resnet101 resnet18 resnet34 resnet50 wideresnet50_2
"""
BIG = set(_BIG.split())
NAMES = [
    n
    for n, spec in MODELS.items()
    if spec.build.__module__.startswith(("chop.models.", "chop.methods."))
]
PREPARE = Pipeline(["init_metadata", "add_common_metadata"])

every_model = pytest.mark.parametrize("name", NAMES)
BUILT = [pytest.param(n, marks=pytest.mark.slow) if n in BIG else n for n in NAMES]


def fitting(name: str) -> MaseDatasetInfo:
    return FEATURES if get_model_info(name).physical_data_point_classification else IMAGES


def build(name: str, **options: object) -> nn.Module:
    torch.manual_seed(0)
    return get_model(name, dataset_info=fitting(name), **options)


def batch_for(name: str, size: int = 4) -> torch.Tensor:
    shape = [16] if fitting(name) is FEATURES else [3, 32, 32]
    return torch.randn(size, *shape, generator=torch.Generator().manual_seed(1))


def outputs(model: nn.Module, name: str) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(batch_for(name))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", BUILT)
def test_a_row_of_class_scores_comes_out_for_every_sample(name):
    with torch.device("meta"):
        model = build(name)
    scores = model(torch.empty_like(batch_for(name), device="meta"))
    assert scores.shape == (4, fitting(name).num_classes)


@pytest.mark.parametrize("name", BUILT)
def test_the_input_is_called_x_as_the_labs_call_it(name):
    with torch.device("meta"):
        model = build(name)
    assert list(inspect.signature(model.forward).parameters) == ["x"]


@pytest.mark.parametrize("name", BUILT)
def test_it_says_rightly_whether_it_can_be_traced_and_is_annotated_to_the_end(name):
    with torch.device("meta"):
        model = build(name)
    if not get_model_info(name).is_fx_traceable:
        with pytest.raises(Exception):  # noqa: B017,PT011  any failure to trace
            MaseGraph(model)
        return
    graph = MaseGraph(model)
    about = {"dummy_in": {"x": batch_for(name)}, "add_value": False, "force_device_meta": True}
    PREPARE(graph, {"add_common_metadata": about})
    last = list(graph.nodes)[-2].meta["mase"]["common"]  # before the output
    assert last["results"]["data_out_0"]["shape"] == [4, fitting(name).num_classes]


@pytest.fixture(scope="module", params=BUILT)
def built(request) -> tuple[str, nn.Module, torch.Tensor]:
    """A model, not to be changed, and what it makes of the batch."""
    model = build(request.param)
    return request.param, model, outputs(model, request.param)


def test_the_graph_computes_what_the_model_computes(built):
    name, model, expected = built
    assert torch.equal(outputs(MaseGraph(copy.deepcopy(model)).model, name), expected)


def test_the_same_seed_gives_the_same_weights(built):
    name, model, _ = built
    first, second = model.state_dict(), build(name).state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.sampled(5)
def test_a_step_downhill_lowers_the_loss(built):
    name, model, _ = built
    model = copy.deepcopy(model).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()  # two losses are compared: chance stays out of them
    x, y = batch_for(name), torch.arange(4) % fitting(name).num_classes
    before = F.cross_entropy(model(x), y)
    before.backward()
    used = [p for p in model.parameters() if p.grad is not None]
    slope = sum(p.grad.square().sum() for p in used)
    with torch.no_grad():
        for p in used:
            p -= 0.01 * before / slope * p.grad  # were the loss straight: one per cent less
        assert F.cross_entropy(model(x), y) < before


@pytest.mark.sampled(5)
def test_weights_come_back_from_a_file(built, tmp_path):
    name, model, _ = built
    model = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.mul_(0.9)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    again = build(name, checkpoint=tmp_path / "weights.pt")
    assert torch.equal(outputs(again, name), outputs(model, name))


def test_a_copy_is_equal_and_shares_nothing(built):
    name, model, expected = built
    twin = copy.deepcopy(model)
    assert torch.equal(outputs(twin, name), expected)
    theirs = {tensor.data_ptr() for tensor in twin.state_dict().values()}
    assert theirs.isdisjoint(tensor.data_ptr() for tensor in model.state_dict().values())


@every_model
def test_it_says_in_a_line_what_it_is(name):
    about = (inspect.getdoc(MODELS[name].build) or "").partition("\n")[0]
    assert about.endswith(".")


@every_model
def test_data_of_the_wrong_kind_is_refused_before_anything_is_built(name):
    info = get_model_info(name)
    nothing = MaseDatasetInfo(name="nothing", num_classes=2)
    with pytest.raises(ValueError, match="'nothing' has neither"):
        get_model(name, dataset_info=nothing)
    if not (info.image_classification and info.physical_data_point_classification):
        wrong = IMAGES if fitting(name) is FEATURES else FEATURES
        with pytest.raises(ValueError, match=f"takes .*, but data set '{wrong.name}' has"):
            get_model(name, dataset_info=wrong)
