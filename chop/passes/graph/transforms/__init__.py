"""Passes that change a graph."""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.passes.graph.transforms.fusion import conv_bn_fusion_transform_pass
    from chop.passes.graph.transforms.granularity import raise_granularity_transform_pass
    from chop.passes.graph.transforms.integers import to_integer_graph_transform_pass
    from chop.passes.graph.transforms.learned_bits import (
        freeze_bits_transform_pass,
        learn_bits_transform_pass,
    )
    from chop.passes.graph.transforms.patch_metadata import patch_metadata_transform_pass
    from chop.passes.graph.transforms.pruning import (
        prune_channels_transform_pass,
        prune_detach_hook_transform_pass,
        prune_transform_pass,
    )
    from chop.passes.graph.transforms.quantize import (
        quantize_static_transform_pass,
        quantize_transform_pass,
        summarize_quantization_analysis_pass,
    )
    from chop.passes.graph.transforms.redefine import (
        redefine_conv_transform_pass,
        redefine_linear_transform_pass,
        redefine_transform_pass,
    )
    from chop.passes.graph.transforms.remove import (
        remove_dropout_transform_pass,
        remove_identity_transform_pass,
    )
    from chop.passes.graph.transforms.repair import (
        adaround_transform_pass,
        correct_bias_transform_pass,
        equalize_transform_pass,
        fold_batch_norm_transform_pass,
        gptq_transform_pass,
        smooth_transform_pass,
    )
    from chop.passes.graph.transforms.replace import replace_transform_pass
    from chop.passes.graph.transforms.verilog import (
        emit_bram_transform_pass,
        emit_cocotb_transform_pass,
        emit_internal_rtl_transform_pass,
        emit_verilog_top_transform_pass,
        emit_vivado_project_transform_pass,
    )

__all__ = [
    "adaround_transform_pass",
    "conv_bn_fusion_transform_pass",
    "correct_bias_transform_pass",
    "emit_bram_transform_pass",
    "emit_cocotb_transform_pass",
    "emit_internal_rtl_transform_pass",
    "emit_verilog_top_transform_pass",
    "emit_vivado_project_transform_pass",
    "equalize_transform_pass",
    "fold_batch_norm_transform_pass",
    "freeze_bits_transform_pass",
    "gptq_transform_pass",
    "learn_bits_transform_pass",
    "patch_metadata_transform_pass",
    "prune_channels_transform_pass",
    "prune_detach_hook_transform_pass",
    "prune_transform_pass",
    "quantize_static_transform_pass",
    "quantize_transform_pass",
    "raise_granularity_transform_pass",
    "redefine_conv_transform_pass",
    "redefine_linear_transform_pass",
    "redefine_transform_pass",
    "remove_dropout_transform_pass",
    "remove_identity_transform_pass",
    "replace_transform_pass",
    "smooth_transform_pass",
    "summarize_quantization_analysis_pass",
    "to_integer_graph_transform_pass",
    *lazy.names_of_methods("passes"),
]

__getattr__ = lazy.importer(__name__, __file__, room="passes")
