"""The same transforms on an untraced nn.Module."""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.passes.module.base import PASSES, module_pass
    from chop.passes.module.calculate_avg_bits import calculate_avg_bits_module_analysis_pass
    from chop.passes.module.quantize import quantize_module_transform_pass
    from chop.passes.module.report_trainable_parameters import (
        report_trainable_parameters_analysis_pass,
    )

__all__ = [
    "PASSES",
    "calculate_avg_bits_module_analysis_pass",
    "module_pass",
    "quantize_module_transform_pass",
    "report_trainable_parameters_analysis_pass",
]

__getattr__ = lazy.importer(__name__, __file__)
