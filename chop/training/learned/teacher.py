"""The network whose outputs the networks of a front learn."""

from __future__ import annotations

import copy

import torch
from torch import nn

from chop.dataset.nested import map_tensors
from chop.training.feed import Feed
from chop.training.outputs import Predictor


@torch.no_grad()
def check_teacher(teacher: nn.Module, network: nn.Module, feed: Feed) -> None:
    """Refuse a teacher whose outputs for the data cannot be compared with those of the network."""
    x, _ = next(iter(feed.every()))
    sample = map_tensors(lambda tensor: tensor[:2], x)
    device = next(iter(teacher.state_dict().values())).device if teacher.state_dict() else "cpu"
    ours = Predictor(copy.deepcopy(network).to(device).eval())(sample)
    try:
        theirs = Predictor(teacher)(sample)
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"the teacher cannot process the samples: {reason}") from error
    if theirs.shape != ours.shape:
        raise ValueError(
            f"the teacher gives outputs of shape {[*theirs.shape[1:]]} and the network "
            f"{[*ours.shape[1:]]}; use a teacher that was trained for the same task"
        )
