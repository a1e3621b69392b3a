"""Tensors, state dicts and other objects that `torch.save` can write and no model expects."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from .mutations import ODD, TEXTS

ODD_TENSORS: Mapping[str, Callable[[Tensor], Any]] = {
    "half": Tensor.half,
    "complex": lambda t: torch.complex(t.float(), t.float()),
    "bool": Tensor.bool,
    "bytes": lambda t: t.to(torch.uint8),
    "nan": lambda t: torch.full_like(t, float("nan")) if t.is_floating_point() else t - 1,
    "infinite": lambda t: t.float() / 0,
    "sparse": lambda t: t.to_sparse(),
    "meta": lambda t: t.to("meta"),
    "quantised": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    "nested": lambda t: torch.nested.nested_tensor([t.float().flatten(), t.float().flatten()]),
    "empty": lambda t: t[:0] if t.ndim else t,
    "scalar": lambda t: t.flatten()[0],
    "longer": lambda t: torch.cat([t, t]) if t.ndim else t.repeat(3),
    "expanded": lambda t: torch.zeros(1).expand(1 << 40),
    "transposed": lambda t: t.T.contiguous() if t.ndim == 2 else t[None],
    "parameter": lambda t: nn.Parameter(t.float()),
    "number": lambda t: 1.0,
    "none": lambda t: None,
    "list": Tensor.tolist,
}


def odd_tensor(random: Random, tensor: Tensor) -> Any:
    """Return a tensor that cannot take the place of `tensor`, or that is no tensor."""
    return ODD_TENSORS[random.choice(sorted(ODD_TENSORS))](tensor)


def odd_state(random: Random, state: Mapping[str, Tensor]) -> dict[Any, Any]:
    """Return a state dict with odd tensors, or with keys that are missing, new or no text."""
    odd: dict[Any, Any] = dict(state)
    key = random.choice(sorted(state))
    way = random.randrange(5)
    if way == 0:
        del odd[key]
    elif way == 1:
        odd[random.choice((*TEXTS, 0, None, ("a",), 1.5))] = odd.pop(key)
    else:
        odd[key] = odd_tensor(random, odd[key])
    return odd


def odd_object(random: Random, state: Mapping[str, Tensor]) -> Any:
    """Return an object that is no state dict, or one that is wrapped in an odd way."""
    odd = random.choice(ODD)
    return random.choice(
        (
            odd,
            list(state.items()),
            {},
            {"state_dict": odd},
            {"model": odd},
            {"state_dict": dict(state), "model": odd},
            {"state_dict": {"state_dict": dict(state)}},
            {"pytorch-lightning_version": odd, "state_dict": dict(state)},
            {"state_dict": dict(state), "hyper_parameters": odd},
            collections.OrderedDict((("module." + k), v) for k, v in state.items()),
            next(iter(state.values())),
        )
    )
