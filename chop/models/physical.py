"""The labs' networks for jet substructure classification (JSC): small perceptrons.

As in the labs, all end in a ReLU, so their outputs are never negative, and work in place.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from chop.dataset.base import MaseDatasetInfo
from chop.models.base import ModelFamily, ModelSource, ModelTaskType, model

PHYSICAL_MODELS = ModelFamily("physical model", lambda info: info.is_physical_model)
physical_model = partial(model, task_type=ModelTaskType.PHYSICAL, model_source=ModelSource.PHYSICAL)


def relu() -> nn.ReLU:
    return nn.ReLU(inplace=True)


class SeqBlocks(nn.Module):
    """A sequence of layers, in the attribute that the labs use."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.seq_blocks = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.seq_blocks(x)
        return out


class JSC_Toy(SeqBlocks):
    """Two hidden layers of 8, with batch normalisation before every activation."""

    def __init__(self, info: MaseDatasetInfo) -> None:
        features, classes = info["num_features"], info["num_classes"]
        super().__init__(
            nn.BatchNorm1d(features),
            relu(),
            nn.Linear(features, 8),
            nn.BatchNorm1d(8),
            relu(),
            nn.Linear(8, 8),
            nn.BatchNorm1d(8),
            relu(),
            nn.Linear(8, classes),
            nn.BatchNorm1d(classes),
            relu(),
        )


class JSC_Tiny(SeqBlocks):
    """A single linear layer."""

    def __init__(self, info: MaseDatasetInfo) -> None:
        features, classes = info["num_features"], info["num_classes"]
        super().__init__(nn.BatchNorm1d(features), relu(), nn.Linear(features, classes), relu())


class JSC_S(nn.Module):
    """Hidden layers of 64, 32, 32 and 32."""

    def __init__(self, info: MaseDatasetInfo) -> None:
        super().__init__()
        features, classes = info["num_features"], info["num_classes"]
        first = [nn.BatchNorm1d(features), relu(), nn.Linear(features, 64), nn.BatchNorm1d(64)]
        self.module_list = nn.ModuleList(
            [
                nn.Sequential(*first, relu()),
                nn.Sequential(nn.Linear(64, 32), relu()),
                nn.Sequential(nn.Linear(32, 32), relu()),
                nn.Sequential(nn.Linear(32, 32), relu()),
                nn.Sequential(nn.Linear(32, classes), nn.BatchNorm1d(classes), relu()),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.module_list:
            x = block(x)
        return x


class JSC_Three_Linear_Layers(SeqBlocks):
    """Two hidden layers of 16, which lab 4 widens, with or without ReLUs between them."""

    def __init__(self, info: MaseDatasetInfo, *, relu_between: bool = True) -> None:
        features, classes = info["num_features"], info["num_classes"]
        linears = [nn.Linear(features, 16), nn.Linear(16, 16), nn.Linear(16, classes)]
        layers: list[nn.Module] = []
        for linear in linears:
            layers += [linear, relu()] if relu_between else [linear]
        end = [] if relu_between else [relu()]
        super().__init__(nn.BatchNorm1d(features), relu(), *layers, *end)


@physical_model("jsc-toy")
def get_jsc_toy(info: MaseDatasetInfo) -> nn.Module:
    """Two hidden layers of 8 with batch normalisation: 327 parameters on JSC."""
    return JSC_Toy(info)


@physical_model("jsc-tiny")
def get_jsc_tiny(info: MaseDatasetInfo) -> nn.Module:
    """One linear layer with batch normalisation: 117 parameters on JSC."""
    return JSC_Tiny(info)


@physical_model("jsc-s")
def get_jsc_s(info: MaseDatasetInfo) -> nn.Module:
    """Hidden layers of 64, 32, 32 and 32 with batch normalisation."""
    return JSC_S(info)


@physical_model("jsc-three-linear", "jsc-d")
def get_jsc_three_linear(info: MaseDatasetInfo, *, relu_between: bool = True) -> nn.Module:
    """Two hidden layers of 16, which lab 4 widens; `relu_between=False` omits their ReLUs."""
    return JSC_Three_Linear_Layers(info, relu_between=relu_between)
