"""Truth tables, and the tables that the weights of a trained layer become."""

from __future__ import annotations

from torch import Tensor

from chop.methods.lutnet.layers import Conv2dLUT, LinearLUT, LUTNet, generate_truth_table

__all__ = ["generate_truth_table", "init_Conv2dLUT_weight", "init_LinearLUT_weight"]


def init_LinearLUT_weight(
    new_module: LinearLUT, original_weight: Tensor, original_pruning_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the tables, [levels · out · in, 2^k], and the mask, [out, in], of a linear layer.

    They are computed from the weight of a trained layer, as if `new_module` were made from it.
    Without a mask, weights of zero count as pruned. Nothing is changed.
    """
    return _initial(new_module, original_weight, original_pruning_mask)


def init_Conv2dLUT_weight(
    new_module: Conv2dLUT, original_weight: Tensor, original_pruning_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the tables and the mask of a convolution, as `init_LinearLUT_weight` does.

    A weight of shape [out, in, height, width] has a table for each of its elements.
    """
    return _initial(new_module, original_weight, original_pruning_mask)


def _initial(layer: LUTNet, weight: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    wanted = (layer.num_neurons, layer.num_inputs)
    given = [weight] if mask is None else [weight, mask]
    for name, tensor in zip(("weight", "mask"), given, strict=False):
        if tuple(tensor.flatten(1).shape) != wanted:
            raise ValueError(
                f"the {name} of shape {list(tensor.shape)} does not fit {type(layer).__name__}, "
                f"which has {wanted[0]} neurons of {wanted[1]} inputs"
            )
    weights = weight.detach().flatten(1)
    masks = (weights != 0 if mask is None else mask.flatten(1)).to(weights.dtype)
    return layer.initial_tables(weights, masks), masks
