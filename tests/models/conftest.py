"""What a test registers is gone after it."""

from collections.abc import Iterator

import pytest

from chop.dataset import MaseDatasetInfo
from chop.models import MODELS


@pytest.fixture(autouse=True)
def _registered_models() -> Iterator[None]:
    models = dict(MODELS.items())
    yield
    MODELS._items.clear()
    MODELS._items.update(models)


@pytest.fixture
def jets() -> MaseDatasetInfo:
    return MaseDatasetInfo(name="jsc", num_features=16, num_classes=5)


@pytest.fixture
def pictures() -> MaseDatasetInfo:
    return MaseDatasetInfo(name="cifar10", image_size=(3, 32, 32), num_classes=10)
