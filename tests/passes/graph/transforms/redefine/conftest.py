"""Small networks of each kind, as after training, in double precision."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.dataset import MaseDatasetInfo
from chop.ir.graph.mase_graph import MaseGraph
from chop.models import get_model
from chop.models.vision.resnet import BasicBlock, ResNet
from chop.models.vision.vgg import VGG7
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    redefine_transform_pass,
)

JETS = MaseDatasetInfo(name="jets", num_features=16, num_classes=5)


class Concat(nn.Module):
    """Dense connections, a sum over them, a gate, a depthwise convolution, a view."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 1)
        self.c, self.norm = nn.Conv2d(7, 7, 3, padding=1, bias=False), nn.BatchNorm2d(7)
        self.deep = nn.Conv2d(7, 14, 3, padding=1, groups=7)
        self.gate, self.act = nn.Linear(14, 14), nn.PReLU(14)
        self.up, self.head = nn.ConvTranspose2d(14, 5, 2, stride=2), nn.Linear(80, 2)

    def forward(self, x):
        x = F.relu(self.a(x))
        x = torch.cat([x, torch.tanh(self.b(x))], 1)
        x = F.avg_pool2d(self.norm(self.c(x)) + x, 4)
        x = self.act(self.deep(x))
        x = x * self.gate(x.mean((2, 3)))[:, :, None, None].sigmoid()
        return self.head(self.up(x).view(-1, 80))


class Plain(Concat):
    """The same without the gate, whose indexing keeps the channels that it reads."""

    def forward(self, x):
        x = F.relu(self.a(x))
        x = torch.cat([x, torch.tanh(self.b(x))], 1)
        x = F.avg_pool2d(self.norm(self.c(x)) + x, 4)
        return self.head(self.up(self.act(self.deep(x))).view(-1, 80))


def trained_like(model):
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    return model.double().eval()


def graph_of(model, x, **options):
    mg, _ = init_metadata_analysis_pass(MaseGraph(model))
    dummy_in = {str(mg.inputs[0].target): x}
    options = {"add_value": False, **options}
    return add_common_metadata_analysis_pass(mg, {"dummy_in": dummy_in, **options})[0]


def parent(model, x):
    """A graph, what it is fed, and what comes out."""
    x = x.double()
    model = trained_like(model)
    return SimpleNamespace(graph=graph_of(model, x), model=model, x=x, y=model(x).detach())


def small_vgg():
    """vgg7 a sixteenth as wide, which the pass itself makes of it."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        mg = graph_of(VGG7((3, 8, 8), 4), torch.randn(2, 3, 8, 8))
        sixteenth = {"config": {"name": "both", "channel_multiplier": 1 / 16}}
        mg, _ = redefine_transform_pass(mg, {"default": sixteenth})
        del mg.model.original_architecture  # from here on this is the original
        return mg.model


def build(name):
    torch.manual_seed(3)
    pictures = torch.randn(2, 3, 8, 8)
    if name == "jsc":
        return parent(get_model("jsc-three-linear", dataset_info=JETS), torch.randn(6, 16))
    if name == "vgg":
        return parent(small_vgg(), pictures)
    if name == "resnet":
        net = ResNet(BasicBlock, (2, 2, 2, 2), num_classes=3, width=3, small_images=True)
        return parent(net, pictures)
    return parent({"concat": Concat, "plain": Plain}[name](), pictures)


@pytest.fixture(scope="session")
def parents():
    """`parents(name)`: made once; redefine a clone of its graph."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = build(name)
        return made[name]

    return get


@pytest.fixture
def make_graph():
    return graph_of
