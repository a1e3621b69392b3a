"""Passes that prepare a float graph for quantisation, or repair what quantisation lost."""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.passes.graph.transforms.repair.adaround import adaround_transform_pass
    from chop.passes.graph.transforms.repair.correct_bias import correct_bias_transform_pass
    from chop.passes.graph.transforms.repair.equalize import equalize_transform_pass
    from chop.passes.graph.transforms.repair.fold_batch_norm import fold_batch_norm_transform_pass
    from chop.passes.graph.transforms.repair.gptq import gptq_transform_pass
    from chop.passes.graph.transforms.repair.smooth import smooth_transform_pass

__all__ = [
    "adaround_transform_pass",
    "correct_bias_transform_pass",
    "equalize_transform_pass",
    "fold_batch_norm_transform_pass",
    "gptq_transform_pass",
    "smooth_transform_pass",
]

__getattr__ = lazy.importer(__name__, __file__)
