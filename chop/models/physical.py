"""The labs' networks for jet substructure classification (JSC): small perceptrons.

As in the labs, all end in a ReLU, so their outputs are never negative, and work in place.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from torch import Tensor, nn

from chop.dataset.base import MaseDatasetInfo
from chop.models.base import ModelFamily, model
from chop.models.info import ModelSource, ModelTaskType

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


@physical_model("jsc-toy")
class JSC_Toy(SeqBlocks):
    """Two hidden layers of 8 with batch normalisation: 327 parameters on JSC."""

    def __init__(self, info: MaseDatasetInfo) -> None:
        features, classes = info["num_features"], info["num_classes"]
        layers: list[nn.Module] = [nn.BatchNorm1d(features), relu()]
        for inputs, outputs in pairwise((features, 8, 8, classes)):
            layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), relu()]
        super().__init__(*layers)


@physical_model("jsc-tiny")
class JSC_Tiny(SeqBlocks):
    """One linear layer with batch normalisation: 117 parameters on JSC."""

    def __init__(self, info: MaseDatasetInfo) -> None:
        features, classes = info["num_features"], info["num_classes"]
        super().__init__(nn.BatchNorm1d(features), relu(), nn.Linear(features, classes), relu())


@physical_model("jsc-s")
class JSC_S(nn.Module):
    """Hidden layers of 64, 32, 32 and 32 with batch normalisation."""

    def __init__(self, info: MaseDatasetInfo) -> None:
        super().__init__()
        features, classes = info["num_features"], info["num_classes"]
        first = [nn.BatchNorm1d(features), relu(), nn.Linear(features, 64), nn.BatchNorm1d(64)]
        hidden = [nn.Sequential(nn.Linear(inputs, 32), relu()) for inputs in (64, 32, 32)]
        last = nn.Sequential(nn.Linear(32, classes), nn.BatchNorm1d(classes), relu())
        self.module_list = nn.ModuleList([nn.Sequential(*first, relu()), *hidden, last])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.module_list:
            x = block(x)
        return x


@physical_model("jsc-three-linear", "jsc-d")
class JSC_Three_Linear_Layers(SeqBlocks):
    """Two hidden layers of 16, which lab 4 widens; `relu_between=False` omits their ReLUs."""

    def __init__(self, info: MaseDatasetInfo, *, relu_between: bool = True) -> None:
        features, classes = info["num_features"], info["num_classes"]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((features, 16, 16, classes)):
            layers += [nn.Linear(inputs, outputs), *([relu()] if relu_between else [])]
        end = [] if relu_between else [relu()]
        super().__init__(nn.BatchNorm1d(features), relu(), *layers, *end)
