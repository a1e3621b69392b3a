"""Post-training quantisation by Brevitas, as the rival of benchmarks/quantization.py.

Needs `pip install brevitas==0.13.4 accelerate` (accelerate: Brevitas' learned rounding).
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import torch
from brevitas.graph.calibrate import bias_correction_mode, calibration_mode
from brevitas.graph.equalize import activation_equalization_mode
from brevitas.graph.gptq import gptq_mode
from brevitas.graph.quantize import layerwise_quantize, preprocess_for_quantize
from brevitas_examples.imagenet_classification.ptq.ptq_common import create_quant_maps
from torch import Tensor, nn

REPAIRS = ("none", "equalize", "smooth", "correct_bias", "gptq", "adaround")
ROUNDING_STEPS = 1000  # the default of Brevitas' example


def quantized(
    model: nn.Module,
    batches: Sequence[Tensor],
    *,
    weight_bits: int,
    activation_bits: int,
    repair: str,
    steps: int = ROUNDING_STEPS,
) -> tuple[nn.Module, float]:
    """Return the model as Brevitas quantises it, and the seconds that its repair took."""
    if any(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in model.modules()):
        model = preprocess_for_quantize(
            model, equalize_iters=20 if repair == "equalize" else 0, merge_bn=True
        )
    device = batches[0].device
    with torch.no_grad():
        if repair == "smooth":
            with activation_equalization_mode(model, alpha=0.5, layerwise=True, add_mul_node=True):
                _feed(model, batches)
        _, layer_map, *_ = create_quant_maps(
            dtype=torch.float32,
            device=device,
            bias_bit_width=32,
            weight_bit_width=weight_bits,
            weight_param_method="mse" if weight_bits < 8 else "stats",
            weight_scale_type="float_scale",
            weight_quant_type="sym",
            weight_quant_granularity="per_channel",
            weight_narrow_range=False,
            weight_quant_format="int",
            act_quant_format="int",
            act_bit_width=activation_bits,
            act_scale_type="float_scale",
            act_scale_computation_type="static",
            act_param_method="mse" if activation_bits < 8 else "stats",
            act_quant_type="asym",
            act_quant_granularity="per_tensor",
            act_quant_percentile=99.999,
        )
        model = layerwise_quantize(model, compute_layer_map=layer_map).eval()
        _feed(model, batches[:1])
        with calibration_mode(model):
            _feed(model, batches)
    start = time.perf_counter()
    _repair(model, batches, repair, steps)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return model, time.perf_counter() - start


def _feed(model: nn.Module, batches: Sequence[Tensor]) -> None:
    for batch in batches:
        model(batch)


def _repair(model: nn.Module, batches: Sequence[Tensor], repair: str, steps: int) -> None:
    if repair == "correct_bias":
        with torch.no_grad(), bias_correction_mode(model):
            _feed(model, batches)
    elif repair == "gptq":
        with (
            torch.no_grad(),
            gptq_mode(
                model, act_order=True, use_quant_activations=True, create_weight_orig=False
            ) as gptq,
        ):
            for _ in range(gptq.num_layers):
                _feed(gptq.model, batches)
                gptq.update()
    elif repair == "adaround":
        _learned_rounding()(
            model=model,
            calibration_loader=[(batch, None) for batch in batches],
            args=Namespace(
                learned_round="hard_sigmoid",
                learned_round_mode="layerwise",
                learned_round_loss="regularised_mse",
                learned_round_lr=1e-3,
                learned_round_lr_scheduler=None,
                learned_round_iters=steps,
                learned_round_batch_size=32,
            ),
        )


def _learned_rounding() -> Callable[..., Any]:
    from brevitas_examples.imagenet_classification.ptq.learned_round_utils import (
        apply_learned_round,
    )

    return apply_learned_round  # type: ignore[no-any-return]
