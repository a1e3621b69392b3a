import torch.nn as nn
from chop.models import MaseModelInfo
from chop.models.physical import PHYSICAL_MODELS


class JSC_Big(nn.Module):
    def __init__(self, info):
        super(JSC_Big, self).__init__()
        self.seq_blocks = nn.Sequential(
            nn.BatchNorm1d(16), nn.ReLU(16), nn.Linear(16, 32),
            nn.BatchNorm1d(32), nn.ReLU(32), nn.Linear(32, 16),
            nn.BatchNorm1d(16), nn.ReLU(16), nn.Linear(16, 8),
            nn.BatchNorm1d(8), nn.ReLU(8), nn.Linear(8, 5),
            nn.ReLU(5),
        )

    def forward(self, x):
        return self.seq_blocks(x)


def get_jsc_big(info):
    return JSC_Big(info)


PHYSICAL_MODELS["jsc-big"] = {
    "model": get_jsc_big,
    "info": MaseModelInfo(
        "jsc-s",
        model_source="physical",
        task_type="physical",
        physical_data_point_classification=True,
        is_fx_traceable=True,
    ),
}
