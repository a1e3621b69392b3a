"""The networks are the published ones: sizes, names of parameters, layers."""

import pytest
import torch
from torch import nn

from chop.dataset import MaseDatasetInfo, get_dataset_info
from chop.models import get_model
from chop.models.physical import JSC_Three_Linear_Layers

IMAGENET = MaseDatasetInfo(name="imagenet", image_size=(3, 224, 224), num_classes=1000)
MNIST = MaseDatasetInfo(name="mnist", image_size=(1, 28, 28), num_classes=10)
# name -> parameters for ImageNet, entries of the published state dict, some of their names
PUBLISHED = {
    "resnet18": (11_689_512, 122, ["conv1.weight", "layer1.0.conv1.weight", "fc.weight"]),
    "resnet34": (21_797_672, 218, ["layer3.5.bn2.running_var", "layer4.0.downsample.0.weight"]),
    "resnet50": (25_557_032, 320, ["layer1.0.conv3.weight", "layer1.0.downsample.1.bias"]),
    "resnet101": (44_549_160, 626, ["layer3.22.conv3.weight"]),
    "wideresnet50_2": (68_883_240, 320, ["layer4.2.bn3.num_batches_tracked"]),
    "mobilenetv2": (
        3_504_872,
        314,
        ["features.0.0.weight", "features.1.conv.1.weight", "features.2.conv.3.running_mean",
         "features.18.1.weight", "classifier.1.bias"],
    ),
    "mobilenetv3_small": (
        2_542_856,
        244,
        ["features.1.block.1.fc1.weight", "features.12.0.weight", "classifier.3.weight"],
    ),
    "mobilenetv3_large": (
        5_483_032,
        312,
        ["features.1.block.0.0.weight", "features.4.block.2.fc2.bias", "features.16.1.bias"],
    ),
    "deit_tiny_patch16_224": (
        5_717_416,
        152,
        ["cls_token", "pos_embed", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight",
         "blocks.11.mlp.fc2.bias", "norm.weight", "head.bias"],
    ),
    "deit_small_patch16_224": (22_050_664, 152, ["blocks.3.attn.proj.weight"]),
    "deit_base_patch16_224": (86_567_656, 152, ["blocks.5.norm2.bias"]),
}  # fmt: skip


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_weights_would_fit(name):
    parameters, entries, keys = PUBLISHED[name]
    with torch.device("meta"):
        model = get_model(name, dataset_info=IMAGENET)
    assert size(model) == parameters
    assert len(model.state_dict()) == entries
    assert set(keys) <= model.state_dict().keys()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("jsc-tiny", 117),
        ("jsc-toy", 327),
        ("jsc-s", 32 + 1088 + 128 + 2080 + 1056 + 1056 + 165 + 10),
        ("jsc-three-linear", 32 + 272 + 272 + 85),
        ("mlp", 1088 + 2080 + 1056 + 165),
    ],
)
def test_networks_for_jets_have_the_parameters_of_the_labs(name, parameters, jets):
    assert size(get_model(name, dataset_info=jets)) == parameters


@pytest.mark.parametrize(("name", "parameters"), [("toy", 130), ("toy_tiny", 16)])
def test_toys_have_the_parameters_of_the_labs(name, parameters):
    model = get_model(name, dataset_info=get_dataset_info("toy_tiny"))
    assert size(model) == parameters
    assert model(torch.rand(3, 1, 2, 2)).shape == (3, 2)


@pytest.mark.parametrize("name", ["jsc-tiny", "jsc-toy", "jsc-s", "jsc-three-linear"])
def test_jet_networks_never_give_negative_scores(name, jets):
    scores = get_model(name, dataset_info=jets)(torch.randn(64, 16))
    assert (scores >= 0).all()


def test_jet_networks_print_as_in_the_labs(jets):
    printed = str(get_model("jsc-tiny", dataset_info=jets))
    assert "(seq_blocks): Sequential(" in printed
    assert "(3): ReLU(inplace=True)" in printed


def test_jsc_s_keeps_its_blocks_in_a_module_list(jets):
    blocks = get_model("jsc-s", dataset_info=jets).module_list
    assert [len(block) for block in blocks] == [5, 2, 2, 2, 3]


def test_three_linear_has_its_layers_where_lab_4_looks_for_them(jets):
    layers = get_model("jsc-three-linear", dataset_info=jets).seq_blocks
    assert [i for i, layer in enumerate(layers) if isinstance(layer, nn.Linear)] == [2, 4, 6]
    assert len(layers) == 8
    assert len({id(layer) for layer in layers}) == 8
    plain = JSC_Three_Linear_Layers(jets, relu_between=False).seq_blocks
    assert [type(layer).__name__ for layer in plain] == [
        "BatchNorm1d", "ReLU", "Linear", "Linear", "Linear", "ReLU",
    ]  # fmt: skip


def test_vgg7_has_its_convolutions_where_the_labs_look_for_them(pictures):
    with torch.device("meta"):
        model = get_model("vgg7", dataset_info=pictures)
    convs = [i for i, m in enumerate(model.feature_layers) if isinstance(m, nn.Conv2d)]
    assert convs == [0, 3, 7, 10, 14, 17]
    assert len(model.feature_layers) == 21
    assert model.feature_layers[1].momentum == 0.9
    assert model.classifier[0].in_features == 8192
    assert size(model) == 14_029_450


def test_lfc_and_cnv_have_the_widths_of_their_paper(pictures):
    with torch.device("meta"):
        lfc, cnv = get_model("lfc", dataset_info=MNIST), get_model("cnv", dataset_info=pictures)
    dense = [tuple(m.weight.shape) for m in lfc.modules() if isinstance(m, nn.Linear)]
    assert dense == [(1024, 784), (1024, 1024), (1024, 1024), (10, 1024)]
    convs = [m.out_channels for m in cnv.modules() if isinstance(m, nn.Conv2d)]
    assert convs == [64, 64, 128, 128, 256, 256]
    dense = [tuple(m.weight.shape) for m in cnv.modules() if isinstance(m, nn.Linear)]
    assert dense == [(512, 256), (512, 512), (10, 512)]


def test_lenet_is_small_enough_for_a_circuit():
    model = get_model("lenet", dataset_info=MNIST)
    assert size(model) == (25 + 1) * 4 + (4 * 25 + 1) * 8 + (200 + 1) * 32 + (32 + 1) * 10
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


class TestMlp:
    def test_its_widths_are_an_option(self, jets):
        model = get_model("mlp", dataset_info=jets, hidden=[4, 3], batch_norm=True, dropout=0.5)
        assert [type(layer).__name__ for layer in model.seq_blocks] == [
            "Linear", "BatchNorm1d", "ReLU", "Dropout",
            "Linear", "BatchNorm1d", "ReLU", "Dropout",
            "Linear",
        ]  # fmt: skip
        assert [m.out_features for m in model.seq_blocks if isinstance(m, nn.Linear)] == [4, 3, 5]

    def test_without_hidden_layers_it_is_one_linear_layer(self, jets):
        assert size(get_model("mlp", dataset_info=jets, hidden=[])) == 85

    def test_it_flattens_images(self):
        assert get_model("mlp", dataset_info=MNIST)(torch.rand(2, 1, 28, 28)).shape == (2, 10)

    @pytest.mark.parametrize("hidden", [[0], [64, -1], [64, "32"], [2.5], [True], "64", 64])
    def test_what_is_no_list_of_widths_is_refused(self, hidden, jets):
        with pytest.raises(ValueError, match=r"hidden.*(valid|list of positive widths|Sequence)"):
            get_model("mlp", dataset_info=jets, hidden=hidden)


class TestSmallImages:
    def test_the_resolution_is_kept_in_the_first_layers(self, pictures):
        with torch.device("meta"):
            model = get_model("resnet18", dataset_info=pictures)
            features = model.layer1(model.maxpool(model.conv1(torch.empty(1, 3, 32, 32))))
        assert features.shape[-2:] == (32, 32)

    @pytest.mark.parametrize("name", ["mobilenetv2", "mobilenetv3_small", "mobilenetv3_large"])
    def test_mobilenets_take_the_first_stride_out(self, name, pictures):
        with torch.device("meta"):
            small = get_model(name, dataset_info=pictures)
            large = get_model(name, dataset_info=pictures, small_images=False)
        assert small.features[0][0].stride == (1, 1)
        assert large.features[0][0].stride == (2, 2)

    def test_the_stem_is_an_option(self, pictures):
        with torch.device("meta"):
            model = get_model("resnet18", dataset_info=pictures, small_images=False)
            small = get_model("resnet18", dataset_info=IMAGENET, small_images=True)
        assert model.conv1.kernel_size == (7, 7)
        assert small.conv1.kernel_size == (3, 3)

    def test_grey_and_oblong_images_work(self):
        info = MaseDatasetInfo(name="grey", image_size=(1, 32, 48), num_classes=3)
        with torch.device("meta"):
            for name in ("resnet18", "mobilenetv2", "vgg7", "vit_tiny_patch4_32", "toy_convnet"):
                model = get_model(name, dataset_info=info)
                assert model(torch.empty(2, 1, 32, 48)).shape == (2, 3)


def test_an_evaluated_transformer_drops_nothing(pictures):
    model = get_model("vit_tiny_patch4_32", dataset_info=pictures, dropout=0.5).eval()
    x = torch.rand(1, 3, 32, 32)
    assert torch.equal(model(x), model(x))


def test_a_batch_size_that_scripts_give_to_a_toy_has_no_effect():
    from chop.models.toys.toy_custom_fn import ToyCustomFnNet

    network = ToyCustomFnNet(get_dataset_info("toy_tiny"), batch_size=4)
    assert network(torch.ones(2, 1, 2, 2)).shape == (2, 2)
