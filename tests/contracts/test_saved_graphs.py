"""Every registered model, plain and quantized, comes back from disk as it was."""

import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn

from chop.dataset import MaseDatasetInfo
from chop.ir import MaseGraph
from chop.ir.ops import TABLE
from chop.models import MODELS, get_model, get_model_info
from chop.passes import Pipeline, run_pass

FEATURES = MaseDatasetInfo(name="rows", num_features=16, num_classes=5)
IMAGES = MaseDatasetInfo(name="pictures", image_size=(3, 32, 32), num_classes=4)
_BIG = """
    deit_base_patch16_224 deit_small_patch16_224 deit_tiny_patch16_224 mobilenetv2
    mobilenetv3_large resnet101 resnet18 resnet34 resnet50 vgg7 wideresnet50_2
"""
BIG = set(_BIG.split())
NAMES = [
    name
    for name, spec in MODELS.items()
    if spec.build.__module__.startswith(("chop.models.", "chop.methods."))
    and get_model_info(name).is_fx_traceable
]


def config(name: str, **keys: object) -> dict:
    operands = ("data_in", "weight", "bias")
    return {"name": name} | {f"{o}_{key}": v for o in operands for key, v in keys.items()}


CONFIGS = {
    "plain": None,
    "integer": config("integer", width=8, frac_width=4),
    "minifloat": config("minifloat_ieee", width=8, exponent_width=4, exponent_bias=7),
}
# every small model once, in each of the configurations in turn; `make test-all` has all pairs
TURNS = set(zip((n for n in NAMES if n not in BIG), itertools.cycle(CONFIGS), strict=False))
PAIRS = [
    pytest.param(*pair, marks=() if pair in TURNS else pytest.mark.slow)
    for pair in itertools.product(NAMES, CONFIGS)
]
ready = Pipeline(["init_metadata", "add_common_metadata", "add_software_metadata"])


def batch(name: str) -> Tensor:
    shape = [16] if get_model_info(name).physical_data_point_classification else [3, 32, 32]
    return torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))


def graph_of(name: str, formats: dict | None, add_value: bool = False) -> MaseGraph:
    torch.manual_seed(0)
    physical = get_model_info(name).physical_data_point_classification
    model = get_model(name, dataset_info=FEATURES if physical else IMAGES)
    about = {"dummy_in": {"x": batch(name)}, "add_value": add_value}
    graph, _ = ready(MaseGraph(model), {"add_common_metadata": about})
    if formats is not None:
        run_pass("quantize", graph, {"by": "type", "default": {"config": formats}})
    return graph


def same(a, b) -> bool:
    """Whether two values are equal, tensors bit for bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def out(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)


def assert_same_graph(one: MaseGraph, two: MaseGraph, x: Tensor) -> None:
    assert str(one.model) == str(two.model)
    assert str(one.fx_graph) == str(two.fx_graph)
    assert list(one.model.state_dict()) == list(two.model.state_dict())
    assert same(dict(one.model.state_dict()), dict(two.model.state_dict()))
    for mine, theirs in zip(one.nodes, two.nodes, strict=True):
        assert same(mine.meta["mase"].parameters, theirs.meta["mase"].parameters), mine.name
    assert [n.name for n in one.nodes_in] == [n.name for n in two.nodes_in]
    modes = [[(n, m.training) for n, m in g.model.named_modules()] for g in (one, two)]
    assert modes[0] == modes[1]
    torch.manual_seed(3)  # for dropout
    expected = out(one.model, x)
    torch.manual_seed(3)
    assert torch.equal(out(two.model, x), expected)


def train_a_step(model: nn.Module, x: Tensor) -> None:
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(5)
    model(x).square().mean().backward()
    optimiser.step()


def saved_trained_and_saved_again(graph: MaseGraph, x: Tensor, folder: Path) -> MaseGraph:
    """Return the graph that comes back, which is that in memory at each step."""
    graph.model.eval()
    graph.export(folder)
    loaded = MaseGraph.from_checkpoint(folder)
    assert_same_graph(graph, loaded, x)
    for each in (graph, loaded):
        train_a_step(each.model, x)
    loaded.export(folder)
    again = MaseGraph.from_checkpoint(folder)
    assert_same_graph(graph, again, x)
    return again


def quantized(name: str) -> tuple[str, dict]:
    return "quantize", {"by": "type", "default": {"config": CONFIGS[name]}}


WEIGHTS = {"sparsity": 0.5, "method": "l1-norm", "scope": "global"}
PRUNED = ("prune", {"weight": WEIGHTS})
FUSED = ("conv_bn_fusion", {})
RECIPES = {
    "pruned": [PRUNED],
    "pruned inputs": [("prune", {"weight": WEIGHTS, "activation": {"sparsity": 0.25}})],
    "pruned, quantized": [PRUNED, quantized("integer")],
    "quantized, pruned": [quantized("minifloat"), PRUNED],
    "fused": [FUSED],
    "fused, pruned, quantized": [FUSED, PRUNED, quantized("integer")],
    "narrower": [("prune_channels", {"sparsity": 0.3})],
    "adapted": [("insert_lora_adapter", {"rank": 2, "alpha": 1.0})],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    "name",
    [
        "jsc-tiny",
        pytest.param("vgg7", marks=pytest.mark.slow),
        pytest.param("resnet18", marks=pytest.mark.slow),
    ],
)
def test_what_passes_make_of_a_model_comes_back_and_trains_on(name, recipe, tmp_path):
    graph, _ = Pipeline(RECIPES[recipe])(graph_of(name, None))
    saved_trained_and_saved_again(graph, batch(name), tmp_path / "a")


SMALL = MaseDatasetInfo(name="small", image_size=(3, 8, 8), num_classes=4)


def trained_vgg7(x: Tensor) -> MaseGraph:
    """With batch norms that have seen something, or folding them would change nothing."""
    torch.manual_seed(0)
    model = get_model("vgg7", dataset_info=SMALL)
    train_a_step(model, x)
    about = {"dummy_in": {"x": x}, "add_value": False}
    return ready(MaseGraph(model.eval()), {"add_common_metadata": about})[0]


def masks(graph: MaseGraph) -> dict[str, Tensor]:
    state = graph.model.state_dict().items()
    return {key: value.clone() for key, value in state if key.endswith("_mask")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([PRUNED, FUSED, quantized("integer")], id="pruned first"),
        pytest.param(
            [FUSED, quantized("integer"), PRUNED], id="pruned last", marks=pytest.mark.slow
        ),
    ],
)
def test_a_pruned_quantized_and_fused_vgg7_survives_saving_and_training(steps, tmp_path):
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    graph, info = Pipeline(steps)(trained_vgg7(x))
    assert info["conv_bn_fusion"]["fused"] == 6
    pruned, before = masks(graph), out(graph.model, x)
    assert len(pruned) == 9
    graph.export(tmp_path / "a")
    loaded = MaseGraph.from_checkpoint(tmp_path / "a")
    assert_same_graph(graph, loaded, x)
    train_a_step(loaded.model, x)
    trained = out(loaded.model.eval(), x)
    assert not torch.equal(trained, before)
    loaded.export(tmp_path / "b")
    again = MaseGraph.from_checkpoint(tmp_path / "b")
    assert_same_graph(loaded, again, x)
    assert torch.equal(out(again.model, x), trained)
    assert same(masks(again), pruned)
    for key, mask in pruned.items():
        layer = again.modules[key.removesuffix(".weight_mask")]
        assert not layer.weight[~mask].any()
        assert type(layer).__name__ in ("Conv2dInteger", "LinearInteger")


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_a_saved_graph_comes_back_trains_on_and_is_saved_again(name, kind, tmp_path):
    graph, x = graph_of(name, CONFIGS[kind]), batch(name)
    again = saved_trained_and_saved_again(graph, x, tmp_path / "a")
    other = {"by": "type", "default": {"config": CONFIGS["integer"] | {"weight_width": 4}}}
    for each in (graph, again):
        run_pass("quantize", each, other)
    assert_same_graph(graph, again, x)


ENCODER, DECODER = nn.TransformerEncoderLayer(4, 2, 8), nn.TransformerDecoderLayer(4, 2, 8)
GROUPS = (  # arguments of constructors, and the beginnings of their names; others take none
    ((1,), "ReflectionPad ReplicationPad ZeroPad CircularPad"),
    ((2,), "LocalResponseNorm CrossMapLRN2d Adaptive AvgPool MaxPool MaxUnpool"),
    ((2,), "Upsample Pixel ChannelShuffle Unfold"),
    ((4,), "BatchNorm SyncBatchNorm InstanceNorm LayerNorm RMSNorm"),
    ((2, 2), "LPPool"),
    ((2, 3), "FractionalMaxPool"),
    ((2, 4), "GroupNorm"),
    ((3, 2), "Linear"),
    ((3, 3), "RNN LSTM GRU"),
    ((4, 2), "Fold MultiheadAttention"),
    ((7, 3), "Embedding"),
    ((2, 4, 3), "Conv"),
    ((3, 2, 2), "Bilinear"),
    ((4, 2, 8), "TransformerEncoderLayer TransformerDecoderLayer"),
    ((4, 2, 1, 1, 8), "Transformer"),
    ((0.5, 1.0), "Threshold"),
    ((1, 0.5), "ConstantPad"),
    ((1, (2, 2)), "Unflatten"),
    ((4, 6, [2]), "AdaptiveLogSoftmaxWithLoss"),
    ((ENCODER, 1), "TransformerEncoder"),
    ((DECODER, 1), "TransformerDecoder"),
)
ARGUMENTS = {name: arguments for arguments, names in GROUPS for name in names.split()}
TORCH_LAYERS = [cls for op in TABLE for cls in op.modules if cls.__module__.startswith("torch.nn.")]


@pytest.mark.sampled(34)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("cls", TORCH_LAYERS, ids=lambda cls: cls.__name__)
def test_every_layer_of_torch_that_the_table_knows_comes_back(cls, tmp_path):
    start = max((key for key in ARGUMENTS if cls.__name__.startswith(key)), key=len, default="")
    layer = cls(*ARGUMENTS.get(start, ()))
    graph = fx.Graph()
    graph.output(graph.call_module("layer", (graph.placeholder("x"),)))
    before = MaseGraph(fx.GraphModule(nn.ModuleDict({"layer": layer}), graph))
    before.export(tmp_path / "g")
    after = MaseGraph.from_checkpoint(tmp_path / "g").model
    assert str(after) == str(before.model)
    assert same(dict(after.state_dict()), dict(before.model.state_dict()))
    derived = {"_flat_weights", "_flat_weight_refs"}
    assert vars(after.layer).keys() - derived == vars(layer).keys() - derived
