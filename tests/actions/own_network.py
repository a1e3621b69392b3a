"""A small quantised network of one's own, saved in a project, for tests of commands."""

import sys
from contextlib import contextmanager

from chop.models.base import MODELS

OWN = """
from torch import nn
from chop.models import model

@model("{name}")
def build(info):
    return nn.Sequential(nn.Linear(info.num_features, 3), nn.ReLU(), nn.Linear(3, info.num_classes))
"""
ROWS = "a,b,kind\n" + "".join(f"{i % 7},{i % 5},{'yes' if i % 2 else 'no'}\n" for i in range(60))
FORMATS = """
[passes.quantize]
by = "type"
[passes.quantize.default.config]
name = "integer"
data_in_width = {width}
data_in_frac_width = 3
weight_width = 5
weight_frac_width = 4
"""


@contextmanager
def saved_network(here, folder, name, *, width=6, runs="runs", project="p"):
    """Yield the words of a command that names the network, and its checkpoint."""
    (folder / "own.py").write_text(OWN.format(name=name))
    (folder / "rows.csv").write_text(ROWS)
    (folder / "formats.toml").write_text(FORMATS.format(width=width))
    words = [name, "csv", "--import", folder / "own.py"]
    words += ["--data-path", folder / "rows.csv", "--cpu", 0]
    place = ("--project-dir", folder / runs, "--project", project)
    code, out, err = here("transform", *words, "--config", folder / "formats.toml", *place)
    assert code == 0, out + err
    try:
        yield words, folder / runs / project / "software" / "transform" / "transformed_ckpt"
    finally:
        MODELS._items.pop(name, None)
        for module in [module for module in sys.modules if module.startswith("mase_user_own_")]:
            del sys.modules[module]
